// promptfoo: its providers of OpenAI's API, as its evaluations call them. It reads whole answers and calls no tools.
import { loadApiProvider } from "promptfoo";

import { MODEL, report, URL } from "./outcomes.mjs";

const PLACE = {
  type: "object",
  properties: { kind: { enum: ["city", "river"] }, sure: { type: "boolean" } },
  required: ["kind", "sure"],
  additionalProperties: false,
};
const SWITCH = {
  type: "function",
  function: {
    name: "switch",
    description: "Switch a room's light",
    parameters: {
      type: "object",
      properties: { on: { type: "boolean" }, room: { enum: ["kitchen", "hall"] } },
      required: ["on", "room"],
    },
  },
};
const provider = (config, model = MODEL) =>
  loadApiProvider(`openai:chat:${model}`, { options: { config: { apiBaseUrl: `${URL}/v1`, apiKey: "none", ...config } } });

report({
  async called() {
    const lights = await provider({ tools: [SWITCH], tool_choice: { type: "function", function: { name: "switch" } } });
    const { output } = await lights.callApi("Switch the kitchen's light on.");
    return [JSON.parse(output[0].function.arguments), null];
  },
  async structured() {
    const response_format = { type: "json_schema", json_schema: { name: "place", strict: true, schema: PLACE } };
    return (await (await provider({ response_format })).callApi("What is Paris?")).output;
  },
  async refused() {
    return (await (await provider({}, "no-such-model")).callApi("Hi")).error;
  },
});
