// The radix tree as it is now: what is cached, for whom, and what is hit and evicted.

import { colourOf, fill, theme, tile, useCanvas } from "./canvas.js";
import { Table, numbers } from "./table.js";
import { TreeStore, layout } from "./tree_layout.js";
import { ErrorNote, Figures, Segmented, count, percent, prefersReducedMotion, seconds, useTheme } from "./ui.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/standalone.mjs";

const EVICTIONS = ["lru", "lfu", "priority", "program"];
const LIMIT = 2000;
const FLASH_MS = 900;
const MAX_TITLES = 5000;
const NUM_COLOURS = 7; // --cat-8 is of nodes without a program
const STATES = {
  leased: { title: "leased", meaning: "a running request reads it", pattern: "" },
  pinned: { title: "soft-pinned", meaning: "a running program will need it", pattern: "rules" },
  cached: { title: "cached", meaning: "free to be evicted", pattern: "" },
  host: { title: "on the host", meaning: "its KV lies in host memory", pattern: "rise" },
};
const ALPHA = { leased: 1, pinned: 0.75, cached: 0.5, host: 0.4 };

export function TreeView({ api, live, about }) {
  const store = useRef(null);
  store.current ??= new TreeStore();
  const [version, setVersion] = useState(0);
  const [root, setRoot] = useState(null);
  const [trail, setTrail] = useState([]); // the ids from a root of the tree to `root`
  const [isLog, setLog] = useState(true);
  const [isTable, setTable] = useState(false);
  const [chosen, setChosen] = useState(null);
  const [error, setError] = useState(null);

  useEffect(() => {
    const show = (message) => {
      store.current.apply(message, performance.now());
      setVersion((before) => before + 1);
      setError(null);
    };
    const wait = setTimeout(() => {
      const query = `limit=${LIMIT}${root === null ? "" : `&root=${root}`}`;
      if (live.status !== "on") api.get(`v1/ramiform/tree?${query}`).then(show, setError); // no socket gets through
    }, 3000);
    const stop = live.subscribe("tree", { root, limit: LIMIT }, (message) => (message.type === "error" ? setError(message.error) : show(message)));
    return () => (clearTimeout(wait), stop());
  }, [root]);

  const zoom = (id) => {
    setTrail(id === null ? [] : trail.includes(id) ? trail.slice(0, trail.indexOf(id) + 1) : [...new Set([...trail, ...store.current.pathTo(id)])]);
    setRoot(id);
  };
  const { nodes, totals, happened } = store.current;
  const titles = useTitles(api, live);
  const boxes = useMemo(() => layout(nodes, root, isLog), [version, root, isLog]);
  return html`<div class="stack tree">
    <div class="row">
      <${Segmented} label="Form" options=${[[false, "Tree"], [true, "Table"]]} value=${isTable} onChange=${setTable} />
      <${Segmented} label="Width by tokens" options=${[[true, "log"], [false, "linear"]]} value=${isLog} onChange=${setLog} />
      <nav class="row tight" aria-label="Path">
        <button type="button" class="quiet" disabled=${root === null} onClick=${() => zoom(null)}>All</button>
        ${trail.map((id) => html`<button type="button" key=${id} class="quiet" disabled=${id === root} onClick=${() => zoom(id)}>› ${nodes.has(id) ? nameOf(nodes.get(id)) : id}</button>`)}
      </nav>
      <span class="grow"></span>
      <span class="muted small wide">arrows move, Enter or a double click zooms in, Escape zooms out</span>
    </div>
    <${Totals} totals=${totals} happened=${happened} shown=${boxes.filter(({ node, hidden }) => !hidden && node.tokens > 0).length} />
    <${ErrorNote} error=${error} />
    <${Keys} boxes=${boxes} titles=${titles} />
    ${isTable
      ? html`<${NodeTable} boxes=${boxes} titles=${titles} onOpen=${(box) => setChosen(box.node.id)} />`
      : html`<${Picture} store=${store.current} boxes=${boxes} titles=${titles} chosen=${chosen} onChoose=${setChosen} root=${root} onZoom=${zoom} isEmpty=${totals !== null && boxes.length === 0} />`}
    <${NodeDetails} id=${chosen} node=${nodes.get(chosen)} titles=${titles} api=${api} onZoom=${zoom} />
    ${about?.plan_log && html`<${WhatIf} api=${api} />`}
  </div>`;
}

