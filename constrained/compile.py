"""Constraint -> expression -> byte automaton -> compiled grammar."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .budget import Budget
from .constraint import Choices, Constraint, JsonSchema, Regex
from .determinise import determinise
from .dfa import START, Dfa, trimmed
from .encodings import Encoding, json_string, utf8
from .errors import GrammarError
from .expression import Expression, choice, literal
from .matcher import CompiledGrammar
from .nfa import build_nfa
from .regex import parse_regex
from .schema import schema_expression
from .vocabulary import Vocabulary

WhitespacePolicy = Literal["compact", "bounded", "any"]


def compile_constraint(
    constraint: Constraint, vocabulary: Vocabulary, *, whitespace: WhitespacePolicy = "bounded"
) -> CompiledGrammar:
    """The constraint over the vocabulary. Raises GrammarError, within about two seconds.

    `whitespace` between the parts of a JSON value: "compact" none, "bounded" at most one space after `,` and `:`,
    "any" everything that JSON allows inside the outermost value.
    """
    budget = Budget()
    expression, encoding = _front_end(constraint, whitespace, budget)
    dfa = _spellable(determinise(build_nfa(expression, encoding, budget), budget), vocabulary)
    if dfa.is_empty:
        raise GrammarError("no text at all satisfies the constraint")
    alive = _alive(dfa, vocabulary, budget)
    if not alive[START]:
        raise GrammarError("the tokens of the vocabulary cannot spell any text that satisfies the constraint")
    return CompiledGrammar(dfa, vocabulary, alive)


def _front_end(constraint: Constraint, whitespace: WhitespacePolicy, budget: Budget) -> tuple[Expression, Encoding]:
    match constraint:
        case Regex(pattern=pattern):
            return parse_regex(pattern), utf8
        case Choices(values=values):
            for value in values:
                if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
                    raise GrammarError(f"the choice {value!r} holds half a surrogate pair")
            return choice(literal(value) for value in values), utf8
        case JsonSchema(schema=schema):
            return schema_expression(schema, whitespace, budget), json_string


def _spellable(dfa: Dfa, vocabulary: Vocabulary) -> Dfa:
    """The automaton without the bytes that no token holds."""
    missing = np.ones(256, np.bool_)
    missing[vocabulary.trie.byte[1:]] = False
    if not missing.any():
        return dfa
    table = dfa.table[:, dfa.class_of]
    table[:, missing] = 0
    return trimmed(table, np.arange(256, dtype=np.uint8), dfa.accepting)


def _alive(dfa: Dfa, vocabulary: Vocabulary, budget: Budget) -> NDArray[np.bool_]:
    """See `CompiledGrammar`."""
    alive = np.ones(dfa.num_states, np.bool_)
    used, single = (
        set(vocabulary.trie.byte[1:].tolist()),
        {data[0] for data in vocabulary.tokens if data and len(data) == 1},
    )
    if used <= single:
        return alive
    # Backwards over the tokens, from the accepting states.
    successors: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    for state in range(START, dfa.num_states):
        budget.check(state)
        successors.append(np.unique(vocabulary.trie.walk(dfa, state)[1]))
    alive = dfa.accepting.copy()
    changed = True
    while changed:
        budget.check(0)
        now = np.array([bool(alive[state]) or bool(alive[after].any()) for state, after in enumerate(successors)])
        changed = bool((now != alive).any())
        alive = now
    return alive
