// Images through the clients of OpenAI, Anthropic and Ollama. Run by tests/pictures/test_api.py, whose server reads images.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const { RAMIFORM_URL: url, RAMIFORM_KEY: apiKey, RAMIFORM_IMAGE: path } = process.env;
const expected = JSON.parse(process.env.RAMIFORM_EXPECTED); // {text, image_tokens, num_new}, by plain HTTP
const data = (await readFile(path)).toString("base64");
const image = `data:image/png;base64,${data}`;
const QUESTION = "What is it?";
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const model = (await openai.models.list()).data[0].id;

test("a chat of the openai package has an image, whole and streamed", async () => {
  const content = [{ type: "image_url", image_url: { url: image } }, { type: "text", text: QUESTION }];
  const asked = { model, messages: [{ role: "user", content }], temperature: 0, max_completion_tokens: expected.num_new, ignore_eos: true };
  const answer = await openai.chat.completions.create(asked);
  assert.equal(answer.choices[0].message.content, expected.text);
  assert.equal(answer.usage.prompt_tokens_details.image_tokens, expected.image_tokens);
  let streamed = "";
  for await (const chunk of await openai.chat.completions.create({ ...asked, stream: true })) streamed += chunk.choices[0]?.delta.content ?? "";
  assert.equal(streamed, expected.text);
});

test("a response of the openai package has an image", async () => {
  const content = [{ type: "input_image", image_url: image, detail: "auto" }, { type: "input_text", text: QUESTION }];
  const response = await openai.responses.create({ model, input: [{ role: "user", content }], temperature: 0, max_output_tokens: expected.num_new, ignore_eos: true });
  assert.equal(response.output_text, expected.text);
});

test("a broken image is the client's own error, which names its place", async () => {
  const content = [{ type: "text", text: QUESTION }, { type: "image_url", image_url: { url: image.slice(0, -60) } }];
  const asked = openai.chat.completions.create({ model, messages: [{ role: "user", content }] });
  await assert.rejects(asked, (error) => error instanceof OpenAI.BadRequestError && error.param === "messages[0].content[1]");
});

test("a message of Anthropic's package has an image, whole and streamed", async () => {
  const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
  const content = [{ type: "image", source: { type: "base64", media_type: "image/png", data } }, { type: "text", text: QUESTION }];
  const asked = { model, max_tokens: expected.num_new, temperature: 0, messages: [{ role: "user", content }] };
  const message = await anthropic.messages.create(asked);
  assert.ok(expected.text.startsWith(message.content[0].text)); // which ends at the model's end token
  const streamed = await anthropic.messages.stream(asked).finalMessage();
  assert.deepEqual(streamed.content, message.content);
  const broken = anthropic.messages.create({ ...asked, messages: [{ role: "user", content: [{ ...content[0], source: { ...content[0].source, data: "%" } }] }] });
  await assert.rejects(broken, Anthropic.BadRequestError);
});

test("a chat and a prompt of Ollama's package have an image", async () => {
  const ollama = new Ollama({ host: url, headers: { authorization: `Bearer ${apiKey}` } });
  const options = { num_predict: expected.num_new, temperature: 0 };
  const told = await ollama.chat({ model, messages: [{ role: "user", content: QUESTION, images: [data] }], options });
  assert.ok(told.message.content.length > 0 && expected.text.startsWith(told.message.content));
  const bytes = new Uint8Array(await readFile(path)); // which the package encodes
  const generated = await ollama.generate({ model, prompt: QUESTION, images: [bytes], options });
  assert.equal(generated.response, told.message.content);
});
