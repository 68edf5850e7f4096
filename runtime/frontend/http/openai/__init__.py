"""The OpenAI-compatible routes. Sources: OpenAI's API reference; vLLM's and SGLang's for the fields that they add."""
