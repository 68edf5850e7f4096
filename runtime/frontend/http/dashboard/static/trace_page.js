// The script of a self-contained trace file: the programs that lie in the page itself, without a server.

import { ProgramsView } from "./programs.js";
import { applyTheme, toggleTheme, useTheme } from "./ui.js";
import { html, render, useEffect, useState } from "./vendor/standalone.mjs";

const views = JSON.parse(document.getElementById("programs").textContent);

function parseRoute() {
  const [path, query = ""] = location.hash.replace(/^#\/?(programs\/?)?/, "").split("?");
  return { id: path ? decodeURIComponent(path) : null, query: new URLSearchParams(query) };
}

function setRoute(route) {
  location.hash = `#/${route}`;
}

function TracePage() {
  const [route, setState] = useState(parseRoute());
  const isDark = useTheme();
  useEffect(() => {
    const onChange = () => setState(parseRoute());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return html`<header class="top"><div class="brand"><b>ramiform</b><span class="model">trace</span></div><span class="grow"></span>
      <button type="button" class="quiet" onClick=${toggleTheme}>${isDark ? "Light theme" : "Dark theme"}</button></header>
    <main><${ProgramsView} route=${route} api=${null} live=${null} setRoute=${setRoute} files=${views} /></main>`;
}

applyTheme();
if (views.length === 1 && !location.hash) history.replaceState(null, "", `#/programs/${encodeURIComponent(views[0].id)}`);
render(html`<${TracePage} />`, document.getElementById("app"));
