"""Detect a model's tool-call format from the calls that its chat template renders."""

from __future__ import annotations

from typing import Any

from ....protocol.errors import RequestError
from ....tokenizer.interface import Tokenizer
from ..template_forms import find_call_form, with_call_form
from .formats import FORMATS, ToolFormat

_FUNCTION = {"name": "probe", "arguments": {"x": 1}}
_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": _FUNCTION}],
    },
    {"role": "tool", "content": "1", "tool_call_id": "abcdefghi", "name": "probe"},
]
_TOOL = {
    "type": "function",
    "function": {"name": "probe", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_SIGNS = (
    ("<|channel|>commentary", "harmony"),
    ("<｜DSML｜function_calls>", "deepseek_v32"),
    ("<｜DSML｜tool_calls>", "deepseek_v4"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call>call:", "gemma4"),
    ("<seed:tool_call>", "seed_oss"),
    ("<longcat_tool_call>", "longcat"),
    ("<steptml:invoke", "step3"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("<|tools_prefix|>", "apertus"),
    ("<|action_start|>", "internlm"),
    ("<function_calls>", "olmo3"),
    ("<function_call>", "granite_20b_fc"),
    ("<tool_calls>", "hunyuan_a13b"),
    ("<function=probe>", "qwen3_coder"),
    ("<arg_key>x", "glm45"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|tool_call_begin|>", "kimi_k2"),
    ("<tool_call>", "hermes"),
    ("<|/tool_call|>", "phi4_mini"),
    ("<|tool|>", "phi4_mini"),
    ("<|tool_call|>", "granite"),
    ("[ARGS]", "mistral_args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁call▁begin｜>probe", "deepseek_v31"),
    ("<｜tool▁call▁begin｜>", "deepseek"),
    ('"parameters": {"x"', "llama3_json"),
    ("probe(x=1)", "pythonic"),
)


def detect_tool_format(tokenizer: Tokenizer) -> ToolFormat:
    """Return the format whose sign the rendered chat template shows; plain JSON if none does."""
    for rendered in _rendered_probes(tokenizer):
        for sign, name in _SIGNS:
            if sign in rendered:
                return FORMATS[name]
    return FORMATS["json"]


def _rendered_probes(tokenizer: Tokenizer) -> list[str]:
    if tokenizer.chat is None:
        return []
    rendered = []
    probes = with_call_form(_MESSAGES, find_call_form(tokenizer.chat))
    for messages in (probes, probes[:2], probes[:1]):
        try:
            rendered.append(tokenizer.chat.render(messages, tools=[_TOOL], add_generation_prompt=len(messages) != 2))
        except RequestError:
            continue  # the template rejects these messages
    return rendered
