// Structured output: a constraint, checked as one types, and answers under it.

import { watched } from "./answer.js";
import { answerStore, useAnswers } from "./answer_view.js";
import { checkConstraint, checkedFields, choicesOf, KINDS, Mask, requestFields } from "./constraint.js";
import { readSettings, settings, SettingsPanel } from "./settings.js";
import { ErrorNote, bytes, short, useStore } from "./ui.js";
import { html, useEffect, useRef, useState } from "./vendor/standalone.mjs";

const PAUSE_MS = 250; // after the last key, before the server checks
const EXAMPLES = {
  json_schema: JSON.stringify({ type: "object", properties: { city: { type: "string", maxLength: 20 }, country: { enum: ["France", "Japan", "Peru"] }, population: { type: "integer", minimum: 0 } }, required: ["city", "country"] }, null, 2),
  regex: "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
  grammar: 'root ::= term (" + " term)*\nterm ::= [0-9]+ | "(" root ")"\n',
  choices: "yes\nno\nit depends",
  structural_tag: '{"type": "structural_tag", "format": {"type": "tag", "begin": "<answer>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</answer>"}}',
};

export const structured = answerStore("structured", { kind: "json_schema", sources: EXAMPLES, prompt: "Describe Paris as JSON.", isChat: true, text: "", cursor: 0 });

/** Return the fields of the constraint in the editor, or null when it is empty. */
export function chosenConstraint({ kind, sources }) {
  return sources[kind].trim() ? requestFields(kind, sources[kind]) : null;
}

function nextRequest(state, about) {
  const { body: sampling, error } = readSettings(settings.get());
  const isChat = state.isChat && about.has_chat;
  const path = isChat ? "v1/chat/completions" : "v1/completions";
  const question = isChat ? { messages: [{ role: "user", content: state.prompt }] } : { prompt: state.prompt };
  const limit = isChat ? {} : { max_tokens: 512 };
  const body = { model: about.model.name, ...question, ...chosenConstraint(state), ...watched(path, settings.get()), ...limit, ...sampling };
  return { request: { path, body }, error };
}

