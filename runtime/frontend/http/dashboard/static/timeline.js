// The timeline of a program on a canvas: a row for each state, bands by cause, forks, joins, the critical path.

import { CAUSES, background, fill, theme, useCanvas } from "./canvas.js";
import { count, seconds } from "./ui.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/standalone.mjs";

const AXIS = 24;
const ROW = 36;
const BAND_Y = 17; // of a row: above it stand the operations' names
const BAND = 13;
const STRIP = 5; // height of the share that was cached or guessed, inside a band
const OVERSCAN = 4;
const HEIGHT = 520; // of what is in sight at most

/** Return the states in the order of the tree: [{state, depth, name, hasBranches}]. Branches of `folded` states are left out. */
export function rowsOf(view, folded = new Set()) {
  const branches = new Map();
  const names = new Map();
  for (const state of view.states) {
    if (state.parent !== null) branches.set(state.parent, [...(branches.get(state.parent) ?? []), state]);
    for (const event of state.events) {
      if (event.kind === "fork") event.states.forEach((number, index) => names.set(number, `branch ${index}`));
      if (event.kind === "call") event.states.forEach((number) => names.set(number, event.label));
    }
  }
  const rows = [];
  const waiting = view.states.filter((state) => state.parent === null).reverse().map((state) => [state, 0]);
  while (waiting.length) {
    const [state, depth] = waiting.pop();
    const children = branches.get(state.number) ?? [];
    const name = state.parent !== null ? names.get(state.number) ?? `state ${state.number}` : view.kind === "request" ? `sample ${state.number}` : "program";
    rows.push({ state, depth, name, hasBranches: children.length > 0 });
    if (!folded.has(state.number)) for (const child of [...children].reverse()) waiting.push([child, depth + 1]);
  }
  return rows;
}

/** Return the time up to which a program has been recorded. */
export function lengthOf(view) {
  let end = view.seconds || 0;
  for (const state of view.states) {
    end = Math.max(end, state.end ?? 0);
    for (const event of state.events) end = Math.max(end, event.end ?? event.start);
  }
  return end || 1e-3;
}

/** Return the causes that a program's timeline shows, in the order of the legend. */
export function causesOf(view) {
  const found = new Set();
  for (const state of view.states) {
    for (const span of state.spans) found.add(span.cause);
    for (const { tokens } of state.events) {
      if (tokens?.cached) found.add("cached");
      if (tokens?.forced) found.add("forced");
      if (tokens?.accepted) found.add("guessed");
    }
  }
  return Object.keys(CAUSES).filter((cause) => found.has(cause));
}

export function Legend({ causes, chosen, onChoose }) {
  return html`<div class="bands" role="group" aria-label="Causes of time">
    ${causes.map((cause) => html`<button type="button" key=${cause} class="quiet small" aria-pressed=${chosen === cause} title=${CAUSES[cause].meaning}
        onClick=${() => onChoose(chosen === cause ? null : cause)}>
      <i class="patch" style=${background(cause)}></i>${CAUSES[cause].title}
    </button>`)}
  </div>`;
}

/** Return the times in sight, and functions that change them. `whole` is the length of all of it. */
export function useRange(whole) {
  const [range, setRange] = useState([0, 1]); // shares of the whole, so that a growing one stays in sight
  const set = (from, to) => {
    const width = Math.min(1, Math.max(1e-6, to - from));
    const start = Math.max(0, Math.min(1 - width, from));
    setRange([start, start + width]);
  };
  return {
    from: range[0] * whole,
    to: range[1] * whole,
    isWhole: range[0] === 0 && range[1] === 1,
    show: (from, to) => set(from / whole, to / whole),
    zoom: (factor, at = (range[0] + range[1]) / 2) => set(at - (at - range[0]) * factor, at + (range[1] - at) * factor),
    pan: (share) => set(range[0] + share * (range[1] - range[0]), range[1] + share * (range[1] - range[0])),
    at: (share) => range[0] + share * (range[1] - range[0]),
    fit: () => setRange([0, 1]),
  };
}