/** Ask what another eviction would have recomputed; the server replays its plan log. */
function WhatIf({ api }) {
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  const ask = (eviction) => {
    setAnswer("asked");
    setError(null);
    api.post("v1/ramiform/what-if", { eviction }).then(setAnswer, (failure) => (setAnswer(null), setError(failure)));
  };
  return html`<section class="row what-if" aria-label="Other evictions">
    <span class="muted small">What if the eviction were</span>
    ${EVICTIONS.map((name) => html`<button type="button" key=${name} disabled=${answer === "asked"} onClick=${() => ask(name)}>${name}</button>`)}
    <${ErrorNote} error=${error} />
    <span role="status">${answer === "asked" ? "Replaying the plan log." : answer && verdict(answer.logged, answer.what_if)}</span>
  </section>`;
}

const verdict = (logged, other) =>
  `${other.eviction} would have recomputed ${percent(other.recomputed_share, 1)} of the prompt tokens, ${logged.eviction} recomputed ${percent(logged.recomputed_share, 1)}.`;

function Totals({ totals, happened, shown }) {
  if (!totals) return html`<p class="muted">Waiting for the tree.</p>`;
  const computed = happened.hit_tokens + happened.computed_tokens;
  const facts = [
    [count(totals.tokens), "tokens cached"],
    [count(totals.nodes), `nodes, ${count(shown)} shown`],
    [count(totals.device_pages), "device pages"],
    [count(totals.leased_pages), "leased"],
    [count(totals.host_pages), "on the host"],
    [computed ? percent(happened.hit_tokens / computed) : "–", "hit since you look"],
    [count(happened.evicted_tokens), "tokens evicted"],
  ];
  return html`<${Figures} figures=${facts} />`;
}

// The root of a namespace has its label; that of no namespace has an empty one.
const nameOf = (node) => (node.parent === null ? node.namespace || "root" : node.id);

/** Return the titles of the latest programs, by the labels of their nodes. */
function useTitles(api, live) {
  const [titles, setTitles] = useState(new Map());
  useEffect(() => {
    const add = (rows) => setTitles((before) => new Map([...before, ...rows.flatMap(({ labels, title }) => (labels ?? []).map((label) => [label, title]))].slice(-MAX_TITLES)));
    api.get("v1/ramiform/programs?limit=200").then(({ programs }) => add(programs ?? []), () => {}); // labels say less, but do
    return live.subscribe("programs", {}, (message) => message.type === "programs" && add(message.rows));
  }, []);
  return titles;
}

/** Return what to call a node's program: its title and, since runs may share it, the beginning of its label. */
function nameOfProgram(program, titles) {
  if (!program || !titles.has(program)) return program ?? "";
  const title = titles.get(program);
  return `${title.length > 40 ? title.slice(0, 39) + "…" : title} ${program.slice(0, 4)}`;
}

const categories = new Map(); // by program: the number of its colour

const categoryOf = (program) => categories.get(program) ?? 8;

/** Give colours of their own to the programs with the most tokens; those that have one keep it. Returns them with their tokens. */
function assignColours(boxes) {
  const tokens = new Map();
  for (const { node, hidden } of boxes) if (!hidden && node.program) tokens.set(node.program, (tokens.get(node.program) ?? 0) + node.tokens);
  const largest = [...tokens].sort((a, b) => b[1] - a[1]).slice(0, NUM_COLOURS);
  const names = new Set(largest.map(([program]) => program));
  for (const program of categories.keys()) if (!names.has(program)) categories.delete(program);
  const free = Array.from({ length: NUM_COLOURS }, (_, index) => index + 1).filter((number) => ![...categories.values()].includes(number));
  for (const program of names) if (!categories.has(program)) categories.set(program, free.shift());
  return largest;
}

