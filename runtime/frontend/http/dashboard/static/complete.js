// Completion: a prompt and what the model continues it with.

import { watched } from "./answer.js";
import { answerStore, useAnswers } from "./answer_view.js";
import { readSettings, settings, SettingsPanel } from "./settings.js";
import { useStore } from "./ui.js";
import { html } from "./vendor/standalone.mjs";

const PATH = "v1/completions";
const DEFAULT_TOKENS = 64; // the route's own default, 16, is short for reading

const complete = answerStore("complete", { prompt: "Question: What is the capital of France?\nAnswer:" });

function nextRequest({ prompt }, about) {
  const { body: sampling, error } = readSettings(settings.get());
  return { request: { path: PATH, body: { model: about.model.name, prompt, ...watched(PATH, settings.get()), max_tokens: DEFAULT_TOKENS, ...sampling } }, error };
}

export function CompleteView({ about }) {
  const { prompt } = useStore(complete);
  const { onKeyDown, controls, view } = useAnswers("complete", complete, nextRequest, about);
  const answer = view(({ text }) => html`<button type="button" class="quiet" title="Put the answer behind the prompt" onClick=${() => complete.set({ prompt: prompt + text })}>To the prompt</button>`);
  return html`<div class="play" onKeyDown=${onKeyDown}>
    <section class="stack" aria-label="Completion">
      <div class="panel stack">
        <textarea data-main-input class="code" name="prompt" aria-label="Prompt" rows=${Math.min(20, Math.max(6, prompt.split("\n").length))} placeholder="Prompt (/)" value=${prompt}
          onInput=${(event) => complete.set({ prompt: event.target.value })}></textarea>
        ${controls("Complete")}
      </div>
      ${answer ? html`<div class="panel" aria-live="polite">${answer}</div>` : null}
    </section>
    <aside class="side stack"><${SettingsPanel} defaults=${{ max_tokens: String(DEFAULT_TOKENS) }} /></aside>
  </div>`;
}