/** `cursor` is {state, span} or null: numbers of a state and of its span. `chosen` is a cause that the others fade beside. */
export function Timeline({ view, range, cursor, onCursor, isCritical, chosen, label = "Timeline" }) {
  const [folded, setFolded] = useState(new Set());
  const [top, setTop] = useState(0);
  const [hover, setHover] = useState(null);
  const box = useRef(null);
  const rows = useMemo(() => rowsOf(view, folded), [view, folded]);
  const facts = useMemo(() => factsOf(view), [view]);
  const place = useMemo(() => new Map(rows.map((row, index) => [row.state.number, index])), [rows]);
  const latest = useRef(null);
  latest.current = { rows, range };

  const scene = { view, rows, place, facts, range, cursor, hover, isCritical, chosen };
  const [canvas, redraw] = useCanvas((pen, width, height) => draw(pen, width, height, { ...scene, scroll: box.current.scrollTop }));

  useEffect(() => {
    const onWheel = (event) => {
      const bounds = canvas.current.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey || event.altKey) {
        const { range } = latest.current;
        range.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 100), range.at((event.clientX - bounds.left) / bounds.width));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        latest.current.range.pan((event.deltaX || event.deltaY) / bounds.width);
      } else return; // the page scrolls
      event.preventDefault();
    };
    const element = canvas.current;
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, []);

  const pointers = useRef(new Map()).current;
  const hit = (event) => {
    const bounds = canvas.current.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    return spanAt(rows, range, bounds.width, x, event.clientY - bounds.top + box.current.scrollTop);
  };
  const onDown = (event) => {
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY, moved: 0 });
    canvas.current.setPointerCapture(event.pointerId);
    setHover(null);
  };
  const onMove = (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      const found = hit(event);
      const bounds = canvas.current.parentElement.getBoundingClientRect();
      setHover(found && { ...found, x: event.clientX - bounds.left, y: event.clientY - bounds.top, width: bounds.width });
      return;
    }
    const bounds = canvas.current.getBoundingClientRect();
    const [dx, dy] = [event.clientX - before.x, event.clientY - before.y];
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()];
      const old = Math.abs(a.x - b.x);
      Object.assign(before, { x: event.clientX, y: event.clientY, moved: 99 });
      const now = Math.abs(a.x - b.x);
      if (old > 10 && now > 10) range.zoom(old / now, range.at(((a.x + b.x) / 2 - bounds.left) / bounds.width));
      return;
    }
    before.moved += Math.abs(dx) + Math.abs(dy);
    if (before.moved > 4) {
      range.pan(-dx / bounds.width);
      if (event.pointerType === "mouse") box.current.scrollTop -= dy;
    }
    Object.assign(before, { x: event.clientX, y: event.clientY });
  };
  const onUp = (event) => {
    const before = pointers.get(event.pointerId);
    pointers.delete(event.pointerId);
    if (before && before.moved <= 4 && event.type === "pointerup") onCursor(asCursor(hit(event)));
  };
  const onDouble = (event) => {
    const found = hit(event);
    if (found) showSpan(range, rows[found.row].state.spans[found.span]);
  };

  function onKey(event) {
    const row = cursor && place.has(cursor.state) ? place.get(cursor.state) : -1;
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (step && event.shiftKey && step[1]) range.pan(step[1] / 4);
    else if (step) moveTo(row < 0 ? nextFrom(rows, 0, 1, 0) : step[1] ? beside(rows, row, cursor.span, step[1]) : nextFrom(rows, row + step[0], step[0], middle(rows[row], cursor.span)));
    else if (event.key === "+" || event.key === "=") range.zoom(0.6);
    else if (event.key === "-") range.zoom(1 / 0.6);
    else if (event.key === "0") range.fit();
    else if (event.key === "Enter" && row >= 0) showSpan(range, rows[row].state.spans[cursor.span]);
    else if (event.key === "Escape" && cursor) onCursor(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  function moveTo(found) {
    if (!found) return;
    onCursor(asCursor(found));
    const y = found.row * ROW;
    if (y < box.current.scrollTop) box.current.scrollTop = y;
    if (y + ROW + AXIS > box.current.scrollTop + box.current.clientHeight) box.current.scrollTop = y + ROW + AXIS - box.current.clientHeight;
    const { start, end } = rows[found.row].state.spans[found.span];
    if (end < range.from || start > range.to) range.show(start - (range.to - range.from) / 2, start + (range.to - range.from) / 2);
  }
  const asCursor = (found) => found && { state: rows[found.row].state.number, span: found.span };

  function fold(number) {
    const next = new Set(folded);
    if (!next.delete(number)) next.add(number);
    setFolded(next);
  }

  const first = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
  const last = Math.min(rows.length, first + 40 + 2 * OVERSCAN);
  const onScroll = () => {
    redraw();
    const snapped = Math.floor(box.current.scrollTop / ROW / OVERSCAN) * ROW * OVERSCAN;
    if (snapped !== top) setTop(snapped);
  };
  const tall = rows.length * ROW + AXIS;
  return html`<div class="timeline" ref=${box} onScroll=${onScroll}>
    <div class="names" role="tree" aria-label="Branches" style=${{ height: tall + "px" }}>
      <div class="corner">${count(view.states.length)} ${view.states.length === 1 ? "state" : "states"}</div>
      ${rows.slice(first, last).map((row, index) => html`<${Name} key=${row.state.number} row=${row} top=${AXIS + (first + index) * ROW} isFolded=${folded.has(row.state.number)}
          isChosen=${cursor?.state === row.state.number} onFold=${() => fold(row.state.number)} onChoose=${() => moveTo(nextFrom(rows, first + index, 1, row.state.begin, true))} />`)}
    </div>
    <div class="lanes" style=${{ height: tall + "px" }}>
      <canvas ref=${canvas} tabindex="0" role="application" aria-label=${`${label}: arrows move from operation to operation, plus and minus zoom, Shift and arrows move the times in sight, Enter zooms in, 0 shows all`}
        style=${{ height: Math.min(tall, HEIGHT) + "px" }} onPointerDown=${onDown} onPointerMove=${onMove} onPointerUp=${onUp} onPointerCancel=${onUp}
        onPointerLeave=${() => setHover(null)} onDblClick=${onDouble} onKeyDown=${onKey}></canvas>
      ${hover && html`<${Tip} hover=${hover} row=${rows[hover.row]} />`}
    </div>
  </div>`;
}

function Name({ row, top, isFolded, isChosen, onFold, onChoose }) {
  const { state, depth, name, hasBranches } = row;
  const failed = state.events.some((event) => event.error);
  return html`<div class=${"name" + (isChosen ? " chosen" : "") + (failed ? " bad-text" : "")} role="treeitem" aria-level=${depth + 1} aria-selected=${isChosen}
      aria-expanded=${hasBranches ? !isFolded : undefined} data-state=${state.number} style=${{ top: top + "px", paddingLeft: 4 + Math.min(depth, 8) * 10 + "px" }}>
    ${hasBranches ? html`<button type="button" class="plain" aria-label=${isFolded ? "Show branches" : "Hide branches"} onClick=${onFold}>${isFolded ? "▸" : "▾"}</button>` : html`<span class="bullet">·</span>`}
    <button type="button" class="plain" title=${`state ${state.number}`} onClick=${onChoose}>${name}${failed ? " ✕" : ""}</button>
  </div>`;
}

function Tip({ hover, row }) {
  const span = row.state.spans[hover.span];
  const event = span.is_gap ? null : row.state.events[span.event];
  const left = Math.max(0, Math.min(hover.x + 12, hover.width - 250));
  return html`<div class="tip" style=${{ left: left + "px", top: hover.y + 16 + "px" }}>
    <b>${event ? event.name ?? event.kind : CAUSES[span.cause]?.title ?? span.cause}</b> ${CAUSES[span.cause]?.title ?? span.cause} ${seconds(span.end - span.start)}
    ${event?.tokens && html`<div>${count(event.tokens.prompt)} in, ${count(event.tokens.cached)} cached, ${count(event.tokens.completion)} out</div>`}
    ${event && html`<div class="clip">${event.error ?? event.text ?? event.label}</div>`}
    <div class="muted">${span.place.slice(span.place.lastIndexOf("/") + 1)}</div>
  </div>`;
}

// Forks, joins and the critical path, by states' numbers.
function factsOf(view) {
  const states = new Map(view.states.map((state) => [state.number, state]));
  const forks = [];
  const joins = [];
  for (const state of view.states) {
    for (const event of state.events) {
      const at = event.end ?? event.start;
      if (event.kind === "fork" || event.kind === "call") forks.push({ from: state.number, at, to: event.states.filter((number) => states.has(number)) });
      if (event.kind === "join") joins.push({ to: state.number, at, from: event.states.filter((number) => states.has(number)) });
    }
  }
  const critical = new Set((view.critical_path ?? []).map(([state, span]) => `${state}.${span}`));
  return { states, forks, joins, critical, path: view.critical_path ?? [] };
}

function showSpan(range, { start, end }) {
  const margin = Math.max((end - start) * 0.1, 1e-5);
  range.show(start - margin, end + margin);
}

function middle(row, span) {
  const { start, end } = row.state.spans[span];
  return (start + end) / 2;
}

// Return the span before or after another one of the same row.
function beside(rows, row, span, step) {
  const next = span + step;
  return next >= 0 && next < rows[row].state.spans.length ? { row, span: next } : { row, span };
}

// Return the span at a time in the next row that has spans; null if there is none.
function nextFrom(rows, row, step, time, onlyThis = false) {
  for (let at = row; at >= 0 && at < rows.length; at += step) {
    const { spans } = rows[at].state;
    if (spans.length) return { row: at, span: Math.min(firstAfter(spans, time), spans.length - 1) };
    if (onlyThis) return null;
  }
  return null;
}

// Return the index of the first span that ends after a time.
function firstAfter(spans, time) {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].end <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function spanAt(rows, range, width, x, y) {
  const row = Math.floor((y - AXIS) / ROW);
  if (y < AXIS || row < 0 || row >= rows.length) return null;
  const perPixel = (range.to - range.from) / width;
  const time = range.from + x * perPixel;
  const { spans } = rows[row].state;
  const index = firstAfter(spans, time);
  const near = [index, index - 1].filter((at) => at >= 0 && at < spans.length);
  const span = near.find((at) => time >= spans[at].start - 3 * perPixel && time <= spans[at].end + 3 * perPixel);
  return span === undefined ? null : { row, span };
}

function draw(pen, width, height, scene) {
  const { rows, range, scroll, facts, isCritical } = scene;
  const colours = theme();
  const x = (time) => ((time - range.from) / (range.to - range.from)) * width;
  const y = (row) => AXIS + row * ROW - scroll;
  const first = Math.max(0, Math.floor(scroll / ROW));
  const last = Math.min(rows.length, Math.ceil((scroll + height) / ROW));
  pen.font = `11px ${colours.sans}`;
  pen.textBaseline = "alphabetic";
  drawAxis(pen, width, height, range, x, colours);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, width, height - AXIS);
  pen.clip();
  for (let row = first; row < last; row++) drawRow(pen, width, rows[row], y(row), x, scene, colours);
  drawArrows(pen, scene, x, y, first, last, colours);
  if (isCritical && facts.path.length) drawPath(pen, scene, x, y, first, last, colours);
  pen.restore();
}

