// Two runs side by side: their timelines on one scale, and their differences by branch and by source line.

import { Legend, Timeline, causesOf, lengthOf, rowsOf, useRange } from "./timeline.js";
import { CauseBar, Place, Status, ZoomButtons, hitRate, shareText, shortPlace, sumOf } from "./program.js";
import { Table } from "./table.js";
import { Segmented, count, seconds } from "./ui.js";
import { CAUSES } from "./canvas.js";
import { html, useMemo, useState } from "./vendor/standalone.mjs";

export function Compare({ a, b }) {
  const range = useRange(Math.max(lengthOf(a), lengthOf(b)));
  const [chosen, setChosen] = useState(null);
  const [byBranch, setByBranch] = useState(false);
  const [cursors, setCursors] = useState([null, null]);
  const causes = useMemo(() => {
    const found = new Set([...causesOf(a), ...causesOf(b)]);
    return Object.keys(CAUSES).filter((cause) => found.has(cause));
  }, [a, b]);
  const rows = useMemo(() => (byBranch ? alignedByBranch(a, b) : alignedByLine(a, b)), [a, b, byBranch]);
  const columns = useMemo(() => columnsOf(byBranch, Math.max(1e-9, ...rows.flatMap(({ a, b }) => [a, b]).map((side) => (side ? sumOf(side.seconds) : 0)))), [byBranch, rows]);
  return html`<div class="stack">
    <${Totals} a=${a} b=${b} />
    <div class="row"><${ZoomButtons} range=${range} /><${Legend} causes=${causes} chosen=${chosen} onChoose=${setChosen} /></div>
    ${[a, b].map((view, index) => html`<h3 key=${"title" + index}>${"AB"[index]}: ${view.title} <${Status} status=${view.status} /></h3>
      <${Timeline} key=${index} view=${view} range=${range} cursor=${cursors[index]} onCursor=${(cursor) => setCursors(cursors.map((old, at) => (at === index ? cursor : old)))} isCritical=${true} chosen=${chosen}
        label=${`Timeline ${"AB"[index]}`} />`)}
    <div class="row">
      <h3>Differences</h3>
      <${Segmented} label="Aligned by" options=${[[false, "By line"], [true, "By branch and line"]]} value=${byBranch} onChange=${setByBranch} />
    </div>
    <${Table} label="Differences" columns=${columns} rows=${rows} keyOf=${(row) => row.key} className="half" rowClass=${(row) => (row.isBranch ? "branch" : "")} />
  </div>`;
}

function Totals({ a, b }) {
  const rows = [
    ["time", (view) => view.seconds, seconds],
    ["states", (view) => view.states.length, count],
    ["generations", (view) => view.generations, count],
    ["prompt tokens", (view) => view.prompt_tokens, count],
    ["cached", hitRate, shareText, (points) => `${(100 * points).toFixed(0)} points`],
    ["output tokens", (view) => view.completion_tokens, count],
  ];
  return html`<table class="totals" aria-label="Totals">
    <thead><tr><th scope="col"></th><th scope="col" class="number">A</th><th scope="col" class="number">B</th><th scope="col" class="number">B − A</th></tr></thead>
    <tbody>${rows.map(([name, value, format, formatChange = format]) => html`<tr key=${name}><th scope="row">${name}</th><td class="number">${format(value(a))}</td><td class="number">${format(value(b))}</td>
      <td class="number">${difference(value(a), value(b), formatChange)}</td></tr>`)}</tbody>
  </table>`;
}

function difference(a, b, format) {
  if (a === null || b === null || a === undefined || b === undefined) return "–";
  return a === b ? "=" : (b > a ? "+" : "−") + format(Math.abs(b - a));
}

const nothing = () => ({ seconds: {}, prompt: 0, cached: 0, completion: 0 });

// Lines move when a script is edited: the code is what two runs share, else the place.
function keyOfLine(code, place) {
  return code ? `${shortPlace(place).replace(/:\d+$/, "")}|${code}` : place;
}

/** Return [{key, place, code, a, b}] with the totals of both runs by source line, in the order of A's and then B's lines. */
export function alignedByLine(a, b) {
  const rows = new Map();
  for (const [side, view] of [["a", a], ["b", b]]) {
    const seen = new Map(); // equal code on several lines: the first with the first, and so on
    for (const line of view.lines) {
      const key = keyOfLine(line.code, line.place);
      const number = seen.get(key) ?? 0;
      seen.set(key, number + 1);
      const row = rows.get(`${key}#${number}`) ?? { key: `${key}#${number}`, place: line.place, code: line.code ?? "", a: null, b: null };
      row[side] = { seconds: line.seconds, prompt: line.prompt_tokens, cached: line.cached_tokens, completion: line.completion_tokens };
      rows.set(row.key, row);
    }
  }
  return [...rows.values()];
}

