// The last 15 minutes of the server as small plots, and what it serves.

import { colourOf, theme, useCanvas } from "./canvas.js";
import { ErrorNote, bytes, count, percent, seconds, short } from "./ui.js";
import { html, useEffect, useRef, useState } from "./vendor/standalone.mjs";

const WINDOW = 15 * 60; // seconds
const SHORTEST = 60; // seconds that a plot of a young server shows
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 4, 6, 16]; // margins of a plot, in pixels
const UPDATE_MS = 1000;

const rate = (value) => `${short(Math.round(value))}/s`;
const share = (value) => percent(value);
const whole = (value) => count(value);

// Plots: title, lines [name, token of style.css, value of a HealthPoint], format, and the largest value of a fixed scale.
const PLOTS = [
  { title: "Throughput", hint: "tokens a second; the prompt's are computed or cached", format: rate, lines: [["output", "--cat-1", (p) => p.output_rate], ["prompt", "--cat-2", (p) => p.prompt_rate]] },
  { title: "Time to first token", hint: "of the requests whose first token came in the interval", format: seconds, lines: [["p50", "--cat-1", (p) => p.ttft?.[0]], ["p95", "--cat-2", (p) => p.ttft?.[1]]] },
  { title: "Time between tokens", format: seconds, lines: [["p50", "--cat-1", (p) => p.itl?.[0]], ["p95", "--cat-2", (p) => p.itl?.[1]]] },
  { title: "Requests", format: whole, lines: [["running", "--cat-1", (p) => p.running], ["waiting", "--cat-6", (p) => p.waiting]] },
  { title: "KV cache", hint: "share of the pages", format: share, max: 1, lines: [["used", "--cat-1", (p) => p.kv_use], ["cached", "--cat-5", (p) => p.cached_share]] },
  { title: "Hit rate", hint: "share of the prompt tokens that were cached", format: share, max: 1, lines: [["cached", "--cat-3", (p) => p.hit_rate]] },
  { title: "Acceptance", hint: "share of the guessed tokens that were accepted", format: share, max: 1, lines: [["accepted", "--cat-4", (p) => p.accept]] },
  { title: "Events", hint: "evicted pages, retracted requests, failed requests, in the interval", format: whole, lines: [["evicted", "--cat-7", (p) => p.evicted_pages], ["retractions", "--cat-4", (p) => p.retractions], ["errors", "--cat-6", (p) => p.errors]] },
];

export function HealthView({ api, live, about }) {
  const store = useRef([]);
  const [points, setPoints] = useState([]);
  const [error, setError] = useState(null);
  const [at, setAt] = useState(null);
  useEffect(() => {
    let over = false;
    let timer = null;
    const show = () => {
      timer = null;
      const newest = store.current.at(-1)?.t ?? 0;
      const from = store.current.findIndex(({ t }) => t > newest - WINDOW);
      if (from > 0) store.current = store.current.slice(from);
      setPoints([...store.current]);
    };
    const add = (more) => {
      const byTime = new Map([...store.current, ...more].map((point) => [point.t, point]));
      store.current = [...byTime.values()].sort((a, b) => a.t - b.t);
      timer ??= setTimeout(show, more.length > 1 ? 0 : UPDATE_MS - 50);
    };
    api.get("v1/ramiform/health").then((answer) => over || add(answer.points), (caught) => over || setError(caught));
    const stop = live.subscribe("health", {}, (message) => (message.type === "health" ? add([message.point]) : setError(message.error)));
    return () => {
      over = true;
      clearTimeout(timer);
      stop();
    };
  }, []);
  return html`<div class="stack">
    <${ErrorNote} error=${error} />
    <div class="plots">${PLOTS.map((plot) => html`<${Plot} key=${plot.title} plot=${plot} points=${points} at=${at} onPoint=${setAt} />`)}</div>
    ${about && html`<${Served} about=${about} />`}
  </div>`;
}

/** `at` is the time under the pointer in any of the plots, or null. */
function Plot({ plot, points, at, onPoint }) {
  const [canvas] = useCanvas((pen, width, height) => draw(pen, width, height, plot, points, at));
  const point = at === null ? points.at(-1) : points[nearest(points, at)];
  const values = plot.lines.map(([name, token, value]) => [name, token, point && value(point) != null ? plot.format(value(point)) : "–"]);
  const onMove = ({ clientX }) => {
    const { left, width } = canvas.current.getBoundingClientRect();
    onPoint(points.length ? timeAt(points, clientX - left, width) : null);
  };
  return html`<section class="panel plot" aria-label=${`${plot.title}: ${values.map(([name, , text]) => `${name} ${text}`).join(", ")}`}>
    <div class="row baseline"><h3 title=${plot.hint}>${plot.title}</h3><span class="grow"></span><span class="muted small">${at === null || !point ? "now" : clock(point.t)}</span></div>
    <div class="values">${values.map(([name, token, text]) => html`<span key=${name} class="small"><i class="patch line" style=${{ backgroundColor: `var(${token})` }}></i>${name} <b>${text}</b></span>`)}</div>
    <canvas ref=${canvas} class="chart" aria-hidden="true" onPointerMove=${onMove} onPointerLeave=${() => onPoint(null)}></canvas>
  </section>`;
}

