"""Constrained decoding: regular expressions, JSON Schemas, grammars and structural tags compiled to token bitmasks.

vocabulary = Vocabulary.from_tokens(token_bytes, eos_ids)
grammar = compile_constraint(JsonSchema({"type": "integer"}), vocabulary)
matcher = grammar.matcher()
matcher.mask(out); matcher.accept(token); matcher.rollback(1); matcher.is_accepting(); matcher.forced()
"""

from .automaton.matcher import CompiledGrammar, Matcher, fill_batch
from .automaton.vocabulary import Vocabulary
from .compile import PropertyOrder, WhitespacePolicy, compile_constraint
from .constraint import Choices, Constraint, Grammar, JsonObject, JsonSchema, Regex, SchemaOptions, StructuralTag
from .errors import GrammarError
from .regex.search import Match, Scan, Search, search

__all__ = [
    "Choices",
    "CompiledGrammar",
    "Constraint",
    "Grammar",
    "GrammarError",
    "JsonObject",
    "JsonSchema",
    "Match",
    "Matcher",
    "PropertyOrder",
    "Regex",
    "Scan",
    "SchemaOptions",
    "Search",
    "StructuralTag",
    "Vocabulary",
    "WhitespacePolicy",
    "compile_constraint",
    "fill_batch",
    "search",
]
