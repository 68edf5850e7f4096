// Requests of the playground and their answers: streams, tokens with their details, forks.
//
// An answer is {id, request: {path, body}, seed, text, reasoning, calls, tokens, promptIds, imagePlaces, finish, usage, timings, error,
// isRunning, from}. `from` of a fork is {id, at}: the answer it left and the position of its first token of its own.
// A token is {text, id, logprob, masked_logprob, allowed_mass, num_allowed, entropy, origin, top_logprobs}; the server's
// fields, null where it did not send them.

import { api } from "./api.js";
import { imagesOf, withImages } from "./images.js";

const FLUSH_MS = 40;
const CHAT = "v1/chat/completions";
const COMPLETIONS = "v1/completions";
// Fields that /v1/completions does not have, or that a fork sets itself.
const NOT_FORKED = new Set([
  "messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs", "add_generation_prompt",
  "continue_final_message", "separate_reasoning", "include_reasoning", "verbosity", "max_completion_tokens", "logprobs", "top_logprobs", "n",
  "prompt", "echo", "best_of", "add_special_tokens", "seed", "max_tokens", "continued_tokens",
]);

let lastId = Date.now();
const newId = () => (++lastId).toString(36);

/** Fields that every request of the playground has: it is streamed, and its tokens are told. */
export function watched(path, { details, alternatives }) {
  const common = { stream: true, stream_options: { include_usage: true } };
  if (!details) return common;
  const logprobs = path === CHAT ? { logprobs: true, top_logprobs: alternatives } : { logprobs: alternatives };
  return { ...common, ...logprobs, token_details: true, return_token_ids: true };
}

/** Return the answers of a request, before anything of them has come: one for each of `n`. */
export function newAnswers(request, common = {}) {
  const { n = 1, seed = null } = request.body;
  return Array.from({ length: n }, (_, index) => ({
    id: newId(), request, seed: seed === null ? null : seed + index,
    text: "", reasoning: "", calls: [], tokens: [], promptIds: null, imagePlaces: [], finish: null, usage: null, timings: null, error: null,
    isRunning: true, from: null, ...common,
  }));
}

const controllers = new Map(); // by view

/** Send a request for a view, in place of the one that runs. `put` gets the answers at once and as they grow. */
export async function start(view, request, answers, put) {
  stop(view);
  const controller = new AbortController();
  controllers.set(view, controller);
  put(answers);
  await run(request, answers, put, controller.signal);
}

export const stop = (view) => controllers.get(view)?.abort();

/** Return `answers` with those of `changed` replaced, or added at the end. */
export function merged(answers, changed) {
  const byId = new Map(changed.map((each) => [each.id, each]));
  const known = new Set(answers.map(({ id }) => id));
  return [...answers.map((each) => byId.get(each.id) ?? each), ...changed.filter(({ id }) => !known.has(id))];
}

/** Send a request and fill its answers. `onChange` gets new copies of them as they grow; they end with isRunning false. */
export async function run(request, answers, onChange, signal) {
  const drafts = answers.map((answer) => ({ ...answer, tokens: [...answer.tokens], calls: [...answer.calls], ids: [] }));
  const start = drafts.map(({ tokens }) => tokens.length);
  let timer = null;
  let cost = 0; // milliseconds that the last change took to be drawn
  const flush = () => {
    timer = null;
    const began = performance.now();
    requestAnimationFrame(() => setTimeout(() => (cost = performance.now() - began)));
    onChange(drafts.map(({ ids, ...draft }) => ({ ...draft, tokens: [...draft.tokens], calls: [...draft.calls] })));
  };
  const changed = () => (timer ??= setTimeout(flush, Math.max(FLUSH_MS, 2 * cost)));
  try {
    const { body, lost } = withImages(request.body);
    if (lost.length) throw new Error(`A reload has lost ${lost.join(", ")}: add it again.`);
    await api.stream(request.path, body, (event) => {
      for (const choice of event.choices) addChoice(drafts[choice.index], choice, event, request);
      if (event.usage) for (const draft of drafts) Object.assign(draft, { usage: event.usage, timings: event.timings ?? null });
      changed();
    }, signal);
  } catch (error) {
    const failed = error.name === "AbortError" ? null : { message: error.message, param: error.param ?? null, status: error.status ?? 0 };
    for (const draft of drafts) {
      draft.error = failed;
      draft.finish ??= failed ? "error" : "stopped";
    }
  }
  for (const [index, draft] of drafts.entries()) {
    setIds(draft, start[index]);
    draft.isRunning = false;
  }
  clearTimeout(timer);
  await nameTokens(drafts);
  flush();
}

