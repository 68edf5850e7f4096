// Sampling settings of all requests of the playground. A field that is empty is not sent, so the server's default holds.

import { createStore, useStore } from "./ui.js";
import { html } from "./vendor/standalone.mjs";

const number = (low, high, step) => ({ input: "number", read: readNumber, low, high, step });
const integer = (low, high) => ({ input: "number", read: readInteger, low, high, step: 1 });
const lines = { input: "lines", read: (text) => text.split("\n").filter((line) => line !== "") };
const ids = { input: "text", read: readIds };

const GROUPS = [
  ["Draw", {
    temperature: { ...number(0, 2, 0.1), hint: "1", about: "Divides the logits; 0 always takes the likeliest token" },
    top_p: { ...number(0, 1, 0.05), hint: "1", about: "Only the fewest likeliest tokens that hold this probability together" },
    top_k: { ...integer(-1, 2 ** 31), hint: "all", about: "Only the k likeliest tokens" },
    min_p: { ...number(0, 1, 0.05), hint: "0", about: "Only tokens of at least this fraction of the likeliest one's probability" },
    seed: { ...integer(-(2 ** 53), 2 ** 53), about: "Empty: another one for each request, which is sent, so that a fork draws as the answer would have" },
    n: { ...integer(1, 16), hint: "1", about: "Answers to each request" },
  }],
  ["Length and end", {
    max_tokens: { ...integer(1, 2 ** 31), hint: "what fits", about: "Largest number of tokens to generate" },
    min_tokens: { ...integer(0, 2 ** 31), hint: "0", about: "End tokens and stop rules are ignored before this many tokens" },
    stop: { ...lines, about: "Strings before which the text ends, one a line" },
    stop_regex: { ...lines, about: "Patterns before whose match the text ends, one a line" },
    stop_token_ids: { ...ids, about: "Tokens that end the text" },
    include_stop_str_in_output: { input: "check", about: "Keep the stop string" },
    ignore_eos: { input: "check", about: "Go on after the model's end token" },
  }],
  ["Penalties and token rules", {
    frequency_penalty: { ...number(-2, 2, 0.1), hint: "0", about: "Subtracted once per occurrence in the output" },
    presence_penalty: { ...number(-2, 2, 0.1), hint: "0", about: "Subtracted once if in the output" },
    repetition_penalty: { ...number(0.01, 10, 0.05), hint: "1", about: "Divides the logits of tokens in prompt or output" },
    logit_bias: { input: "lines", read: readBias, placeholder: "id: bias", about: "Added to the logits of tokens, one a line" },
    bad_words: { ...lines, about: "Words that are never completed, one a line" },
    allowed_token_ids: { ...ids, about: "The only tokens that may be generated" },
  }],
];
const FIELDS = Object.assign({}, ...GROUPS.map(([, fields]) => fields));

export const settings = createStore("settings", { values: {}, details: true, alternatives: 8, extra: "", nextSeed: newSeed(), isOpen: innerWidth > 900 });

function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
}

/** Choose the next request's seed. Call it when a request has been sent. */
export const drawSeed = () => settings.set({ nextSeed: newSeed() });

function readNumber(text, { low, high }) {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error("not a number");
  if (value < low || value > high) throw new Error(`must be between ${low} and ${high}`);
  return value;
}

function readInteger(text, field) {
  const value = readNumber(text, field);
  if (!Number.isInteger(value)) throw new Error("not a whole number");
  return value;
}

function readIds(text) {
  return text.split(/[\s,]+/).filter(Boolean).map((part) => readInteger(part, { low: 0, high: 2 ** 31 }));
}

function readBias(text) {
  const pairs = text.split("\n").filter((line) => line.trim()).map((line) => {
    const [, id, bias] = line.match(/^\s*"?(\d+)"?\s*[:=\s]\s*(-?[\d.]+)\s*,?\s*$/) ?? [];
    if (id === undefined) throw new Error(`"${line.trim()}" is not "id: bias"`);
    return [id, readNumber(bias, { low: -100, high: 100 })];
  });
  return Object.fromEntries(pairs);
}

function readExtra(text) {
  if (!text.trim()) return {};
  const value = JSON.parse(text);
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("not a JSON object");
  return value;
}

const isEmpty = (value) => value === undefined || value === false || (typeof value === "string" && value.trim() === "");

