"""Compiles constraints over a vocabulary to grammars that matchers follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from .. import loops
from .automaton.actions import DEAD_END, FLAGS, FREE
from .automaton.automaton import Automaton, DfaStart
from .automaton.generation import MakeStart
from .automaton.literals import LeadState, ListedTextsStart
from .automaton.masks import PACKAGE
from .automaton.matcher import CompiledGrammar
from .automaton.vocabulary import Vocabulary
from .budget import CompileBudget, compilation, counted
from .constraint import (
    Choices,
    Grammar,
    GrammarSource,
    JsonObject,
    JsonSchema,
    JsonString,
    Prefixed,
    PropertyOrder,
    Regex,
    SchemaOptions,
    StructuralTag,
    Substring,
    WhitespacePolicy,
)
from .errors import GrammarError
from .grammar.extended_lark.rules import lexed_grammar
from .grammar.gbnf import gbnf_grammar
from .grammar.json_string import string_grammar
from .grammar.lark import is_of_llguidance, lark_grammar
from .grammar.states import grammar_start
from .grammar.substring import quote_start
from .regex.charset import has_surrogates
from .regex.dfa import DEAD, START, Dfa, trimmed_dfa
from .regex.listed import listed_dfa, listed_edges
from .schema.compile import checked_document, schema_start
from .schema.strings.formats import PATTERNS
from .schema.strings.string_dfas import any_string, labelled_product, plain_states, regex_dfa
from .schema.strings.string_parts import StringPart
from .schema.strings.string_states import part_block
from .tags.build import SchemaStyle, tags_start
from .tags.formats import GrammarFormat
from .tags.lexed import lexed_start
from .tags.spec import read_tags

_warming = Lock()


def compile_constraint(
    constraint: GrammarSource,
    vocabulary: Vocabulary,
    *,
    whitespace: WhitespacePolicy = "bounded",
    order: PropertyOrder = "any",
) -> CompiledGrammar:
    """Compile a constraint. Raises GrammarError, also beyond a number of steps that takes about two seconds.

    `whitespace` is allowed between the parts of a JSON value: "compact" none, "bounded" at most one space after `,` and
    `:`, "spaced" exactly one, "any" everything that JSON allows inside the outermost value. `order` is that of an
    object's properties: "any", or "schema" for the order in which the schema lists them.
    """
    if loops.ready(PACKAGE):
        warm_up()
    with compilation():
        return CompiledGrammar(_start_of(constraint, vocabulary, whitespace, order), vocabulary)


def _start_of(
    constraint: GrammarSource, vocabulary: Vocabulary, whitespace: WhitespacePolicy, order: PropertyOrder
) -> MakeStart:
    """Return the function that makes the state before a text."""
    match constraint:
        case JsonSchema(schema=schema, options=options):
            document = checked_document(schema)
            return partial(schema_start, document, whitespace, order, options)
        case JsonObject():
            document = checked_document({"type": "object"})
            return partial(schema_start, document, whitespace, order, SchemaOptions())
        case Grammar(text=text, syntax=syntax, start=rule):
            # Of llguidance's %json: objects are open as there, and every number ends.
            style = SchemaStyle(whitespace, order, SchemaOptions("schema", "digits", 20))
            if syntax == "lark" and is_of_llguidance(text):
                return partial(lexed_start, lexed_grammar(text, rule or "start"), style, vocabulary)
            rules = lark_grammar(text, rule or "start") if syntax == "lark" else gbnf_grammar(text, rule or "root")
            if rules.has_tokens:
                return partial(tags_start, GrammarFormat(text, None, rule or "root"), style, vocabulary)
            return partial(grammar_start, rules)
        case JsonString():
            return partial(grammar_start, string_grammar(constraint))
        case StructuralTag(spec=spec, options=options):
            # Without the options' whitespace, which would win over that of a format.
            style = SchemaStyle(options.whitespace or whitespace, order, replace(options, whitespace=None))
            tags = read_tags(spec, vocabulary)
            return partial(tags_start, tags, style, vocabulary)
        case Substring(text=text):
            quote = quote_start(text, vocabulary)
            return lambda _: quote
        case Regex() | Choices():
            return _dfa_start(constraint, vocabulary)
        case Prefixed(text=text, rest=rest):
            if has_surrogates(text) or not vocabulary.used_bytes.issuperset(text.encode()):
                raise GrammarError(f"no tokens spell the text {text!r}")
            lead, make_rest = text.encode(), _start_of(rest, vocabulary, whitespace, order)
            return (lambda automaton: LeadState(lead, make_rest(automaton))) if lead else make_rest


def warm_up() -> None:
    """Prepare what the first constraint of a process needs: compiled loops, and the automata of strings and formats.

    Takes about a third of a second once per process, or seconds if the loops have never been compiled.
    """
    # Two first constraints at once need not both prepare. With the lock, neither gives way to the other.
    with counted(None), _warming:
        _warm_up_once()


@cache
def _warm_up_once() -> None:
    for name in ("automaton.walk_packed", "automaton.literal_kernel", "regex.dfa_kernel", "regex.subset_kernel"):
        import_module(f".{name}", __package__)
    loops.compile_registered(PACKAGE)
    plain_states(any_string())
    labelled_product(any_string(), [any_string()], lambda _: 0)
    for name in PATTERNS.keys() - {"regex"}:  # which few schemas name, and which takes longer than all others
        part_block(StringPart(formats=frozenset([name])), 0)


def _dfa_start(constraint: Regex | Choices, vocabulary: Vocabulary) -> MakeStart:
    """Compile a regular language; take care that the vocabulary's tokens can spell it."""
    match constraint:
        case Regex(pattern=pattern):
            dfa = regex_dfa(pattern)
        case Choices(values=values):
            for value in values:
                if has_surrogates(value):
                    raise GrammarError(f"the choice {value!r} contains an unpaired surrogate")
            if vocabulary.used_bytes <= vocabulary.single_bytes:
                return _choices_start(values, vocabulary)
            dfa, _ = listed_dfa({value.encode(): 0 for value in values})
    dfa = _spellable(dfa, vocabulary.used_bytes)
    if dfa.is_empty:
        raise GrammarError("no text at all satisfies the constraint")
    start = DfaStart(dfa)
    if vocabulary.used_bytes <= vocabulary.single_bytes:
        return lambda _: start
    alive = _alive(dfa, vocabulary, CompileBudget())
    if not alive[START]:
        raise GrammarError("the tokens of the vocabulary cannot spell any text that satisfies the constraint")

    def make_start(automaton: Automaton) -> DfaStart:
        base = start.base(automaton)
        states = automaton.tables.states[base + START : base + dfa.num_states]
        states[~alive[START:], FLAGS] |= DEAD_END
        if not alive[START:].all():
            states[:, FREE] = 0
        return start

    return make_start


