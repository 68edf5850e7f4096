"""Separating what a model thought from what it says. Knows the marks that models put around their thoughts."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.protocol.errors import RequestError


@dataclass(frozen=True)
class ReasoningFormat:
    """`begins_inside`: the chat template has opened the thought already, so that the text begins with it."""

    start: str
    end: str
    begins_inside: bool = False

    def split(self, text: str) -> tuple[str, str]:
        """The thought and the rest, without the marks and the white space around them."""
        before, mark, after = text.partition(self.start)
        if not mark:
            if not self.begins_inside and self.end not in text:
                return "", text
            before, after = "", text
        thought, _, said = after.partition(self.end)
        return thought.strip(), (before + said).strip()


REASONING_FORMATS = {
    "deepseek-r1": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "deepseek-v3": ReasoningFormat("<think>", "</think>"),
    "qwen3": ReasoningFormat("<think>", "</think>"),
    "qwen3-thinking": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "glm45": ReasoningFormat("<think>", "</think>"),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}


def reasoning_format(model_type: str) -> ReasoningFormat:
    """Raises RequestError for a model type that is not known."""
    try:
        return REASONING_FORMATS[model_type.lower()]
    except (KeyError, AttributeError):
        raise RequestError(
            f"model_type must be one of {', '.join(REASONING_FORMATS)}, got {model_type!r}", param="model_type"
        ) from None
