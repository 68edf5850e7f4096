// The shell: header, tabs, routes, key dialog. Views are modules that are loaded when first shown.

import { api, setKeyDialog } from "./api.js";
import { live } from "./live.js";
import { ErrorNote, applyTheme, toggleTheme, useKeys, useTheme } from "./ui.js";
import { html, render, useEffect, useRef, useState } from "./vendor/standalone.mjs";

const VIEWS = [
  { name: "chat", label: "Chat", load: async () => (await import("./chat.js")).ChatView },
  { name: "complete", label: "Complete", load: async () => (await import("./complete.js")).CompleteView },
  { name: "structured", label: "Structured", load: async () => (await import("./structured.js")).StructuredView },
  { name: "programs", label: "Programs", load: async () => (await import("./programs.js")).ProgramsView },
  { name: "tree", label: "Tree", load: async () => (await import("./tree.js")).TreeView },
  { name: "health", label: "Health", load: async () => (await import("./health.js")).HealthView },
];

/** "#/programs/abc?x=1" -> {view: "programs", id: "abc", path: ["programs", "abc"], query: URLSearchParams} */
function parseRoute() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { view: parts[0] ?? "", id: parts[1] ?? null, path: parts, query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function setRoute(route) {
  location.hash = route.startsWith("#") ? route : `#/${route.replace(/^\//, "")}`;
}

function useRoute() {
  const [route, setState] = useState(parseRoute());
  useEffect(() => {
    const onChange = () => setState(parseRoute());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return route;
}

/** What is served: `/v1/ramiform/about`. Asked again while the server is away. */
function useAbout() {
  const [state, setState] = useState({ about: null, error: null });
  useEffect(() => {
    let timer = null;
    let over = false;
    const ask = async () => {
      let error = null;
      try {
        const about = await api.get("v1/ramiform/about");
        if (!over) setState({ about, error: null });
      } catch (caught) {
        error = caught;
        if (!over) setState((before) => ({ ...before, error }));
      }
      if (!over) timer = setTimeout(ask, error ? 2_000 : 20_000);
    };
    ask();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, []);
  return state;
}

function useLiveStatus() {
  const [status, setStatus] = useState(live.status);
  useEffect(() => live.watch(setStatus), []);
  return status;
}

function App() {
  const route = useRoute();
  const { about, error } = useAbout();
  const views = VIEWS.filter(({ name }) => name !== "chat" || about?.has_chat !== false);
  const current = views.find(({ name }) => name === route.view) ?? views[0];
  useEffect(() => {
    document.title = `${current.label} - ${about?.model.name ?? "ramiform"}`;
  }, [current, about]);
  const keys = { "/": () => focusInput() };
  views.forEach(({ name }, index) => (keys[index + 1] = () => (setRoute(name), true)));
  useKeys(keys);
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <${Header} views=${views} current=${current} about=${about} error=${error} />
    <main id="main" tabindex="-1">
      ${about
        ? html`<${View} key=${current.name} view=${current} route=${route} about=${about} />`
        : html`<div class="empty">${error ? html`<${ErrorNote} error=${error} />` : "Loading the model's description."}</div>`}
    </main>
    <${KeyDialog} />
  `;
}

function focusInput() {
  const input = document.querySelector("[data-main-input]");
  input?.focus();
  return input !== null;
}

function Header({ views, current, about, error }) {
  const status = useLiveStatus();
  const state = error ? "lost" : status === "lost" ? "lost" : status === "on" ? "on" : "ready";
  const words = { lost: "The server does not answer", on: "Live", ready: "Connected" }[state];
  const dark = useTheme();
  return html`<header class="top">
    <div class="brand">
      <span class="dot" data-state=${state} role="img" aria-label=${words} title=${words}></span>
      <b>ramiform</b>
      <span class="model" title=${about?.model.path}>${about?.model.name ?? ""}</span>
    </div>
    <nav class="tabs" aria-label="Views">
      ${views.map(
        ({ name, label }, index) =>
          html`<a href=${`#/${name}`} aria-current=${name === current.name ? "page" : null} title=${`${label} (key ${index + 1})`}>${label}</a>`,
      )}
    </nav>
    <div class="tools">
      <a class="quiet" href="docs" title="API reference">API</a>
      <button type="button" class="quiet icon" aria-label=${dark ? "Light theme" : "Dark theme"} title=${dark ? "Light theme" : "Dark theme"} onClick=${toggleTheme}>
        <${ThemeIcon} dark=${dark} />
      </button>
    </div>
  </header>`;
}

function ThemeIcon({ dark }) {
  return html`<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
    ${dark
      ? html`<circle cx="8" cy="8" r="3.2" fill="currentColor" /><path stroke="currentColor" stroke-width="1.4" stroke-linecap="round" d="M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.1 1.1M11.9 11.9 13 13M3 13l1.1-1.1M11.9 4.1 13 3" />`
      : html`<path fill="currentColor" d="M6.2 1.7a6.4 6.4 0 1 0 8.1 8.1A5.4 5.4 0 0 1 6.2 1.7Z" />`}
  </svg>`;
}

function View({ view, route, about }) {
  const [loaded, setLoaded] = useState({ Component: null, error: null });
  useEffect(() => {
    view.load().then(
      (Component) => setLoaded({ Component, error: null }),
      (error) => setLoaded({ Component: null, error }),
    );
  }, [view]);
  if (loaded.error) return html`<div class="empty"><${ErrorNote} error=${loaded.error} /></div>`;
  const { Component } = loaded;
  return Component && html`<${Component} route=${route} api=${api} live=${live} setRoute=${setRoute} about=${about} />`;
}

function KeyDialog() {
  const dialog = useRef(null);
  const input = useRef(null);
  const settle = useRef(null);
  const [wasRefused, setRefused] = useState(false);
  useEffect(() => {
    setKeyDialog((refused) => {
      setRefused(refused);
      dialog.current.showModal();
      return new Promise((resolve) => (settle.current = resolve));
    });
  }, []);
  const finish = (key) => {
    const resolve = settle.current;
    settle.current = null;
    input.current.value = "";
    dialog.current.close();
    resolve?.(key);
  };
  const submit = (event) => {
    event.preventDefault();
    if (input.current.value) finish(input.current.value);
  };
  return html`<dialog ref=${dialog} class="key" aria-labelledby="key-title" onClose=${() => finish(null)}>
    <form onSubmit=${submit}>
      <h2 id="key-title">API key</h2>
      <p class=${wasRefused ? "bad-text" : "muted"} role=${wasRefused ? "alert" : null}>
        ${wasRefused ? "The server refused this key." : "The server answers only with a key. It stays in this tab until the tab is closed."}
      </p>
      <input ref=${input} type="password" autocomplete="off" aria-label="API key" autofocus />
      <div class="row end">
        <button type="button" class="quiet" onClick=${() => finish(null)}>Cancel</button>
        <button type="submit" class="primary">Use this key</button>
      </div>
    </form>
  </dialog>`;
}

applyTheme();
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
