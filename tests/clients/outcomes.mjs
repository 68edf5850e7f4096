// What the scripts of clients in JavaScript share: the server's address and model, and the line that tells what came.
export const URL = process.env.RAMIFORM_URL;
export const MODEL = process.env.RAMIFORM_MODEL;

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
