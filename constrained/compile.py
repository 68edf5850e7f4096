"""Constraint -> automaton -> compiled grammar."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .automaton.actions import DEAD_END, FLAGS, FREE
from .automaton.automaton import Automaton, ControlState, DfaStart
from .automaton.matcher import CompiledGrammar
from .automaton.vocabulary import Vocabulary
from .budget import CompileBudget
from .constraint import Choices, Constraint, Grammar, JsonObject, JsonSchema, Regex, SchemaOptions, StructuralTag
from .errors import GrammarError
from .grammar.gbnf import gbnf_grammar
from .grammar.lark import lark_grammar
from .grammar.states import grammar_start
from .regex.dfa import DEAD, START, Dfa, trimmed_dfa
from .regex.expression import alternation, literal
from .schema.compile import schema_start
from .schema.string_dfas import expression_dfa, regex_dfa
from .tags.build import SchemaStyle, tags_start
from .tags.spec import read_tags

WhitespacePolicy = Literal["compact", "bounded", "any"]
PropertyOrder = Literal["any", "schema"]


def compile_constraint(
    constraint: Constraint,
    vocabulary: Vocabulary,
    *,
    whitespace: WhitespacePolicy = "bounded",
    order: PropertyOrder = "any",
) -> CompiledGrammar:
    """The constraint over the vocabulary. Raises GrammarError, within about two seconds.

    `whitespace` between the parts of a JSON value: "compact" none, "bounded" at most one space after `,` and `:`,
    "any" everything that JSON allows inside the outermost value. `order` of an object's properties: "any", or the
    "schema"'s, in which a model is then steered to write them.
    """
    match constraint:
        case JsonSchema(schema=schema, options=options):
            automaton = Automaton()
            start: ControlState = schema_start(schema, whitespace, order, automaton, options)
            return CompiledGrammar(automaton, start, vocabulary)
        case JsonObject():
            automaton = Automaton()
            return CompiledGrammar(
                automaton, schema_start({"type": "object"}, whitespace, order, automaton, SchemaOptions()), vocabulary
            )
        case Grammar(text=text, syntax=syntax, start=rule):
            rules = lark_grammar(text, rule or "start") if syntax == "lark" else gbnf_grammar(text, rule or "root")
            return CompiledGrammar(Automaton(), grammar_start(rules), vocabulary)
        case StructuralTag(spec=spec, options=options):
            automaton = Automaton()
            start = tags_start(read_tags(spec), SchemaStyle(whitespace, order, options), automaton)
            return CompiledGrammar(automaton, start, vocabulary)
        case Regex() | Choices():
            return _finite_automaton(constraint, vocabulary)


def _finite_automaton(constraint: Regex | Choices, vocabulary: Vocabulary) -> CompiledGrammar:
    match constraint:
        case Regex(pattern=pattern):
            dfa = regex_dfa(pattern)
        case Choices(values=values):
            for value in values:
                if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
                    raise GrammarError(f"the choice {value!r} holds half a surrogate pair")
            dfa = expression_dfa(alternation(literal(value) for value in values))
    used, single = _bytes(vocabulary)
    dfa = _spellable(dfa, used)
    if dfa.is_empty:
        raise GrammarError("no text at all satisfies the constraint")
    automaton, start = Automaton(), DfaStart(dfa)
    grammar = CompiledGrammar(automaton, start, vocabulary)
    if not used <= single:
        alive = _alive(dfa, vocabulary, CompileBudget())
        if not alive[START]:
            raise GrammarError("the tokens of the vocabulary cannot spell any text that satisfies the constraint")
        base = start.base(automaton)
        states = automaton.tables.states[base + START : base + dfa.num_states]
        states[~alive[START:], FLAGS] |= DEAD_END
        if not alive[START:].all():
            states[:, FREE] = 0
    return grammar


def _bytes(vocabulary: Vocabulary) -> tuple[set[int], set[int]]:
    """Those in any token, and those that are tokens by themselves."""
    used = set(vocabulary.trie.data[1:].tolist())
    return used, {data[0] for data in vocabulary.tokens if data and len(data) == 1}


def _spellable(dfa: Dfa, used: set[int]) -> Dfa:
    """The automaton without the bytes that no token holds."""
    missing = np.ones(256, np.bool_)
    missing[sorted(used)] = False
    if not missing.any():
        return dfa
    table = dfa.table[:, dfa.class_of]
    table[:, missing] = DEAD
    return trimmed_dfa(table, np.arange(256, dtype=np.uint8), dfa.accepting)


def _alive(dfa: Dfa, vocabulary: Vocabulary, budget: CompileBudget) -> NDArray[np.bool_]:
    """From which states the tokens of the vocabulary can spell a way to the end."""
    different: dict[bytes, NDArray[np.int32]] = {}  # where a token leads from each state: most lead nowhere
    for data in filter(None, vocabulary.tokens):
        budget.check(len(different))
        states = np.arange(dfa.num_states, dtype=np.int32)
        for byte in data:
            states = dfa.table[states, dfa.class_of[byte]]
        different[states.tobytes()] = states
    successors = np.stack(list(different.values()))
    alive = dfa.accepting.copy()
    while True:
        budget.check(0)
        now = alive | alive[successors].any(axis=0)
        if (now == alive).all():
            return now
        alive = now