def _choices_start(values: Sequence[str], vocabulary: Vocabulary) -> MakeStart:
    """Compile choices over a vocabulary in which every byte of a token is a token too."""
    texts = [text for text in (value.encode() for value in values) if vocabulary.used_bytes.issuperset(text)]
    if not texts:
        raise GrammarError("no text at all satisfies the constraint")
    edges = listed_edges(texts)

    def make_start(automaton: Automaton) -> ListedTextsStart:
        start = ListedTextsStart(edges)
        automaton.fill(automaton.number(start))
        return start

    return make_start


def _spellable(dfa: Dfa, used: frozenset[int]) -> Dfa:
    """Remove the bytes that occur in no token."""
    missing = np.ones(256, np.bool_)
    missing[sorted(used)] = False
    if not missing.any():
        return dfa
    table = dfa.table[:, dfa.class_of]
    table[:, missing] = DEAD
    return trimmed_dfa(table, np.arange(256, dtype=np.uint8), dfa.accepting)


def _alive(dfa: Dfa, vocabulary: Vocabulary, budget: CompileBudget) -> NDArray[np.bool_]:
    """Return the states from which the vocabulary's tokens can spell a text to an end: bool[S]."""
    # A token's states are looked up byte by byte, and kept; then they are visited until nothing changes.
    different: dict[bytes, NDArray[np.int32]] = {}  # distinct rows of a token's targets from each state
    for data in filter(None, vocabulary.tokens):
        budget.check(0, (len(data) + 8) * dfa.num_states)
        states = np.arange(dfa.num_states, dtype=np.int32)
        for byte in data:
            states = dfa.table[states, dfa.class_of[byte]]
        different[states.tobytes()] = states
    successors = np.stack(list(different.values()))
    alive = dfa.accepting.copy()
    while True:
        budget.check(0, successors.size)
        grown = alive | alive[successors].any(axis=0)
        if (grown == alive).all():
            return grown
        alive = grown
