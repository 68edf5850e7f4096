// Requests to the server that serves the page. Adds the API key and asks for it once after a 401.

const KEY = "ramiform.key";

export class ApiError extends Error {
  constructor(status, { message, param = null, code = null }) {
    super(message);
    this.status = status;
    this.param = param;
    this.code = code;
  }
}

// The shell sets this: opens the key dialog and resolves to a key, or to null when the user gives up.
let askKey = async () => null;
let asking = null;

export function setKeyDialog(open) {
  askKey = open;
}

export const getKey = () => sessionStorage.getItem(KEY);

/** Ask for a key, one dialog at a time. Resolves to false when the user gives up. */
export async function requestKey(wasRefused) {
  asking ??= askKey(wasRefused).finally(() => (asking = null));
  const key = await asking;
  if (key !== null) sessionStorage.setItem(KEY, key);
  return key !== null;
}

/** Return an absolute URL of the server. The page may lie behind a prefix, so paths are relative to it. */
export const urlOf = (path) => new URL(path.replace(/^\//, ""), document.baseURI.split("#")[0]);

async function send(method, path, body, signal) {
  for (;;) {
    const key = getKey();
    const headers = {};
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(urlOf(path), { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, { message: "The server does not answer." });
    }
    if (response.ok) return response;
    const error = await readError(response);
    // Another request may have asked for the key meanwhile: then just try again.
    if (response.status !== 401 || !(getKey() !== key || (await requestKey(key !== null)))) throw error;
  }
}

async function readError(response) {
  const text = await response.text();
  try {
    const value = JSON.parse(text);
    const error = value.error ?? value;
    return new ApiError(response.status, { ...error, message: error.message ?? value.detail ?? text });
  } catch {
    return new ApiError(response.status, { message: text.slice(0, 500) || `The server answered ${response.status}.` });
  }
}

export const api = {
  ApiError,
  get: async (path, signal) => (await send("GET", path, undefined, signal)).json(),
  post: async (path, body, signal) => (await send("POST", path, body, signal)).json(),

  /** Post a body and call `onEvent` with each server-sent event's JSON. Resolves at the end of the stream. */
  async stream(path, body, onEvent, signal) {
    const response = await send("POST", path, body, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = done ? "" : lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.status ?? 500, event.error);
        onEvent(event);
      }
      if (done) throw new ApiError(0, { message: "The connection broke before the end of the answer." });
    }
  },
};
