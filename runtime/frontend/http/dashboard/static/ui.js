// What views share: state that outlives a view, keys, colours for canvases, numbers as text, small components.

import { html, useEffect, useRef, useState } from "./vendor/standalone.mjs";

// State

/**
 * State of a view, kept in sessionStorage so that changing tabs and reloading lose nothing. `revive` repairs what was stored,
 * `slim` shortens what does not fit.
 */
export function createStore(name, initial, { revive = (state) => state, slim = (state) => state } = {}) {
  const key = `ramiform.${name}`;
  const subscribers = new Set();
  let state = initial;
  let saving = null;
  try {
    state = revive({ ...initial, ...JSON.parse(sessionStorage.getItem(key) ?? "{}") });
  } catch {
    sessionStorage.removeItem(key);
  }
  const save = () => {
    for (const kept of [(value) => value, slim]) {
      try {
        sessionStorage.setItem(key, JSON.stringify(kept(state)));
        return;
      } catch {
        // The quota is spent: keep less.
      }
    }
  };
  addEventListener("pagehide", save);
  return {
    get: () => state,
    set(change) {
      state = { ...state, ...(typeof change === "function" ? change(state) : change) };
      clearTimeout(saving);
      saving = setTimeout(save, 500);
      for (const subscriber of subscribers) subscriber(state);
    },
    subscribe(subscriber) {
      subscribers.add(subscriber);
      return () => subscribers.delete(subscriber);
    },
  };
}

export function useStore(store) {
  const [state, setState] = useState(store.get());
  useEffect(() => {
    setState(store.get());
    return store.subscribe(setState);
  }, [store]);
  return state;
}

// Keys

const isEditing = (target) => target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;

/** Handle keys of the whole page: {"/": handler, "Escape": handler}. Plain characters are left to fields that have the focus. */
export function useKeys(handlers) {
  const latest = useRef(handlers);
  latest.current = handlers;
  useEffect(() => {
    const onKey = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key.length === 1 && isEditing(event.target)) return;
      if (latest.current[event.key]?.(event)) event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

// Theme

const THEME = "ramiform.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const themeWatchers = new Set();

const chosenTheme = () => localStorage.getItem(THEME);

export function toggleTheme() {
  const next = isDark() ? "light" : "dark";
  // The system's own choice needs no entry.
  if ((next === "dark") === dark.matches) localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, next);
  applyTheme();
}

export const isDark = () => (chosenTheme() ?? (dark.matches ? "dark" : "light")) === "dark";

export function applyTheme() {
  document.documentElement.style.colorScheme = chosenTheme() ?? "light dark";
  for (const watcher of themeWatchers) watcher();
}
dark.addEventListener("change", applyTheme);

/** Return a value that changes with the theme, so that canvases are drawn again. */
export function useTheme() {
  const [theme, setTheme] = useState(isDark());
  useEffect(() => {
    const watcher = () => setTheme(isDark());
    themeWatchers.add(watcher);
    return () => themeWatchers.delete(watcher);
  }, []);
  return theme;
}

/** Return the colour of a token of style.css, such as "--accent", as canvases need it: `rgb(...)`. */
export function color(token) {
  const probe = document.createElement("span");
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

export const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// Numbers

const integers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => integers.format(value);
export const short = (value) => (Math.abs(value) < 10_000 ? integers.format(value) : compact.format(value));
export function bytes(value) {
  const unit = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** unit).toFixed(unit && value < 100 * 1024 ** unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

/** A probability: percents, or a power of ten where percents would read 0. */
export const probability = (p) =>
  p >= 0.0995 ? `${(100 * p).toFixed(0)} %` : p >= 0.0001 ? `${(100 * p).toPrecision(2)} %` : p > 0 ? `1e${Math.round(Math.log10(p))}` : "0";

export function seconds(value) {
  if (value < 0.001) return `${Math.round(1e6 * value)} µs`;
  if (value < 1) return `${(1e3 * value).toPrecision(3)} ms`;
  if (value < 60) return `${value.toFixed(2)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

// Components

/** A button that copies `text()` and says so. */
export function CopyButton({ text, label = "Copy", title }) {
  const [done, setDone] = useState(null);
  const copy = async () => {
    setDone((await copyText(text())) ? "Copied" : "Not copied");
    setTimeout(() => setDone(null), 1500);
  };
  return html`<button type="button" class="quiet" title=${title} onClick=${copy}><span aria-live="polite">${done ?? label}</span></button>`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Plain HTTP on other machines has no clipboard API.
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/** An error of the server or the page. `error` has message and perhaps param. */
export function ErrorNote({ error, onRetry }) {
  if (!error) return null;
  return html`<div class="note bad" role="alert">
    <span>${error.param && !error.message.includes(error.param) ? html`<code>${error.param}</code> ` : null}${error.message}</span>
    ${onRetry ? html`<button type="button" class="quiet" onClick=${onRetry}>Try again</button>` : null}
  </div>`;
}

/** Buttons of which one is pressed. `options` are [value, title]. */
export function Segmented({ label, options, value, onChange }) {
  return html`<div class="segmented" role="group" aria-label=${label}>
    ${options.map(([option, title]) => html`<button type="button" key=${option} aria-pressed=${option === value} onClick=${() => onChange(option)}>${title}</button>`)}
  </div>`;
}

/** Figures side by side. `figures` are [number, name]. */
export const Figures = ({ figures }) => html`<dl class="figures">${figures.map(([number, name]) => html`<div key=${name}><dd>${number}</dd><dt>${name}</dt></div>`)}</dl>`;