function drawAxis(pen, width, height, range, x, colours) {
  const visible = range.to - range.from;
  const rough = (visible / width) * 90;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const isLong = range.to >= 1.5;
  const digits = Math.max(0, Math.ceil(-Math.log10(isLong ? step : step * 1e3) - 1e-9));
  const label = (time) => (time === 0 ? "0" : isLong ? `${time.toFixed(digits)} s` : `${(time * 1e3).toFixed(digits)} ms`);
  pen.fillStyle = colours.muted;
  pen.strokeStyle = colours.line;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let index = Math.ceil(range.from / step - 1e-9); index * step <= range.to; index++) {
    const at = Math.round(x(index * step)) + 0.5;
    pen.moveTo(at, AXIS - 6);
    pen.lineTo(at, height);
    const text = label(index * step);
    if (at + pen.measureText(text).width + 4 < width) pen.fillText(text, at + 3, AXIS - 9);
  }
  pen.moveTo(0, AXIS - 0.5);
  pen.lineTo(width, AXIS - 0.5);
  pen.stroke();
}

function drawRow(pen, width, { state }, top, x, { range, cursor, hover, rows, chosen, view }, colours) {
  const { spans, events } = state;
  const bottom = top + BAND_Y + BAND;
  let pixel = -1; // of spans narrower than a pixel, one is drawn for each pixel
  for (let index = firstAfter(spans, range.from); index < spans.length; index++) {
    const span = spans[index];
    const left = x(span.start);
    if (left > width) break;
    const right = x(span.end);
    if (right - left < 1 && Math.floor(left) === pixel) continue;
    pixel = Math.floor(left);
    pen.globalAlpha = chosen && chosen !== span.cause ? 0.18 : 1;
    drawBand(pen, Math.max(-9, left), Math.max(1, Math.min(right, width + 9) - Math.max(-9, left)), top + BAND_Y, span.cause);
    if (right - left > 3 && !span.is_gap) drawShares(pen, left, right, top + BAND_Y, span, events[span.event], chosen);
  }
  pen.globalAlpha = 1;
  drawNames(pen, width, state, top, x, range, colours, lengthOf(view));
  for (const [at, shade] of [[cursor?.state === state.number ? cursor.span : null, colours.accent], [hover && rows[hover.row]?.state === state ? hover.span : null, colours.fg]]) {
    if (at === null || !spans[at]) continue;
    pen.strokeStyle = shade;
    pen.lineWidth = 2;
    pen.strokeRect(x(spans[at].start) - 1, top + BAND_Y - 1, Math.max(3, x(spans[at].end) - x(spans[at].start)) + 2, BAND + 2);
  }
  pen.strokeStyle = colours.line;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(0, bottom + 5.5);
  pen.lineTo(width, bottom + 5.5);
  pen.stroke();
}

