// Constraints: as fields of requests, checked by the server, and the tokens that one allows.

import { api } from "./api.js";
import { visible } from "./strip.js";
import { count, percent } from "./ui.js";
import { html } from "./vendor/standalone.mjs";

const PATH = "v1/ramiform/constraint";

export const KINDS = {
  json_schema: "JSON Schema",
  regex: "Regex",
  grammar: "Grammar",
  choices: "Choices",
  structural_tag: "Structural tag",
};

export const choicesOf = (source) => source.split("\n").filter((line) => line !== "");

/** Return a constraint as the route that checks it takes it. */
export const checkedFields = (kind, source) => ({ [kind]: kind === "choices" ? choicesOf(source) : source });

/** Return a constraint as a field of a chat or completion. A schema is sent as text where JSON values would change it. */
export function requestFields(kind, source) {
  if (kind === "choices") return { structured_outputs: { choice: choicesOf(source) } };
  if (kind !== "json_schema") return { [kind]: source };
  const schema = losslessJson(source);
  if (schema === null) return { json_schema: source };
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
}

/** Parse JSON whose value says the same as its text: no large numbers, no reordered keys. Else null. */
function losslessJson(source) {
  const squeezed = (text) => text.replace(/"(?:[^"\\]|\\.)*"|\s+/g, (part) => (part[0] === '"' ? part : ""));
  try {
    const value = JSON.parse(source);
    const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
    return isObject && JSON.stringify(value) === squeezed(source) ? value : null;
  } catch {
    return null;
  }
}

/** Return the constraint of a request as the checking route takes it, or null. */
export function constraintOf(body) {
  const format = body.response_format;
  if (format?.type === "json_object") return { json_schema: { type: "object" } };
  if (format?.type === "json_schema") return { json_schema: format.json_schema.schema };
  if (body.structured_outputs?.choice) return { choices: body.structured_outputs.choice };
  const name = ["json_schema", "regex", "grammar", "structural_tag"].find((each) => body[each] !== undefined);
  return name ? { [name]: body[name] } : null;
}

export const checkConstraint = (constraint, text, signal) => api.post(PATH, { constraint, text, top: 64 }, signal);

/** Describe what an answer's constraint allowed before its token at `index`. */
export async function allowedAt(answer, index) {
  const constraint = constraintOf(answer.request.body);
  const before = answer.tokens.slice(0, index).map(({ id }) => id);
  try {
    const text = before.length ? (await api.post("detokenize", { tokens: before })).text : "";
    const result = await checkConstraint(constraint, text);
    return result.ok && result.state ? html`<${Mask} state=${result.state} />` : html`<p class="muted">${result.error?.message ?? "The text before is not in the grammar."}</p>`;
  } catch (error) {
    return html`<p class="bad-text">${error.message}</p>`;
  }
}

/** The tokens that may come next. `onAppend(text)` makes them buttons. */
export function Mask({ state, vocabulary, onAppend, isBusy = false }) {
  const hidden = state.allowed - state.tokens.length;
  const token = ({ id, text }) => onAppend
    ? html`<button key=${id} type="button" class="chip" title=${`token ${id}`} onClick=${() => onAppend(text)}><span class="text">${visible(text)}</span></button>`
    : html`<span key=${id} class="chip" title=${`token ${id}`}><span class="text">${visible(text)}</span></span>`;
  return html`<div class="mask stack" aria-busy=${isBusy}>
    <div class="row small">
      <span><b>${count(state.allowed)}</b>${vocabulary ? ` of ${count(vocabulary)}` : ""} tokens are possible${vocabulary ? ` (${percent(state.allowed / vocabulary, 1)})` : ""}</span>
      <span class=${`badge ${state.accepts ? "good" : ""}`}>${state.accepts ? "the text may end here" : "the text may not end here"}</span>
    </div>
    ${state.forced ? html`<div class="row small"><span class="muted">must follow:</span>
      ${onAppend ? html`<button type="button" class="chip" onClick=${() => onAppend(state.forced)}><span class="text">${visible(state.forced)}</span></button>` : html`<code>${visible(state.forced)}</code>`}</div>` : null}
    <div class="columns" role="group" aria-label="Possible tokens">${state.tokens.map(token)}${hidden > 0 ? html`<span class="small muted">and ${count(hidden)} more</span>` : null}</div>
  </div>`;
}
