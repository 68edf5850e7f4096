// promptfoo: its providers of OpenAI's API, as its evaluations call them. It reads whole answers and calls no tools.
import { loadApiProvider } from "promptfoo";

import { MODEL, PLACE, report, SWITCH, URL } from "./outcomes.mjs";

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
