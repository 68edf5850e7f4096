"""The state before a text of a grammar in llguidance's dialect of Lark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..automaton.automaton import Automaton
from ..automaton.vocabulary import Vocabulary, bitmask
from ..errors import GrammarError
from ..grammar.earley import EarleySets
from ..grammar.extended_lark.rules import LexedGrammar, LexedText, LocatedTerminal
from ..grammar.extended_lark.syntax import LarkJson, TokenRanges
from .build import SchemaStyle, SchemaValues
from .captures import CapturedStart
from .formats import SchemaFormat
from .leaves import TextLeaf, TokensLeaf, ValueLeaf
from .states import Lexer, TagRules, TagState


def lexed_start(grammar: LexedGrammar, options: SchemaStyle, vocabulary: Vocabulary, automaton: Automaton) -> TagState:
    """Return the state before a text. Raises GrammarError for a schema or a token that cannot be."""
    values = SchemaValues(options, automaton)
    leaves: list[TextLeaf | ValueLeaf | TokensLeaf] = []
    for number, terminal in enumerate(grammar.terminals):
        if isinstance(terminal, LexedText):
            labels: list[tuple[int, ...]] = [(number,) if ends else () for ends in terminal.dfa.accepting.tolist()]
            leaf = TextLeaf(terminal.dfa, labels, None, terminal.max_tokens, terminal.lazy, terminal.temperature)
            leaves.append(leaf)
        elif isinstance(terminal.part, LarkJson):
            leaves.append(_value(values, terminal.part, terminal.text))
        else:
            leaves.append(TokensLeaf(_token_mask(terminal.part, terminal, vocabulary), 1))
    sets = EarleySets(grammar.alternatives, grammar.nullable)
    automaton.caches.append(sets.caches)
    around = {scope: _around(grammar.parents, scope) for scope in range(len(grammar.parents))}
    temperatures = {
        number: terminal.temperature
        for number, terminal in enumerate(grammar.terminals)
        if isinstance(terminal, LocatedTerminal) and terminal.temperature is not None
    }
    lexer = Lexer(grammar.scopes, around, grammar.skips, grammar.skips_at_start, temperatures)
    start = TagRules(sets, leaves, values.joined, lexer).start
    return CapturedStart(start.rules, start.readings, start.accepts, grammar.captures) if grammar.captures else start


def _around(parents: Sequence[int | None], scope: int) -> tuple[int, ...]:
    """Return a grammar and those around it, from the inside out."""
    found = [scope]
    while (parent := parents[found[-1]]) is not None:
        found.append(parent)
    return tuple(found)


def _value(values: SchemaValues, part: LarkJson, text: str) -> ValueLeaf:
    """Compile a schema. `x-guidance`, llguidance's options, may say that it has no whitespace."""
    schema = part.schema
    whitespace: Literal["compact"] | None = None
    if isinstance(schema, dict) and "x-guidance" in schema:
        given = schema["x-guidance"]
        if not isinstance(given, dict) or not given.keys() <= {"whitespace_flexible"}:
            raise _refusal("of x-guidance only whitespace_flexible is supported: leave the others out", text, part.at)
        if given.get("whitespace_flexible") is False:
            whitespace = "compact"
        schema = {name: value for name, value in schema.items() if name != "x-guidance"}
    try:
        return values.leaf(SchemaFormat(schema, None, whitespace, (), ""))
    except GrammarError as error:
        if not text:
            raise
        raise _refusal(f"%json: {error}", text, part.at) from None


def _token_mask(part: TokenRanges, terminal: LocatedTerminal, vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return the bitmask of the tokens that may stand at a place: no ends of an output."""
    size = len(vocabulary)
    if part.name is not None:
        number = vocabulary.number_of(part.name)
        if number is None:
            raise _refusal(f"the vocabulary has no token {part.name!r}", terminal.text, part.at)
        if number in vocabulary.eos_ids:
            raise _refusal(
                f"the token {part.name!r} ends an output, so it cannot be a part of one", terminal.text, part.at
            )
        return bitmask(np.array([number]), size)
    chosen = np.zeros(size, np.bool_)
    for low, high in part.ranges:
        chosen[low : high + 1] = True
    if part.is_excluded:  # of those that have text, or a name
        known = np.zeros(size, np.bool_)
        known[[*vocabulary.trie.tokens.tolist(), *vocabulary.names.values()]] = True
        chosen = known & ~chosen
    chosen[sorted(vocabulary.eos_ids)] = False
    if not chosen.any():
        raise _refusal("no token of the vocabulary is among these, but for ends of an output", terminal.text, part.at)
    return bitmask(np.flatnonzero(chosen), size)


def _refusal(message: str, text: str, at: int) -> GrammarError:
    return GrammarError.in_pattern(message, text, at)
