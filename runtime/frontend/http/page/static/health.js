// The last 15 minutes of the server as small plots, and what it serves.

import { theme } from "./canvas.js";
import { ErrorNote, color, count, percent, seconds, short, useTheme } from "./ui.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/standalone.mjs";

const WINDOW = 15 * 60; // seconds
const HEIGHT = 120;
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
  { title: "Events", format: whole, lines: [["pages evicted", "--cat-7", (p) => p.evicted_pages], ["retractions", "--cat-4", (p) => p.retractions], ["errors", "--cat-6", (p) => p.errors]] },
];

export function HealthView({ api, live, about }) {
  const store = useRef([]);
  const [points, setPoints] = useState([]);
  const [error, setError] = useState(null);
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
    <div class="plots">${PLOTS.map((plot) => html`<${Plot} key=${plot.title} plot=${plot} points=${points} />`)}</div>
    ${about && html`<${Served} about=${about} />`}
  </div>`;
}

function Plot({ plot, points }) {
  const box = useRef(null);
  const chart = useRef(null);
  const isDark = useTheme();
  const [at, setAt] = useState(null); // the point under the cursor
  const data = useMemo(() => [points.map(({ t }) => t), ...plot.lines.map(([, , value]) => points.map((point) => value(point) ?? null))], [points]);
  useEffect(() => {
    const made = new uPlot(optionsOf(plot, box.current.clientWidth, setAt), data, box.current);
    chart.current = made;
    const sizes = new ResizeObserver(() => made.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    sizes.observe(box.current);
    return () => {
      sizes.disconnect();
      made.destroy();
    };
  }, [isDark]);
  useEffect(() => chart.current?.setData(data), [data]);
  const index = at ?? points.length - 1;
  const point = points[index];
  const time = at === null || !point ? "now" : new Date(point.t * 1e3).toLocaleTimeString("en-GB");
  const values = plot.lines.map(([name, token, value]) => [name, token, point && value(point) != null ? plot.format(value(point)) : "–"]);
  return html`<section class="panel plot" aria-label=${`${plot.title}: ${values.map(([name, , text]) => `${name} ${text}`).join(", ")}`}>
    <div class="row baseline"><h3 title=${plot.hint}>${plot.title}</h3><span class="grow"></span><span class="muted small">${time}</span></div>
    <div class="values">${values.map(([name, token, text]) => html`<span key=${name} class="small"><i class="patch line" style=${{ backgroundColor: `var(${token})` }}></i>${name} <b>${text}</b></span>`)}</div>
    <div ref=${box} class="chart" aria-hidden="true"></div>
  </section>`;
}

function optionsOf(plot, width, setAt) {
  const { line, muted, sans } = theme();
  const axis = { stroke: muted, font: `10px ${sans}`, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [6, 4, 0, 0],
    cursor: { points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "health", setSeries: false } },
    hooks: { setCursor: [(chart) => setAt(chart.cursor.idx ?? null)] },
    scales: { x: { time: true, range: (chart, from, to) => [(to ?? WINDOW) - WINDOW, to ?? WINDOW] }, y: { range: (chart, from, to) => [0, plot.max ?? Math.max(to ?? 0, Number.MIN_VALUE) * 1.08] } },
    axes: [
      { ...axis, size: 18, gap: 2, space: 70, incrs: [300], values: (chart, times) => times.map((time) => new Date(time * 1e3).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })) },
      { ...axis, size: 52, gap: 4, space: 28, incrs: plot.format === whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e5, 1e6] : undefined, values: (chart, values) => values.map((value) => (value === 0 ? "0" : plot.format(value))) },
    ],
    series: [{}, ...plot.lines.map(([label, token], index) => ({ label, stroke: color(token), width: 1.5, dash: index ? [5, 3] : undefined, points: { show: false } }))],
  };
}

function Served({ about }) {
  const { model, flags, version } = about;
  const facts = [["ramiform", version], ...Object.entries(model ?? {})].filter(([, value]) => value !== null && value !== undefined && typeof value !== "object");
  return html`<div class="served">
    <section class="panel"><h3>Model</h3><dl class="pairs">${facts.map(([name, value]) => html`<div key=${name}><dt>${name.replaceAll("_", " ")}</dt><dd>${String(value)}</dd></div>`)}</dl></section>
    <section class="panel"><h3>Flags that differ from their defaults</h3>
      ${Object.keys(flags ?? {}).length ? html`<dl class="pairs">${Object.entries(flags).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd><code>${typeof value === "string" ? value : JSON.stringify(value)}</code></dd></div>`)}</dl>` : html`<p class="muted">none</p>`}
    </section>
  </div>`;
}
