r"""Translates grammars in Lark's syntax, with the meaning of Lark's Earley parser and dynamic lexer.

The `lark` package reads the text and composes terminals to patterns; rules are translated here. A terminal matches what
Python's `re` would match at its place: the preferred match, not any. A grammar that has no text in this way is refused
(`longest_match.py`). Where two terminals match at the same place, both readings of the text count, so priorities change
nothing. Imports are from Lark's own grammars only. Refused are
`%declare`, terminals that may be empty, and those with anchors or look-around, but for `(?!...)` and `\b` at the end
of an alternative. Lark's own terminals are rewritten to this.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..budget import GRAMMAR_STEPS, CompileBudget, cached_property
from ..errors import GrammarError
from ..regex.byte_decoder import Encoding
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import CharDfa
from ..regex.dfa import START
from ..regex.leftmost_first import leftmost_first_with_ends
from ..regex.syntax.parser import parse_regex
from .cfg import MAX_GRAMMAR_TEXT, MAX_RULES, Cfg, CfgBuilder, Symbol, Terminal
from .longest_match import without_unreadable

if TYPE_CHECKING:
    from lark import Tree
    from lark.load_grammar import Grammar as LarkGrammar


MAX_TERMINAL_PARTS = 5_000  # terminals within a terminal, all uses counted
# Strings, patterns and comments; definitions of terminals; and uses of terminals.
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/(?:[^/\\\n]|\\.)+/')
_DEFINITION = re.compile(r"^[ \t]*(?:%\w+|[?!]*_?[A-Za-z]\w*(?:\{[^}\n]*\})?(?:\.-?\d+)?[ \t]*:)", re.MULTILINE)
_TERMINAL = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")
_LIBRARY = ("common", "python", "lark", "unicode")
_BODY = {quote: rf"(?:[^{quote}\\\n]|\\[^\n])" for quote in "\"'"}
_IMPORT = re.compile(r"^[ \t]*%import[ \t]+(\.*)(\w+)", re.MULTILINE)
# Parts of Lark's own terminals, and the same with look-ahead at their end only. An empty string of Python's is not
# followed by a third quote.
_REWRITTEN = [
    (
        rf"{quote}(?!{quote}{quote}).*?(?<!\\)(\\\\)*?{quote}",
        rf"(?:{quote}{_BODY[quote]}+{quote}|{quote}{quote}(?!{quote}))",
    )
    for quote in "\"'"
]
_REWRITTEN += [
    (rf"{quote}.*?(?<!\\)(\\\\)*?{quote}", rf"{quote}(?:[^\\]|\\[\s\S])*?{quote}") for quote in ('"""', "'''")
]
_REWRITTEN += [
    (r'".*?(?<!\\)(\\\\)*?"', rf'"{_BODY[chr(34)]}*"'),  # common.ESCAPED_STRING
    (r"\/(?!\/)(\\\/|\\\\|[^\/])*?\/", r"\/(?:\\\/|\\\\|[^\/])+?\/"),  # lark.REGEXP
]

_BOUNDS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")

# What llguidance adds to Lark's syntax, beside bounds in braces.
_OF_LLGUIDANCE = re.compile(
    r"%(?:json|regex|lark|llguidance)\b|\w\[\s*\w+|::|<[^<>\s]+>|@\w|\{\s*\d*\s*,?\s*\}|&|~(?!\s*\d|~|$)"
)


@dataclass(frozen=True, eq=False)
class LarkTerminal:
    """A terminal with its priority in Lark's lexer, and the automaton of its texts."""

    name: str
    priority: int
    is_literal: bool
    chars: CharDfa


def is_of_llguidance(text: str) -> bool:
    """Return True if a grammar has what llguidance adds to Lark, so that Lark itself cannot read it."""
    if text.lstrip().startswith(("%llguidance", "{")):
        return True
    if len(text) > MAX_GRAMMAR_TEXT or not _OF_LLGUIDANCE.search(
        _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
    ):
        return False
    try:
        _read(_without_braces(text))
    except GrammarError:
        return True
    return False


def lark_grammar(text: str, start: str = "start", encoding: Encoding = "utf8") -> Cfg:
    """Parse and translate a grammar of texts, or of their contents in JSON strings.

    Raises GrammarError with the position in the text of a syntax error, else with the name of the rule or terminal.
    """
    return _translated(text, start, encoding, by_name=False)[0]


def lark_terminals(text: str, start: str = "start") -> tuple[Cfg, list[LarkTerminal]]:
    """Return the grammar and its terminals, keeping equal terminals of different names apart, as Lark does."""
    return _translated(text, start, "utf8", by_name=True)


def _translated(text: str, start: str, encoding: Encoding, *, by_name: bool) -> tuple[Cfg, list[LarkTerminal]]:
    if len(text) > MAX_GRAMMAR_TEXT:
        raise GrammarError(f"the grammar is longer than {MAX_GRAMMAR_TEXT} characters")
    for found in _IMPORT.finditer(text):
        if found[1] or found[2] not in _LIBRARY:
            raise GrammarError.in_pattern("imports are from Lark's own grammars only", text, found.start(2))
    text = _without_braces(text)
    _check_terminals(text)
    read = _read(text)
    translator = _LarkTranslator(read, CompileBudget(max_steps=GRAMMAR_STEPS), encoding, by_name)
    try:
        return without_unreadable(translator.translate(start)), translator.terminals
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None