/** Return the same by branch: a row for each branch, and below it one for each of its lines. */
export function alignedByBranch(a, b) {
  const branches = new Map();
  for (const [side, view] of [["a", a], ["b", b]]) {
    const paths = new Map();
    for (const { state, depth, name } of rowsOf(view)) {
      const path = state.parent === null ? String(state.number) : `${paths.get(state.parent)}/${name}${forkOrdinal(view, state)}`;
      paths.set(state.number, path);
      const branch = branches.get(path) ?? { key: path, isBranch: true, depth, name, a: null, b: null, lines: new Map() };
      branches.set(path, branch);
      branch[side] = nothing();
      for (const span of state.spans) add(lineOf(view, branch, side, span.place), branch[side], (total) => (total.seconds[span.cause] = (total.seconds[span.cause] ?? 0) + span.end - span.start));
      for (const { place, tokens } of state.events) {
        if (!tokens) continue;
        add(lineOf(view, branch, side, place), branch[side], (total) => {
          total.prompt += tokens.prompt;
          total.cached += tokens.cached;
          total.completion += tokens.completion;
        });
      }
    }
  }
  return [...branches.values()].flatMap((branch) => [branch, ...branch.lines.values()]);
}

const add = (line, branch, change) => [line, branch].forEach(change);

// Which of its parent's forks and calls a state comes from.
function forkOrdinal(view, state) {
  const forks = view.states.find(({ number }) => number === state.parent)?.events.filter(({ kind }) => kind === "fork" || kind === "call") ?? [];
  return `@${forks.findIndex((event) => event.states.includes(state.number))}`;
}

function lineOf(view, branch, side, place) {
  const code = view.source?.[place] ?? "";
  const key = `${branch.key}|${keyOfLine(code, place)}`;
  const line = branch.lines.get(key) ?? { key, place, code, depth: branch.depth, a: null, b: null };
  branch.lines.set(key, line);
  line[side] ??= nothing();
  return line[side];
}

function columnsOf(byBranch, longest) {
  const time = (side) => (side ? sumOf(side.seconds) : null);
  const change = (row) => (time(row.b) ?? 0) - (time(row.a) ?? 0);
  const tokens = (side) => (side ? side.prompt - side.cached + side.completion : null); // computed ones
  const title = (row) => (row.isBranch ? html`<b>${"  ".repeat(row.depth)}${row.name}</b>` : row.place ? html`<${Place} place=${row.place} />` : "after the last");
  const orderable = (sort) => (byBranch ? null : sort); // by branch the order is the tree's
  return [
    { key: "place", title: byBranch ? "branch, line" : "line", width: 160, flex: true, cell: title, sort: orderable(({ place }) => place) },
    { key: "code", title: "code", wide: true, cell: (row) => html`<code class="clip" title=${row.code}>${row.code}</code>` },
    ...["a", "b"].map((side) => ({ key: side, title: side.toUpperCase(), width: 74, number: true, cell: (row) => (row[side] ? seconds(time(row[side])) : "–"), sort: orderable((row) => time(row[side]) ?? 0) })),
    { key: "change", title: "B − A", width: 100, number: true, cell: (row) => html`<span class=${Math.abs(change(row)) < 0.001 ? "muted" : change(row) > 0 ? "worse" : "better"}>${difference(time(row.a) ?? 0, time(row.b) ?? 0, seconds)}</span>`, sort: orderable(change) },
    { key: "causes", title: "A above B, by cause", width: 170, wide: true, cell: (row) => html`<span class="pair">${[row.a, row.b].map((side, index) => html`<${CauseBar} key=${index} bySeconds=${side?.seconds ?? {}} longest=${longest} />`)}</span>` },
    { key: "tokens", title: "computed tokens", hint: "prompt tokens that were not cached, and output tokens", width: 124, number: true, wide: true, cell: (row) => `${row.a ? count(tokens(row.a)) : "–"} → ${row.b ? count(tokens(row.b)) : "–"}`, sort: orderable((row) => (tokens(row.b) ?? 0) - (tokens(row.a) ?? 0)) },
  ];
}
