// One program: its facts, its failure, its timeline with the details of an operation, its totals by source line.

import { CAUSES, background } from "./canvas.js";
import { Table, numbers } from "./table.js";
import { Legend, Timeline, causesOf, lengthOf, rowsOf, useRange } from "./timeline.js";
import { Figures, Segmented, count, percent, seconds } from "./ui.js";
import { html, useMemo, useState } from "./vendor/standalone.mjs";

export const shortPlace = (place) => (place ? place.slice(place.lastIndexOf("/") + 1) : "");
export const hitRate = ({ prompt_tokens, cached_tokens }) => (prompt_tokens > 0 ? cached_tokens / prompt_tokens : null);
export const shareText = (share) => (share === null ? "–" : percent(share));
export const when = (epoch) => new Date(epoch * 1e3).toLocaleTimeString("en-GB");

/** A place of which the line's number is always in sight. */
export function Place({ place }) {
  const short = shortPlace(place);
  const at = short.lastIndexOf(":");
  return html`<span class="place-cell" title=${place}><span class="clip">${at < 0 ? short : short.slice(0, at)}</span>${at < 0 ? "" : short.slice(at)}</span>`;
}

/** Return an error without the place at its beginning, which is shown beside it. */
export const errorOf = ({ error, place }) => (place && error.startsWith(place + ": ") ? error.slice(place.length + 2) : error);

const STATUS = { running: "●", done: "✓", failed: "✕", lost: "?" };
const MEANINGS = { running: "still runs", done: "done", failed: "failed", lost: "its client went away" };

export function Status({ status }) {
  return html`<span class=${"status " + status} title=${MEANINGS[status]}><span aria-hidden="true">${STATUS[status] ?? "?"}</span> ${status}</span>`;
}

export function Facts({ view }) {
  const facts = [
    [seconds(view.seconds ?? lengthOf(view)), "time"],
    [count(view.states.length), view.kind === "request" ? "samples" : "states"],
    [count(view.generations), "generations"],
    [count(view.prompt_tokens), "prompt tokens"],
    [shareText(hitRate(view)), "cached"],
    [count(view.completion_tokens), "output tokens"],
  ];
  return html`<${Figures} figures=${facts} />`;
}

/** Say where and why a program failed. */
export function Failure({ view }) {
  if (!view.error) return null;
  const code = view.source?.[view.place] ?? view.lines.find((line) => line.place === view.place)?.code;
  return html`<div class="note bad failure" role="alert">
    <span><b>Failed${view.place ? ` at ${shortPlace(view.place)}` : ""}</b>
      ${code && html`<pre>${code}</pre>`}
      <pre>${errorOf(view)}</pre></span>
  </div>`;
}

/** `cursor` and `onCursor` as of a Timeline. */
export function Program({ view, range: shared, label }) {
  const own = useRange(lengthOf(view));
  const range = shared ?? own;
  const [cursor, setCursor] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [isCritical, setCritical] = useState(true);
  const [isTable, setTable] = useState(false);
  const causes = useMemo(() => causesOf(view), [view]);
  return html`<section class="stack" aria-label=${label ?? view.title}>
    <div class="row">
      <${Segmented} label="Form" options=${[[false, "Timeline"], [true, "Table"]]} value=${isTable} onChange=${setTable} />
      ${!isTable && html`<${ZoomButtons} range=${range} />
        ${view.critical_path?.length > 0 && html`<label class="check small"><input type="checkbox" checked=${isCritical} onChange=${() => setCritical(!isCritical)} /> critical path</label>`}
        <span class="muted small wide">Ctrl + wheel zooms, drag moves, a click shows an operation</span>`}
    </div>
    ${isTable
      ? html`<${Operations} view=${view} />`
      : html`<${Legend} causes=${causes} chosen=${chosen} onChoose=${setChosen} />
        <${Timeline} view=${view} range=${range} cursor=${cursor} onCursor=${setCursor} isCritical=${isCritical} chosen=${chosen} label=${label ?? "Timeline"} />
        <${Details} view=${view} cursor=${cursor} onClose=${() => setCursor(null)} />`}
    ${view.cut && html`<p class="note warn">The program had more operations than a record holds: the rest is not shown.</p>`}
    <h3>By source line</h3>
    <${Lines} view=${view} />
  </section>`;
}

