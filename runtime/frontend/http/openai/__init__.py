"""OpenAI-compatible routes and extensions of them. Sources: OpenAI's API reference, and vLLM's and SGLang's additions
to it.
"""