/** Check the constraint after a pause in typing. Returns {result, error, text, isWaiting}; `text` is the one that `result` is of. */
function useCheck(kind, source, text) {
  const [state, setState] = useState({ result: null, error: null, text, isWaiting: true });
  useEffect(() => {
    const controller = new AbortController();
    setState((before) => ({ ...before, isWaiting: true }));
    const timer = setTimeout(async () => {
      if (!source.trim()) return setState({ result: null, error: null, text, isWaiting: false });
      try {
        const result = await checkConstraint(checkedFields(kind, source), text, controller.signal);
        setState({ result, error: null, text, isWaiting: false });
      } catch (error) {
        if (error.name !== "AbortError") setState({ result: null, error, text, isWaiting: false });
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [kind, source, text]);
  return state;
}

export function StructuredView({ about }) {
  const state = useStore(structured);
  const { kind, sources, prompt } = state;
  const source = sources[kind];
  const check = useCheck(kind, source, state.text.slice(0, state.cursor));
  const { onKeyDown, controls, view } = useAnswers("structured", structured, nextRequest, about);
  return html`<div class="play" onKeyDown=${onKeyDown}>
    <section class="stack" aria-label="Constraint and answers">
      <div class="panel stack">
        <div class="row">
          <div class="segmented" role="group" aria-label="Kind of constraint">
            ${Object.entries(KINDS).map(([name, label]) => html`<button key=${name} type="button" aria-pressed=${kind === name} onClick=${() => structured.set({ kind: name })}>${label}</button>`)}
          </div>
          <span class="grow"></span>
          <${CheckStatus} check=${check} />
        </div>
        <${SourceEditor} name="source" label=${KINDS[kind]} value=${source} error=${check.result?.ok === false ? check.result.error : null}
          onInput=${(text) => structured.set(({ sources: all }) => ({ sources: { ...all, [kind]: text } }))} />
        ${kind === "choices" ? html`<small class="muted">One choice a line: ${choicesOf(source).length}.</small>` : null}
        <${ErrorNote} error=${check.error} />
        <${Report} lines=${check.result?.report} />
      </div>
      <div class="panel stack">
        <label class="field"><span>Prompt</span>
          <textarea data-main-input name="prompt" rows=${Math.min(10, Math.max(2, prompt.split("\n").length))} value=${prompt} onInput=${(event) => structured.set({ prompt: event.target.value })}></textarea>
        </label>
        ${about.has_chat ? html`<label class="check small muted"><input type="checkbox" name="chat" checked=${state.isChat} onChange=${(event) => structured.set({ isChat: event.target.checked })} />as a chat message</label>` : null}
        ${controls("Generate")}
        ${view(({ text }) => html`<button type="button" class="quiet" title="Show for each position which tokens were possible" onClick=${() => structured.set({ text, cursor: 0 })}>Step through</button>`)}
      </div>
      <${Stepper} state=${state} check=${check} vocabulary=${about.model.vocab_size} />
    </section>
    <aside class="side stack"><${SettingsPanel} defaults=${state.isChat ? {} : { max_tokens: "512" }} /></aside>
  </div>`;
}

function CheckStatus({ check: { result, error, isWaiting } }) {
  const [kind, words] = isWaiting ? ["", "checking"] : error ? ["bad", "not checked"] : !result ? ["", "empty"]
    : result.ok ? ["good", `compiles${result.states ? `: ${short(result.states)} states, ${bytes(result.bytes)}` : ""}`] : ["bad", "does not compile"];
  return html`<span class=${`badge ${kind}`} role="status">${words}</span>`;
}

/** Return the index in `text` of a character that the server counts in Unicode code points. */
const indexOf = (text, points) => [...text].slice(0, points).join("").length;

/** A field for source text. An error is underlined in it, and shown below with a caret under the offending text. */
function SourceEditor({ name, label, value, error, onInput }) {
  const mirror = useRef(null);
  const offset = error && error.offset !== null && error.offset !== undefined ? indexOf(value, error.offset) : null;
  const end = offset === null ? 0 : offset + Math.max(1, value.slice(offset).match(/^("[^"\n]*"|[\w.$-]+|.)/)?.[0].length ?? 1);
  return html`<div class="source">
    <div class="source-box">
      <pre class="mirror code" ref=${mirror} aria-hidden="true">${offset === null ? value : [value.slice(0, offset), html`<mark>${value.slice(offset, end) || " "}</mark>`, value.slice(end)]}${"\n"}</pre>
      <textarea class="code" name=${name} aria-label=${label} spellcheck="false" autocapitalize="off" rows=${Math.min(16, Math.max(5, value.split("\n").length + 1))} aria-invalid=${error ? "true" : null}
        value=${value} onInput=${(event) => onInput(event.target.value)} onScroll=${(event) => (mirror.current.scrollTop = event.target.scrollTop)}></textarea>
    </div>
    ${error ? html`<${CaretError} source=${value} offset=${offset} error=${error} />` : null}
  </div>`;
}

const AROUND = 36; // characters of a long line, on either side of the caret

function CaretError({ source, offset, error }) {
  if (offset === null) return html`<div class="note bad" role="alert"><span>${error.pointer ? html`<code>${error.pointer}</code> ` : null}${error.message}</span></div>`;
  const lineStart = source.lastIndexOf("\n", offset - 1) + 1;
  const line = source.slice(lineStart).split("\n")[0];
  const column = offset - lineStart;
  const from = Math.max(0, column - AROUND);
  const shown = line.slice(from, column + AROUND).replace(/\t/g, " ");
  const pad = " ".repeat([...shown.slice(0, column - from)].length + (from ? 1 : 0));
  return html`<div class="note bad caret-error" role="alert">
    <pre>${from ? "…" : ""}${shown}${"\n"}${pad}<b class="caret-mark">^</b></pre>
    <span>line ${source.slice(0, lineStart).split("\n").length}, column ${column + 1}: ${error.message}${error.pointer ? html` (<code>${error.pointer}</code>)` : null}</span>
  </div>`;
}

/** What of a schema is enforced, and what is refused. */
function Report({ lines }) {
  if (!lines?.length) return null;
  const other = lines.filter(({ status }) => status !== "enforced");
  return html`<details class="report" open=${other.length > 0}>
    <summary class="small"><b>${lines.length - other.length}</b> keywords enforced${other.length ? html`, <b class="bad-text">${other.length}</b> not` : null}</summary>
    <div class="scroll"><table class="small">
      <thead><tr><th>where</th><th>keyword</th><th>status</th><th>note</th></tr></thead>
      <tbody>${[...other, ...lines.filter(({ status }) => status === "enforced")].map(({ pointer, keyword, status, note }, index) => html`<tr key=${index}>
        <td class="mono">${pointer || "#"}</td><td class="mono">${keyword}</td><td class=${status === "enforced" ? "" : "bad-text"}>${status}</td><td>${note}</td></tr>`)}</tbody>
    </table></div>
  </details>`;
}

/** A text and a cursor in it: which tokens may come after the text so far. */
function Stepper({ state: { text, cursor }, check, vocabulary }) {
  const area = useRef(null);
  const move = (to) => structured.set({ cursor: Math.max(0, Math.min(text.length, to)) });
  // To the text that the tokens are for: the answer for a newer one may be on its way.
  const append = (more) => structured.set({ text: check.text + more, cursor: check.text.length + more.length });
  const onType = (event) => structured.set({ text: event.target.value, cursor: event.target.selectionEnd });
  const { result } = check;
  const rejected = result?.rejected_at ? indexOf(text, result.rejected_at.offset) : null;
  return html`<details class="panel stepper" open>
    <summary><b>Possible tokens</b> <span class="small muted">after the text before the cursor</span></summary>
    <div class="stack">
      <textarea ref=${area} class="code" name="text" rows=${Math.min(8, Math.max(2, text.split("\n").length))} spellcheck="false" aria-label="Text so far" placeholder="Text so far; empty: the beginning"
        value=${text} onInput=${onType} onKeyUp=${(event) => move(event.target.selectionEnd)} onClick=${(event) => move(event.target.selectionEnd)}></textarea>
      <div class="row">
        <button type="button" class="quiet icon" aria-label="One character back" disabled=${cursor === 0} onClick=${() => move(cursor - 1)}>◀</button>
        <input class="grow" type="range" name="cursor" min="0" max=${text.length} value=${cursor} aria-label="Cursor" disabled=${!text} onInput=${(event) => move(Number(event.target.value))} />
        <button type="button" class="quiet icon" aria-label="One character on" disabled=${cursor === text.length} onClick=${() => move(cursor + 1)}>▶</button>
        <span class="small muted number">${cursor} / ${text.length}</span>
      </div>
      <pre class="stepped" aria-label="Text with the cursor">${text.slice(0, cursor)}<span class="caret still" aria-hidden="true"></span><span class="muted">${text.slice(cursor)}</span></pre>
      ${rejected !== null ? html`<div class="note bad caret-error" role="alert"><${Rejected} text=${text} at=${rejected} hints=${result.rejected_at} /></div>` : null}
      ${result?.ok && result.state ? html`<${Mask} isBusy=${check.isWaiting} state=${result.state} vocabulary=${vocabulary} onAppend=${append} />` : null}
    </div>
  </details>`;
}

function Rejected({ text, at, hints }) {
  const from = Math.max(0, at - AROUND, text.lastIndexOf("\n", at - 1) + 1);
  return html`<pre>${text.slice(from).split("\n")[0].slice(0, 2 * AROUND)}${"\n"}${" ".repeat(at - from)}<b class="caret-mark">^</b></pre>
    <span>The constraint allows no ${JSON.stringify(text.slice(at, at + 1))} here.${hints.allowed.length ? ` Possible: ${hints.allowed.join(", ")}.` : ""}</span>`;
}
