// What the canvases share: size and sharpness, the theme's colours, and fills that differ in colour and in pattern.

import { color } from "./ui.js";
import { useEffect, useRef } from "./vendor/standalone.mjs";

// Causes of time, in the order of the legend. The colours are told apart by all kinds of colour vision (Okabe and Ito);
// the patterns tell them apart without colour.
export const CAUSES = {
  queue: { title: "queue", meaning: "waited for its turn in the runtime", color: "#d55e00", pattern: "rise" },
  grammar: { title: "grammar compile", meaning: "waited for its grammar", color: "#cc79a7", pattern: "cross" },
  prefill: { title: "prefill", meaning: "computed the prompt's tokens", color: "#0072b2", pattern: "" },
  cached: { title: "cached", meaning: "share of the prompt whose KV was reused", color: "#56b4e9", pattern: "" },
  decode: { title: "decode", meaning: "generated tokens", color: "#009e73", pattern: "" },
  guessed: { title: "guesses accepted", meaning: "share of the output that speculation guessed", color: "#f0e442", pattern: "" },
  forced: { title: "forced", meaning: "share of the output that the grammar left no choice in", color: "#b9b9ff", pattern: "bars" },
  retracted: { title: "retracted", meaning: "gave up its pages and waited to be computed again", color: "#d00040", pattern: "fall" },
  model: { title: "model", meaning: "prefill and decode of a backend that does not say more", color: "#2a9d8f", pattern: "" },
  tool: { title: "tool", meaning: "a tool or function of the program ran", color: "#e69f00", pattern: "bars" },
  python: { title: "Python", meaning: "the program computed between its operations", color: "#8c8c8c", pattern: "" },
  wait: { title: "wait", meaning: "the program read a value that was not there yet, or a join waited", color: "#b0b0b0", pattern: "rules" },
  transport: { title: "transport", meaning: "messages, tokenising, templates", color: "#a58a6f", pattern: "dots" },
  start: { title: "start", meaning: "from the call to the program's first line", color: "#a0a0b8", pattern: "fall" },
};

let colours = null;
const watchers = new Set();

function forget() {
  colours = null;
  for (const watcher of watchers) watcher();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
new MutationObserver(forget).observe(document.documentElement, { attributes: true });

// The colours of the page's theme, read once until the theme changes.
export function theme() {
  if (colours) return colours;
  colours = { sans: getComputedStyle(document.body).fontFamily };
  for (const name of ["raised", "fg", "muted", "line", "line-strong", "accent", "bad", "good", "warn"]) colours[name] = color("--" + name);
  for (let category = 1; category <= 8; category++) colours[`cat-${category}`] = color(`--cat-${category}`);
  return colours;
}

/** Return the colour of a token of style.css that canvases use, such as "--cat-1". */
export const colourOf = (token) => theme()[token.slice(2)];

export function onTheme(watcher) {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

const tiles = new Map();

// Return a tile of a colour with a pattern: small, so that it may be repeated over any area.
export function tile(shade, pattern) {
  const key = shade + pattern;
  if (tiles.has(key)) return tiles.get(key);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 8;
  const pen = canvas.getContext("2d");
  pen.fillStyle = shade;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = pen.fillStyle = "rgba(0,0,0,.45)";
  pen.lineWidth = 1.2;
  pen.beginPath();
  if (pattern === "rise" || pattern === "cross") pen.moveTo(-2, 10), pen.lineTo(10, -2), pen.moveTo(-2, 2), pen.lineTo(2, -2), pen.moveTo(6, 10), pen.lineTo(10, 6);
  if (pattern === "fall" || pattern === "cross") pen.moveTo(-2, -2), pen.lineTo(10, 10), pen.moveTo(6, -2), pen.lineTo(10, 2), pen.moveTo(-2, 6), pen.lineTo(2, 10);
  if (pattern === "bars") pen.moveTo(0, 2), pen.lineTo(8, 2), pen.moveTo(0, 6), pen.lineTo(8, 6);
  if (pattern === "rules") pen.moveTo(2, 0), pen.lineTo(2, 8), pen.moveTo(6, 0), pen.lineTo(6, 8);
  pen.stroke();
  if (pattern === "dots") for (const [x, y] of [[2, 2], [6, 6]]) pen.fillRect(x - 0.8, y - 0.8, 1.8, 1.8);
  tiles.set(key, canvas);
  return canvas;
}

const fills = new Map();

// Return a fill for a canvas context.
export function fill(pen, shade, pattern) {
  if (!pattern) return shade;
  const key = shade + pattern;
  if (!fills.has(key)) fills.set(key, pen.createPattern(tile(shade, pattern), "repeat"));
  return fills.get(key);
}

const backgrounds = new Map();

// Return the same fill as a style of an element.
export function background(cause) {
  const { color: shade, pattern } = CAUSES[cause] ?? CAUSES.transport;
  if (!pattern) return { backgroundColor: shade };
  if (!backgrounds.has(cause)) backgrounds.set(cause, `url(${tile(shade, pattern).toDataURL()})`);
  return { backgroundImage: backgrounds.get(cause), backgroundColor: shade };
}

// Return [canvas ref, redraw]: `draw(pen, width, height)` runs in the next frame after `redraw()`, after a change of size
// or theme, and after each render. Sizes are in CSS pixels.
export function useCanvas(draw) {
  const canvas = useRef(null);
  const state = useRef({ draw, frame: 0, redraw: null }).current;
  state.draw = draw;
  if (state.redraw === null) {
    const paint = () => {
      state.frame = 0;
      const at = canvas.current;
      if (!at) return;
      const ratio = devicePixelRatio || 1;
      const width = at.clientWidth;
      const height = at.clientHeight;
      if (at.width !== Math.round(width * ratio) || at.height !== Math.round(height * ratio)) {
        at.width = Math.round(width * ratio);
        at.height = Math.round(height * ratio);
      }
      const pen = at.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      if (state.draw(pen, width, height) === true) state.redraw();
    };
    state.redraw = () => {
      if (!state.frame) state.frame = requestAnimationFrame(paint);
    };
  }
  useEffect(() => {
    const sizes = new ResizeObserver(state.redraw);
    sizes.observe(canvas.current);
    const stop = onTheme(state.redraw);
    return () => {
      sizes.disconnect();
      stop();
      cancelAnimationFrame(state.frame);
      state.frame = 0;
    };
  }, []);
  useEffect(state.redraw);
  return [canvas, state.redraw];
}
