// JSON values as trees that fold.

import { html, useState } from "./vendor/standalone.mjs";

const PART = 200; // members that are shown at first
const OPEN_DEPTH = 3;

/** Return {value} of a text that is a JSON object or array, else null. */
export function parseJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return { value: JSON.parse(text) };
  } catch {
    return null;
  }
}

export function JsonTree({ value }) {
  return html`<div class="json mono" role="tree" aria-label="JSON"><${Node} value=${value} depth=${0} /></div>`;
}

function Node({ name = null, value, depth }) {
  const label = name === null ? null : html`<span class="json-key">${name}</span><span class="muted">: </span>`;
  if (value === null || typeof value !== "object") return html`<div class="json-leaf" role="treeitem">${label}<${Leaf} value=${value} /></div>`;
  return html`<${Branch} label=${label} value=${value} depth=${depth} />`;
}

function Branch({ label, value, depth }) {
  const [isOpen, setOpen] = useState(depth < OPEN_DEPTH);
  const [limit, setLimit] = useState(PART);
  const isArray = Array.isArray(value);
  const members = isArray ? value.map((each, index) => [String(index), each]) : Object.entries(value);
  const [open, shut] = isArray ? "[]" : "{}";
  if (!members.length) return html`<div class="json-leaf" role="treeitem">${label}<span class="muted">${open}${shut}</span></div>`;
  return html`<details open=${isOpen} onToggle=${(event) => event.target === event.currentTarget && setOpen(event.target.open)} role="treeitem">
    <summary>${label}<span class="muted">${open}${isOpen ? "" : ` ${members.length} ${shut}`}</span></summary>
    ${isOpen ? html`<div class="json-members" role="group">
      ${members.slice(0, limit).map(([key, each]) => html`<${Node} key=${key} name=${key} value=${each} depth=${depth + 1} />`)}
      ${members.length > limit ? html`<button type="button" class="quiet small" onClick=${() => setLimit(limit + PART)}>${members.length - limit} more</button>` : null}
    </div>` : null}
  </details>`;
}

function Leaf({ value }) {
  return html`<span class=${`json-${value === null ? "null" : typeof value}`}>${JSON.stringify(value)}</span>`;
}