function Keys({ boxes, titles }) {
  useTheme(); // the patterns are of the theme's colours
  const programs = useMemo(() => assignColours(boxes), [boxes]);
  const shade = colourOf("--cat-8");
  return html`<div class="bands small" aria-label="Meaning of patterns and colours">
    ${Object.entries(STATES).map(([state, { title, meaning, pattern }]) => html`<span key=${state} class="key" title=${meaning}>
      <i class=${"patch " + state} style=${{ opacity: ALPHA[state], backgroundColor: shade, backgroundImage: pattern ? `url(${tile(shade, pattern).toDataURL()})` : "none" }}></i>${title}</span>`)}
    <span class="key divider"></span>
    ${programs.map(([program, tokens]) => html`<span key=${program} class="key" title=${`${program}: ${count(tokens)} tokens`}>
      <i class="patch" style=${{ backgroundColor: `var(--cat-${categoryOf(program)})` }}></i>${nameOfProgram(program, titles)}</span>`)}
    <span class="key" title="nodes of several programs, of requests, and of further programs"><i class="patch" style=${{ backgroundColor: shade }}></i>others</span>
  </div>`;
}

function Picture({ store, boxes, titles, chosen, onChoose, root, onZoom, isEmpty }) {
  const [hover, setHover] = useState(null);
  const places = useRef(new Map()); // of the nodes drawn last, for those that are gone
  const index = useMemo(() => new Map(boxes.map((box, at) => [box.hidden ? `h${box.node.id}` : box.node.id, at])), [boxes]);
  const [canvas, redraw] = useCanvas((pen, width, height) => drawTree(pen, width, height, { store, boxes, chosen, hover, places, isStill: prefersReducedMotion() }));

  const hit = (event) => {
    const bounds = canvas.current.getBoundingClientRect();
    return boxAt(boxes, (event.clientX - bounds.left) / bounds.width, (event.clientY - bounds.top) / bounds.height);
  };
  const onMove = (event) => {
    const bounds = canvas.current.getBoundingClientRect();
    const at = hit(event);
    setHover(at === null ? null : { at, x: event.clientX - bounds.left, y: event.clientY - bounds.top, width: bounds.width });
  };
  function onKey(event) {
    const at = index.get(chosen) ?? -1;
    if (event.key.startsWith("Arrow") && boxes.length) {
      const next = at < 0 ? 0 : moved(boxes, at, event.key);
      if (next !== null) onChoose(boxes[next].node.id);
    } else if (event.key === "Enter" && at >= 0) onZoom(chosen);
    else if (event.key === "Escape" && root !== null) onZoom(store.nodes.get(root)?.parent ?? null);
    else return;
    event.preventDefault();
  }
  useEffect(redraw, [hover, chosen]);
  const shown = hover && boxes[hover.at];
  return html`<div class="picture">
    <canvas ref=${canvas} tabindex="0" role="application" aria-label=${`Radix tree, ${count(boxes.length)} nodes. Arrows move between nodes, Enter zooms in, Escape zooms out. The table shows the same.`}
      onPointerMove=${onMove} onPointerLeave=${() => setHover(null)} onKeyDown=${onKey}
      onClick=${(event) => onChoose(hit(event) === null ? null : boxes[hit(event)].node.id)} onDblClick=${(event) => hit(event) !== null && onZoom(boxes[hit(event)].node.id)}></canvas>
    ${shown && html`<div class="tip" style=${{ left: Math.max(0, Math.min(hover.x + 12, hover.width - 250)) + "px", top: hover.y + 16 + "px" }}>
      ${shown.hidden ? html`<b>${count(shown.hidden[0])} nodes</b> that are not shown, ${count(shown.hidden[1])} tokens: double click to see them` : html`<b>${count(shown.node.tokens)} tokens</b> ${STATES[shown.node.state]?.title ?? shown.node.state}
        <div>${nameOfProgram(shown.node.program, titles) || "no program"}, ${count(shown.node.hits)} hits, after ${count(shown.tokensBefore)} tokens</div>`}
    </div>`}
    ${isEmpty && html`<p class="empty">The cache is empty. What is computed appears here.</p>`}
  </div>`;
}

