// What is wrong is said in the client's own errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { CHAT, client, model } from "./client.js";

const chat = (more) => client.chat.completions.create({ model, messages: CHAT, ...more });

for (const [what, more, param] of [
  ["a temperature out of range", { temperature: 9 }, "temperature"],
  ["a choice of tools without tools", { tool_choice: "required" }, "tool_choice"],
  ["no message", { messages: [] }, "messages"],
  ["a role that nobody knows", { messages: [{ role: "robot", content: "a" }] }, "messages[0].role"],
  ["a bias of something that is no token", { logit_bias: { paris: 1 } }, "logit_bias"],
  ["a field that nobody knows", { colour: "red" }, "colour"],
]) {
  test(`${what} is a 400 that names the parameter, streaming or not`, async () => {
    for (const stream of [false, true]) {
      await assert.rejects(chat({ ...more, stream }), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError);
        assert.deepEqual([error.param, error.type], [param, "invalid_request_error"]);
        assert.ok(error.requestID);
        return true;
      });
    }
  });
}

test("a model that is not served is not found", async () => {
  await assert.rejects(chat({ model: "gpt-none" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
});

test("a prompt beyond the context says so", async () => {
  await assert.rejects(chat({ messages: [{ role: "user", content: "word ".repeat(20000) }] }), {
    status: 400,
    code: "context_length_exceeded",
  });
});
