// A table of many rows: only those in sight are in the document. Sorting, arrow keys, Enter.

import { count } from "./ui.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/standalone.mjs";

const OVERSCAN = 6; // rows kept beyond either edge, so that a slow frame shows no hole

// columns: [{key, title, width, cell(row), sort(row) or null, number: bool, wide: bool (left out on phones), flex: bool (of any width there), hint}]
export function Table({ label, columns, rows, keyOf, rowClass, onOpen, rowHeight = 28, order, className = "", onEnd, empty = "nothing yet" }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [sort, setSort] = useState(order ?? null);
  const [active, setActive] = useState(-1);

  const sorted = useMemo(() => {
    const by = sort && columns.find((column) => column.key === sort.key)?.sort;
    if (!by) return rows;
    const keyed = rows.map((row) => [by(row) ?? -Infinity, row]);
    keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    if (sort.down) keyed.reverse();
    return keyed.map(([, row]) => row);
  }, [rows, sort, columns]);

  useEffect(() => {
    const sizes = new ResizeObserver(() => setHeight(box.current.clientHeight));
    sizes.observe(box.current);
    return () => sizes.disconnect();
  }, []);

  const head = 30;
  const first = Math.max(0, Math.floor(top / rowHeight) - OVERSCAN);
  const size = Math.ceil(height / rowHeight) + 2 * OVERSCAN;
  const last = Math.min(sorted.length, first + size);

  function onScroll() {
    const at = box.current.scrollTop;
    const step = OVERSCAN / 3; // a render each few rows is enough: the overscan covers the rest
    const snapped = Math.floor(at / rowHeight / step) * rowHeight * step;
    if (snapped !== top) setTop(snapped);
    if (onEnd && at + height > sorted.length * rowHeight - 600) onEnd();
  }

  function onKey(event) {
    const page = Math.max(1, Math.floor(height / rowHeight) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -sorted.length, End: sorted.length };
    if (event.target !== box.current) return;
    if (event.key in steps) {
      event.preventDefault();
      const next = Math.max(0, Math.min(sorted.length - 1, active + steps[event.key]));
      setActive(next);
      const y = next * rowHeight;
      if (y < box.current.scrollTop) box.current.scrollTop = y;
      if (y + rowHeight + head > box.current.scrollTop + height) box.current.scrollTop = y + rowHeight + head - height;
    } else if (event.key === "Enter" && onOpen && sorted[active]) {
      onOpen(sorted[active]);
    }
  }

  function sortBy(column) {
    setSort(sort?.key === column.key ? (sort.down ? { key: column.key, down: false } : order ?? null) : { key: column.key, down: true });
  }

  const cells = (row) => columns.map((column) => html`<td key=${column.key} class=${kind(column)}>${column.cell(row)}</td>`);
  const heads = columns.map((column) => {
    const sorting = sort?.key === column.key ? (sort.down ? "descending" : "ascending") : column.sort ? "none" : undefined;
    const mark = sorting === "descending" ? " ▾" : sorting === "ascending" ? " ▴" : "";
    return html`<th key=${column.key} scope="col" aria-sort=${sorting} class=${kind(column)} title=${column.hint}
      style=${column.width ? { width: column.width + "px" } : {}}>
      ${column.sort ? html`<button type="button" class="plain" onClick=${() => sortBy(column)}>${column.title}${mark}</button>` : column.title}
    </th>`;
  });
  return html`<div class=${"vtable " + className} ref=${box} tabindex="0" role="group" aria-label=${label} onScroll=${onScroll} onKeyDown=${onKey}>
    <table aria-label=${label} aria-rowcount=${sorted.length + 1}>
      <thead><tr>${heads}</tr></thead>
      <tbody>
        <tr key="above" aria-hidden="true" class="space" style=${{ height: first * rowHeight + "px" }}></tr>
        ${/* A row that leaves at one edge is used again at the other: that is cheaper than a new one. */ null}
        ${sorted.slice(first, last).map((row, index) => html`<tr key=${(first + index) % size} data-key=${keyOf(row)} aria-rowindex=${first + index + 2}
            class=${(rowClass?.(row) ?? "") + (first + index === active ? " active" : "") + (onOpen ? " opens" : "")}
            style=${{ height: rowHeight + "px" }} onClick=${onOpen && ((event) => opens(event) && onOpen(row))}>${cells(row)}</tr>`)}
        <tr key="below" aria-hidden="true" class="space" style=${{ height: (sorted.length - last) * rowHeight + "px" }}></tr>
      </tbody>
    </table>
    ${sorted.length === 0 && html`<p class="hint">${empty}</p>`}
  </div>`;
}

/** Return a column of numbers. A row without the number has an empty cell. */
export function numbers(key, title, width, value, more) {
  return { key, title, width, number: true, cell: (row) => (value(row) == null ? "" : count(value(row))), sort: value, ...more };
}

function kind(column) {
  return (column.number ? "number" : "") + (column.wide ? " wide" : "") + (column.flex ? " flex" : "");
}

// A click on a link or a control inside a row means that one, and marking text means nothing.
function opens(event) {
  return !event.target.closest("a, button, input, label") && String(getSelection()) === "";
}
