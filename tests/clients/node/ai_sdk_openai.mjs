// AI SDK with @ai-sdk/openai: the default provider, on the Responses API.
import { createOpenAI } from "@ai-sdk/openai";

import { reportSteps } from "./ai_sdk.mjs";
import { URL } from "./outcomes.mjs";

reportSteps(createOpenAI({ baseURL: `${URL}/v1`, apiKey: "none" }));
