// Tells scripts of clients the server's address, its model, the tool and a place, and prints what came of their steps.
export const URL = process.env.RAMIFORM_URL;
export const MODEL = process.env.RAMIFORM_MODEL;
export const PLACE = {
  type: "object",
  properties: { kind: { enum: ["city", "river"] }, sure: { type: "boolean" } },
  required: ["kind", "sure"],
  additionalProperties: false,
};
// For clients that take a tool as chat completions have it.
export const SWITCH = {
  type: "function",
  function: {
    name: "switch",
    description: "Switch a room's light",
    parameters: {
      type: "object",
      properties: { on: { type: "boolean" }, room: { enum: ["kitchen", "hall"] } },
      required: ["on", "room"],
      additionalProperties: false,
    },
  },
};

// As outcomes.py's: runs the four steps and prints their outcomes. A step that the client has nothing for is absent.
export async function report(steps) {
  const outcomes = {};
  for (const [name, step] of Object.entries(steps)) {
    try {
      outcomes[name] = await step();
    } catch (error) {
      console.error(error);
      outcomes[name] = { raised: `${error.name}: ${error.message}` };
    }
  }
  console.log("\n" + JSON.stringify(outcomes));
  process.exit(0);
}
