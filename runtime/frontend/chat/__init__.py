"""Chat completions: requests, prompts, reasoning, tool calls."""
