"""outlines-core as a backend: one regular expression a constraint, and for every state of its automaton the tokens.

Its automata are leftmost-first, which is no way to decide whether a text matches: `a|ab` has no way to spell "ab". That
is why our own patterns do not go through it (decision 5). As a backend it does what users of outlines know: what it
accepts matches, and masks are looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index  # type: ignore[import-untyped, unused-ignore]
from outlines_core import Vocabulary as OutlinesVocabulary
from outlines_core.json_schema import (  # type: ignore[import-untyped, unused-ignore]
    build_regex_from_schema,
)

from .backend_schemas import open_object, peer_schema
from .backends import Peer, alternatives, not_supported
from .constraint import Choices, Constraint, JsonObject, JsonSchema, Regex
from .errors import GrammarError
from .vocabulary import Vocabulary


def compiler(vocabulary: Vocabulary, any_whitespace: bool) -> Callable[[Constraint], Callable[[], Peer]]:
    ids: dict[bytes, list[int]] = {}
    for number, data in enumerate(vocabulary.tokens):
        if data is not None:
            ids.setdefault(data, []).append(number)
    tokens: Any = OutlinesVocabulary(min(vocabulary.eos_ids), ids)

    def compile_one(constraint: Constraint) -> Callable[[], Peer]:
        pattern = _pattern(constraint, "[ \\t\\n\\r]*" if any_whitespace else "")
        try:
            index = Index(pattern, tokens)
        except ValueError as error:
            raise GrammarError(f"outlines-core: {error}") from None
        return lambda: _Outlines(index, vocabulary)

    return compile_one


def _pattern(constraint: Constraint, whitespace: str) -> str:
    match constraint:
        case Regex(pattern=pattern):
            return pattern
        case Choices(values=values):
            return alternatives(list(values))
        case JsonObject():
            return _pattern(JsonSchema({"type": "object"}), whitespace)
        case JsonSchema():
            text = peer_schema(constraint)
            if (pointer := open_object(text)) is not None:
                raise GrammarError("outlines-core writes no members but those in 'properties'", pointer=pointer)
            try:
                return str(build_regex_from_schema(text, whitespace))
            except (TypeError, ValueError) as error:
                raise GrammarError(f"outlines-core: {error}") from None
        case _:
            raise not_supported("outlines", constraint)


class _Outlines:
    def __init__(self, index: Any, vocabulary: Vocabulary) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._states: list[int] = [index.get_initial_state()]

    def fill(self, out: NDArray[np.int32]) -> None:
        allowed = np.array(self._index.get_allowed_tokens(self._states[-1]) or [], np.int64)
        bits = np.zeros(32 * len(out), np.uint8)
        bits[allowed] = 1
        out[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def step(self, token: int) -> bool:
        after = self._index.get_next_state(self._states[-1], token)
        if after is not None:
            self._states.append(after)
        return after is not None

    def back(self, num_tokens: int) -> None:
        del self._states[len(self._states) - num_tokens :]

    def may_end(self) -> bool:
        return bool(self._index.is_final_state(self._states[-1]))

    def forced(self) -> bytes:
        """Nothing: it knows tokens, not bytes."""
        return b""
