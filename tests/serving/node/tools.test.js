// Tools: forced calls, and the client's own loop of calls and answers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { zodFunction } from "openai/helpers/zod";
import { CHAT, Switch, client, model } from "./client.js";

const TOOL = zodFunction({ name: "switch", parameters: Switch, description: "Switch a room's light" });

test("a required call is a valid one, and its arguments are parsed", async () => {
  const answer = await client.chat.completions.parse({
    model, messages: CHAT, tools: [TOOL], tool_choice: "required", parallel_tool_calls: false, temperature: 1.5, seed: 2,
  });
  const [choice] = answer.choices;
  assert.equal(choice.finish_reason, "tool_calls");
  const [call] = choice.message.tool_calls;
  assert.match(call.id, /^call_/);
  assert.equal(call.function.name, "switch");
  assert.deepEqual(Switch.parse(call.function.parsed_arguments), call.function.parsed_arguments);
});

test("a named call streams arguments that add up", async () => {
  const asked = {
    model, messages: CHAT, tools: [TOOL], tool_choice: { type: "function", function: { name: "switch" } }, temperature: 0,
  };
  const whole = await client.chat.completions.create(asked);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  const [expected, got] = [whole, streamed].map((answer) => answer.choices[0].message.tool_calls[0].function);
  assert.deepEqual([got.name, got.arguments], [expected.name, expected.arguments]);
  Switch.parse(JSON.parse(got.arguments));
});

test("no call where calls are forbidden", async () => {
  const answer = await client.chat.completions.create({ model, messages: CHAT, tools: [TOOL], tool_choice: "none" });
  assert.equal(answer.choices[0].message.tool_calls, undefined);
  assert.equal(typeof answer.choices[0].message.content, "string");
});

test("the client runs a tool and the model goes on", async () => {
  const given = [];
  const weather = {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the weather of a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string", maxLength: 12 } },
        required: ["city"],
        additionalProperties: false,
      },
      parse: JSON.parse,
      function: (args) => {
        given.push(args);
        return { weather: "sunny", temperature: 21 };
      },
    },
  };
  const runner = client.chat.completions.runTools({
    model, tools: [weather], temperature: 0, messages: [{ role: "user", content: "What is the weather in Paris?" }],
  });
  assert.match(await runner.finalContent(), /sunny/);
  assert.deepEqual(given, [{ city: "Paris" }]);
});
