// The request as text to copy: curl, the openai package, a program of the language.

import { getKey, urlOf } from "./api.js";
import { withImages } from "./images.js";

const OPENAI = {
  "v1/chat/completions": ["client.chat.completions.create", new Set(["messages", "model", "stream", "stream_options", "temperature", "top_p", "max_tokens", "max_completion_tokens",
    "n", "stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"])],
  "v1/completions": ["client.completions.create", new Set(["prompt", "model", "stream", "stream_options", "temperature", "top_p", "max_tokens", "n", "stop", "seed",
    "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "echo", "best_of", "suffix"])],
};
// Fields of a request that `gen` has by the same name.
const GEN = ["max_tokens", "min_tokens", "n", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "bad_words",
  "allowed_token_ids", "seed", "stop", "stop_regex", "stop_token_ids", "ignore_eos", "additional_properties"];
// Fields that say how the answer is sent, not what it is.
const TRANSPORT = new Set(["model", "messages", "prompt", "stream", "stream_options", "logprobs", "top_logprobs", "token_details", "return_token_ids"]);

const MAX_ARGUMENT = 30_000; // characters, which four bytes may stand for

const base = () => urlOf("").href.replace(/\/$/, "");
const shellQuoted = (text) => `'${text.replace(/'/g, `'\\''`)}'`;

/** Return what `make` makes of a request with its images, after comments that name those that are lost. */
const copied = (make) => ({ path, body: named }, ...more) => {
  const { body, lost } = withImages(named);
  return lost.map((name) => `# Left out, as a reload of the page has lost it: ${name.replace(/\s+/g, " ")}\n`).join("") + make({ path, body }, ...more);
};

export const curl = copied(({ path, body }) => {
  const key = getKey() ? ` \\\n  -H "Authorization: Bearer $API_KEY"` : "";
  const json = JSON.stringify(body);
  // One argument of a command holds 128 KiB.
  const data = json.length < MAX_ARGUMENT ? `${shellQuoted(json)}\n` : `@- <<'JSON'\n${json}\nJSON\n`;
  return `curl -N ${base()}/${path} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${data}`;
});

/** Return a Python literal of a JSON value. */
export function python(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return Number.isInteger(value) ? BigInt(value).toString() : String(value);
  if (typeof value === "string") return pythonString(value);
  const inner = `${indent}    `;
  const isArray = Array.isArray(value);
  const parts = isArray ? value.map((each) => python(each, inner)) : Object.entries(value).map(([name, each]) => `${pythonString(name)}: ${python(each, inner)}`);
  const [open, shut] = isArray ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${shut}`;
  return line.length + indent.length <= 100 && !line.includes("\n") ? line : `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${shut}`;
}

// JSON's escapes are Python's, but for surrogate pairs, which JSON.stringify leaves as characters.
const pythonString = (text) => JSON.stringify(text).replace(/\u2028|\u2029|\u007f/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

export const openaiPython = copied(({ path, body }) => {
  const [method, known] = OPENAI[path];
  const own = Object.entries(body).filter(([name]) => known.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !known.has(name)));
  const given = [...own, ...(Object.keys(extra).length ? [["extra_body", extra]] : [])];
  const piece = path === "v1/chat/completions" ? `choice.delta.content or ""` : "choice.text";
  return `${getKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${pythonString(`${base()}/v1`)}, api_key=${getKey() ? `os.environ["API_KEY"]` : `"none"`})
stream = ${method}(
${given.map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("")})
for chunk in stream:
    for choice in chunk.choices:
        print(${piece}, end="", flush=True)
print()
`;
});

/** Return a program whose `gen` draws the same answer. Fields that the language does not have are named in a comment. */
export const ramiformProgram = copied(({ path, body }, contextLength) => {
  const options = Object.fromEntries(GEN.filter((name) => body[name] !== undefined).map((name) => [name, body[name]]));
  const [constraintField, constraint] = constraintOf(body) ?? [null, {}];
  Object.assign(options, constraint);
  options.max_tokens ??= path === "v1/chat/completions" ? contextLength : 16;
  const missing = Object.keys(body).filter((name) => !TRANSPORT.has(name) && !GEN.includes(name) && name !== constraintField);
  if (Array.isArray(body.prompt)) missing.push("prompt (token ids)");
  const call = `gen("answer", ${Object.entries(options).map(([name, value]) => `${name}=${python(value, "        ")}`).join(", ")})`;
  const steps = path === "v1/chat/completions" ? chatSteps(body.messages, call, missing) : [`s += ${pythonString(String(body.prompt))} + ${call}`];
  const hasImages = steps.some((step) => step.includes(`(${IMAGE_CALL}`));
  const roles = ["assistant", "system", "user"].filter((role) => steps.some((step) => step.includes(`${role}(`)));
  const imports = [...(hasImages ? ["base64"] : []), ...(getKey() ? ["os"] : [])];
  const backend = `ramiform.HttpRuntime(${pythonString(base())}${getKey() ? `, api_key=os.environ["API_KEY"]` : ""})`;
  return `${imports.map((name) => `import ${name}\n`).join("")}${imports.length ? "\n" : ""}import ramiform
from ramiform import ${[...roles, "gen", ...(hasImages ? ["image"] : [])].sort().join(", ")}


${missing.map((name) => `# Not part of the program: ${name}\n`).join("")}@ramiform.function
def program(s):
${steps.map((step) => `    ${step}\n`).join("")}

state = program.run(backend=${backend})
print(state["answer"])
`;
});

const IMAGE_CALL = "image(base64.b64decode(";
const partExpression = (part) => (part.type === "image_url" ? `${IMAGE_CALL}${pythonString(part.image_url.url.split(",")[1])}))` : pythonString(part.text));

function chatSteps(messages, call, missing) {
  const steps = [];
  for (const { role, content, tool_calls: calls } of messages) {
    if (calls || !["system", "user", "assistant"].includes(role)) missing.push(`a message of the role ${role}${calls ? " with calls" : ""}`);
    else steps.push(`s += ${role}(${(Array.isArray(content) ? content.map(partExpression) : [pythonString(content ?? "")]).join(" + ")})`);
  }
  return [...steps, `s += assistant(${call})`];
}

function constraintOf(body) {
  const format = body.response_format;
  if (format?.type === "json_object") return ["response_format", { json_schema: { type: "object" } }];
  if (format?.type === "json_schema") return ["response_format", { json_schema: format.json_schema.schema }];
  for (const name of ["json_schema", "regex", "grammar"]) if (body[name] !== undefined) return [name, { [name]: body[name] }];
  if (body.structured_outputs?.choice) return ["structured_outputs", { regex: body.structured_outputs.choice.map(escapeRegex).join("|") }];
  return null;
}

const escapeRegex = (text) => text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
