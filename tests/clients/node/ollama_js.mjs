// ollama: its own API, which has no tool_choice: the model may answer without a call.
import { Ollama } from "ollama";

import { MODEL, PLACE, report, SWITCH, URL } from "./outcomes.mjs";

const client = new Ollama({ host: URL });
const user = (content) => [{ role: "user", content }];

report({
  async streamed() {
    const messages = user("What is the capital of France?");
    const pieces = [];
    const stream = await client.chat({ model: MODEL, messages, stream: true, options: { num_predict: 32 } });
    for await (const part of stream) pieces.push(part.message.content);
    return pieces;
  },
  async called() {
    const messages = user("Switch the kitchen's light on.");
    const first = await client.chat({ model: MODEL, messages, tools: [SWITCH], options: { temperature: 0 } });
    const call = first.message.tool_calls[0].function;
    messages.push(first.message, { role: "tool", tool_name: call.name, content: "Done. The receipt is 7261." });
    return [call.arguments, (await client.chat({ model: MODEL, messages, options: { num_predict: 64 } })).message.content];
  },
  async structured() {
    const answer = await client.chat({ model: MODEL, messages: user("What is Paris?"), format: PLACE });
    return JSON.parse(answer.message.content);
  },
  async refused() {
    try {
      await client.chat({ model: "no-such-model", messages: user("Hi") });
    } catch (error) {
      return error.message;
    }
  },
});
