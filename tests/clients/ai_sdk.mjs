// Takes the AI SDK's four steps with one of its providers.
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

import { MODEL, report } from "./outcomes.mjs";

const Place = z.object({ kind: z.enum(["city", "river"]), sure: z.boolean() });
const Switch = z.object({ on: z.boolean(), room: z.enum(["kitchen", "hall"]) });

export function reportSteps(provider) {
  const model = provider(MODEL);
  report({
    async streamed() {
      const result = streamText({ model, prompt: "What is the capital of France?", maxOutputTokens: 32 });
      const pieces = [];
      for await (const piece of result.textStream) pieces.push(piece);
      return pieces;
    },
    async called() {
      const calls = [];
      const light = tool({
        description: "Switch a room's light",
        inputSchema: Switch,
        async execute(input) {
          calls.push(input);
          return "Done. The receipt is 7261.";
        },
      });
      const result = await generateText({
        model,
        prompt: "Switch the kitchen's light on.",
        tools: { switch: light },
        maxOutputTokens: 64,
        stopWhen: isStepCount(2),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : { type: "tool", toolName: "switch" } }),
      });
      return [calls[0], result.text];
    },
    async structured() {
      return (await generateText({ model, prompt: "What is Paris?", output: Output.object({ schema: Place }) })).output;
    },
    async refused() {
      try {
        await generateText({ model: provider("no-such-model"), prompt: "Hi", maxRetries: 0 });
      } catch (error) {
        return error.message;
      }
    },
  });
}