function readField(name, text) {
  const field = FIELDS[name];
  return field.input === "check" ? true : field.read(text, field);
}

/** Return {body: the fields to send, errors: {name: message}, error: the first of them as {param, message}, or null}. */
export function readSettings({ values, extra, nextSeed }) {
  const body = {};
  const errors = {};
  for (const name of Object.keys(FIELDS)) {
    if (isEmpty(values[name])) continue;
    try {
      body[name] = readField(name, values[name]);
    } catch (error) {
      errors[name] = error.message;
    }
  }
  body.seed ??= nextSeed;
  try {
    Object.assign(body, readExtra(extra));
  } catch (error) {
    errors.extra = error.message;
  }
  const [first] = Object.entries(errors);
  return { body, errors, error: first ? { param: first[0], message: first[1] } : null };
}

export function SettingsPanel({ defaults = {} }) {
  const state = useStore(settings);
  const { errors } = readSettings(state);
  const set = (name, value) => settings.set(({ values }) => ({ values: { ...values, [name]: value } }));
  const numSet = Object.keys(FIELDS).filter((name) => !isEmpty(state.values[name])).length + (state.extra.trim() ? 1 : 0);
  return html`<details class="settings panel" open=${state.isOpen} onToggle=${(event) => settings.set({ isOpen: event.target.open })}>
    <summary><b>Settings</b> ${numSet ? html`<span class="badge">${numSet} set</span>` : html`<span class="muted small">defaults</span>`}</summary>
    ${GROUPS.map(
      ([title, fields]) => html`<fieldset key=${title}>
        <legend>${title}</legend>
        ${Object.entries(fields).map(
          ([name, field]) => html`<${Field} key=${name} name=${name} field=${field} value=${state.values[name]} error=${errors[name]} set=${set}
            hint=${name === "seed" ? String(state.nextSeed) : defaults[name] ?? field.hint ?? ""} />`,
        )}
      </fieldset>`,
    )}
    <fieldset>
      <legend>Tokens</legend>
      <label class="check wide" title="Ask for each token's probabilities and alternatives; without them an answer has no token strip">
        <input type="checkbox" name="details" checked=${state.details} onChange=${(event) => settings.set({ details: event.target.checked })} />token details
      </label>
      <label class="field"><span>alternatives</span>
        <input type="number" name="alternatives" min="0" max="20" value=${state.alternatives} disabled=${!state.details}
          onInput=${(event) => settings.set({ alternatives: Math.min(20, Math.max(0, Math.round(Number(event.target.value) || 0))) })} />
      </label>
    </fieldset>
    <fieldset>
      <legend>Further fields</legend>
      <label class="field wide"><span class="sr">Further fields of the request, as JSON</span>
        <textarea class="code" name="extra" rows="2" spellcheck="false" placeholder='{"cache_salt": "mine"}' aria-invalid=${errors.extra ? "true" : null} value=${state.extra}
          onInput=${(event) => settings.set({ extra: event.target.value })}></textarea>
        ${errors.extra ? html`<small class="bad-text">${errors.extra}</small>` : null}
      </label>
    </fieldset>
    <div class="row end"><button type="button" class="quiet" disabled=${!numSet} onClick=${() => settings.set({ values: {}, extra: "" })}>Reset</button></div>
  </details>`;
}

function Field({ name, field, value, error, hint, set }) {
  const onInput = (event) => set(name, event.target.value);
  if (field.input === "check") {
    return html`<label class="check wide" title=${field.about}>
      <input type="checkbox" name=${name} checked=${value === true} onChange=${(event) => set(name, event.target.checked)} />${name}
    </label>`;
  }
  const common = { name, value: value ?? "", onInput, placeholder: field.placeholder ?? hint, "aria-invalid": error ? "true" : null, spellcheck: false };
  return html`<label class=${`field ${field.input === "number" ? "" : "wide"}`} title=${field.about}>
    <span>${name}</span>
    ${field.input === "lines"
      ? html`<textarea class="code" rows=${Math.min(5, Math.max(1, (value ?? "").split("\n").length))} ...${common}></textarea>`
      : html`<input type=${field.input} step=${field.step ?? null} min=${field.low ?? null} max=${field.high ?? null} ...${common} />`}
    ${error ? html`<small class="bad-text">${error}</small>` : null}
  </label>`;
}
