"""Translates grammars in llguidance's dialect of Lark to alternatives over what a lexer reads.

The lexer is llguidance's: at a place it reads all terminals that may come there at once, and ends when none of them
goes on; a lazy one ends it at once. JSON values and tokens are terminals too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from ...budget import GRAMMAR_STEPS, CompileBudget
from ...errors import GrammarError
from ...regex.dfa import START, Dfa, without_empty
from ..cfg import MAX_GRAMMAR_TEXT, MAX_RULES, CfgBuilder, Rules, Symbol, Terminal
from ..rule_expressions import ANY_BYTE
from .reader import read_grammar
from .syntax import (
    LarkBoth,
    LarkChoice,
    LarkDefinition,
    LarkGrammar,
    LarkJson,
    LarkName,
    LarkNested,
    LarkNot,
    LarkPattern,
    LarkRepeated,
    LarkSequence,
    LarkSubstring,
    LarkText,
    Part,
    TokenRanges,
)
from .terminals import TerminalCompiler

_MAX_GRAMMARS = 1_000


@dataclass(frozen=True, eq=False)
class LexedText:
    """A terminal of texts. It takes its shortest match if `lazy`, and at most `max_tokens` tokens.

    Inside it tokens are sampled at `temperature`; None: the request's.
    """

    dfa: Dfa
    lazy: bool
    max_tokens: int | None
    temperature: float | None


@dataclass(frozen=True, eq=False)
class LocatedTerminal:
    """A terminal that needs the vocabulary or a request's options. `text` is the grammar that it stands in."""

    part: TokenRanges | LarkJson
    text: str
    temperature: float | None


@dataclass(frozen=True, eq=False)
class LarkCapture:
    """A nonterminal whose texts are captured as `name`.

    `body` and `suffix`: its text is one of both, and the longest of `body` is captured; what is left, as `suffix_name`.
    """

    name: str | None
    body: Dfa | None = None
    suffix: Dfa | None = None
    suffix_name: str | None = None

    def values(self, text: bytes) -> list[tuple[str, bytes]]:
        """Return names and texts of what is captured in a text."""
        end = len(text)
        if self.body is not None and self.suffix is not None:
            before = [START]
            for byte in text:
                before.append(self.body.walk(before[-1], [byte]))
            bodies = [at for at, state in enumerate(before) if self.body.accepting[state]]
            end = next((at for at in reversed(bodies) if self.suffix.accepts(text[at:])), end)
        named = [(self.suffix_name, text[end:]), (self.name, text[:end])]
        return [(name, value) for name, value in named if name is not None]


@dataclass(frozen=True, eq=False)
class LexedGrammar:
    """A grammar over terminals. Nonterminal 0 is the start.

    `scopes[t]` is the grammar or schema that terminal t belongs to, `parents[s]` the one around s. `skips[s]` is the
    terminal that may stand between those of grammar s. `skips_at_start`: it may also stand before the first one.
    `captures` are of nonterminals.
    """

    alternatives: Rules
    nullable: frozenset[int]
    terminals: tuple[LexedText | LocatedTerminal, ...]
    scopes: tuple[int, ...]
    parents: tuple[int | None, ...]
    skips: Mapping[int, int]
    skips_at_start: bool
    captures: Mapping[int, LarkCapture]


def lexed_grammar(text: str, start: str = "start") -> LexedGrammar:
    """Read and translate a grammar, or llguidance's list of grammars as JSON, of which the first is the whole.

    Raises GrammarError with the position in the text of what is wrong or not supported.
    """
    try:
        return _LexedTranslator(text, start).translate()
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None


def _grammars(text: str) -> tuple[str | LarkJson, dict[str, str | LarkJson]]:
    """Return the first grammar, and all that have names: texts, or schemas."""
    if not text.lstrip().startswith("{"):
        return text, {}
    if len(text) > MAX_GRAMMAR_TEXT:
        raise GrammarError(f"the grammars are longer than {MAX_GRAMMAR_TEXT} characters")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the list of grammars is not JSON: {error}") from None
    found: list[str | LarkJson] = []
    named: dict[str, str | LarkJson] = {}
    match whole:
        case {"grammars": [_, *_] as entries, **others} if not others and len(entries) <= _MAX_GRAMMARS:
            for number, entry in enumerate(entries):
                match entry:
                    case {"lark_grammar": str(inner), **rest} if rest.keys() <= {"name"}:
                        found.append(inner)
                    case {"json_schema": schema, **rest} if rest.keys() <= {"name"}:
                        found.append(LarkJson(schema, 0))
                    case _:
                        raise GrammarError(
                            f"/grammars/{number}: a grammar has a lark_grammar or a json_schema, and perhaps a name"
                        )
                if "name" in entry:
                    named[str(entry["name"])] = found[-1]
            return found[0], named
    raise GrammarError(f'a list of grammars is {{"grammars": [...]}}, of 1 to {_MAX_GRAMMARS}')