def _without_braces(text: str) -> str:
    """Return the text with llguidance's bounds `x{2,5}` as Lark's `x~2..5`; those without an upper one stay."""
    plain, parts, end = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text), [], 0
    for found in _BOUNDS.finditer(plain):
        least, comma, most = found.groups()
        if not (least if not comma else most):
            continue
        parts += [text[end : found.start()], f"~{least or 0}" + (f"..{most}" if comma else "")]
        end = found.end()
    return "".join([*parts, text[end:]])


def _check_terminals(text: str) -> None:
    """Raise GrammarError if terminals within terminals, written out, become too large; `lark` writes them out."""
    plain = _QUOTED.sub(" ", text)
    starts = [*_DEFINITION.finditer(plain)]
    ends = [*(found.start() for found in starts[1:]), len(plain)]
    used = {
        found[0].strip().split(":")[0].split(".")[0].strip(): _TERMINAL.findall(plain[found.end() : end])
        for found, end in zip(starts, ends, strict=False)
    }
    sizes: dict[str, int] = {}
    for name in used:
        todo = [name]
        while todo:
            inner = [other for other in used.get(todo[-1], ()) if other not in sizes and other not in todo]
            if inner and len(todo) <= MAX_TERMINAL_PARTS:
                todo.append(inner[0])
                continue
            last = todo.pop()
            sizes[last] = 1 + sum(sizes.get(other, 1) for other in used.get(last, ()))
            if sizes[last] > MAX_TERMINAL_PARTS:
                raise GrammarError(f"the terminal {last} is too complex: it has more than {MAX_TERMINAL_PARTS} parts")


def _read(text: str) -> LarkGrammar:
    try:
        from lark.exceptions import GrammarError as LarkError
        from lark.exceptions import UnexpectedInput
    except ImportError:
        raise GrammarError("grammars in Lark's syntax need the package lark, which is not installed") from None
    try:
        builder = _grammar_builder()(False, [])
        builder.load_grammar(text, "<grammar>")
        read: LarkGrammar = builder.build()
        return read
    except UnexpectedInput as error:
        raise GrammarError.in_pattern("not Lark's syntax", text, max(error.pos_in_stream or 0, 0)) from None
    except (LarkError, RecursionError, ValueError, AssertionError) as error:
        position = re.search(r"line (\d+) column (\d+)", str(error))
        reason = str(error).split("\n")[0]
        if position is None:
            raise GrammarError(f"not a grammar: {reason}") from None
        lines = text.splitlines(keepends=True)
        at = sum(map(len, lines[: int(position[1]) - 1])) + int(position[2]) - 1
        raise GrammarError.in_pattern(f"not a grammar: {reason}", text, at) from None


@cache
def _grammar_builder() -> Any:
    """Return lark's builder of grammars, without imports from files: names of files come from strangers."""
    from lark.exceptions import GrammarError as LarkError
    from lark.load_grammar import GrammarBuilder

    class LibraryBuilder(GrammarBuilder):
        def do_import(
            self, dotted_path: tuple[str, ...], base_path: str | None, aliases: dict[str, str], base_mangle: Any = None
        ) -> None:
            if base_path is not None or dotted_path not in [(name,) for name in _LIBRARY]:
                raise LarkError("imports are from Lark's own grammars only")
            super().do_import(dotted_path, base_path, aliases, base_mangle)

    return LibraryBuilder


Arguments = dict[str, tuple[Symbol, ...]]  # what a template's parameters stand for