// Return the index of the box at a place; null where there is none.
function boxAt(boxes, x, y) {
  for (let at = 0; at < boxes.length; at++) {
    const box = boxes[at];
    if (x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height) return at;
  }
  return null;
}

function moved(boxes, at, key) {
  const box = boxes[at];
  const sent = (indices) => indices.filter((index) => !boxes[index].hidden);
  if (key === "ArrowRight") return sent(box.children)[0] ?? null;
  if (key === "ArrowLeft") return box.parent;
  const siblings = sent(box.parent === null ? boxes.flatMap((one, index) => (one.parent === null ? [index] : [])) : boxes[box.parent].children);
  return siblings[siblings.indexOf(at) + (key === "ArrowDown" ? 1 : -1)] ?? null;
}

// Returns true while something fades.
function drawTree(pen, width, height, { store, boxes, chosen, hover, places, isStill }) {
  const { fg, accent, bad, good, raised, warn, sans } = theme();
  const now = performance.now();
  store.expire(now - FLASH_MS);
  pen.font = `11px ${sans}`;
  pen.textBaseline = "middle";
  const before = places.current;
  places.current = new Map();
  const drawn = new Int32Array(Math.ceil(height) + 1).fill(-1); // of boxes thinner than a pixel, one for each row and column
  for (const [at, { node, hidden, x, width: share, y, height: part }] of boxes.entries()) {
    const [left, top, wide, tall] = [x * width, y * height, share * width, part * height];
    if (!hidden) places.current.set(node.id, [left, top, wide, tall]);
    if (tall < 0.7) {
      const column = Math.floor(left / 2);
      if (drawn[Math.floor(top)] === column) continue;
      drawn[Math.floor(top)] = column;
    }
    const gap = tall > 4 ? 1 : 0;
    const shade = colourOf(`--cat-${categoryOf(node.program)}`);
    pen.globalAlpha = hidden ? 0.25 : ALPHA[node.state] ?? 0.5;
    pen.fillStyle = hidden ? fill(pen, colourOf("--cat-8"), "dots") : fill(pen, shade, STATES[node.state]?.pattern ?? "");
    pen.fillRect(left, top, Math.max(1, wide - gap), Math.max(0.7, tall - gap));
    pen.globalAlpha = 1;
    if (!hidden && node.state === "leased" && tall > 4) {
      pen.strokeStyle = fg;
      pen.lineWidth = 1.5;
      pen.strokeRect(left + 1, top + 1, Math.max(1, wide - gap - 2), tall - gap - 2);
    }
    if (tall > 14 && wide > 30) {
      const text = hidden ? `+${count(hidden[0])}` : count(node.tokens);
      if (pen.measureText(text).width < wide - 14) label(pen, text, left + 5, top + tall / 2, raised, fg);
    }
    const flash = isStill ? null : store.flashes.get(node.id);
    if (flash && !hidden) {
      pen.globalAlpha = 1 - (now - flash.at) / FLASH_MS;
      pen.strokeStyle = flash.kind === "new" ? good : warn;
      pen.lineWidth = 3;
      pen.strokeRect(left + 1, top + 1, Math.max(3, wide - 3), Math.max(2, tall - 3));
      pen.globalAlpha = 1;
    }
    if (!hidden && (node.id === chosen || hover?.at === at)) {
      pen.strokeStyle = node.id === chosen ? accent : fg;
      pen.lineWidth = 2.5;
      pen.strokeRect(left + 1, top + 1, Math.max(2, wide - 3), Math.max(2, tall - 3));
    }
  }
  if (isStill) return false;
  for (const { id, at } of store.gone) {
    const place = before.get(id);
    if (!place) continue;
    places.current.set(id, place);
    pen.globalAlpha = 1 - (now - at) / FLASH_MS;
    pen.fillStyle = fill(pen, bad, "fall");
    pen.fillRect(place[0], place[1], Math.max(2, place[2]), Math.max(2, place[3]));
    pen.globalAlpha = 1;
  }
  return store.flashes.size > 0 || store.gone.length > 0;
}

