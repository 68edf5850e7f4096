// Programs: the list of those that run and ran, one of them, two of them, and trace files.

import { Compare } from "./compare.js";
import { Facts, Failure, Program, Status, errorOf, hitRate, shareText, shortPlace, when } from "./program.js";
import { openFile, saveFile } from "./trace_file.js";
import { Table, numbers } from "./table.js";
import { ErrorNote, Segmented, count, seconds } from "./ui.js";
import { html, useEffect, useErrorBoundary, useMemo, useRef, useState } from "./vendor/standalone.mjs";

const opened = new Map(); // ProgramViews from files, by id; kept while the page is open
const PAGE = 200;

/** `api` and `live` are null in a trace file, which shows only `files`. */
export function ProgramsView({ route, api, live, setRoute, files = [] }) {
  for (const view of files) if (!opened.has(view.id)) opened.set(view.id, view);
  const [error, setError] = useState(null);
  const [, setLoaded] = useState(0);
  const faulty = useRef(null); // the program whose view failed: a file may hold anything
  const [fault] = useErrorBoundary(() => (faulty.current = route.id));
  const other = route.query.get("with");
  const load = async (file) => {
    try {
      const views = await openFile(file, opened.size);
      for (const view of views) opened.set(view.id, view);
      setError(null);
      setLoaded(opened.size);
      setRoute(views.length === 1 ? `programs/${encodeURIComponent(views[0].id)}` : "programs");
    } catch (caught) {
      setError(caught);
    }
  };
  let content;
  if (fault && faulty.current === route.id) content = html`<${ErrorNote} error=${{ message: `This program cannot be shown: ${fault.message}` }} /><a href="#/programs">← All programs</a>`;
  else if (route.id && other) content = html`<${Pair} ids=${[route.id, other]} api=${api} />`;
  else if (route.id) content = html`<${One} key=${route.id} id=${route.id} api=${api} live=${live} />`;
  else content = html`<${List} api=${api} live=${live} setRoute=${setRoute} onLoad=${load} />`;
  return html`<div class="programs stack"><${ErrorNote} error=${error} />${content}</div>`;
}

// One program

/** Return {view, error} of a program: of a file, or of the server, which tells of changes while it runs. */
function useView(id, api, live) {
  const [state, setState] = useState({ view: opened.get(id) ?? null, error: null });
  useEffect(() => {
    if (opened.has(id)) return setState({ view: opened.get(id), error: null });
    if (!api) return setState({ view: null, error: { message: "This file does not hold that program." } });
    let over = false;
    let stop = null;
    const show = (view) => {
      if (over) return;
      setState({ view, error: null });
      if (view.status === "running" && live && !stop) stop = live.subscribe("program", { id }, (message) => message.type === "program" && show(message.view));
      else if (view.status !== "running" && stop) stop(), (stop = null);
    };
    api.get(`v1/ramiform/programs/${encodeURIComponent(id)}`).then(show, (error) => over || setState({ view: null, error }));
    return () => {
      over = true;
      stop?.();
    };
  }, [id]);
  return state;
}

function One({ id, api, live }) {
  const { view, error } = useView(id, api, live);
  return html`<div class="stack">
    <div class="row"><a href="#/programs">← All programs</a>
      <span class="grow"></span>
      ${view && html`<button type="button" onClick=${() => saveFile([view])}>Save trace</button>`}
    </div>
    <${ErrorNote} error=${error} />
    ${view
      ? html`<div class="row baseline"><h2>${view.title}</h2><${Status} status=${view.status} /><span class="muted small">${view.began_at ? when(view.began_at) : ""}</span></div>
        <${Facts} view=${view} /><${Failure} view=${view} /><${Program} view=${view} />`
      : !error && html`<div class="empty">Loading the program.</div>`}
  </div>`;
}

function Pair({ ids, api }) {
  const [a, b] = [useView(ids[0], api, null), useView(ids[1], api, null)];
  return html`<div class="stack">
    <a href="#/programs">← All programs</a>
    <${ErrorNote} error=${a.error ?? b.error} />
    ${a.view && b.view && html`<${Compare} a=${a.view} b=${b.view} />`}
  </div>`;
}

// The list

/** Return the rows that the server has, newest first, and what brings older ones. */
function useRows(api, live) {
  const store = useRef({ rows: new Map(), isAsking: false, isAll: false }).current;
  const [state, setState] = useState({ rows: [], error: null, kept: 0 });
  const show = (more) => setState((before) => ({ ...before, ...more, rows: [...store.rows.values()].sort((a, b) => b.seq - a.seq) }));
  const older = async () => {
    if (!api || store.isAsking || store.isAll) return;
    store.isAsking = true;
    try {
      let oldest = Infinity;
      for (const row of store.rows.values()) oldest = Math.min(oldest, row.seq);
      const before = Number.isFinite(oldest) ? `&before=${oldest}` : "";
      const { programs, kept } = await api.get(`v1/ramiform/programs?limit=${PAGE}${before}`);
      for (const row of programs) if (!store.rows.has(row.id)) store.rows.set(row.id, row);
      store.isAll = programs.length < PAGE;
      show({ error: null, kept });
    } catch (error) {
      store.isAll = true;
      show({ error });
    } finally {
      store.isAsking = false;
    }
  };
  useEffect(() => {
    older();
    return live?.subscribe("programs", {}, (message) => {
      if (message.type !== "programs") return;
      for (const row of message.rows) store.rows.set(row.id, row);
      for (const id of message.removed ?? []) store.rows.delete(id);
      show({});
    });
  }, []);
  return { ...state, older };
}