class _LarkTranslator:
    def __init__(self, read: LarkGrammar, budget: CompileBudget, encoding: Encoding, by_name: bool) -> None:
        self.terminals: list[LarkTerminal] = []  # filled in only `by_name`: otherwise their automata are not kept
        self._budget = budget
        self._encoding = encoding
        self._by_name = by_name
        self._priorities = {name: int(priority) for name, (_, priority) in read.term_defs}
        self._terminals = {name: tree for name, (tree, _) in read.term_defs}
        self._definitions = {name: (params, tree) for name, params, tree, _ in read.rule_defs}
        self._ignored = list(read.ignore)
        self._todo: list[tuple[Symbol, Tree[Any], Arguments]] = []
        self._known: dict[object, Symbol] = {}

    def translate(self, start: str) -> Cfg:
        if start not in self._definitions or self._definitions[start][0]:
            raise GrammarError(f"the grammar has no rule {start!r}")
        self._rules = CfgBuilder()
        self._rule(start, ())
        while self._todo:
            number, tree, arguments = self._todo.pop()
            self._rules.define(number, self._alternatives(tree, arguments))
        if not self._by_name:
            self._rules.merge_literals()
        return self._rules.build([self._named_terminal(name) for name in self._ignored])

    def _rule(self, name: str, values: tuple[tuple[Symbol, ...], ...]) -> Symbol:
        """Return the nonterminal of a rule, or of a template with these arguments."""
        if (name, values) not in self._known:
            parameters, tree = self._definitions[name]
            if len(parameters) != len(values):
                raise GrammarError(f"{name!r} takes {len(parameters)} arguments, not {len(values)}")
            if len(self._known) > MAX_RULES:
                raise GrammarError(f"the grammar is too complex: it has more than {MAX_RULES} rules")
            self._known[name, values] = self._rules.new()
            self._todo.append((self._known[name, values], tree, dict(zip(parameters, values, strict=True))))
        return self._known[name, values]

    def _alternatives(self, tree: Tree[Any], arguments: Arguments) -> list[tuple[Symbol, ...]]:
        return [self._symbols(part, arguments) for part in tree.children]

    def _symbols(self, tree: Any, arguments: Arguments) -> tuple[Symbol, ...]:
        kind, children = getattr(tree, "data", ""), getattr(tree, "children", [])
        match kind:
            case "":
                return self._named(tree, arguments)
            case "expansions":
                return self._rules.choice(self._alternatives(tree, arguments))
            case "expansion":
                return tuple(symbol for part in children for symbol in self._symbols(part, arguments))
            case "alias" | "value":
                return self._symbols(children[0], arguments)
            case "maybe":
                return self._rules.repeat(self._symbols(children[0], arguments), 0, 1)
            case "expr":
                inner, operator, *counts = children
                least, most = _bounds(str(operator), [int(count) for count in counts])
                return self._rules.repeat(self._symbols(inner, arguments), least, most)
            case "template_usage":
                name, *values = children
                return (self._rule(name.name, tuple(self._symbols(value, arguments) for value in values)),)
            case _:  # a literal or a range
                return (self._terminal(tree),)

    def _named(self, symbol: Any, arguments: Arguments) -> tuple[Symbol, ...]:
        if symbol.is_term:
            return (self._named_terminal(symbol.name),)
        if symbol.name in arguments:
            return arguments[symbol.name]
        return (self._rule(symbol.name, ()),)

    def _named_terminal(self, name: str) -> Symbol:
        tree = self._terminals.get(name)
        if tree is None:
            raise GrammarError(f"the terminal {name} is declared, not defined")
        return self._terminal(tree, name)

    def _terminal(self, tree: Tree[Any], name: str | None = None) -> Symbol:
        pattern, is_literal = _pattern(tree)
        if not self._by_name:
            return self._rules.terminal(pattern, lambda: self._made(name or pattern, pattern, 0, is_literal))
        # Lark gives a terminal without a name that of one with the same pattern.
        name = name or self._name_of.get(pattern)
        priority = self._priorities.get(name or "", 0)
        shown = _quoted(pattern, is_literal) if name is None or name.startswith("__") else name  # __IGNORE_0 is Lark's
        return self._rules.terminal((name, pattern), lambda: self._made(shown, pattern, priority, is_literal))

    @cached_property
    def _name_of(self) -> dict[str, str]:
        return {_pattern(tree)[0]: name for name, tree in self._terminals.items() if tree is not None}

    def _made(self, name: str, pattern: str, priority: int, is_literal: bool) -> Terminal:
        try:
            chars, spoiled = leftmost_first_with_ends(parse_regex(pattern, flags="u"), self._budget)
        except GrammarError as error:
            raise GrammarError(f"the terminal {name}: {error}", position=error.position) from None
        if chars.accepting[START]:
            raise GrammarError(f"the terminal {name} may be empty")
        if self._by_name:
            self.terminals.append(LarkTerminal(name, priority, is_literal, chars))
        dfa = byte_dfa(chars, self._encoding, self._budget)
        if spoiled is not None:
            spoiled = np.concatenate([spoiled, np.zeros(dfa.num_states - len(spoiled), np.bool_)])
        return Terminal(name, dfa, True, spoiled)


def _pattern(tree: Tree[Any]) -> tuple[str, bool]:
    """Return the pattern of a terminal, and True if it is a literal. Raises GrammarError for a literal that cannot be
    read."""
    from lark.exceptions import GrammarError as LarkError
    from lark.load_grammar import PrepareLiterals, TerminalTreeToPattern, nr_deepcopy_tree

    try:
        found = (PrepareLiterals() * TerminalTreeToPattern()).transform(nr_deepcopy_tree(tree))  # type: ignore[no-untyped-call]
    except (LarkError, ValueError) as error:
        raise GrammarError(f"a terminal cannot be read: {error}") from None
    pattern = found.to_regexp()
    for old, new in _REWRITTEN:
        pattern = pattern.replace(old, new)
    return pattern, found.type == "str"


def _quoted(pattern: str, is_literal: bool) -> str:
    """Quote an anonymous terminal as in the grammar's text."""
    return json.dumps(re.sub(r"\\(.)", r"\1", pattern), ensure_ascii=False) if is_literal else f"/{pattern}/"


def _bounds(operator: str, counts: list[int]) -> tuple[int, int | None]:
    if operator == "~":
        return counts[0], counts[-1]
    return {"*": (0, None), "+": (1, None), "?": (0, 1)}[operator]
