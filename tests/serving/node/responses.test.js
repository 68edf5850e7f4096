// The Responses API: text, events, schema, calls, and a conversation by id.
import assert from "node:assert/strict";
import { test } from "node:test";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { Place, QUESTION, Switch, client, model } from "./client.js";

test("a question is answered", async () => {
  const answer = await client.responses.create({ model, input: QUESTION, temperature: 0 });
  assert.equal(answer.status, "completed");
  assert.match(answer.output_text, /Paris/);
  assert.equal(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens);
  assert.equal((await client.responses.retrieve(answer.id)).output_text, answer.output_text);
  await client.responses.delete(answer.id);
  await assert.rejects(client.responses.retrieve(answer.id), { status: 404 });
});

test("events are numbered, and their deltas add up", async () => {
  const stream = client.responses.stream({ model, input: QUESTION, temperature: 0 });
  const deltas = [];
  let number = 0;
  for await (const event of stream) {
    assert.equal(event.sequence_number, number++);
    if (event.type === "response.output_text.delta") deltas.push(event.delta);
  }
  const final = await stream.finalResponse();
  assert.ok(deltas.length > 1);
  assert.equal(deltas.join(""), final.output_text);
});

test("a zod schema is obeyed and parsed", async () => {
  const answer = await client.responses.parse({
    model, input: QUESTION, temperature: 1.5, text: { format: zodTextFormat(Place, "place") },
  });
  assert.deepEqual(Place.parse(answer.output_parsed), answer.output_parsed);
});

test("a forced call is an item with valid arguments, and takes its answer", async () => {
  const tools = [zodResponsesFunction({ name: "switch", parameters: Switch })];
  const answer = await client.responses.parse({
    model, input: QUESTION, tools, tool_choice: "required", parallel_tool_calls: false,
  });
  const [call] = answer.output;
  assert.equal(call.type, "function_call");
  assert.deepEqual(Switch.parse(call.parsed_arguments), call.parsed_arguments);
  const next = await client.responses.create({
    model, previous_response_id: answer.id, max_output_tokens: 16,
    input: [{ type: "function_call_output", call_id: call.call_id, output: "done" }],
  });
  assert.equal(next.previous_response_id, answer.id);
  const alone = await client.responses.create({ model, input: QUESTION, max_output_tokens: 16 });
  assert.ok(next.usage.input_tokens > alone.usage.input_tokens); // what went before was read too
});