function addChoice(draft, choice, event, { path, body }) {
  const isChat = path === CHAT;
  const isEcho = body.echo && draft.text === "" && !isChat; // the first chunk repeats the prompt
  const told = isChat ? event : choice;
  draft.promptIds ??= told.prompt_token_ids ?? null;
  draft.imagePlaces = told.prompt_image_places ?? draft.imagePlaces;
  if (isChat) {
    const delta = choice.delta;
    draft.text += delta.content ?? "";
    draft.reasoning += delta.reasoning_content ?? "";
    for (const call of delta.tool_calls ?? []) addCall(draft, call);
    for (const entry of choice.logprobs?.content ?? []) draft.tokens.push(tokenOf(entry));
    if (choice.token_ids) draft.ids = choice.token_ids;
  } else {
    draft.text += choice.text;
    if (!isEcho) for (const entry of columnEntries(choice.logprobs)) draft.tokens.push(tokenOf(entry));
    if (choice.token_ids) draft.ids.push(...choice.token_ids);
  }
  if (choice.finish_reason) draft.finish = choice.finish_reason;
}

function addCall(draft, { index, id, function: { name, arguments: text = "" } }) {
  const known = draft.calls[index];
  draft.calls[index] = known ? { ...known, arguments: known.arguments + text } : { id, name, arguments: text };
}

/** Completions have columns instead of entries, and entries when the details are asked for. */
function columnEntries(columns) {
  if (!columns) return [];
  return columns.tokens.map((token, index) => columns.details?.[index] ?? {
    token, logprob: columns.token_logprobs[index],
    top_logprobs: Object.entries(columns.top_logprobs[index] ?? {}).map(([other, logprob]) => ({ token: other, logprob })),
  });
}

function tokenOf(entry) {
  const top = (entry.top_logprobs ?? []).map(({ token, id = null, logprob, allowed = true, masked_logprob = null }) => ({ token, id, logprob, allowed, masked_logprob }));
  return {
    text: entry.token, id: entry.id ?? null, logprob: entry.logprob ?? null, masked_logprob: entry.masked_logprob ?? null, allowed_mass: entry.allowed_mass ?? null,
    num_allowed: entry.num_allowed ?? null, entropy: entry.entropy ?? null, origin: entry.origin ?? null, top_logprobs: top,
  };
}

const bareToken = (id) => ({ text: null, id, logprob: null, masked_logprob: null, allowed_mass: null, num_allowed: null, entropy: null, origin: null, top_logprobs: [] });

/** Give the tokens from `start` on their ids, and add tokens that came without details, such as the end token. */
function setIds(draft, start) {
  if (!draft.ids.length) return;
  const told = draft.tokens.splice(start);
  let next = 0;
  for (const id of draft.ids) {
    const token = told[next];
    if (token && (token.id === null || token.id === id)) {
      draft.tokens.push({ ...token, id });
      next++;
    } else draft.tokens.push(bareToken(id));
  }
}

/** Ask for the texts of tokens that have none. */
async function nameTokens(drafts) {
  for (const draft of drafts) {
    const bare = draft.tokens.filter(({ text }) => text === null);
    if (!bare.length) continue;
    const texts = await tokenTexts(bare.map(({ id }) => id)).catch(() => bare.map(({ id }) => `[${id}]`));
    let next = 0;
    draft.tokens = draft.tokens.map((token) => (token.text === null ? { ...token, text: texts[next++] } : token));
  }
}

