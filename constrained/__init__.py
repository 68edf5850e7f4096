"""Constrained decoding: regular expressions, JSON Schemas, grammars and structural tags compiled to token bitmasks.

vocabulary = Vocabulary.from_tokens(token_bytes, eos_ids)
grammar = compile_constraint(JsonSchema({"type": "integer"}), vocabulary)
matcher = grammar.matcher()
matcher.mask(out); matcher.accept(token); matcher.rollback(1); matcher.is_accepting(); matcher.forced()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .automaton.batch import fill_batch
    from .automaton.matcher import CompiledGrammar, Matcher
    from .automaton.vocabulary import Vocabulary
    from .compile import compile_constraint
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
    from .regex.search import Match, Scan, Search, search

__all__ = [
    "Choices",
    "CompiledGrammar",
    "Grammar",
    "GrammarError",
    "GrammarSource",
    "JsonObject",
    "JsonSchema",
    "JsonString",
    "Match",
    "Matcher",
    "Prefixed",
    "PropertyOrder",
    "Regex",
    "Scan",
    "SchemaOptions",
    "Search",
    "StructuralTag",
    "Substring",
    "Vocabulary",
    "WhitespacePolicy",
    "compile_constraint",
    "fill_batch",
    "search",
]


_MODULES = {
    "Choices": ".constraint",
    "CompiledGrammar": ".automaton.matcher",
    "GrammarSource": ".constraint",
    "Grammar": ".constraint",
    "GrammarError": ".errors",
    "JsonObject": ".constraint",
    "JsonSchema": ".constraint",
    "JsonString": ".constraint",
    "Match": ".regex.search",
    "Matcher": ".automaton.matcher",
    "Prefixed": ".constraint",
    "PropertyOrder": ".constraint",
    "Regex": ".constraint",
    "Scan": ".regex.search",
    "SchemaOptions": ".constraint",
    "Search": ".regex.search",
    "StructuralTag": ".constraint",
    "Substring": ".constraint",
    "Vocabulary": ".automaton.vocabulary",
    "WhitespacePolicy": ".constraint",
    "compile_constraint": ".compile",
    "fill_batch": ".automaton.batch",
    "search": ".regex.search",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: a process that searches texts for a pattern needs no compilers of grammars."""
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module, __name__), name)
    return value