export function ZoomButtons({ range }) {
  return html`<div class="row tight" role="group" aria-label="Zoom">
    <button type="button" class="quiet" aria-label="Zoom in" title="Zoom in (+)" onClick=${() => range.zoom(0.6)}>+</button>
    <button type="button" class="quiet" aria-label="Zoom out" title="Zoom out (-)" disabled=${range.isWhole} onClick=${() => range.zoom(1 / 0.6)}>−</button>
    <button type="button" class="quiet" title="Show all (0)" disabled=${range.isWhole} onClick=${range.fit}>All</button>
  </div>`;
}

function Details({ view, cursor, onClose }) {
  const state = cursor && view.states.find(({ number }) => number === cursor.state);
  const span = state?.spans[cursor.span];
  if (!span) return html`<div class="details muted small" aria-live="polite">No operation is chosen.</div>`;
  const event = state.events[span.event];
  const isGap = span.is_gap || !event;
  const facts = isGap ? gapFacts(span) : operationFacts(view, span, event);
  const code = view.source?.[span.place];
  return html`<div class="details panel" aria-live="polite">
    <div class="row">
      <i class="patch" style=${background(span.cause)}></i>
      <b>${isGap ? CAUSES[span.cause]?.title ?? span.cause : event.name ?? event.kind}</b>
      <span class="muted">${CAUSES[span.cause]?.title ?? span.cause}: ${seconds(span.end - span.start)} from ${seconds(span.start)} on</span>
      <span class="grow"></span>
      <button type="button" class="quiet" aria-label="Close the details" onClick=${onClose}>✕</button>
    </div>
    ${(span.place || code) && html`<div class="place"><span class="muted">${shortPlace(span.place)}</span> ${code && html`<code>${code}</code>`}</div>`}
    <dl class="pairs">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${!isGap && html`<${Texts} view=${view} event=${event} />`}
  </div>`;
}

function gapFacts(span) {
  return [["why", CAUSES[span.cause]?.meaning ?? span.cause]];
}

function operationFacts(view, span, event) {
  const { tokens, timings } = event;
  const facts = [["operation", event.label]];
  facts.push(["time", event.end === null ? "runs" : `${seconds(event.end - event.start)}, from ${seconds(event.start)} on`]);
  if (tokens) {
    facts.push(["prompt", `${count(tokens.prompt)} tokens, ${count(tokens.cached)} cached`]);
    const parts = [`${count(tokens.completion)} tokens`];
    if (tokens.forced) parts.push(`${count(tokens.forced)} forced`);
    if (tokens.guessed) parts.push(`${count(tokens.accepted)} of ${count(tokens.guessed)} guesses accepted`);
    facts.push(["output", parts.join(", ")]);
  }
  if (timings) facts.push(["runtime", Object.entries(timings).filter(([, value]) => value > 0).map(([name, value]) => `${name} ${seconds(value)}`).join(", ") || "–"]);
  if (event.finish) facts.push(["finished by", event.finish]);
  return facts;
}

function Texts({ view, event }) {
  if (event.error) return html`<pre class="bad-text">${event.error}</pre>`;
  if (!view.texts) return html`<p class="muted small">The server does not show texts.</p>`;
  const cut = event.cut ? html`<span class="muted small">cut at 4,000 characters</span>` : null;
  if (event.image) return html`<${ShownImage} label=${event.label} image=${event.image} />`;
  if (event.samples) return html`<ol class="samples">${event.samples.map((sample, index) => html`<li key=${index}><pre>${sample}</pre></li>`)}</ol>${cut}`;
  return event.text ? html`<pre class="text">${event.text}</pre>${cut}` : null;
}

/** An image that was appended: its small view where there is one, its size and digest. */
function ShownImage({ label, image: { url, digest } }) {
  const named = `${label}, SHA-256 ${digest}`;
  return html`<figure class="shown-image">${url && html`<img src=${url} alt=${named} />`}<figcaption class="small muted">${named}</figcaption></figure>`;
}

const OPERATION_COLUMNS = [
  { key: "branch", title: "branch", width: 96, cell: (row) => row.branch, sort: (row) => row.order },
  { key: "operation", title: "operation", cell: (row) => html`<span title=${row.event.label}>${row.event.name ?? row.event.kind}${row.event.error ? " ✕ failed" : ""}</span>`, sort: (row) => row.event.name ?? row.event.kind },
  { key: "place", title: "line", width: 160, wide: true, cell: (row) => html`<${Place} place=${row.event.place} />`, sort: (row) => row.event.place },
  { key: "start", title: "from", width: 80, number: true, wide: true, cell: (row) => seconds(row.event.start), sort: (row) => row.event.start },
  { key: "time", title: "time", width: 80, number: true, cell: (row) => (row.event.end === null ? "runs" : seconds(row.event.end - row.event.start)), sort: (row) => (row.event.end ?? row.event.start) - row.event.start },
  ...["queue", "grammar", "prefill", "decode", "retracted"].map((cause) => ({
    key: cause,
    title: cause,
    width: 78,
    number: true,
    wide: true,
    cell: (row) => (row.causes[cause] ? seconds(row.causes[cause]) : ""),
    sort: (row) => row.causes[cause] ?? 0,
  })),
  numbers("in", "in", 56, ({ event }) => event.tokens?.prompt, { wide: true }),
  numbers("cached", "cached", 66, ({ event }) => event.tokens?.cached, { wide: true }),
  numbers("out", "out", 52, ({ event }) => event.tokens?.completion),
  { key: "text", title: "text", wide: true, cell: (row) => html`<span class="clip" title=${clip(row.event.error ?? row.event.text)}>${clip(row.event.error ?? row.event.text)}</span>` },
];