/** Return the text of each token by itself. */
export async function tokenTexts(ids) {
  if (!ids.length) return [];
  return (await api.post("detokenize", { tokens: ids.map((id) => [id]), skip_special_tokens: false })).text;
}

/** Return why no fork of an answer is possible, or null. */
export function forkObstacle(answer) {
  if (answer.isRunning) return "The answer is not finished.";
  if (!answer.promptIds || answer.tokens.some(({ id }) => id === null)) return "The answer came without token ids: switch token details on.";
  return null;
}

/** Return the request that goes on from `answer` after its first `at` tokens and the tokens `ids`. */
export function forkRequest(answer, at, ids, contextLength) {
  const { body } = answer.request;
  const kept = Object.fromEntries(Object.entries(body).filter(([name]) => !NOT_FORKED.has(name)));
  const hasConstraint = ["response_format", "json_schema", "regex", "grammar", "structural_tag", "structured_outputs"].some((name) => name in kept);
  if (!hasConstraint) delete kept.additional_properties; // it was about tools
  const images = imagesOf(body);
  const before = [...answer.tokens.slice(0, at).map((token) => token.id), ...ids];
  // A fork's own request continued tokens of its answer already; its prompt and its limit count from there.
  const continued = body.continued_tokens ?? 0;
  const [earlier, spent] = answer.from ? [0, continued] : [continued, 0];
  const limit = spent + (body.max_tokens ?? (answer.request.path === CHAT ? contextLength - answer.promptIds.length : 16));
  return {
    path: COMPLETIONS,
    body: {
      ...kept, ...(images.length ? { image_data: images } : {}), prompt: [...answer.promptIds, ...before], continued_tokens: earlier + before.length,
      max_tokens: Math.max(1, limit - before.length), logprobs: body.top_logprobs ?? (body.logprobs === true ? 0 : body.logprobs ?? 0),
      ...(answer.seed === null ? {} : { seed: answer.seed }),
    },
  };
}

/** Return the start of a fork's answer: the tokens that it shares, and those of `chosen`, a text or an alternative of the token at `at`. */
export async function forkAnswer(answer, at, chosen, contextLength) {
  const shared = answer.tokens.slice(0, at);
  const own = typeof chosen === "string" ? await typedTokens(chosen) : [chosenToken(answer.tokens[at], chosen)];
  const ids = own.map(({ id }) => id);
  const { text } = await api.post("detokenize", { tokens: [...shared.map(({ id }) => id), ...ids] });
  const [fork] = newAnswers(forkRequest(answer, at, ids, contextLength), {
    text, tokens: [...shared, ...own], promptIds: answer.promptIds, imagePlaces: answer.imagePlaces, seed: answer.seed, from: { id: answer.id, at },
  });
  return fork;
}

function chosenToken({ top_logprobs, allowed_mass, num_allowed, entropy }, { token: text, id, logprob, masked_logprob }) {
  return { text, id, logprob, masked_logprob, allowed_mass, num_allowed, entropy, origin: "chosen", top_logprobs };
}

async function typedTokens(text) {
  const { tokens, token_strs: texts } = await api.post("tokenize", { prompt: text, add_special_tokens: false, return_token_strs: true });
  return tokens.map((id, index) => ({ ...bareToken(id), text: texts[index], origin: "chosen" }));
}

/** Return the answers that belong to one strip: the one that `answer` grew from, and all of its forks. */
export function familyOf(answers, answer) {
  const byId = new Map(answers.map((each) => [each.id, each]));
  const rootOf = (each) => {
    while (each.from && byId.has(each.from.id)) each = byId.get(each.from.id);
    return each.id;
  };
  const root = rootOf(answer);
  return answers.filter((each) => rootOf(each) === root);
}

/** Return an answer as it is after a reload: whatever ran has ended. */
export const revivedAnswer = (answer) => (answer.isRunning ? { ...answer, isRunning: false, finish: answer.finish ?? "stopped" } : answer);

/** Drop what fills the storage: alternatives of all tokens. */
export const slimAnswer = (answer) => ({ ...answer, tokens: answer.tokens.map((token) => ({ ...token, top_logprobs: [] })) });