function drawBand(pen, left, width, top, cause) {
  const { color, pattern } = CAUSES[cause] ?? CAUSES.transport;
  pen.fillStyle = fill(pen, color, pattern);
  pen.fillRect(left, top, width, BAND);
}

// Draw which share of a prompt was cached, and which shares of an output were forced and guessed.
function drawShares(pen, left, right, top, span, event, chosen) {
  const tokens = event?.tokens;
  if (!tokens) return;
  let at = left;
  const share = (cause, part, whole) => {
    if (!(part > 0) || !(whole > 0)) return;
    const width = (right - left) * Math.min(1, part / whole);
    pen.globalAlpha = chosen && chosen !== cause ? 0.18 : 1;
    pen.fillStyle = fill(pen, CAUSES[cause].color, CAUSES[cause].pattern);
    pen.fillRect(at, top + BAND - STRIP, width, STRIP);
    at += width;
  };
  if (span.cause === "prefill") share("cached", tokens.cached, tokens.prompt);
  if (span.cause === "decode") {
    share("forced", tokens.forced, tokens.completion);
    share("guessed", tokens.accepted, tokens.completion);
  }
}

// Draw the operations' names above the bands, errors in red, and operations that still run as outlines.
function drawNames(pen, width, { events }, top, x, range, colours, now) {
  let free = 0;
  for (const event of events) {
    const end = event.end ?? (event.error ? event.start : now);
    if (end < range.from) continue;
    const left = Math.max(0, x(event.start));
    if (left > width) break;
    const right = Math.min(width, x(end));
    if (event.error) {
      pen.strokeStyle = pen.fillStyle = colours.bad;
      pen.lineWidth = 2;
      const at = Math.min(left, width - 8);
      pen.strokeRect(at, top + BAND_Y - 1, Math.max(6, right - at), BAND + 2);
      const text = `✕ ${event.name ?? event.kind} failed`;
      const wide = pen.measureText(text).width;
      pen.fillText(text, Math.max(0, Math.min(left, width - wide - 2)), top + BAND_Y - 4);
      free = left + wide + 6;
    } else if (event.end === null) {
      pen.strokeStyle = colours.accent;
      pen.lineWidth = 1;
      pen.setLineDash([3, 3]);
      pen.strokeRect(left + 0.5, top + BAND_Y + 0.5, Math.max(4, right - left), BAND - 1);
      pen.setLineDash([]);
    }
    const isMinor = event.kind === "text" || event.kind === "role";
    if (!event.error && (right - left > (isMinor ? 40 : 22) || event.end === null) && left >= free) {
      pen.fillStyle = isMinor ? colours.muted : colours.fg;
      const text = fitted(pen, event.name ?? event.kind, Math.max(isMinor ? 0 : 40, right - left - 2));
      pen.fillText(text, left + 1, top + BAND_Y - 4);
      free = left + pen.measureText(text).width + 6;
    }
  }
}

