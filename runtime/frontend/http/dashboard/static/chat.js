// Chat: messages, tools, answers.

import { drawSeed, readSettings, settings, SettingsPanel } from "./settings.js";
import { forkAnswer, merged, newAnswers, revivedAnswer, slimAnswer, start, stop, watched } from "./answer.js";
import { AnswerView, CopyRequest } from "./answer_view.js";
import { contentOf, forgetImages, ImagePicker, Images, keepImage } from "./images.js";
import { chosenConstraint, structured } from "./structured.js";
import { JsonTree, parseJson } from "./json_tree.js";
import { createStore, ErrorNote, useKeys, useStore } from "./ui.js";
import { html, useCallback, useEffect, useRef, useState } from "./vendor/standalone.mjs";

const PATH = "v1/chat/completions";
const EXAMPLE_TOOLS = [{
  type: "function",
  function: { name: "get_weather", description: "Return the weather of a city.", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
}];

const ofAnswers = (change) => (state) => ({
  ...state, messages: state.messages.map((message) => (message.answers ? { ...message, answers: message.answers.map(change) } : message)),
});
// A message is {id, role: "user" | "tool", text, images, callId} or {id, role: "assistant", answers, chosen}.
const chat = createStore("chat", { system: "", tools: "", toolChoice: "auto", format: "text", draft: "", images: [], messages: [] },
  { revive: ofAnswers(revivedAnswer), slim: ofAnswers(slimAnswer) });

let lastId = Date.now();
const newId = () => (++lastId).toString(36);

const shownAnswer = (message) => message.answers.find(({ id }) => id === message.chosen) ?? message.answers.at(-1);

function wireMessage(message) {
  if (message.role === "user") return { role: "user", content: contentOf(message) };
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId, content: message.text };
  const { text, calls } = shownAnswer(message);
  if (!calls.length) return { role: "assistant", content: text };
  return { role: "assistant", content: text || null, tool_calls: calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } })) };
}

function readTools(text) {
  if (!text.trim()) return { tools: [], error: null };
  try {
    const value = JSON.parse(text);
    const given = Array.isArray(value) ? value : value.tools ?? [value];
    // Bare functions are tools too.
    return { tools: given.map((each) => (each.type === "function" ? each : { type: "function", function: each })), error: null };
  } catch (error) {
    return { tools: [], error: error.message };
  }
}

/** Return {request, error} of the next answer to `messages`; `more` are further fields. */
function nextRequest(state, messages, about, more = {}) {
  const { body: sampling, error } = readSettings(settings.get());
  const { tools, error: toolError } = readTools(state.tools);
  const problem = error ?? (toolError && { param: "tools", message: toolError });
  const format = state.format === "json" ? { response_format: { type: "json_object" } } : state.format === "structured" ? chosenConstraint(structured.get()) ?? {} : {};
  const body = {
    model: about.model.name,
    messages: [...(state.system ? [{ role: "system", content: state.system }] : []), ...messages.map(wireMessage)],
    ...(tools.length ? { tools, ...(state.toolChoice === "auto" ? {} : { tool_choice: state.toolChoice }) } : {}),
    ...format, ...watched(PATH, settings.get()), ...more, ...sampling,
  };
  return { request: { path: PATH, body }, error: problem };
}

/** Put answers into the message `id`; a new answer becomes the chosen one. */
const putInto = (id) => (answers) =>
  chat.set(({ messages }) => ({
    messages: messages.map((message) => {
      if (message.id !== id) return message;
      const isNew = !message.answers.some((each) => each.id === answers[0].id);
      return { ...message, answers: merged(message.answers, answers), chosen: isNew ? answers[0].id : message.chosen };
    }),
  }));

/** Ask for the answer to `before`: another one in the message `id`, or in a new message if it is null. Returns an error or null. */
function ask(about, before, id) {
  const { request, error } = nextRequest(chat.get(), before, about);
  if (error) return error;
  const message = chat.get().messages.find((each) => each.id === id) ?? { id: newId(), role: "assistant", answers: [], chosen: null };
  chat.set({ messages: [...before, message] });
  drawSeed();
  start("chat", request, newAnswers(request), putInto(message.id));
  return null;
}

const EXAMPLE = "What is the capital of France?"; // that the model that ships can answer

