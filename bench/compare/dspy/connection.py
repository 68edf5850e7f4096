"""Declares the server to DSPy, which asks for structured output only where it knows that a server has it."""

import sys

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider

URL = sys.argv[1] + "/v1"
register_provider(
    ProviderDefinition.chat(AccessPolicy(provider="ramiform", base_url=URL), compat=OpenAIChatCompat.preset("vllm")),
    supports=ModelSupport(response_schema=True, function_calling=True),
)


def connect(temperature: float) -> None:
    lm = dspy.LM(
        "ramiform/ramiform-small", api_key="none", api_base=URL, temperature=temperature, max_tokens=200, cache=False
    )
    dspy.configure(lm=lm, adapter=dspy.JSONAdapter())
