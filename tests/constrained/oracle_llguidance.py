"""llguidance as an independent judge of masks, over the same vocabulary, for languages that both engines define."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ramiform.constrained import CompiledGrammar, Vocabulary

llguidance = pytest.importorskip("llguidance")

# Our JSON text, written down once more as llguidance reads grammars: every escape but \u of printable ASCII, surrogates
# in pairs only; exponents that doubles can follow; whitespace anywhere inside the outermost value, or none.
_HEX = "[0-9a-fA-F]"
_UNICODE_ESCAPE = "|".join(
    [
        rf"00[01]{_HEX}|007[fF]|00[89a-fA-F]{_HEX}",
        rf"0[1-9a-fA-F]{_HEX}{_HEX}",
        rf"[1-9a-cA-CefEF]{_HEX}{_HEX}{_HEX}|[dD][0-7]{_HEX}{_HEX}",
        rf"[dD][89abAB]{_HEX}{_HEX}\\u[dD][c-fC-F]{_HEX}{_HEX}",
    ]
)
CHARACTER = rf'([^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u({_UNICODE_ESCAPE}))'
_EXPONENT = "[eE](-[0-9]{1,3}|[+]?([0-2][0-9][0-9]|[0-9]{1,2}))"
NUMBER = rf"-?(0|[1-9][0-9]*)(\.[0-9]+)?({_EXPONENT})?"


def json_grammar(*, spaced: bool, start: str = "value") -> str:
    """Return the grammar of any JSON value, or of `start` in llguidance's dialect of Lark."""
    gap = "WS? " if spaced else ""
    return llguidance.LLMatcher.grammar_from_lark(
        rf"""
start: {start}
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{{" {gap}(member ({gap}"," {gap}member)* {gap})?"}}"
member: STRING {gap}":" {gap}value
array: "[" {gap}(value ({gap}"," {gap}value)* {gap})?"]"
STRING: /"{CHARACTER}*"/
NUMBER: /{NUMBER}/
WS: /[ \t\n\r]+/
"""
    )


def schema_grammar(schema: Any, *, spaced: bool) -> str:
    """Return llguidance's own grammar of a schema."""
    return llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides={"whitespace_flexible": spaced, "item_separator": ",", "key_separator": ":"}
    )


def regex_grammar(pattern: str) -> str:
    return llguidance.LLMatcher.grammar_from_regex(pattern)


class Judge:
    """Compares masks with those of llguidance over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self._vocabulary = vocabulary
        [self._eos] = vocabulary.eos_ids
        wrapped = llguidance.TokenizerWrapper(_Wrapped(vocabulary, self._eos, encode))
        self._tokenizer = llguidance.LLTokenizer(wrapped, eos_token=self._eos)
        self._ours = np.zeros(vocabulary.num_words, np.int32)
        self._theirs = np.zeros(vocabulary.num_words, np.int32)

    def walk(self, grammar: CompiledGrammar, judged: str, rng: random.Random, num_tokens: int) -> int:
        """Compare the masks along a random output of at most `num_tokens` tokens; returns how many were equal.

        Outputs drawn uniformly would be strings: half of the draws choose the first byte before the token.
        """
        ours, theirs = grammar.matcher(), llguidance.LLMatcher(self._tokenizer, judged, log_level=0)
        assert not theirs.is_error(), theirs.get_error()
        output = b""
        for step in range(num_tokens):
            ours.mask(self._ours)
            theirs.unsafe_compute_mask_ptr(self._theirs.ctypes.data, self._theirs.nbytes)
            allowed, expected = _ids(self._ours), _ids(self._theirs)
            if len(expected) == 1 and expected[0] != self._eos:
                # Where the next bytes are certain it shows the canonical token only; asked one by one it knows all.
                expected = [token for token in range(len(self._vocabulary)) if theirs.validate_tokens([token])]
            more = set(expected) - set(allowed) - {self._eos}  # which `<[*]>` holds; where it ends is compared below
            assert all(repeats_a_name(output + self._bytes(token)) for token in more), (
                f"after {output!r}: not {self._named(sorted(more))}"
            )
            less = set(allowed) - set(expected)
            assert not less, f"after {output!r}: {self._named(sorted(less))}, beside {self._named(expected)}"
            assert ours.is_accepting() == theirs.is_accepting(), f"after {output!r}"
            token = self._draw(allowed, rng)
            if token == self._eos:
                return step + 1
            assert ours.accept(token)
            assert theirs.consume_token(token)
            output += self._vocabulary.tokens[token] or b""
        return num_tokens

    def matcher(self, judged: str) -> Any:
        """Begin an output with llguidance's matcher alone."""
        found = llguidance.LLMatcher(self._tokenizer, judged, log_level=0)
        assert not found.is_error(), found.get_error()
        return found

    def mask_of(self, theirs: Any) -> set[int]:
        """Return the tokens in the mask of a matcher; one where text is certain."""
        theirs.unsafe_compute_mask_ptr(self._theirs.ctypes.data, self._theirs.nbytes)
        return {*_ids(self._theirs)}

    def end(self, theirs: Any) -> None:
        """Let the output of a matcher end, unless it has."""
        if not theirs.is_stopped():
            assert theirs.consume_token(self._eos)

    def _draw(self, allowed: list[int], rng: random.Random) -> int:
        if rng.random() < 0.5:
            return rng.choice(allowed)
        first = rng.choice(sorted({self._bytes(token)[:1] for token in allowed}))
        return rng.choice([token for token in allowed if self._bytes(token)[:1] == first])

    def _bytes(self, token: int) -> bytes:
        return self._vocabulary.tokens[token] or b""

    def _named(self, tokens: list[int]) -> dict[int, bytes | None]:
        return {token: self._vocabulary.tokens[token] for token in tokens}


def repeats_a_name(text: bytes) -> bool:
    """Return True if a prefix of a JSON text has an object with a repeated name, which llguidance allows."""
    objects: list[set[str] | None] = []  # the names of those that are open; None for an array
    before = b""
    for match in re.finditer(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]', text):
        part = match[0]
        if part in b"{[":
            objects.append(set() if part == b"{" else None)
        elif part in b"}]":
            objects.pop()
        elif part[:1] == b'"' and objects and (names := objects[-1]) is not None and before in (b"{", b","):
            name = json.loads(part)
            if name in names:
                return True
            names.add(name)
        before = part
    return False


class _Wrapped:
    """The tokenizer interface that llguidance requires. Special tokens need bytes that no text contains."""

    def __init__(self, vocabulary: Vocabulary, eos: int, encode: Callable[[str], list[int]]) -> None:
        self.eos_token_id = eos
        self.bos_token_id = None
        special = [number for number, data in enumerate(vocabulary.tokens) if data is None]
        self.tokens = [data or b"\xff<%d>" % number for number, data in enumerate(vocabulary.tokens)]
        self.special_token_ids = special
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _ids(mask: NDArray[np.int32]) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
