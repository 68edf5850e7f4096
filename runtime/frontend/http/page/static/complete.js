// Completion: a prompt and what the model continues it with.

import { forkAnswer, merged, newAnswers, revivedAnswer, slimAnswer, start, stop, watched } from "./answer.js";
import { AnswerView, CopyRequest } from "./answer_view.js";
import { drawSeed, readSettings, settings, SettingsPanel } from "./settings.js";
import { createStore, ErrorNote, useKeys, useStore } from "./ui.js";
import { html, useState } from "./vendor/standalone.mjs";

const PATH = "v1/completions";
const DEFAULT_TOKENS = 64; // the route's own default, 16, is short for reading

const ofAnswers = (change) => (state) => ({ ...state, answers: state.answers.map(change) });
const complete = createStore("complete", { prompt: "Question: What is the capital of France?\nAnswer:", answers: [], chosen: null },
  { revive: ofAnswers(revivedAnswer), slim: ofAnswers(slimAnswer) });

const put = (answers) => complete.set((state) => {
  const isNew = !state.answers.some(({ id }) => id === answers[0].id);
  return { answers: merged(state.answers, answers), chosen: isNew ? answers[0].id : state.chosen };
});

function nextRequest({ prompt }, about) {
  const { body: sampling, errors } = readSettings(settings.get());
  const [problem] = Object.entries(errors).map(([param, message]) => ({ param, message }));
  const body = { model: about.model.name, prompt, ...watched(PATH, settings.get()), max_tokens: DEFAULT_TOKENS, ...sampling };
  return { request: { path: PATH, body }, error: problem ?? null };
}

export function CompleteView({ about }) {
  const state = useStore(complete);
  const { prompt, answers, chosen } = state;
  const [error, setError] = useState(null);
  useStore(settings);
  const isRunning = answers.some((answer) => answer.isRunning);
  useKeys({ Escape: () => isRunning && (stop("complete"), true) });
  const send = () => {
    if (isRunning || !prompt) return;
    const { request, error: problem } = nextRequest(complete.get(), about);
    setError(problem);
    if (problem) return;
    drawSeed();
    start("complete", request, newAnswers(request), put);
  };
  const fork = async (answer, at, choice) => {
    try {
      const draft = await forkAnswer(answer, at, choice, about.model.context_length);
      start("complete", draft.request, [draft], put);
    } catch (caught) {
      setError(caught);
    }
  };
  const shown = answers.find(({ id }) => id === chosen) ?? answers.at(-1);
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) (event.preventDefault(), send());
  };
  return html`<div class="play" onKeyDown=${onKeyDown}>
    <section class="stack" aria-label="Completion">
      <div class="panel stack">
        <textarea data-main-input class="code" name="prompt" aria-label="Prompt" rows=${Math.min(20, Math.max(6, prompt.split("\n").length))} placeholder="Prompt (/)" value=${prompt}
          onInput=${(event) => complete.set({ prompt: event.target.value })}></textarea>
        <div class="row">
          <${CopyRequest} about=${about} request=${() => nextRequest(complete.get(), about).request} />
          <span class="grow"></span>
          ${isRunning ? html`<button type="button" title="Escape" onClick=${() => stop("complete")}>Stop</button>`
            : html`<button type="button" class="primary" title="Ctrl+Enter" disabled=${!prompt} onClick=${send}>Complete</button>`}
        </div>
        <${ErrorNote} error=${error} />
      </div>
      ${shown ? html`<div class="panel" aria-live="polite"><${AnswerView} answers=${answers} chosen=${shown.id} about=${about} onFork=${fork} onChoose=${(id) => complete.set({ chosen: id })}>
        <button type="button" class="quiet" disabled=${isRunning} title="Put the answer behind the prompt" onClick=${() => complete.set({ prompt: prompt + shown.text })}>To the prompt</button>
        <button type="button" class="quiet" disabled=${isRunning} onClick=${() => complete.set({ answers: [], chosen: null })}>Clear</button>
      <//></div>` : null}
    </section>
    <aside class="side stack"><${SettingsPanel} defaults=${{ max_tokens: String(DEFAULT_TOKENS) }} /></aside>
  </div>`;
}
