"""How chat messages are shown in a state's text where no template of a model says it: ChatML's marks."""

from __future__ import annotations


def begin(role: str) -> str:
    return f"<|im_start|>{role}\n"


def end(role: str) -> str:
    return "<|im_end|>\n"