const clip = (text) => (text ?? "").slice(0, 400);

/** The timeline as a table: a row for each operation. */
function Operations({ view }) {
  const rows = useMemo(() => {
    const found = [];
    for (const { state, name } of rowsOf(view)) {
      const causes = state.events.map(() => ({}));
      for (const span of state.spans) if (!span.is_gap && causes[span.event]) causes[span.event][span.cause] = (causes[span.event][span.cause] ?? 0) + span.end - span.start;
      state.events.forEach((event, index) => found.push({ key: `${state.number}.${index}`, order: found.length, branch: state.parent === null ? name : `${name} (${state.number})`, event, causes: causes[index] }));
    }
    return found;
  }, [view]);
  return html`<${Table} label="Operations" columns=${OPERATION_COLUMNS} rows=${rows} keyOf=${(row) => row.key} rowClass=${(row) => (row.event.error ? "failed" : "")} className="half" />`;
}

/** Return the causes in the order of the legend, with their seconds. */
export const ordered = (bySeconds) => Object.keys(CAUSES).filter((cause) => bySeconds[cause] > 0).map((cause) => [cause, bySeconds[cause]]);
export const sumOf = (bySeconds) => Object.values(bySeconds).reduce((sum, value) => sum + value, 0);

export function CauseBar({ bySeconds, longest }) {
  const parts = ordered(bySeconds);
  const title = parts.map(([cause, value]) => `${CAUSES[cause].title} ${seconds(value)}`).join(", ");
  return html`<span class="causes" role="img" aria-label=${title} title=${title}>
    ${parts.map(([cause, value]) => html`<i key=${cause} style=${{ ...background(cause), width: (100 * value) / longest + "%" }}></i>`)}
  </span>`;
}

/** Totals by source line, a bar of causes for each. The line that failed is red. */
function Lines({ view }) {
  const lines = view.lines;
  const longest = Math.max(1e-9, ...lines.map((line) => sumOf(line.seconds)));
  const columns = useMemo(() => lineColumns(longest), [longest]);
  return html`<${Table} label="Totals by source line" columns=${columns} rows=${lines} keyOf=${(line) => line.place} className="fit"
    rowClass=${(line) => (line.place && line.place === view.place ? "failed" : "")} empty="no lines: the client sent none" />`;
}

function lineColumns(longest) {
  const number = (key, title, width, value) => numbers(key, title, width, (line) => value(line) || null, { wide: true });
  return [
    { key: "place", title: "line", width: 160, flex: true, cell: (line) => (line.place ? html`<${Place} place=${line.place} />` : "after the last"), sort: lineOrder },
    { key: "code", title: "code", wide: true, cell: (line) => html`<code class="clip" title=${line.code ?? ""}>${line.code ?? ""}</code>` },
    { key: "time", title: "time", width: 76, number: true, cell: (line) => seconds(sumOf(line.seconds)), sort: (line) => sumOf(line.seconds) },
    { key: "causes", title: "by cause", width: 200, flex: true, cell: (line) => html`<${CauseBar} bySeconds=${line.seconds} longest=${longest} />` },
    number("generations", "gens", 56, (line) => line.generations),
    number("in", "in", 64, (line) => line.prompt_tokens),
    { key: "hit", title: "cached", width: 68, number: true, wide: true, cell: (line) => (line.prompt_tokens ? shareText(hitRate(line)) : ""), sort: (line) => hitRate(line) ?? -1 },
    number("out", "out", 56, (line) => line.completion_tokens),
  ];
}

// Lines of a file in the order of their numbers.
function lineOrder({ place }) {
  const at = place.lastIndexOf(":");
  return at < 0 ? place : place.slice(0, at + 1) + place.slice(at + 1).padStart(8, "0");
}
