// openai for Node: chat completions.
import OpenAI from "openai";
import { zodResponseFormat, zodFunction } from "openai/helpers/zod";
import { z } from "zod";

import { MODEL, report, URL } from "./outcomes.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const Place = z.object({ kind: z.enum(["city", "river"]), sure: z.boolean() });
const Switch = z.object({ on: z.boolean(), room: z.enum(["kitchen", "hall"]) });
const user = (content) => [{ role: "user", content }];

report({
  async streamed() {
    const messages = user("What is the capital of France?");
    const stream = await client.chat.completions.create({ model: MODEL, messages, stream: true, max_tokens: 32 });
    const pieces = [];
    for await (const chunk of stream) pieces.push(chunk.choices[0]?.delta?.content ?? "");
    return pieces;
  },
  async called() {
    const messages = user("Switch the kitchen's light on.");
    const tools = [zodFunction({ name: "switch", parameters: Switch })];
    const tool_choice = { type: "function", function: { name: "switch" } };
    const first = await client.chat.completions.create({ model: MODEL, messages, tools, tool_choice, max_tokens: 64 });
    const answer = first.choices[0].message;
    const [call] = answer.tool_calls;
    messages.push(answer, { role: "tool", tool_call_id: call.id, content: "Done. The receipt is 7261." });
    const last = await client.chat.completions.create({ model: MODEL, messages, tools, tool_choice: "none", max_tokens: 64 });
    return [JSON.parse(call.function.arguments), last.choices[0].message.content];
  },
  async structured() {
    const response_format = zodResponseFormat(Place, "place");
    const messages = user("What is Paris?");
    const parsed = await client.chat.completions.parse({ model: MODEL, messages, response_format });
    return parsed.choices[0].message.parsed;
  },
  async refused() {
    try {
      await client.chat.completions.create({ model: "no-such-model", messages: user("Hi") });
    } catch (error) {
      return error.message;
    }
  },
});