function fitted(pen, text, width) {
  if (text.length > 60) text = text.slice(0, 60);
  if (pen.measureText(text).width <= width) return text;
  while (text.length > 1 && pen.measureText(text + "…").width > width) text = text.slice(0, -1);
  return text + "…";
}

function drawArrows(pen, { facts, place }, x, y, first, last, colours) {
  pen.strokeStyle = pen.fillStyle = colours["line-strong"];
  pen.lineWidth = 1;
  const sees = (from, to) => from !== undefined && to !== undefined && Math.max(from, to) >= first && Math.min(from, to) < last;
  for (const { from, at, to } of facts.forks) {
    const source = place.get(from);
    for (const number of to) {
      const target = place.get(number);
      if (sees(source, target)) elbow(pen, Math.round(x(at)) + 0.5, y(source) + BAND_Y + BAND, y(target) + BAND_Y + BAND / 2, 1);
    }
  }
  for (const { to, at, from } of facts.joins) {
    const target = place.get(to);
    for (const number of from) {
      const source = place.get(number);
      if (!sees(source, target)) continue;
      const [end, join] = [x(Math.min(facts.states.get(number).end ?? at, at)), Math.round(x(at)) + 0.5];
      pen.setLineDash([2, 2]);
      pen.beginPath();
      pen.moveTo(end, y(source) + BAND_Y + BAND / 2);
      pen.lineTo(join, y(source) + BAND_Y + BAND / 2);
      pen.stroke();
      pen.setLineDash([]);
      upright(pen, join, y(source) + BAND_Y + BAND / 2, y(target) + BAND_Y + BAND);
    }
  }
}

