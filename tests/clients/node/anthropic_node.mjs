// @anthropic-ai/sdk: the Messages API.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

import { MODEL, report, SWITCH, URL } from "./outcomes.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });
const Place = z.object({ kind: z.enum(["city", "river"]), sure: z.boolean() });
const { parameters: input_schema, ...named } = SWITCH.function;
const tools = [{ ...named, input_schema }];
const user = (content) => [{ role: "user", content }];

report({
  async streamed() {
    const pieces = [];
    const messages = user("What is the capital of France?");
    const stream = client.messages.stream({ model: MODEL, max_tokens: 32, messages });
    stream.on("text", (piece) => pieces.push(piece));
    await stream.finalMessage();
    return pieces;
  },
  async called() {
    const messages = user("Switch the kitchen's light on.");
    const asked = { model: MODEL, max_tokens: 100, messages, tools };
    const first = await client.messages.create({ ...asked, tool_choice: { type: "tool", name: "switch" } });
    const call = first.content.find((block) => block.type === "tool_use");
    const result = { type: "tool_result", tool_use_id: call.id, content: "Done. The receipt is 7261." };
    messages.push({ role: "assistant", content: first.content }, { role: "user", content: [result] });
    const last = await client.messages.create({ ...asked, tool_choice: { type: "none" } });
    return [call.input, last.content[0].text];
  },
  async structured() {
    const output_config = { format: zodOutputFormat(Place) };
    const asked = { model: MODEL, max_tokens: 60, messages: user("What is Paris?"), output_config };
    return (await client.messages.parse(asked)).parsed_output;
  },
  async refused() {
    try {
      await client.messages.create({ model: "no-such-model", max_tokens: 8, messages: user("Hi") });
    } catch (error) {
      return error.message;
    }
  },
});