// Text on a small plate of the page's own colour: readable on any fill.
function label(pen, text, x, y, plate, ink) {
  pen.globalAlpha = 0.85;
  pen.fillStyle = plate;
  pen.fillRect(x - 2, y - 7, pen.measureText(text).width + 4, 14);
  pen.globalAlpha = 1;
  pen.fillStyle = ink;
  pen.fillText(text, x, y);
}

const known = new Map(); // texts of nodes: they never change, but their nodes may be split

function NodeDetails({ id, node, titles, api, onZoom }) {
  const [details, setDetails] = useState(null);
  useEffect(() => {
    setDetails(null);
    if (id === null || !node) return;
    const key = `${id}.${node.tokens}`;
    let over = false;
    const wait = setTimeout(async () => {
      try {
        if (!known.has(key)) known.set(key, await api.get(`v1/ramiform/tree/${id}`));
        if (known.size > 500) known.delete(known.keys().next().value);
        if (!over) setDetails(known.get(key) ?? null);
      } catch (error) {
        if (!over) setDetails({ error });
      }
    }, 120); // while arrow keys run past nodes nothing is asked
    return () => ((over = true), clearTimeout(wait));
  }, [id, node?.tokens]);
  if (id === null) return html`<div class="details muted small" aria-live="polite">No node is chosen.</div>`;
  if (!node) return html`<div class="details muted small" aria-live="polite">Node ${id} was evicted.</div>`;
  const ago = node.used + (performance.now() - node.seen) / 1e3;
  return html`<div class="details panel" aria-live="polite">
    <div class="row"><b>${node.parent === null ? nameOf(node) : `node ${id}`}</b>
      <span class="muted">${count(node.tokens)} tokens${details?.depth_tokens === undefined ? "" : `, after ${count(details.depth_tokens)}`}, ${STATES[node.state]?.title ?? node.state}, ${node.program ? `program ${nameOfProgram(node.program, titles)}` : "no program"}, ${count(node.hits)} hits, used ${seconds(ago)} ago</span>
      <span class="grow"></span><button type="button" class="quiet" onClick=${() => onZoom(id)}>Zoom in</button></div>
    <${ErrorNote} error=${details?.error} />
    ${details && !details.error && (details.text === null ? html`<p class="muted small">The server does not show texts.</p>` : html`<pre class="text">${details.text}</pre>`)}
  </div>`;
}

const COLUMNS = [
  { key: "id", title: "node", width: 90, cell: ({ node }) => nameOf(node), sort: ({ node }) => node.id },
  { key: "parent", title: "parent", width: 80, wide: true, cell: ({ node }) => node.parent ?? "", sort: ({ node }) => node.parent },
  numbers("before", "after tokens", 110, ({ tokensBefore }) => tokensBefore),
  numbers("tokens", "tokens", 80, ({ node }) => node.tokens),
  { key: "state", title: "state", width: 110, cell: ({ node }) => STATES[node.state]?.title ?? node.state, sort: ({ node }) => node.state },
  { key: "program", title: "program", wide: true, cell: ({ called }) => called, sort: ({ called }) => called },
  numbers("children", "children", 90, ({ children }) => children.length, { wide: true }),
  numbers("hits", "hits", 70, ({ node }) => node.hits),
  { key: "used", title: "used", width: 110, number: true, wide: true, cell: ({ node }) => `${seconds(node.used)} ago`, sort: ({ node }) => -node.used },
];

function NodeTable({ boxes, titles, onOpen }) {
  const rows = useMemo(() => boxes.flatMap((box) => (box.hidden ? [] : [{ ...box, called: nameOfProgram(box.node.program, titles) }])), [boxes, titles]);
  return html`<${Table} label="Nodes of the radix tree" columns=${COLUMNS} rows=${rows} keyOf=${({ node }) => node.id} className="half" onOpen=${onOpen} />`;
}
