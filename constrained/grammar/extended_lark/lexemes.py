"""Lexemes of llguidance's dialect of Lark, and a place among them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from ...errors import GrammarError

_LEXEMES = re.compile(
    r"""
    (?P<space>[ \t]+|(?:\#|//)[^\n]*)
    |(?P<line>(?:\r?\n)+)
    |(?P<keyword>%[a-z]+)
    |(?P<string>"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4}|x[a-fA-F0-9]{2})|[^"\\\x00-\x1f\x7f])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<rule>!?[_?]?[a-z][_a-z0-9\-]*)
    |(?P<terminal>_?[A-Z][_A-Z0-9\-]*)
    |(?P<token><[^<>\s]+>)
    |(?P<grammar>@[a-zA-Z0-9_\-]+)
    |(?P<number>0[xX][0-9a-fA-F]+|[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<mark>->|::|\.\.|[:,.=(){}\[\]~&|+*?_])
    """,
    re.VERBOSE,
)


class LarkLexeme(NamedTuple):
    """A lexeme. `value` is that of `%json`, `%regex` and `%llguidance`."""

    kind: str
    text: str
    at: int
    value: Any = None


def _lexemes_of(text: str) -> Iterable[LarkLexeme]:
    at = 0
    while at < len(text):
        found = _LEXEMES.match(text, at)
        if found is None:
            raise GrammarError.in_pattern("not llguidance's syntax of Lark", text, at)
        kind, begin, at = str(found.lastgroup), at, found.end()
        if found[0] in ("%json", "%regex", "%llguidance"):
            at = len(text) - len(text[at:].lstrip())
            try:
                value, at = json.JSONDecoder().raw_decode(text, at)
            except json.JSONDecodeError as error:
                raise GrammarError.in_pattern(f"{found[0]} takes a JSON value: {error.msg}", text, error.pos) from None
            except (ValueError, RecursionError) as error:  # a number, or nesting, beyond what Python reads
                raise GrammarError.in_pattern(f"{found[0]} takes a JSON value: {error}", text, at) from None
            yield LarkLexeme(kind, found[0], begin, value)
        elif kind != "space":
            yield LarkLexeme(kind, found[0], begin)


class LexemeCursor:
    """A place in the lexemes of a grammar. Errors are GrammarError with a position in its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lexemes = [*_lexemes_of(text), LarkLexeme("end", "", len(text))]
        self.next = 0

    @property
    def now(self) -> LarkLexeme:
        """The lexeme that is next."""
        return self.lexemes[self.next]

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raise GrammarError at a position, or at the next lexeme."""
        raise GrammarError.in_pattern(message, self.text, self.now.at if at is None else at)

    def read(self) -> LarkLexeme:
        """Pass the next lexeme; return it."""
        self.next += 1
        return self.lexemes[self.next - 1]

    def take(self, text: str) -> bool:
        """Pass a mark or a keyword if it is next; return whether it is."""
        if self.now.text == text and self.now.kind in ("mark", "keyword"):
            self.next += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Pass a mark, which has to be next."""
        if not self.take(text):
            self.fail(f"expected {text!r}")

    def of_kind(self, *kinds: str) -> LarkLexeme:
        """Pass a lexeme of one of some kinds, which has to be next; return it."""
        if self.now.kind not in kinds:
            self.fail(f"expected a {' or a '.join(kinds)}")
        return self.read()

    def lines(self) -> None:
        """Pass ends of lines."""
        while self.now.kind == "line":
            self.next += 1
