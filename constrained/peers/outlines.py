r"""The backend outlines-core: each constraint becomes one regular expression, and a table of tokens by state.

Two properties of outlines-core shape this module. Its automata are leftmost-first: where a prefix of a text already
matches, longer matches can be lost (`a|ab` cannot produce "ab", decision 5). So every pattern ends with NUL, which no
token may contain; an output may end where NUL would complete the pattern. And outlines-core builds an automaton that
searches for the pattern anywhere, whose size can be exponential: `"(?:[^"\]|\.){0,16}"` takes seconds. So every
pattern is measured with our own automata first, and refused if it is too large. `outlines_schema` translates schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index
from outlines_core import Vocabulary as OutlinesVocabulary

from ..automaton.vocabulary import Vocabulary
from ..budget import CompileBudget
from ..constraint import Choices, GrammarSource, JsonObject, JsonSchema, Regex
from ..errors import GrammarError
from ..regex.byte_dfa import byte_dfa
from ..regex.charset import ALL
from ..regex.dfa import DEAD, START, Dfa
from ..regex.leftmost_first import leftmost_first_dfa
from ..regex.syntax.expression import Chars, alternation, literal, repeat, sequence
from ..regex.syntax.parser import parse_regex
from .interface import Peer, not_supported
from .outlines_schema import portable_pattern, schema_pattern
from .schema_options import has_any_whitespace, open_object, peer_schema

NUL = b"\0"
_WHITESPACE = r"[ \t\n\r]*"
_MAX_STATES = 20_000  # of the searching automaton: half a second
_MAX_STEPS = 80_000_000  # pairs of a state and a token to try: three seconds, without the GIL
MAX_TRANSITIONS = 6_000_000  # in the table, at about 85 bytes each
_SAMPLE = 2_000  # tokens from which the number of transitions is estimated


def compiler(vocabulary: Vocabulary, any_whitespace: bool) -> Callable[[GrammarSource], Callable[[], Peer]]:
    """Return the function that compiles a constraint to a factory of matchers."""
    ids: dict[bytes, list[int]] = {}
    for number, data in enumerate(vocabulary.tokens):
        if data is not None and NUL not in data:
            ids.setdefault(data, []).append(number)
    tokens: Any = OutlinesVocabulary(min(vocabulary.eos_ids), {**ids, NUL: [len(vocabulary)]})

    def compile_one(constraint: GrammarSource) -> Callable[[], Peer]:
        try:
            whitespace = _WHITESPACE if has_any_whitespace(constraint, any_whitespace) else ""
            pattern = rf"(?:{_pattern(constraint, whitespace)})\x00"
            _check_size(pattern, list(ids))
            index = Index(pattern, tokens)
        except GrammarError as error:
            reason = f"outlines: {error.reason}"
            raise GrammarError(reason, pointer=error.pointer, position=error.position) from None
        except ValueError as error:
            raise GrammarError(f"outlines: {error}") from None
        return lambda: _Outlines(index, vocabulary)

    return compile_one


def _pattern(constraint: GrammarSource, whitespace: str) -> str:
    match constraint:
        case Regex(pattern=pattern):
            return portable_pattern(parse_regex(pattern))
        case Choices(values=values):
            return portable_pattern(alternation(literal(value) for value in values))
        case JsonObject():
            return schema_pattern({"type": "object"}, whitespace)
        case JsonSchema():
            text = peer_schema(constraint)
            if (pointer := open_object(text)) is not None:
                raise GrammarError("outlines-core allows no members but those in 'properties'", pointer=pointer)
            return schema_pattern(text, whitespace)
        case _:
            raise not_supported("outlines", constraint)


def _check_size(pattern: str, tokens: list[bytes]) -> None:
    """Raise GrammarError if outlines-core would need too much time or memory for the pattern."""
    expression = parse_regex(pattern, flags="u")
    budget = CompileBudget(_MAX_STATES)
    try:
        dfa = byte_dfa(leftmost_first_dfa(expression, budget), "utf8", budget)
        byte_dfa(
            leftmost_first_dfa(sequence(repeat(Chars(ALL), 0, None, lazy=True), expression), budget), "utf8", budget
        )
    except GrammarError as error:
        raise GrammarError(f"too many states: {error.reason}") from None
    if dfa.is_empty:
        raise GrammarError("no text at all satisfies the constraint")
    if dfa.num_states * len(tokens) > _MAX_STEPS or _num_transitions(dfa, tokens) > MAX_TRANSITIONS:
        raise GrammarError(
            f"the constraint is too complex: its table has {dfa.num_states} states, each for {len(tokens)} tokens"
        )


def _num_transitions(dfa: Dfa, tokens: list[bytes]) -> int:
    """Estimate the number of transitions in the table from every n-th token."""
    stride = -(-len(tokens) // _SAMPLE)
    found = 0
    for token in tokens[::stride]:
        states = np.arange(START, dfa.num_states, dtype=np.int32)
        for byte in token:
            states = dfa.table[states, dfa.class_of[byte]]
            states = states[states != DEAD]
        found += len(states)
    return found * stride


class _Outlines:
    """`Peer` over the table of outlines-core."""

    def __init__(self, index: Any, vocabulary: Vocabulary) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._states: list[int] = [index.get_initial_state()]

    def fill(self, out: NDArray[np.int32]) -> None:
        allowed = np.array(self._index.get_allowed_tokens(self._states[-1]) or [], np.int64)
        bits = np.zeros(32 * len(out), np.uint8)
        bits[allowed[allowed < len(self._vocabulary)]] = 1
        out[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def step(self, token: int) -> bool:
        after = self._index.get_next_state(self._states[-1], token)
        if after is not None:
            self._states.append(after)
        return after is not None

    def back(self, num_tokens: int) -> None:
        del self._states[len(self._states) - num_tokens :]

    def may_end(self) -> bool:
        ended = self._index.get_next_state(self._states[-1], len(self._vocabulary))
        return ended is not None and bool(self._index.is_final_state(ended))

    def forced(self) -> bytes:
        """Return nothing: outlines-core has tokens, but no bytes."""
        return b""