export function ChatView({ about }) {
  const state = useStore(chat);
  const [error, setError] = useState(null);
  const [editing, setEditing] = useState(null);
  const { messages, draft, images } = state;
  const isRunning = messages.some(({ answers }) => answers?.some((answer) => answer.isRunning));
  const end = useRef(null);
  const isAtEnd = useRef(true);
  useStore(settings); // the request to copy depends on them
  useEffect(() => {
    const onScroll = () => (isAtEnd.current = innerHeight + scrollY > document.documentElement.scrollHeight - 80);
    addEventListener("scroll", onScroll, { passive: true });
    return () => removeEventListener("scroll", onScroll);
  }, []);
  useEffect(() => {
    if (isRunning && isAtEnd.current) end.current?.scrollIntoView({ block: "end" });
  });
  useKeys({ Escape: () => isRunning && (stop("chat"), true) });

  const isEmpty = !draft.trim() && !images.length;
  const send = () => {
    if (isRunning || isEmpty) return;
    const before = [...messages, { id: newId(), role: "user", text: draft, images }];
    isAtEnd.current = true;
    const problem = ask(about, before, null);
    setError(problem);
    if (!problem) chat.set({ draft: "", images: [] });
  };
  const addFiles = useCallback(async (files) => {
    setError(null);
    for (const file of files) {
      try {
        const image = await keepImage(file, about.images.max_bytes);
        chat.set(({ images: before }) => ({ images: [...before, image] }));
      } catch (problem) {
        setError({ param: "image", message: problem.message });
      }
    }
  }, [about]);
  const again = (index) => setError(ask(about, messages.slice(0, index), messages[index].id));
  const saveEdit = (index, text, goOn) => {
    const message = messages[index];
    setEditing(null);
    if (message.role === "assistant") {
      const answer = { ...shownAnswer(message), text, tokens: [], promptIds: null, calls: [], reasoning: "", from: null };
      const edited = { ...message, answers: merged(message.answers, [answer]) };
      chat.set({ messages: messages.map((each, i) => (i === index ? edited : each)) });
      if (goOn) {
        const { request, error: problem } = nextRequest(chat.get(), [...messages.slice(0, index), edited], about, { continue_final_message: true, add_generation_prompt: false });
        setError(problem);
        if (problem) return;
        drawSeed();
        start("chat", request, newAnswers(request, { text }), putInto(message.id));
      }
      return;
    }
    const edited = { ...message, text };
    if (goOn) setError(ask(about, [...messages.slice(0, index), edited], null));
    else chat.set({ messages: messages.map((each, i) => (i === index ? edited : each)) });
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<div class="play">
    <section class="conversation stack" aria-label="Conversation">
      <details class="panel" open=${state.system !== ""}>
        <summary>System prompt</summary>
        <textarea name="system" aria-label="System prompt" rows="3" value=${state.system} onInput=${(event) => chat.set({ system: event.target.value })}></textarea>
      </details>
      <div class="messages" aria-live="polite" aria-relevant="additions">
        ${messages.length ? null : html`<div class="empty">Ask something, such as <button type="button" class="plain example" onClick=${() => chat.set({ draft: EXAMPLE })}>${EXAMPLE}</button> Each token of the answer can be looked at, and left for another one.</div>`}
        ${messages.map((message, index) => html`<${Message} key=${message.id} message=${message} about=${about} isEditing=${editing === message.id} isRunning=${isRunning}
          isLast=${index === messages.length - 1} onEdit=${(id) => setEditing(id)} onSave=${(text, goOn) => saveEdit(index, text, goOn)} onAgain=${() => again(index)}
          onDelete=${() => chat.set({ messages: messages.slice(0, index) })} onError=${setError}
          onResults=${(results) => setError(ask(about, [...messages.slice(0, index + 1), ...results], null))} />`)}
      </div>
      <${ErrorNote} error=${error} />
      <form class="composer panel" onSubmit=${(event) => (event.preventDefault(), send())}>
        <textarea data-main-input name="message" aria-label="Message" rows=${Math.min(12, Math.max(2, draft.split("\n").length))} placeholder="Message (/)"
          value=${draft} onInput=${(event) => chat.set({ draft: event.target.value })} onKeyDown=${onKeyDown}></textarea>
        <${Images} images=${images} onRemove=${(id) => chat.set({ images: images.filter((image) => image.id !== id) })} />
        <div class="row">
          ${about.images ? html`<${ImagePicker} onFiles=${addFiles} />` : null}
          <${CopyRequest} about=${about} request=${() => nextRequest(chat.get(), [...messages, ...(isEmpty ? [] : [{ role: "user", text: draft, images }])], about).request} />
          <span class="grow"></span>
          ${messages.length ? html`<button type="button" class="quiet" disabled=${isRunning} onClick=${() => (chat.set({ messages: [], images: [] }), forgetImages())}>Clear</button>` : null}
          ${isRunning ? html`<button type="button" title="Escape" onClick=${() => stop("chat")}>Stop</button>`
            : html`<button type="submit" class="primary" title="Enter or Ctrl+Enter; Shift+Enter begins a line" disabled=${isEmpty}>Send</button>`}
        </div>
      </form>
      <div ref=${end}></div>
    </section>
    <aside class="side stack">
      <${SettingsPanel} />
      <${ToolsPanel} state=${state} />
      <div class="panel">
        <label class="field"><span>Answer format</span>
          <select name="format" value=${state.format} onChange=${(event) => chat.set({ format: event.target.value })}>
            <option value="text">any text</option><option value="json">a JSON object</option><option value="structured">the constraint of the tab Structured</option>
          </select>
        </label>
      </div>
    </aside>
  </div>`;
}

function ToolsPanel({ state }) {
  const { tools, error } = readTools(state.tools);
  return html`<details class="panel" open=${state.tools !== ""}>
    <summary><b>Tools</b> ${tools.length ? html`<span class="badge">${tools.length}</span>` : null}</summary>
    <textarea class="code" name="tools" rows="8" spellcheck="false" aria-label="Tools, as OpenAI's JSON" placeholder="OpenAI's tools, as JSON" aria-invalid=${error ? "true" : null}
      value=${state.tools} onInput=${(event) => chat.set({ tools: event.target.value })}></textarea>
    ${error ? html`<small class="bad-text" role="alert">${error}</small>` : null}
    <div class="row">
      <label class="inline small muted">tool_choice
        <select name="tool_choice" value=${state.toolChoice} onChange=${(event) => chat.set({ toolChoice: event.target.value })}>
          ${["auto", "required", "none"].map((choice) => html`<option key=${choice} value=${choice}>${choice}</option>`)}
        </select>
      </label>
      <span class="grow"></span>
      ${state.tools ? html`<button type="button" class="quiet" onClick=${() => chat.set({ tools: "" })}>Clear</button>`
        : html`<button type="button" class="quiet" onClick=${() => chat.set({ tools: JSON.stringify(EXAMPLE_TOOLS, null, 2) })}>Example</button>`}
    </div>
  </details>`;
}

function Message({ message, about, isEditing, isRunning, isLast, onEdit, onSave, onAgain, onDelete, onResults, onError }) {
  const name = { user: "You", assistant: "Model", tool: `Result of ${message.name}` }[message.role];
  const fork = async (answer, at, choice) => {
    try {
      const draft = await forkAnswer(answer, at, choice, about.model.context_length);
      start("chat", draft.request, [draft], putInto(message.id));
    } catch (error) {
      onError(error);
    }
  };
  return html`<article class=${`message ${message.role}`} aria-label=${name}>
    <h3 class="small muted">${name}</h3>
    ${isEditing ? html`<${Editor} message=${message} onSave=${onSave} onCancel=${() => onEdit(null)} />`
      : message.role !== "assistant" ? html`<${Images} images=${message.images} /><div class="text">${message.text}</div>
        <div class="row answer-bar small"><button type="button" class="quiet" disabled=${isRunning} onClick=${() => onEdit(message.id)}>Edit</button>
          <button type="button" class="quiet" disabled=${isRunning} onClick=${onDelete} title="Remove this message and all after it">Remove</button></div>`
      : message.answers.length ? html`
        <${AnswerView} answers=${message.answers} chosen=${message.chosen} about=${about} onFork=${fork}
          below=${html`<${Calls} answer=${shownAnswer(message)} canAnswer=${isLast && !isRunning} onResults=${onResults} />`}
          onChoose=${(id) => chat.set(({ messages }) => ({ messages: messages.map((each) => (each.id === message.id ? { ...each, chosen: id } : each)) }))}>
          <button type="button" class="quiet" disabled=${isRunning} onClick=${onAgain}>Regenerate</button>
          <button type="button" class="quiet" disabled=${isRunning} onClick=${() => onEdit(message.id)}>Edit</button>
        <//>` : null}
  </article>`;
}

function Editor({ message, onSave, onCancel }) {
  const [text, setText] = useState(message.role === "assistant" ? shownAnswer(message).text : message.text);
  const area = useRef(null);
  useEffect(() => area.current.focus(), []);
  const onKeyDown = (event) => {
    if (event.key === "Escape") (event.preventDefault(), event.stopPropagation(), onCancel());
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) (event.preventDefault(), onSave(text, true));
  };
  return html`<div class="stack editor">
    <textarea ref=${area} name="edit" aria-label="Text of the message" rows=${Math.min(20, Math.max(2, text.split("\n").length))} value=${text}
      onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <div class="row end">
      <button type="button" class="quiet" onClick=${onCancel}>Cancel</button>
      <button type="button" onClick=${() => onSave(text, false)}>Save</button>
      <button type="button" class="primary" onClick=${() => onSave(text, true)}>${message.role === "assistant" ? "Save and go on from it" : "Save and ask again"}</button>
    </div>
  </div>`;
}

/** Tool calls as they come, and boxes for their results once the model waits for them. */
function Calls({ answer, canAnswer, onResults }) {
  const [results, setResults] = useState({});
  if (!answer.calls.length) return null;
  const send = () => onResults(answer.calls.map(({ id, name }, index) => ({ id: newId(), role: "tool", callId: id, name, text: results[index] ?? "" })));
  return html`<div class="calls stack">
    ${answer.calls.map((call, index) => {
      const json = answer.isRunning ? null : parseJson(call.arguments);
      return html`<div key=${call.id} class="call">
        <div><b class="mono">${call.name}</b> <span class="small muted mono">${call.id}</span></div>
        ${json ? html`<${JsonTree} value=${json.value} />` : html`<pre>${call.arguments}</pre>`}
        ${canAnswer ? html`<label class="field"><span>Result</span>
          <textarea class="code" name=${`result-${index}`} rows="2" value=${results[index] ?? ""} onInput=${(event) => setResults({ ...results, [index]: event.target.value })}></textarea>
        </label>` : null}
      </div>`;
    })}
    ${canAnswer ? html`<div class="row end"><button type="button" class="primary" onClick=${send}>Send ${answer.calls.length > 1 ? "the results" : "the result"}</button></div>` : null}
  </div>`;
}
