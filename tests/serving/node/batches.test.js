// Files and batches, from the upload to the results.
import assert from "node:assert/strict";
import { test } from "node:test";
import { toFile } from "openai";
import { client, model, CHAT } from "./client.js";

const ENDPOINT = "/v1/chat/completions";
const LINES = ["a", "b"].map((custom_id) => ({
  custom_id,
  method: "POST",
  url: ENDPOINT,
  body: { model, messages: CHAT, max_tokens: 4, temperature: 0 },
}));

async function upload(lines) {
  const data = lines.map((line) => JSON.stringify(line)).join("\n");
  return client.files.create({ file: await toFile(Buffer.from(data), "requests.jsonl"), purpose: "batch" });
}

async function over(batch) {
  while (["validating", "in_progress", "finalizing", "cancelling"].includes(batch.status)) {
    await new Promise((done) => setTimeout(done, 50));
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
}

test("a batch answers the lines of a file", async () => {
  const file = await upload(LINES);
  assert.equal(file.purpose, "batch");
  const asked = { input_file_id: file.id, endpoint: ENDPOINT, completion_window: "24h" };
  const batch = await over(await client.batches.create(asked));
  assert.equal(batch.status, "completed");
  assert.deepEqual(batch.request_counts, { total: 2, completed: 2, failed: 0 });
  const text = await (await client.files.content(batch.output_file_id)).text();
  const results = text.trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(results.map((result) => result.custom_id).sort(), ["a", "b"]);
  const alone = await client.chat.completions.create(LINES[0].body);
  for (const { response } of results) {
    assert.equal(response.body.choices[0].message.content, alone.choices[0].message.content);
  }
});

test("files and batches are listed, deleted and cancelled", async () => {
  const file = await upload(LINES);
  const ids = [];
  for await (const each of client.files.list({ limit: 1, purpose: "batch" })) ids.push(each.id);
  assert.ok(ids.includes(file.id));
  assert.equal((await client.files.retrieve(file.id)).filename, "requests.jsonl");
  const asked = { input_file_id: file.id, endpoint: ENDPOINT, completion_window: "24h" };
  const batch = await client.batches.create(asked);
  await client.batches.cancel(batch.id);
  assert.ok(["cancelled", "completed"].includes((await over(batch)).status));
  const batches = [];
  for await (const each of client.batches.list({ limit: 1 })) batches.push(each.id);
  assert.equal(batches[0], batch.id);
  assert.equal((await client.files.delete(file.id)).deleted, true);
  await assert.rejects(client.files.retrieve(file.id), { status: 404 });
});