// Draw a line down from (x, from) and a head that points right at (x, to).
function elbow(pen, x, from, to) {
  pen.beginPath();
  pen.moveTo(x, from);
  pen.lineTo(x, to);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x, to);
  pen.lineTo(x - 6, to - 4);
  pen.lineTo(x - 6, to + 4);
  pen.fill();
}

// Draw a line with a head at its end.
function upright(pen, x, from, to) {
  const back = from > to ? 5 : -5;
  pen.beginPath();
  pen.moveTo(x, from);
  pen.lineTo(x, to);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x, to);
  pen.lineTo(x - 3.5, to + back);
  pen.lineTo(x + 3.5, to + back);
  pen.fill();
}

function drawPath(pen, { facts, place }, x, y, first, last, colours) {
  pen.strokeStyle = colours.accent;
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  pen.beginPath();
  let before = null;
  for (const [number, index] of facts.path) {
    const row = place.get(number);
    const span = facts.states.get(number)?.spans[index];
    if (row === undefined || !span) continue;
    const at = y(row) + BAND_Y + BAND + 2;
    if (before !== null && before !== row && Math.max(before, row) >= first && Math.min(before, row) < last) {
      pen.moveTo(x(span.start), y(before) + BAND_Y + BAND + 2);
      pen.lineTo(x(span.start), at);
    }
    if (row >= first && row < last) {
      pen.moveTo(x(span.start), at);
      pen.lineTo(Math.max(x(span.end), x(span.start) + 1), at);
    }
    before = row;
  }
  pen.stroke();
}
