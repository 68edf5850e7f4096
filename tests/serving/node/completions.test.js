// Completions, embeddings and the list of models.
import assert from "node:assert/strict";
import { test } from "node:test";
import { client, model } from "./client.js";

const PROMPT = "Question: What is the capital of France?\nAnswer:";

test("a prompt is completed, and its stream is the same", async () => {
  const asked = { model, prompt: PROMPT, temperature: 0, max_tokens: 12 };
  const whole = await client.completions.create(asked);
  let text = "";
  for await (const chunk of await client.completions.create({ ...asked, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
});

test("echo gives the prompt back with its log-probabilities", async () => {
  const answer = await client.completions.create({ model, prompt: PROMPT, max_tokens: 0, echo: true, logprobs: 1 });
  const [choice] = answer.choices;
  assert.equal(choice.text, PROMPT);
  assert.equal(choice.logprobs.token_logprobs[0], null);
  assert.equal(choice.logprobs.tokens.length, answer.usage.prompt_tokens);
});

test("several prompts are answered in their order", async () => {
  const answer = await client.completions.create({ model, prompt: [PROMPT, "a b a b"], max_tokens: 2, temperature: 0 });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
});

test("embeddings have one length, in whichever encoding the client asks for", async () => {
  const asked = { model, input: ["a river", "a mountain"] };
  const packed = await client.embeddings.create(asked); // base64, which this client decodes
  const plain = await client.embeddings.create({ ...asked, encoding_format: "float" });
  assert.deepEqual(packed.data.map(({ index }) => index), [0, 1]);
  for (const [index, { embedding }] of packed.data.entries()) {
    assert.equal(embedding.length, plain.data[index].embedding.length);
    embedding.forEach((value, at) => assert.ok(Math.abs(value - plain.data[index].embedding[at]) < 1e-4));
  }
});

test("the model is known by its name", async () => {
  assert.equal((await client.models.retrieve(model)).id, model);
});
