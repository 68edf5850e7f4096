// An answer: text or JSON tree, numbers, token strip, the request to copy.

import { familyOf, forkAnswer, merged, newAnswers, revivedAnswer, slimAnswer, start, stop } from "./answer.js";
import { allowedAt, constraintOf } from "./constraint.js";
import { JsonTree, parseJson } from "./json_tree.js";
import { drawSeed, settings } from "./settings.js";
import { curl, openaiPython, ramiformProgram } from "./snippets.js";
import { Strip } from "./strip.js";
import { CopyButton, ErrorNote, count, createStore, seconds, useKeys, useStore } from "./ui.js";
import { html, useState } from "./vendor/standalone.mjs";

/** State of a view that keeps a list of answers, beside its `fields`. */
export function answerStore(name, fields) {
  const ofAnswers = (change) => (state) => ({ ...state, answers: state.answers.map(change) });
  return createStore(name, { ...fields, answers: [], chosen: null }, { revive: ofAnswers(revivedAnswer), slim: ofAnswers(slimAnswer) });
}

/**
 * Send requests of a view, one at a time, and fork their answers. `nextRequest(state, about)` returns {request, error}.
 * `view(children)` shows the chosen answer; `children(answer)` are further buttons.
 */
export function useAnswers(name, store, nextRequest, about) {
  const { answers, chosen } = useStore(store);
  const [error, setError] = useState(null);
  useStore(settings); // the request to copy depends on them
  const isRunning = answers.some((answer) => answer.isRunning);
  useKeys({ Escape: () => isRunning && (stop(name), true) });
  const put = (changed) => store.set((state) => ({
    answers: merged(state.answers, changed),
    chosen: state.answers.some(({ id }) => id === changed[0].id) ? state.chosen : changed[0].id,
  }));
  const send = () => {
    if (isRunning) return;
    const { request, error: problem } = nextRequest(store.get(), about);
    setError(problem);
    if (problem) return;
    drawSeed();
    start(name, request, newAnswers(request), put);
  };
  const fork = async (answer, at, choice) => {
    try {
      const draft = await forkAnswer(answer, at, choice, about.model.context_length);
      start(name, draft.request, [draft], put);
    } catch (caught) {
      setError(caught);
    }
  };
  const shown = answers.find(({ id }) => id === chosen) ?? answers.at(-1);
  return {
    onKeyDown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && (event.preventDefault(), send()),
    controls: (label) => html`<div class="row">
      <${CopyRequest} about=${about} request=${() => nextRequest(store.get(), about).request} /><span class="grow"></span>
      ${isRunning ? html`<button type="button" title="Escape" onClick=${() => stop(name)}>Stop</button>`
        : html`<button type="button" class="primary" title="Ctrl+Enter" onClick=${send}>${label}</button>`}
    </div><${ErrorNote} error=${error} />`,
    view: (children) => shown && html`<${AnswerView} answers=${answers} chosen=${shown.id} about=${about} onFork=${fork} onChoose=${(id) => store.set({ chosen: id })}>
      ${children(shown)}
      <button type="button" class="quiet" disabled=${isRunning} onClick=${() => store.set({ answers: [], chosen: null })}>Clear</button>
    <//>`,
  };
}

/** Buttons that copy a request in three forms. `request()` returns {path, body}. */
export function CopyRequest({ request, about }) {
  return html`<span class="copy small muted" role="group" aria-label="Copy the request">copy as
    <${CopyButton} label="curl" text=${() => curl(request())} />
    <${CopyButton} label="openai-python" text=${() => openaiPython(request())} />
    <${CopyButton} label="ramiform program" text=${() => ramiformProgram(request(), about.model.context_length)} />
  </span>`;
}

/** `answers`: all alternatives, in order; `chosen`: the id of the one that is shown. `children`: further buttons; `below`: what stands under the text. */
export function AnswerView({ answers, chosen, onChoose, onFork, about, below, children }) {
  const answer = answers.find(({ id }) => id === chosen) ?? answers.at(-1);
  const [showsTokens, setTokens] = useState(answer.from !== null);
  const [raw, setRaw] = useState(false);
  const at = answers.indexOf(answer);
  const json = answer.isRunning ? null : parseJson(answer.text);
  return html`<div class="answer" aria-busy=${answer.isRunning}>
    ${answer.reasoning ? html`<details class="reasoning" open=${answer.isRunning && !answer.text}>
      <summary class="small muted">Reasoning</summary><div class="text muted">${answer.reasoning}</div></details>` : null}
    ${json && !raw ? html`<${JsonTree} value=${json.value} />`
      : html`<div class="text">${answer.text}${answer.isRunning ? html`<span class="caret" aria-hidden="true"></span>` : null}</div>`}
    ${below}
    <${ErrorNote} error=${answer.error} />
    <div class="row answer-bar small muted">
      ${answers.length > 1 ? html`<span class="pager">
        <button type="button" class="quiet icon" aria-label="Previous answer" disabled=${at === 0} onClick=${() => onChoose(answers[at - 1].id)}>‹</button>
        <span>${at + 1} of ${answers.length}</span>
        <button type="button" class="quiet icon" aria-label="Next answer" disabled=${at === answers.length - 1} onClick=${() => onChoose(answers[at + 1].id)}>›</button>
      </span>` : null}
      ${answer.tokens.length ? html`<button type="button" class="quiet" aria-pressed=${showsTokens} onClick=${() => setTokens(!showsTokens)}>${showsTokens ? "Hide tokens" : "Tokens"}</button>` : null}
      ${json ? html`<button type="button" class="quiet" onClick=${() => setRaw(!raw)}>${raw ? "Tree" : "Text"}</button>` : null}
      <${CopyButton} text=${() => answer.text} label="Copy" title="Copy the text" />
      ${children}
      <span class="grow"></span>
      <${Numbers} answer=${answer} />
    </div>
    ${showsTokens && answer.tokens.length ? html`<${Strip} key=${familyOf(answers, answer)[0].id} family=${familyOf(answers, answer)} onFork=${onFork} allowedAt=${constraintOf(answer.request.body) ? allowedAt : null} />` : null}
    ${showsTokens ? html`<${CopyRequest} request=${() => answer.request} about=${about} />` : null}
  </div>`;
}

function Numbers({ answer: { request, usage, timings, finish, isRunning, tokens, from } }) {
  const parts = [];
  if (isRunning) parts.push(`${tokens.length || ""} …`);
  if (from) parts.push(`fork at token ${from.at + 1}`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const isOneOfSeveral = request.body.n > 1; // usage is of all of them
    parts.push(`${count(usage.prompt_tokens)} prompt${cached ? `, ${count(cached)} cached` : ""}`, `${count(isOneOfSeveral ? tokens.length : usage.completion_tokens)} tokens`);
  }
  if (timings) parts.push(`first after ${seconds(timings.prompt_ms / 1000)}`);
  if (timings?.predicted_n > 4) parts.push(`${count(timings.predicted_per_second)}/s`);
  if (finish && finish !== "stop") parts.push({ length: "cut at the limit", tool_calls: "calls tools", stopped: "stopped", error: "failed" }[finish] ?? finish);
  return html`<span class="numbers">${parts.join(" · ")}</span>`;
}
