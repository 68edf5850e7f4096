// The client under test, its model, and what the model that ships is asked. URL comes from the environment.
import OpenAI from "openai";
import { z } from "zod";

export const client = new OpenAI({ baseURL: `${process.env.RAMIFORM_URL}/v1`, apiKey: "none", maxRetries: 0 });
export const model = (await client.models.list()).data[0].id;

export const QUESTION = "What is the capital of France?";
export const CHAT = [{ role: "user", content: QUESTION }];

export const Place = z.object({ kind: z.enum(["city", "river"]), sure: z.boolean() });

// Bounded, so that an answer that obeys it ends whatever the model thinks.
export const Switch = z.object({ on: z.boolean(), room: z.enum(["kitchen", "hall"]) });
