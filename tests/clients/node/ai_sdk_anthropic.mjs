// AI SDK with @ai-sdk/anthropic: the Messages API.
import { createAnthropic } from "@ai-sdk/anthropic";

import { reportSteps } from "./ai_sdk.mjs";
import { URL } from "./outcomes.mjs";

reportSteps(createAnthropic({ baseURL: `${URL}/v1`, apiKey: "none" }));
