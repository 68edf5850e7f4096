"""The backend llguidance: JSON Schemas in its strict reading, Lark grammars in its own dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from ..automaton.vocabulary import Vocabulary
from ..constraint import Choices, Grammar, GrammarSource, JsonObject, JsonSchema, Regex
from ..errors import GrammarError
from .interface import Peer, not_supported
from .schema_options import has_any_whitespace, peer_schema

_OWN_ATTRIBUTE = re.compile(r"^[!?]*[_a-z][\w-]*\s*\[[^\]\n]*\b(capture|stop_capture|temperature)\b", re.MULTILINE)


def compiler(vocabulary: Vocabulary, any_whitespace: bool) -> Callable[[GrammarSource], Callable[[], Peer]]:
    """Return the function that compiles a constraint to a factory of matchers."""
    wrapped: Any = TokenizerWrapper(_Tokens(vocabulary))
    equal_tokens = _equal_tokens(vocabulary)
    tokenizer = LLTokenizer(wrapped, eos_token=min(vocabulary.eos_ids), slices=LLTokenizer.json_slices())

    def compile_one(constraint: GrammarSource) -> Callable[[], Peer]:
        try:
            first = LLMatcher(tokenizer, _source(constraint, any_whitespace), log_level=0)
        except ValueError as error:
            raise GrammarError(f"llguidance: {error}") from None
        if first.is_error():
            raise GrammarError(f"llguidance: {first.get_error()}".split("\n<state>")[0])
        return lambda: _Llguidance(first.deep_copy(), equal_tokens)

    return compile_one


def _source(constraint: GrammarSource, any_whitespace: bool) -> str:
    match constraint:
        case Regex(pattern=pattern):
            return str(LLMatcher.grammar_from_regex(pattern))
        case Choices(values=values):
            return str(LLMatcher.grammar_from_lark(f"start: {' | '.join(json.dumps(value) for value in values)}"))
        case Grammar(text=text, syntax="lark", start=None | "start"):
            if (found := _OWN_ATTRIBUTE.search(text)) is not None:
                raise GrammarError.in_pattern(
                    f"{found[1]} of a rule is for the grammar backend 'native'", text, found.start(1)
                )
            return str(LLMatcher.grammar_from_lark(text))
        case JsonObject():
            return _source(JsonSchema({"type": "object"}), any_whitespace)
        case JsonSchema():
            return str(
                LLMatcher.grammar_from_json_schema(
                    peer_schema(constraint),
                    overrides={"whitespace_flexible": has_any_whitespace(constraint, any_whitespace)},
                )
            )
        case _:
            raise not_supported("llguidance", constraint)


class _Tokens:
    """The tokenizer interface that llguidance requires.

    Special tokens begin with its marker 0xFF, which no text contains.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.eos_ids)
        self.bos_token_id = None
        self.tokens = [b"\xff[%d]" % number if data is None else data for number, data in enumerate(vocabulary.tokens)]
        self.special_token_ids = [number for number, data in enumerate(vocabulary.tokens) if data is None]
        self._number = {data: number for number, data in enumerate(vocabulary.tokens) if data}
        self._longest = max(map(len, self._number), default=1)

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenise greedily, the longest token first: an approximation of the tokenizer, used for forced text."""
        data = text.encode() if isinstance(text, str) else text
        found, at = [], 0
        while at < len(data):
            lengths = range(min(self._longest, len(data) - at), 0, -1)
            length = next((length for length in lengths if data[at : at + length] in self._number), 0)
            if length:
                found.append(self._number[data[at : at + length]])
            at += length or 1
        return found


def _equal_tokens(vocabulary: Vocabulary) -> list[list[int]]:
    """Return the groups of tokens with equal bytes; llguidance allows only one token of each."""
    groups: dict[bytes, list[int]] = {}
    for number, data in enumerate(vocabulary.tokens):
        if data is not None:
            groups.setdefault(data, []).append(number)
    return [group for group in groups.values() if len(group) > 1]


class _Llguidance:
    """`Peer` over llguidance's matcher."""

    def __init__(self, matcher: Any, equal_tokens: list[list[int]]) -> None:
        self._matcher = matcher
        self._equal_tokens = equal_tokens

    def fill(self, out: NDArray[np.int32]) -> None:
        self._matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        for group in self._equal_tokens:
            if any(out[token >> 5] >> (token & 31) & 1 for token in group):
                for token in group:
                    out[token >> 5] |= np.uint32(1 << (token & 31)).astype(np.int32)

    def step(self, token: int) -> bool:
        # A refused token would put the matcher into a permanent error state.
        return bool(self._matcher.validate_tokens([token]) == 1 and self._matcher.consume_token(token))

    def back(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def forced(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())
