// @openai/agents: an agent on the Responses API. The SDK itself forces a tool once only.
import { Agent, OpenAIResponsesModel, run, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

import { MODEL, report, URL } from "./outcomes.mjs";

setTracingDisabled(true);
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const model = new OpenAIResponsesModel(client, MODEL);
const Place = z.object({ kind: z.enum(["city", "river"]), sure: z.boolean() });
const calls = [];
const light = tool({
  name: "switch",
  description: "Switch a room's light",
  parameters: z.object({ on: z.boolean(), room: z.enum(["kitchen", "hall"]) }),
  async execute(args) {
    calls.push(args);
    return "Done. The receipt is 7261.";
  },
});

report({
  async streamed() {
    const agent = new Agent({ name: "plain", model, modelSettings: { maxTokens: 32 } });
    const pieces = [];
    for await (const piece of (await run(agent, "What is the capital of France?", { stream: true })).toTextStream())
      pieces.push(piece);
    return pieces;
  },
  async called() {
    const agent = new Agent({ name: "lights", model, tools: [light], modelSettings: { toolChoice: "switch", maxTokens: 64 } });
    const result = await run(agent, "Switch the kitchen's light on.");
    return [calls[0], result.finalOutput];
  },
  async structured() {
    return (await run(new Agent({ name: "places", model, outputType: Place }), "What is Paris?")).finalOutput;
  },
  async refused() {
    try {
      await run(new Agent({ name: "lost", model: new OpenAIResponsesModel(client, "no-such-model") }), "Hi");
    } catch (error) {
      return error.message;
    }
  },
});