class _GrammarScope:
    """A grammar with its own terminals, and the temperature of those that have none themselves."""

    def __init__(
        self, number: int, grammar: LarkGrammar, text: str, budget: CompileBudget, temperature: float | None
    ) -> None:
        self.number = number
        self.temperature = temperature
        self.grammar = grammar
        self.text = text
        self.compiler = TerminalCompiler(self.definition, self.fail, budget)

    def fail(self, message: str, at: int) -> NoReturn:
        raise GrammarError.in_pattern(message, self.text, at)

    def definition(self, name: LarkName) -> LarkDefinition:
        found = self.grammar.definitions.get(name.name)
        if found is None:
            self.fail(f"there is no {'terminal' if name.is_terminal else 'rule'} {name.name}", name.at)
        return found


class _LexedTranslator:
    def __init__(self, text: str, start: str) -> None:
        self._first, self._named = _grammars(text)
        self._start = start
        self._budget = CompileBudget(max_steps=GRAMMAR_STEPS)
        self._rules = CfgBuilder()
        self._scopes: list[_GrammarScope] = []
        self._parents: list[int | None] = []
        self._numbers: dict[TokenRanges | LarkJson, int] = {}  # of schemas
        self._terminals: list[LexedText | LocatedTerminal] = []
        self._scope_of: list[int] = []
        self._known: dict[Hashable, Symbol] = {}
        self._texts: dict[Hashable, tuple[Symbol, ...]] = {}
        self._captures: dict[Symbol, LarkCapture] = {}
        self._todo: list[tuple[Symbol, _GrammarScope, Part, int]] = []

    def translate(self) -> LexedGrammar:
        whole = self._rules.new()
        self._rules.define(whole, [self._grammar(self._first, self._start)])
        while self._todo:
            symbol, scope, body, value = self._todo.pop()
            self._rules.define(symbol, self._alternatives(scope, body, value))
        skips = {}
        for scope in self._scopes:
            if scope.grammar.ignored:
                part = LarkChoice(tuple((ignored, None) for ignored in scope.grammar.ignored))
                symbols = self._text(scope, ("skip",), part)
                if len(symbols) != 1 or symbols[0] >= 0:
                    scope.fail("what is ignored may not be empty", 0)
                skips[scope.number] = -1 - symbols[0]
        cfg = self._rules.build([])
        at_start = bool(self._scopes) and self._scopes[0].grammar.skips_at_start
        parents = tuple(self._parents)
        terminals, scopes = tuple(self._terminals), tuple(self._scope_of)
        return LexedGrammar(cfg.alternatives, cfg.nullable, terminals, scopes, parents, skips, at_start, self._captures)

    def _grammar(
        self,
        source: str | LarkGrammar | LarkJson,
        start: str,
        around: _GrammarScope | None = None,
        text: str = "",
        temperature: float | None = None,
    ) -> tuple[Symbol, ...]:
        """Return the symbols of a whole grammar, or of a schema."""
        if isinstance(source, LarkJson):
            return (self._special(around, source, text, temperature),)
        grammar, text = (read_grammar(source), source) if isinstance(source, str) else (source, text)
        if len(self._scopes) > _MAX_GRAMMARS:
            raise GrammarError(f"more than {_MAX_GRAMMARS} grammars in one")
        scope = _GrammarScope(self._new_number(around), grammar, text, self._budget, temperature)
        self._scopes.append(scope)
        if start not in grammar.definitions:
            raise GrammarError(f"the grammar has no rule {start!r}")
        return self._name(scope, LarkName(start, None, 0), 0)

    def _alternatives(self, scope: _GrammarScope, part: Part, value: int) -> list[tuple[Symbol, ...]]:
        if not isinstance(part, LarkChoice):
            return [self._symbols(scope, part, value)]
        return [
            self._symbols(scope, inner, value)
            for inner, condition in part.parts
            if condition is None or condition(value)
        ]

    def _symbols(self, scope: _GrammarScope, part: Part, value: int) -> tuple[Symbol, ...]:
        """Return symbols that derive a part. `value` is that of the parameter of the rule around it."""
        match part:
            case LarkText() | LarkPattern() | LarkSubstring():
                return self._text(scope, part, part)
            case LarkName():
                return self._name(scope, part, value)
            case TokenRanges() | LarkJson():
                return (self._special(scope, part, scope.text, scope.temperature),)
            case LarkNested():
                return self._nested(scope, part, scope.temperature)
            case LarkSequence(parts=parts):
                return tuple(symbol for inner in parts for symbol in self._symbols(scope, inner, value))
            case LarkChoice():
                return self._rules.choice(self._alternatives(scope, part, value))
            case LarkRepeated(part=inner, least=least, most=most):
                return self._rules.repeat(self._symbols(scope, inner, value), least, most)
            case LarkBoth(at=at) | LarkNot(at=at):
                scope.fail("& and ~ stand in terminals only: define a terminal, whose name is in upper case", at)

    def _once(self, key: Hashable, make: Callable[[], tuple[Symbol, ...]]) -> tuple[Symbol, ...]:
        if key not in self._known:
            self._known[key] = symbol = self._rules.new()
            self._rules.define(symbol, [make()])
        return (self._known[key],)

    def _nested(self, scope: _GrammarScope, part: LarkNested, temperature: float | None) -> tuple[Symbol, ...]:
        grammar = part.grammar
        if not isinstance(grammar, str):
            return self._once(
                (part, temperature), lambda: self._grammar(grammar, "start", scope, scope.text, temperature)
            )
        if grammar not in self._named:
            scope.fail(f"there is no grammar {grammar!r}: give it as %lark {{...}}, or in a list of grammars", part.at)
        source = self._named[grammar]
        return self._once(
            ("grammar", grammar, temperature), lambda: self._grammar(source, "start", scope, temperature=temperature)
        )

    def _name(self, scope: _GrammarScope, part: LarkName, value: int) -> tuple[Symbol, ...]:
        definition = scope.definition(part)
        if (part.parameter is not None) != definition.is_parametric:
            wrong = "has no parameter" if part.parameter else f"has a parameter: write {part.name}::0"
            scope.fail(f"{part.name} {wrong}", part.at)
        given = part.parameter(value) if part.parameter else 0
        symbols = self._lexeme(scope, part, definition)
        if symbols is not None and definition.capture is None and definition.suffix_capture is None:
            return symbols
        key = scope.number, part.name, given
        if key not in self._known:
            if len(self._known) > MAX_RULES:
                raise GrammarError(f"the grammar is too complex: it has more than {MAX_RULES} rules")
            self._known[key] = symbol = self._rules.new()
            if definition.capture is not None or definition.suffix_capture is not None:
                self._captures[symbol] = self._capture(scope, definition)
            if symbols is None:
                self._todo.append((symbol, scope, definition.body, given))
            else:
                self._rules.define(symbol, [symbols])
        return (self._known[key],)

    def _lexeme(self, scope: _GrammarScope, part: LarkName, definition: LarkDefinition) -> tuple[Symbol, ...] | None:
        """Return the symbols of a name that stands for one terminal or grammar; None of another rule."""
        temperature = definition.temperature
        if temperature is not None and isinstance(definition.body, LarkNested):
            return self._nested(scope, definition.body, temperature)
        if temperature is not None and isinstance(definition.body, LarkJson | TokenRanges):
            return (self._special(scope, definition.body, scope.text, temperature),)
        if part.is_terminal or definition.lazy or definition.max_tokens or temperature is not None:
            return self._text(scope, part.name, definition.body, definition)
        return None

    def _capture(self, scope: _GrammarScope, definition: LarkDefinition) -> LarkCapture:
        if definition.suffix is None:
            return LarkCapture(definition.capture)
        body, suffix = scope.compiler.automaton(definition.body), scope.compiler.automaton(definition.suffix)
        return LarkCapture(definition.capture, body, suffix, definition.suffix_capture)

    def _text(
        self, scope: _GrammarScope, key: Hashable, body: Part, definition: LarkDefinition | None = None
    ) -> tuple[Symbol, ...]:
        """Return the symbols of a terminal, which may be empty."""
        whole = ("text", scope.number, key)
        if whole in self._texts:
            return self._texts[whole]
        lazy = definition is not None and definition.lazy
        found = scope.compiler.automaton(body, lazy=lazy, suffix=definition.suffix if definition else None)
        may_be_empty = bool(found.accepting[START])
        dfa = without_empty(found) if may_be_empty else found
        max_tokens = definition.max_tokens if definition else None
        temperature = definition.temperature if definition else None
        temperature = scope.temperature if temperature is None else temperature
        symbols: tuple[Symbol, ...] = ()
        if not (may_be_empty and dfa.is_empty):
            symbols = (self._terminal(whole, scope.number, lambda: LexedText(dfa, lazy, max_tokens, temperature), dfa),)
            if may_be_empty:
                symbols = self._rules.choice([(), symbols])
        self._texts[whole] = symbols
        return symbols

    def _special(
        self, scope: _GrammarScope | None, part: TokenRanges | LarkJson, text: str, temperature: float | None
    ) -> Symbol:
        if isinstance(part, LarkJson) or scope is None:
            number = self._numbers.setdefault(part, len(self._parents))
            if number == len(self._parents):
                self._new_number(scope)
        else:
            number = scope.number
        make = partial(LocatedTerminal, part, text, temperature)
        return self._terminal((number, part, temperature), number, make, ANY_BYTE)

    def _new_number(self, around: _GrammarScope | None) -> int:
        self._parents.append(None if around is None else around.number)
        return len(self._parents) - 1

    def _terminal(self, key: Hashable, scope: int, make: Callable[[], LexedText | LocatedTerminal], dfa: Dfa) -> Symbol:
        def made() -> Terminal:
            self._terminals.append(make())
            self._scope_of.append(scope)
            return Terminal(str(key), dfa, preferred=False)

        return self._rules.terminal(key, made)
