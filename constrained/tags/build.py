"""Compiles structural tags: to rules whose terminals are texts and JSON values, and to the state before a text.

Every format is a rule, so that formats nest and follow one another in any way, and every reading of a text counts.
Alternatives that begin with constant strings are read by one automaton together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..automaton.automaton import Automaton
from ..automaton.vocabulary import Vocabulary, bitmask
from ..budget import CompileBudget
from ..constraint import PropertyOrder, SchemaOptions, WhitespacePolicy
from ..errors import GrammarError
from ..grammar.cfg import CfgBuilder, Symbol, TokenSet
from ..grammar.earley import EarleySets
from ..grammar.free_text import free_text
from ..grammar.gbnf import gbnf_grammar
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import length_char_dfa
from ..regex.dfa import START, Dfa
from ..regex.listed import listed_dfa
from ..regex.subset import char_dfa
from ..regex.syntax.expression import alternation, literal
from ..regex.syntax.parser import containing, parse_regex
from ..schema.compile import checked_document, schema_start
from ..schema.document import Document
from ..schema.formula import disj
from ..schema.strings.string_dfas import format_chars, pattern_chars
from ..schema.value_states import ValueStart, result_codes
from .formats import (
    AnyTextFormat,
    ConstStringFormat,
    DispatchFormat,
    Format,
    GrammarFormat,
    OrFormat,
    RawTextFormat,
    RegexFormat,
    RepeatFormat,
    SchemaFormat,
    SeparatedTagsFormat,
    SequenceFormat,
    TagFormat,
    Token,
    TokensFormat,
    WhitespaceFormat,
)
from .leaves import OneOfValues, TextLeaf, TokensLeaf, ValueLeaf
from .states import TagRules, TagState

Symbols = tuple[Symbol, ...]
Ends = tuple[bytes, ...] | Token


@dataclass(frozen=True)
class SchemaStyle:
    """Options for the schemas inside a tag, as in `schema_start`."""

    whitespace: WhitespacePolicy
    order: PropertyOrder
    schema: SchemaOptions


def tags_start(format: Format, options: SchemaStyle, vocabulary: Vocabulary, automaton: Automaton) -> TagState:
    """Return the state before a text of the format. Raises GrammarError with a pointer into the specification."""
    compiler = _TagCompiler(options, vocabulary, automaton)
    compiler.rules.new()
    compiler.rules.define(0, [compiler.symbols(format, ())])
    alternatives, nullable = compiler.rules.rules()
    sets = EarleySets(alternatives, nullable)
    automaton.caches.append(sets.caches)
    return TagRules(sets, compiler.leaves, compiler.values.joined).start


class _TagCompiler:
    def __init__(self, options: SchemaStyle, vocabulary: Vocabulary, automaton: Automaton) -> None:
        self.rules = CfgBuilder()
        self.leaves: list[TextLeaf | ValueLeaf | TokensLeaf] = []
        self.values = SchemaValues(options, automaton)
        self._options = options
        self._vocabulary = vocabulary
        self._budget = CompileBudget()
        self._known: dict[Hashable, Symbols] = {}

    def symbols(self, format: Format, ends: Ends) -> Symbols:
        """Return symbols that derive the texts of a format. `ends` are those of the tag around it."""
        match format:
            case ConstStringFormat() | TagFormat():
                return self._choice([format], ends)
            case OrFormat():  # by identity: many formats may share what follows them, as members in any order
                return self._once(("or", id(format), ends), lambda: self._choice([format], ends))
            case SequenceFormat(parts=parts):
                return tuple(symbol for part in parts for symbol in self.symbols(part, ends))
            case RepeatFormat(content=content, least=least, most=most):
                return self.rules.repeat(self.symbols(content, ends), least, most)
            case SchemaFormat():
                return self._value(self.values.leaf(format))
            case RegexFormat():
                return self._once(format, lambda: self._regex(format))
            case GrammarFormat():
                return self._once(format, lambda: self._grammar(format))
            case RawTextFormat():
                return self._once(format, lambda: self._raw_text(format))
            case AnyTextFormat():
                return self._any_text(format, ends)
            case DispatchFormat():
                return self._dispatch(format, ends)
            case SeparatedTagsFormat():
                return self._separated(format)
            case TokensFormat():
                return self._tokens(format, ends)
            case WhitespaceFormat():
                return self._whitespace(format)

    # Choices and constant strings.

    def _choice(self, formats: Sequence[Format], ends: Ends) -> Symbols:
        """Return symbols that derive the texts of one of the formats."""
        todo, parts = list(reversed(formats)), []
        while todo:
            part = todo.pop()
            if isinstance(part, OrFormat):
                todo += reversed(part.parts)
            else:
                parts.append(part)
        rests: dict[bytes, list[Symbols]] = {}
        others: list[Symbols] = []
        for part in parts:
            begin, rest = self._split(part, ends)
            if begin:
                rests.setdefault(begin, []).append(rest)
            else:
                others.append(rest)
        return self.rules.choice([*self._texts(rests), *others])

    def _split(self, format: Format, ends: Ends) -> tuple[bytes, Symbols]:
        """Return the constant string that a format begins with, and the symbols after it."""
        match format:
            case ConstStringFormat(text=text):
                return text, ()
            case TagFormat(begin=begin, content=content, ends=own):
                rest = (*self.symbols(content, own), *self._ends(own))
                return (begin, rest) if isinstance(begin, bytes) else (b"", (*self._token(begin), *rest))
            case SequenceFormat(parts=(ConstStringFormat() | TagFormat() as first, *rest)):
                begin, symbols = self._split(first, ends)
                return begin, (*symbols, *self.symbols(SequenceFormat(tuple(rest)), ends))
            case _:
                return b"", self.symbols(format, ends)

    def _ends(self, ends: Ends) -> Symbols:
        if isinstance(ends, Token):
            return self._token(ends)

        def made() -> Symbols:
            empty: list[Symbols] = [()] if b"" in ends else []
            return self.rules.choice([*self._texts({end: [()] for end in ends if end}), *empty])

        return self._once(("ends", ends), made)

    def _texts(self, rests: dict[bytes, list[Symbols]]) -> list[Symbols]:
        """Return the alternatives of constant strings, each with one of the symbols that follow it."""
        if not rests:
            return []
        key = ("texts", *rests)
        if all(found == [()] for found in rests.values()) and key in self._known:
            return [(symbol,) for symbol in self._known[key]]
        dfa, labels = listed_dfa({text: number for number, text in enumerate(rests)})
        first = len(self.leaves)
        leaf = TextLeaf(dfa, [() if label < 0 else (first + label,) for label in labels.tolist()])
        self.leaves += [leaf] * len(rests)
        self._known[key] = symbols = tuple(-1 - first - number for number in range(len(rests)))
        return [(symbol, *self.rules.choice(found)) for symbol, found in zip(symbols, rests.values(), strict=True)]

    def _token(self, token: Token) -> Symbols:
        return self._tokens(TokensFormat((token,), False, 1, 1), ())

    def _tokens(self, format: TokensFormat, ends: Ends) -> Symbols:
        if format.most == 0:
            return ()
        tokens = {token.number for token in format.tokens}
        if format.is_excluded and isinstance(ends, Token):
            tokens.add(ends.number)

        def made() -> Symbols:
            mask = bitmask(np.array(sorted(tokens), np.int64), len(self._vocabulary))
            leaf = TokensLeaf(self._vocabulary.text_mask & ~mask if format.is_excluded else mask, format.most)
            self.leaves.append(leaf)
            symbol = (-len(self.leaves),)
            return symbol if format.least else self.rules.choice([(), symbol])

        return self._once(("tokens", *sorted(tokens), format.is_excluded, format.least, format.most), made)

    def _value(self, leaf: ValueLeaf) -> Symbols:
        if leaf not in self._known:
            self.leaves.append(leaf)
            self._known[leaf] = (-len(self.leaves),)
        return self._known[leaf]

    # Texts.

    def _once(self, key: Hashable, make: Callable[[], Symbols]) -> Symbols:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _regular(self, dfa: Dfa, max_chars: int | None = None, max_tokens: int | None = None) -> Symbols:
        """Return symbols that derive the texts of an automaton."""
        number = len(self.leaves)
        labels: list[tuple[int, ...]] = [(number,) if accepts else () for accepts in dfa.accepting.tolist()]
        self.leaves.append(TextLeaf(dfa, labels, max_chars, max_tokens))
        return self.rules.choice([(), (-1 - number,)]) if dfa.accepting[START] else (-1 - number,)

    def _regex(self, format: RegexFormat) -> Symbols:
        try:
            dfa = byte_dfa(char_dfa(parse_regex(format.pattern), self._budget), "utf8", self._budget)
        except GrammarError as error:
            raise GrammarError(str(error), pointer=format.pointer, position=error.position) from None
        if dfa.is_empty:
            raise GrammarError("no text at all satisfies this format", pointer=format.pointer)
        return self._regular(dfa)

    def _grammar(self, format: GrammarFormat) -> Symbols:
        try:
            rules = gbnf_grammar(format.text, format.start)
        except GrammarError as error:
            raise GrammarError(str(error), pointer=format.pointer, position=error.position) from None
        terminals = [
            self._regular(terminal.dfa) if terminal.token is None else self._token_set(terminal.token, format)
            for terminal in rules.terminals
        ]
        numbers = [self.rules.new() for _ in rules.alternatives]
        for number, alternatives in zip(numbers, rules.alternatives, strict=True):
            self.rules.define(
                number,
                [
                    tuple(inner for s in rule for inner in ((numbers[s],) if s >= 0 else terminals[-1 - s]))
                    for rule in alternatives
                ],
            )
        return (numbers[0],)

    def _token_set(self, own: TokenSet, format: GrammarFormat) -> Symbols:
        vocabulary = self._vocabulary
        found = []
        for token in own.tokens:
            number, reason = vocabulary.number_of(token), ""
            if number is None:
                reason = f"the vocabulary has no token {token!r}"
            elif number in vocabulary.eos_ids and not own.is_excluded:
                reason = f"the token {token!r} ends an output, so it cannot be a part of one"
            if number is None or reason:
                error = GrammarError.in_pattern(reason, format.text, own.position)
                raise GrammarError(str(error), pointer=format.pointer, position=own.position)
            found.append(Token(number, token))
        if own.and_special:
            special = set(vocabulary.names.values()) - vocabulary.eos_ids - {token.number for token in found}
            others = tuple(Token(number, number) for number in sorted(special))
            free = self._tokens(TokensFormat(tuple(found), True, 1, 1), ())
            return self.rules.choice([free, *([self._tokens(TokensFormat(others, False, 1, 1), ())] if others else [])])
        return self._tokens(TokensFormat(tuple(found), own.is_excluded, 1, 1), ())

    def _any_text(self, format: AnyTextFormat, ends: Ends) -> Symbols:
        if 0 in (format.max_chars, format.max_tokens):
            return ()
        excluded = tuple(dict.fromkeys((*format.excludes, *_texts_of(ends))))

        def made() -> Symbols:
            dfa, _ = free_text((), excluded, self._budget)
            return self._regular(dfa, format.max_chars, format.max_tokens)

        return self._once(("any_text", excluded, format.max_chars, format.max_tokens), made)

    def _raw_text(self, format: RawTextFormat) -> Symbols:
        budget = self._budget
        chars = length_char_dfa(format.min_length, format.max_length)
        if format.pattern is not None:
            chars = chars.intersect(pattern_chars(format.pattern), budget)
        if format.format is not None and (known := format_chars(format.format)) is not None:
            chars = chars.intersect(known, budget)
        if format.texts is not None:
            chars = chars.intersect(char_dfa(alternation(map(literal, format.texts)), budget), budget)
        if format.end:
            chars = chars.minus(char_dfa(containing(literal(format.end)), budget), budget)
        return self._regular(byte_dfa(chars, "utf8", budget))

    def _dispatch(self, format: DispatchFormat, ends: Ends) -> Symbols:
        patterns = [pattern for pattern, _ in format.rules]
        if isinstance(patterns[0], Token):
            return self._token_dispatch(format, ends)
        excluded = [text.decode() for text in format.excludes if isinstance(text, bytes)]
        if format.is_ended:
            excluded += _texts_of(ends)
        texts = [pattern.decode() for pattern in patterns if isinstance(pattern, bytes)]
        dfa, found = free_text(texts, excluded, self._budget)
        first = len(self.leaves)
        labels = [tuple(first + 1 + number for number in numbers) for numbers in found]
        labels = [label or ((first,) if dfa.accepting[q] else ()) for q, label in enumerate(labels)]
        leaf = TextLeaf(dfa, labels)
        self.leaves += [leaf] * (1 + len(texts))
        contents = [self.symbols(content, ends) for _, content in format.rules]
        after_text = [(-2 - first - number, *content) for number, content in enumerate(contents)]
        at_once: dict[bytes, list[Symbols]] = {}
        for text, content in zip(texts, contents, strict=True):
            at_once.setdefault(text.encode(), []).append(content)
        begun = self._texts(at_once) if format.at_least_one else []
        return self._dispatched(format, self.rules.choice([(), (-1 - first,)]), begun, after_text)

    def _token_dispatch(self, format: DispatchFormat, ends: Ends) -> Symbols:
        patterns = tuple(pattern for pattern, _ in format.rules if isinstance(pattern, Token))
        excluded = tuple(token for token in format.excludes if isinstance(token, Token))
        free = self._tokens(TokensFormat((*patterns, *excluded), True, 0, None), ends if format.is_ended else ())
        contents = [self.symbols(content, ends) for _, content in format.rules]
        at_once = [(*self._token(token), *content) for token, content in zip(patterns, contents, strict=True)]
        return self._dispatched(format, free, at_once, [(*free, *rest) for rest in at_once])

    def _dispatched(
        self, format: DispatchFormat, free: Symbols, at_once: list[Symbols], after_free: list[Symbols]
    ) -> Symbols:
        """Return the symbols of free text and of formats that follow patterns, with the text before them or at once."""
        if not format.loops:
            return self.rules.choice(at_once if format.at_least_one else [free, *after_free])
        begun = self.rules.choice(at_once) if format.at_least_one else ()
        return (*begun, *self.rules.repeat(self.rules.choice(after_free), 0, None), *free)

    def _whitespace(self, format: WhitespaceFormat) -> Symbols:
        most = format.most
        if most is None:
            most = {"compact": 0, "bounded": 1, "spaced": 1, "any": None}[self._options.whitespace]
        if most == 0:
            return ()
        times = "*" if most is None else f"{{0,{most}}}"
        return self._once(
            ("whitespace", most),
            lambda: self._regular(
                byte_dfa(char_dfa(parse_regex(f"[ \\t\\n]{times}"), self._budget), "utf8", self._budget)
            ),
        )

    def _separated(self, format: SeparatedTagsFormat) -> Symbols:
        tag = self._nonterminal(self._choice(format.tags, ()))
        most = tag
        if not format.stop_after_first:
            further = (*self._choice([ConstStringFormat(format.separator)], ()), *tag)
            most = (*tag, *self.rules.repeat(further, 0, None))
        return most if format.at_least_one else self.rules.choice([(), most])

    def _nonterminal(self, symbols: Symbols) -> Symbols:
        """Return one symbol that derives what several do, for use at several places."""
        if len(symbols) == 1:
            return symbols
        number = self.rules.new()
        self.rules.define(number, [symbols])
        return (number,)


class SchemaValues:
    """Compiles the schemas of a tag, equal ones once, and joins those that begin at one place."""

    def __init__(self, options: SchemaStyle, automaton: Automaton) -> None:
        self._options = options
        self._automaton = automaton
        self._leaves: dict[Hashable, ValueLeaf] = {}
        self._joined: dict[tuple[ValueLeaf, ...], OneOfValues | None] = {}

    def leaf(self, format: SchemaFormat) -> ValueLeaf:
        """Return the terminal of a schema. Raises GrammarError with a pointer into the specification."""
        options = self._options
        style = format.whitespace or options.whitespace, format.order or options.order
        key: Hashable
        try:
            key = json.dumps(format.schema), format.excludes, *style
        except (TypeError, ValueError, RecursionError):
            key = format.pointer, *style
        if key not in self._leaves:
            self._leaves[key] = self._compiled(format, *style)
        return self._leaves[key]

    def _compiled(self, format: SchemaFormat, whitespace: WhitespacePolicy, order: PropertyOrder) -> ValueLeaf:
        schema, inside = format.schema, format.inside
        try:
            document = checked_document(schema)
            if format.excludes:
                schema, inside = without_texts(document.root, format.excludes), "/allOf/0"
                document = checked_document(schema)
            start = schema_start(document, whitespace, order, self._options.schema, self._automaton, deferred=True)
        except GrammarError as error:
            place = format.pointer + (error.pointer or "").removeprefix(inside)
            raise GrammarError(error.reason, pointer=place, position=error.position) from None
        return ValueLeaf(start, document, whitespace, order)

    def joined(self, leaves: tuple[ValueLeaf, ...]) -> OneOfValues | None:
        """Return the state that reads the values of several leaves as one, None if they have to be read apart.

        They have to if no document can hold all of them, or if they write the same names in different orders.
        """
        if leaves not in self._joined:
            self._joined[leaves] = self._join(leaves)
        return self._joined[leaves]

    def _join(self, leaves: tuple[ValueLeaf, ...]) -> OneOfValues | None:
        styles = {(leaf.whitespace, leaf.order) for leaf in leaves}
        roots = [_resource(leaf.document.root, number) for number, leaf in enumerate(leaves)]
        if len(styles) > 1 or any(root is None for root in roots):
            return None
        ((whitespace, order),) = styles
        try:
            document = checked_document({"anyOf": roots})
            if not all(_keeps_order(leaf.document, document) for leaf in leaves):
                return None
            options = self._options.schema
            start = schema_start(document, whitespace, order, options, self._automaton)
        except GrammarError:
            return None
        compiler = start.compiler
        places = {f"/anyOf/{number}": number for number in range(len(leaves))}
        goals = {
            places[place.pointer]: compiler.goal(place, generated=True)
            for place in document.all
            if place.pointer in places
        }
        tracked = tuple(goals[number] for number in range(len(leaves)))
        return OneOfValues(ValueStart(compiler, disj(tracked), tracked), result_codes(compiler, tracked))


def _resource(schema: Any, number: int) -> Any:
    """Return a schema as a resource of its own, so that its references stay inside it; None if it cannot be one."""
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    if "$schema" in schema or "id" in schema:
        return None  # an older draft may read the new name otherwise
    return {"$id": f"urn:ramiform:{number}", **schema}


def _keeps_order(document: Document, whole: Document) -> bool:
    """Return True if the names of a document come in the same order in a document that contains it."""
    return sorted(document.name_order, key=whole.name_order.__getitem__) == list(document.name_order)


def without_texts(schema: Any, texts: Sequence[str]) -> Any:
    """Return the schema of the same values, but without these texts in strings and names."""
    none = {"pattern": f"^(?:(?!{'|'.join(map(_quoted, texts))})[\\s\\S])*$"}
    nested = {"$ref": "#"}
    inside = {"$id": "urn:ramiform:excludes", **none, "propertyNames": none}
    return {"allOf": [_resource(schema, 0), inside | {"additionalProperties": nested, "items": nested}]}


def _quoted(text: str) -> str:
    return "".join(c if c.isalnum() or c in " <>=_@#%&~`'\",;:!" else f"\\u{{{ord(c):x}}}" for c in text)


def _texts_of(ends: Ends) -> list[str]:
    return [] if isinstance(ends, Token) else [end.decode() for end in ends if end]