const rowOf = (view, isFile) => ({ ...view, states: view.states.length, isFile });

function List({ api, live, setRoute, onLoad }) {
  const { rows: fromServer, error, kept, older } = useRows(api, live);
  const [filter, setFilter] = useState({ status: "", kind: "", text: "" });
  const [marked, setMarked] = useState([]);
  const rows = useMemo(() => [...[...opened.values()].map((view) => rowOf(view, api !== null)), ...fromServer], [fromServer, opened.size]);
  const shown = useMemo(() => filtered(rows, filter), [rows, filter]);
  const mark = (id) => setMarked(marked.includes(id) ? marked.filter((one) => one !== id) : [...marked, id].slice(-2));
  const columns = useMemo(() => listColumns(marked, mark), [marked]);
  const statuses = useMemo(() => {
    const found = ["running", "done", "failed", "lost"].map((status) => [status, rows.filter((row) => row.status === status).length]);
    const shown = found.filter(([status, number]) => number || (api && status !== "lost"));
    return [["", `All ${count(rows.length)}`], ...shown.map(([status, number]) => [status, `${status} ${count(number)}`])];
  }, [rows]);
  const change = (part) => setFilter({ ...filter, ...part });
  return html`<div class="stack">
    <div class="row">
      <${Segmented} label="Status" options=${statuses} value=${filter.status} onChange=${(status) => change({ status })} />
      ${api && html`<select class="narrow" aria-label="Kind" value=${filter.kind} onChange=${(event) => change({ kind: event.target.value })}>
        <option value="">all kinds</option><option value="program">programs</option><option value="request">requests</option>
      </select>`}
      <input class="search" type="search" data-main-input placeholder="title, text, line or error" aria-label="Filter by text" value=${filter.text} onInput=${(event) => change({ text: event.target.value })} />
      <span class="grow"></span>
      <button type="button" disabled=${marked.length !== 2} title="Mark two rows to compare them" onClick=${() => setRoute(`programs/${marked.map(encodeURIComponent).join("?with=")}`)}>Compare</button>
      <label class="button">Open trace<input type="file" accept=".json,application/json" class="hidden-file" onChange=${(event) => event.target.files[0] && onLoad(event.target.files[0])} /></label>
    </div>
    <${ErrorNote} error=${error} />
    <${Table} label="Programs" columns=${columns} rows=${shown} keyOf=${(row) => row.id} className="tall" rowClass=${(row) => row.status} onEnd=${older}
      onOpen=${(row) => setRoute(`programs/${encodeURIComponent(row.id)}`)} empty=${rows.length ? "no program matches" : "No program has run yet. Programs and requests appear here as they come."} />
    ${kept > rows.length && html`<p class="muted small">${count(shown.length)} of ${count(kept)} that the server keeps; scrolling brings older ones.</p>`}
  </div>`;
}

function filtered(rows, { status, kind, text }) {
  const words = text.toLowerCase();
  return rows.filter((row) => {
    if ((status && row.status !== status) || (kind && row.kind !== kind)) return false;
    return !words || `${row.title}\n${row.excerpt ?? ""}\n${row.place ?? ""}\n${row.error ?? ""}`.toLowerCase().includes(words);
  });
}

function listColumns(marked, mark) {
  const number = (key, title, width) => numbers(key, title, width, (row) => row[key], { wide: true });
  return [
    { key: "mark", title: "", width: 30, cell: (row) => html`<input type="checkbox" aria-label=${`Mark ${row.title} to compare`} checked=${marked.includes(row.id)} onChange=${() => mark(row.id)} />` },
    { key: "status", title: "status", width: 100, cell: (row) => html`<${Status} status=${row.status} />`, sort: (row) => row.status },
    { key: "title", title: "title", cell: (row) => html`<${Title} row=${row} />`, sort: (row) => row.title },
    { key: "began", title: "began", width: 84, wide: true, number: true, cell: (row) => (row.isFile ? "file" : when(row.began_at)), sort: (row) => row.began_at },
    { key: "time", title: "time", width: 84, number: true, cell: (row) => seconds(row.seconds ?? 0), sort: (row) => row.seconds },
    number("states", "states", 62),
    number("generations", "gens", 58),
    number("prompt_tokens", "prompt", 76),
    { key: "hit", title: "cached", width: 70, number: true, wide: true, cell: (row) => html`<span class="hit" title=${`${count(row.cached_tokens)} of ${count(row.prompt_tokens)} prompt tokens`}>${shareText(hitRate(row))}</span>`, sort: (row) => hitRate(row) ?? -1 },
    number("completion_tokens", "output", 70, true),
  ];
}

function Title({ row }) {
  return html`<span class="clip"><a href=${`#/programs/${encodeURIComponent(row.id)}`}>${row.title}</a>
    ${row.excerpt && html` <span class="muted small" title=${row.excerpt}>${row.excerpt}</span>`}
    ${row.error && html` <span class="bad-text" title=${row.error}>${shortPlace(row.place)} ${errorOf(row).split("\n")[0]}</span>`}</span>`;
}