const clock = (time, seconds = true) => new Date(time * 1e3).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined });
const spanOf = (points) => (points.length ? Math.min(WINDOW, Math.max(SHORTEST, points.at(-1).t - points[0].t)) : SHORTEST);
const timeAt = (points, x, width) => points.at(-1).t - spanOf(points) * (1 - (x - LEFT) / (width - LEFT - RIGHT));

function nearest(points, time) {
  let found = 0;
  for (let index = 1; index < points.length; index++) if (Math.abs(points[index].t - time) < Math.abs(points[found].t - time)) found = index;
  return found;
}

function draw(pen, width, height, { lines, format, max }, points, at) {
  const { line, muted, fg, sans } = theme();
  const [right, bottom] = [width - RIGHT, height - BOTTOM];
  const newest = points.at(-1)?.t ?? 0;
  const span = spanOf(points);
  const x = (time) => right - ((newest - time) / span) * (right - LEFT);
  const largest = max ?? Math.max(0, ...points.flatMap((point) => lines.map(([, , value]) => value(point) ?? 0)));
  const step = format === whole ? Math.max(1, stepFor(largest / 3)) : stepFor(largest / 3);
  const top = max ?? Math.max(largest * 1.08, step);
  const y = (value) => bottom - (value / top) * (bottom - TOP);
  pen.font = `10px ${sans}`;
  pen.fillStyle = muted;
  pen.strokeStyle = line;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let value = 0; value <= top * 1.0001; value += step) {
    const height = Math.round(y(value)) + 0.5;
    pen.moveTo(LEFT, height);
    pen.lineTo(right, height);
    pen.fillText(value === 0 ? "0" : format(value), LEFT - 4, height);
  }
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  const tick = span > 360 ? 300 : 60;
  for (let time = Math.floor(newest / tick) * tick; newest && time > newest - span; time -= tick) {
    pen.moveTo(Math.round(x(time)) + 0.5, TOP);
    pen.lineTo(Math.round(x(time)) + 0.5, bottom);
    if (x(time) < right - 12 && x(time) > LEFT) pen.fillText(clock(time, false), x(time), height - 2);
  }
  pen.stroke();
  for (const [index, [, token, value]] of lines.entries()) drawLine(pen, points, value, x, y, colourOf(token), index > 0);
  if (at === null || !points.length) return;
  const point = points[nearest(points, at)];
  pen.fillStyle = fg;
  pen.fillRect(Math.round(x(point.t)), TOP, 1, bottom - TOP);
  for (const [, token, value] of lines) {
    if (value(point) == null) continue;
    pen.fillStyle = colourOf(token);
    pen.beginPath();
    pen.arc(x(point.t), y(value(point)), 3, 0, 7);
    pen.fill();
  }
}

// Points without a value are a gap in the line; one alone is a dot.
function drawLine(pen, points, value, x, y, shade, isDashed) {
  pen.strokeStyle = pen.fillStyle = shade;
  pen.lineWidth = 1.5;
  pen.setLineDash(isDashed ? [5, 3] : []);
  pen.beginPath();
  for (let index = 0; index < points.length; index++) {
    const now = value(points[index]);
    if (now == null) continue;
    const [left, height] = [x(points[index].t), y(now)];
    const isFirst = index === 0 || value(points[index - 1]) == null;
    if (!isFirst) pen.lineTo(left, height);
    else if (points[index + 1] && value(points[index + 1]) != null) pen.moveTo(left, height);
    else pen.fillRect(left - 1.5, height - 1.5, 3, 3);
  }
  pen.stroke();
  pen.setLineDash([]);
}

// Return 1, 2 or 5 times a power of ten, at least `rough`.
function stepFor(rough) {
  if (!(rough > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

const factText = (name, value) => (name.endsWith("_bytes") ? bytes(value) : typeof value === "number" ? count(value) : String(value));

function Served({ about }) {
  const { model, flags, version } = about;
  const facts = [["ramiform", version], ...Object.entries(model ?? {})].filter(([, value]) => value !== null && value !== undefined && typeof value !== "object");
  return html`<div class="served">
    <section class="panel"><h3>Model</h3><dl class="pairs">${facts.map(([name, value]) => html`<div key=${name}><dt>${name.replaceAll("_", " ")}</dt><dd>${factText(name, value)}</dd></div>`)}</dl></section>
    <section class="panel"><h3>Flags that differ from their defaults</h3>
      ${Object.keys(flags ?? {}).length ? html`<dl class="pairs">${Object.entries(flags).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd><code>${typeof value === "string" ? value : JSON.stringify(value)}</code></dd></div>`)}</dl>` : html`<p class="muted">none</p>`}
    </section>
  </div>`;
}
