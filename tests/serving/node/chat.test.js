// Chat completions: whole and streamed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { zodResponseFormat } from "openai/helpers/zod";
import { CHAT, Place, client, model } from "./client.js";

test("a question is answered, and its usage adds up", async () => {
  const answer = await client.chat.completions.create({ model, messages: CHAT, temperature: 0 });
  assert.match(answer.choices[0].message.content, /Paris/);
  assert.equal(answer.choices[0].finish_reason, "stop");
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.ok(prompt_tokens > 0 && completion_tokens > 0);
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
});

test("a stream's deltas are the whole answer, with its usage at the end", async () => {
  const asked = { model, messages: CHAT, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.deepEqual(
    [last.usage.prompt_tokens, last.usage.completion_tokens],
    [whole.usage.prompt_tokens, whole.usage.completion_tokens],
  );
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), whole.choices[0].message.content);
  assert.equal(chunks.filter((chunk) => chunk.choices[0].finish_reason).length, 1);
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
});

test("the client's own accumulator ends with the same message", async () => {
  const seen = [];
  const stream = client.chat.completions.stream({ model, messages: CHAT, temperature: 0 });
  stream.on("content", (delta) => seen.push(delta));
  const message = (await stream.finalChatCompletion()).choices[0].message;
  assert.equal(seen.join(""), message.content);
});

test("several choices, each its own, and a seed gives them again", async () => {
  const asked = { model, messages: CHAT, n: 3, seed: 7, temperature: 1.5, max_completion_tokens: 8 };
  const [first, second] = await Promise.all([1, 2].map(() => client.chat.completions.create(asked)));
  const texts = first.choices.map((choice) => choice.message.content);
  assert.deepEqual(first.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.ok(new Set(texts).size > 1);
  assert.deepEqual(second.choices.map((choice) => choice.message.content), texts);
});

test("log-probabilities stand beside the tokens that make the text", async () => {
  const answer = await client.chat.completions.create({
    model, messages: CHAT, temperature: 0, logprobs: true, top_logprobs: 3, max_completion_tokens: 6,
  });
  const { content } = answer.choices[0].logprobs;
  assert.equal(content.length, answer.usage.completion_tokens);
  for (const token of content) {
    assert.equal(token.top_logprobs.length, 3);
    assert.ok(token.logprob <= 0);
    assert.ok(Math.abs(token.logprob - token.top_logprobs[0].logprob) < 1e-6);
  }
});

test("a stop string ends the text and is not in it", async () => {
  const answer = await client.chat.completions.create({ model, messages: CHAT, temperature: 0, stop: ["Paris"] });
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.ok(!answer.choices[0].message.content.includes("Paris"));
});

test("a zod schema is obeyed and parsed, whole and streamed", async () => {
  const asked = { model, messages: CHAT, temperature: 1.5, seed: 1, response_format: zodResponseFormat(Place, "place") };
  const answer = await client.chat.completions.parse(asked);
  const { parsed } = answer.choices[0].message;
  assert.deepEqual(Place.parse(parsed), parsed);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, parsed);
});

test("a stream that is left does not keep the next one waiting", async () => {
  const stream = await client.chat.completions.create({ model, messages: CHAT, stream: true, ignore_eos: true });
  for await (const _ of stream) break; // aborts the request
  const next = await client.chat.completions.create({ model, messages: CHAT, max_completion_tokens: 1 });
  assert.equal(next.usage.completion_tokens, 1);
});
