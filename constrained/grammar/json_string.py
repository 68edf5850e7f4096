"""Grammars of JSON strings whose values are texts of a grammar or a pattern."""

from __future__ import annotations

from ..budget import GRAMMAR_STEPS, CompileBudget
from ..constraint import JsonString, Regex
from ..errors import GrammarError
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import length_char_dfa
from ..regex.dfa import START
from ..regex.listed import listed_dfa
from ..regex.subset import char_dfa
from ..regex.syntax.parser import parse_regex
from .cfg import Cfg, Symbol, Terminal, trimmed_cfg
from .lark import is_of_llguidance, lark_grammar


def string_grammar(source: JsonString) -> Cfg:
    """Return the grammar of a string and of the texts around it. Raises GrammarError with the position in the content's
    own text."""
    content = source.content
    if isinstance(content, Regex):
        return _between(source.before, _pattern_grammar(content.pattern), source.after)
    if content.syntax != "lark":
        raise GrammarError("a grammar of a JSON string must be in Lark's syntax")
    if is_of_llguidance(content.text):
        raise GrammarError("a grammar of a JSON string must be in Lark's own syntax, without llguidance's additions")
    return _between(source.before, lark_grammar(content.text, content.start or "start", "json_string"), source.after)


def _pattern_grammar(pattern: str) -> Cfg:
    budget = CompileBudget(max_steps=GRAMMAR_STEPS)
    chars = char_dfa(parse_regex(pattern, "python"), budget)
    may_be_empty: list[tuple[Symbol, ...]] = [()] if chars.accepting[START] else []
    filled = chars.intersect(length_char_dfa(1, None), budget)
    terminal = Terminal("pattern", byte_dfa(filled, "json_string", budget), preferred=False)
    return trimmed_cfg([terminal], [[(-1,), *may_be_empty]], [])


def _between(before: str, content: Cfg, after: str) -> Cfg:
    """Return a content between two texts. What it ignores is within it, so rules say where that stands."""
    first = len(content.terminals)
    ends = [Terminal(text, listed_dfa({text.encode(): 0})[0], preferred=False) for text in (before, after)]
    whole, skipped, num_new = 0, 1, 2  # the nonterminals before those of the content
    skip: tuple[Symbol, ...] = (skipped,) if content.ignored else ()

    def moved(symbol: Symbol) -> tuple[Symbol, ...]:
        return (symbol + num_new,) if symbol >= 0 else (symbol, *skip)

    rules: list[list[tuple[Symbol, ...]]] = [
        [(-1 - first, *skip, whole + num_new, -2 - first)],
        [(), *((skipped, -1 - terminal) for terminal in content.ignored)],
    ]
    for group in content.alternatives:
        rules.append([tuple(new for symbol in rule for new in moved(symbol)) for rule in group])
    return trimmed_cfg([*content.terminals, *ends], rules, [])
