"""Marks of chat messages in a state's text where there is no template of a model: ChatML's."""

from __future__ import annotations


def begin(role: str) -> str:
    """Return the mark before a message's content."""
    return f"<|im_start|>{role}\n"


def end(role: str) -> str:
    """Return the mark after a message's content."""
    return "<|im_end|>\n"
