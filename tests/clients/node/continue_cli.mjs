// @continuedev/cli: the command `cn`, asked one thing without a screen. It prints whole answers and forces no tools.
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";

import { MODEL, report, URL } from "./outcomes.mjs";

const cn = (model) => {
  writeFileSync(
    "config.yaml",
    `name: local
version: 1.0.0
schema: v1
models:
  - {name: local, provider: openai, model: ${model}, apiBase: "${URL}/v1", apiKey: none, roles: [chat]}
`,
  );
  const env = { ...process.env, CONTINUE_TELEMETRY_ENABLED: "0" };
  return spawnSync("cn", ["-p", "Hi", "--config", "config.yaml"], { env, encoding: "utf8" });
};

report({
  async refused() {
    const done = cn("no-such-model");
    return done.stdout + done.stderr;
  },
});
