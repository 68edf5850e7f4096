"""When a model's rotary angles change with the length of a sequence, so that its keys and values are others.

LongRoPE has one list of factors for sequences up to the original context and one for longer ones: a sequence that
grows beyond it is computed again. Dynamic NTK stretches the angles of a whole prompt by the prompt's length, and those
of each later token by its own position. So keys and values depend on a length besides the tokens, and sequences share
prefixes if they have the same one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..protocol.errors import RequestError

MARK = "\0rope "  # precedes the length in a namespace


class RopeSwitch(msgspec.Struct, frozen=True):
    """Rotary scaling by length, beyond `original_context` tokens."""

    kind: Literal["longrope", "dynamic"]
    original_context: int

    def length(self, num_prompt: int, num_tokens: int) -> int:
        """Return the length by which a sequence's tokens up to it rotate, later ones by their own position; 0: all
        rotate by their own position."""
        if self.kind == "dynamic":
            return num_prompt if num_prompt > self.original_context else 0
        return self.original_context + 1 if num_tokens > self.original_context else 0

    def end(self, num_tokens: int) -> int | None:
        """Return the number of tokens at which a sequence of `num_tokens` has to be computed again; None: never."""
        if self.kind == "dynamic" or num_tokens > self.original_context:
            return None
        return self.original_context + 1


def namespace_at(namespace: str, length: int) -> str:
    """Return the namespace of prefixes of a `RopeSwitch.length`. Raises RequestError when it could be another's."""
    if MARK in namespace:
        raise RequestError("cache_salt holds a reserved sequence of characters", param="cache_salt")
    return f"{namespace}{MARK}{length}" if length else namespace
