// AI SDK with @ai-sdk/openai-compatible: chat completions.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

import { reportSteps } from "./ai_sdk.mjs";
import { URL } from "./outcomes.mjs";

reportSteps(createOpenAICompatible({ name: "ramiform", baseURL: `${URL}/v1`, supportsStructuredOutputs: true }));
