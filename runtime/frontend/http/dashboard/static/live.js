// One WebSocket for all views, open only while a view listens.

import { getKey, requestKey, urlOf } from "./api.js";

const HIDDEN_MS = 30_000; // a tab hidden for longer closes its socket
const MAX_WAIT_MS = 15_000;
const KEY_REFUSED = 4401;

const listeners = new Set(); // {topic, options, onMessage}
const watchers = new Set();
let socket = null;
let wait = 500;
let retry = null;
let hiding = null;

function setStatus(status) {
  if (live.status === status) return;
  live.status = status;
  for (const watcher of watchers) watcher(status);
}

function subscription() {
  const topics = {};
  for (const { topic, options } of listeners) topics[topic] = options;
  return JSON.stringify({ subscribe: topics });
}

function open() {
  if (socket || retry || !listeners.size || document.hidden) return;
  const url = urlOf("v1/ramiform/live");
  url.protocol = url.protocol.replace("http", "ws");
  setStatus("connecting");
  const opened = (socket = new WebSocket(url));
  opened.onopen = () => {
    opened.send(JSON.stringify({ key: getKey() }));
    opened.send(subscription());
  };
  opened.onmessage = ({ data }) => {
    wait = 500;
    setStatus("on");
    const message = JSON.parse(data);
    for (const { topic, options, onMessage } of [...listeners]) {
      const isOther = topic === "program" && message.view && options.id && message.view.id !== options.id;
      if (message.type === "error" || (topic === message.type && !isOther)) onMessage(message);
    }
  };
  opened.onclose = async ({ code }) => {
    if (socket !== opened) return;
    socket = null;
    setStatus("lost");
    if (code === KEY_REFUSED && !(await requestKey(getKey() !== null))) return;
    if (!listeners.size) return;
    retry = setTimeout(() => {
      retry = null;
      open();
    }, code === KEY_REFUSED ? 0 : wait);
    wait = Math.min(2 * wait, MAX_WAIT_MS);
  };
}

function close() {
  clearTimeout(retry);
  retry = null;
  const closing = socket;
  socket = null;
  closing?.close();
  setStatus("off");
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(close, HIDDEN_MS);
  else open();
});

export const live = {
  status: "off", // "off" | "connecting" | "on" | "lost"

  /** Listen to a topic: "health", "programs", "program" or "tree". Errors reach every listener. Returns a function that ends it. */
  subscribe(topic, options, onMessage) {
    const listener = { topic, options, onMessage };
    listeners.add(listener);
    if (socket?.readyState === WebSocket.OPEN) socket.send(subscription());
    else open();
    return () => {
      listeners.delete(listener);
      if (!listeners.size) close();
      else if (socket?.readyState === WebSocket.OPEN) socket.send(subscription());
    };
  },

  /** Call `watcher` with each new status. Returns a function that ends it. */
  watch(watcher) {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  },
};
