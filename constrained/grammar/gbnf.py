r"""Parser for grammars as llama.cpp writes them (GBNF; xgrammar and SGLang say EBNF): `root ::= "a" [b-d]* item{2,3}`.

Rules are over characters, and nothing is skipped: every reading of a text counts. `<name>`, `<[7]>` and `!<name>` are
whole tokens, as in xgrammar's `Token`, `ExcludeToken` and `TokenTagDispatch`; its `TagDispatch` is free text with
tags, its `Regex` a pattern, its `Substring` a part of consecutive texts. `Lazy` is llama-server's `grammar_lazy`: free
text without some words, patterns or tokens, and then perhaps a rule, each of whose texts begins with one of them.
Look-ahead (`(=...)`) is refused.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from ..budget import GRAMMAR_STEPS, CompileBudget
from ..errors import GrammarError
from ..regex.byte_dfa import byte_dfa
from ..regex.charset import ALL, MAX_CODE_POINT, CharSet, charset, complement
from ..regex.dfa import START
from ..regex.subset import char_dfa
from ..regex.syntax.expression import Chars, Expression, Seq, alternation, has_look, literal
from ..regex.syntax.parser import parse_regex
from .cfg import MAX_GRAMMAR_REPEAT, MAX_GRAMMAR_TEXT, Cfg, TokenSet
from .lazy import begins_with_match, begins_with_token
from .rule_expressions import (
    Alternatives,
    Concatenation,
    Dispatch,
    Pattern,
    Repetition,
    Rule,
    RuleReference,
    Without,
    cfg_of_rules,
    without_anchors,
)

_MAX_NESTING = 60
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\n\r]*)*")
_ANY_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n\r]*)*")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\\\"\[\]^-]))")
_BOUNDS = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_TOKEN = re.compile(r"<(?:\[([0-9]{1,9})\]|[^>\r\n]+)>")
_INTEGER = re.compile(r"[0-9]{1,9}(?![0-9])")
_MACRO = re.compile(r"(Token|ExcludeToken|TagDispatch|TokenTagDispatch|Regex|Substring|Lazy)\(")
_MAX_SUBSTRING = 1_000  # parts; each is a rule
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}


def gbnf_grammar(text: str, start: str = "root") -> Cfg:
    """Parse a grammar. Raises GrammarError with the position of what is wrong or not supported."""
    if len(text) > MAX_GRAMMAR_TEXT:
        raise GrammarError(f"the grammar is longer than {MAX_GRAMMAR_TEXT} characters")
    try:
        return cfg_of_rules(_GbnfParser(text).rules(start), start, CompileBudget(max_steps=GRAMMAR_STEPS))
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None


class _GbnfParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._uses: dict[str, int] = {}  # names of rules with the position of their first use
        self._made: dict[str, Rule] = {}  # rules of macros
        self._lazy_rules: list[tuple[str, tuple[Expression, ...], tuple[int | str, ...], int]] = []  # with triggers

    def rules(self, start: str) -> dict[str, Rule]:
        found: dict[str, Rule] = {}
        self._skip(_ANY_SPACE)
        while self._at < len(self._text):
            begin = self._at
            name = self._name()
            self._skip(_SPACE)
            if name is None or not self._take("::="):
                self._fail("a rule begins with its name and ::=", begin)
            if name in found:
                self._fail(f"the rule {name} is defined twice", begin)
            self._skip(_ANY_SPACE)
            found[name] = self._alternatives()
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                self._fail("expected a part of the rule or the end of the line")
            self._skip(_ANY_SPACE)
        for name, position in self._uses.items():
            if name not in found:
                self._fail(f"there is no rule {name}", position)
        if start not in found:
            raise GrammarError(f"the grammar has no rule {start!r}")
        found |= self._made
        self._check_lazy(found)
        return found

    def _fail(self, message: str, position: int | None = None) -> NoReturn:
        raise GrammarError.in_pattern(message, self._text, self._at if position is None else position)

    def _take(self, mark: str) -> bool:
        if self._text.startswith(mark, self._at):
            self._at += len(mark)
            return True
        return False

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _space(self) -> None:
        """Skip space; a line break ends a rule, but not inside parentheses."""
        self._skip(_ANY_SPACE if self._depth else _SPACE)

    def _name(self) -> str | None:
        match = _NAME.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _alternatives(self) -> Rule:
        branches = [self._sequence()]
        while self._take("|"):
            self._skip(_ANY_SPACE)
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self) -> Rule:
        parts: list[Rule] = []
        while (part := self._part()) is not None:
            self._space()
            parts.append(self._repeated(part))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _repeated(self, part: Rule) -> Rule:
        while True:
            start = self._at
            if self._take("*"):
                least, most = 0, None
            elif self._take("+"):
                least, most = 1, None
            elif self._take("?"):
                least, most = 0, 1
            elif match := _BOUNDS.match(self._text, self._at):
                self._at = match.end()
                least = int(match[1])
                most = (int(match[3]) if match[3] else None) if match[2] else least
            else:
                return part
            if max(least, most or 0) > MAX_GRAMMAR_REPEAT or (most is not None and most < least):
                self._fail(f"a repeat with reversed bounds, or beyond {MAX_GRAMMAR_REPEAT}", start)
            part = Repetition(part, least, most)
            self._space()

    def _part(self) -> Rule | None:
        start = self._at
        macro = _MACRO.match(self._text, start)
        if macro is not None and not re.search(rf"^\s*{macro[1]}\s*::=", self._text, re.MULTILINE):
            self._at = macro.end()
            return self._macro(macro[1], start)
        name = self._name()
        if name is not None:
            self._uses.setdefault(name, start)
            return RuleReference(name)
        if self._take('"'):
            return self._literal(start)
        if self._take("["):
            return Chars(self._class(start))
        if self._take("."):
            return Chars(ALL)
        if self._take("("):
            if self._take("="):
                self._fail("look-ahead is not supported", start)
            return self._group(start)
        if self._text[start : start + 1] in ("<", "!"):
            return self._token(start)
        return None

    def _token(self, start: int) -> TokenSet:
        is_excluded = self._take("!")
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._fail("a token is written <name> or <[number]>", start)
        self._at = match.end()
        return TokenSet((int(match[1]) if match[1] else match[0],), is_excluded, is_excluded, start)

    def _macro(self, name: str, start: int) -> Rule:
        """Read the arguments of a macro of xgrammar's, after the parenthesis."""
        values: list[object] = []
        options: dict[str, object] = {}
        while not self._take(")"):
            self._skip(_ANY_SPACE)
            named = re.compile(r"(loop_after_dispatch|excludes)\s*=").match(self._text, self._at)
            if named is not None:
                self._at = named.end()
                options[named[1]] = self._value()
            elif options:
                self._fail("a value after named arguments")
            else:
                values.append(self._value())
            if not self._take(",") and self._text[self._at : self._at + 1] != ")":
                self._fail(f"expected , or ) in the arguments of {name}")
        if name in ("Token", "ExcludeToken"):
            if options or not values or not all(isinstance(value, int) for value in values):
                self._fail(f"{name} takes numbers of tokens", start)
            return TokenSet(tuple(v for v in values if isinstance(v, int)), name == "ExcludeToken", position=start)
        if name == "Lazy":
            return self._lazy(values, start)
        if name in ("Regex", "Substring"):
            return self._pattern_or_part(name, values, options, start)
        return self._dispatch(name, int if name == "TokenTagDispatch" else str, values, options, start)

    def _lazy(self, values: list[object], start: int) -> Rule:
        *triggers, rule = values or [None]
        patterns = [value for value in triggers if isinstance(value, Pattern)]
        if any(pattern.has_anchors or has_look(pattern.expression) for pattern in patterns):
            self._fail("a pattern that is a trigger has no ^, no $ and no look-around", start)
        texts = [literal(value) for value in triggers if isinstance(value, str) and value]
        texts += [pattern.expression for pattern in patterns]
        tokens = [value for value in triggers if isinstance(value, TokenSet) and not value.is_excluded]
        whole = [each for token in tokens for each in token.tokens]
        if not triggers or not isinstance(rule, RuleReference) or len(triggers) not in (len(texts), len(tokens)):
            self._fail("Lazy takes words and patterns, or tokens, and a rule", start)
        self._lazy_rules.append((rule.name, tuple(texts), tuple(whole), start))
        free = (
            Repetition(TokenSet(tuple(whole), True, position=start), 0, None) if whole else Without(alternation(texts))
        )
        return Concatenation((free, Repetition(rule, 0, 1)))

    def _check_lazy(self, rules: dict[str, Rule]) -> None:
        for name, texts, tokens, start in self._lazy_rules:
            budget = CompileBudget(max_steps=GRAMMAR_STEPS)
            cfg = cfg_of_rules(rules, name, budget)
            if tokens:
                begins = begins_with_token(cfg, tokens)
            else:
                if cfg.has_tokens:
                    self._fail("a lazy grammar with words or patterns has no tokens", start)
                dfa = byte_dfa(char_dfa(alternation(texts), budget), "utf8", budget)
                if dfa.accepting[START]:
                    self._fail("a trigger may not be empty", start)
                begins = begins_with_match(cfg, dfa, budget)
            if not begins:
                self._fail(f"each text of {name} has to begin with a trigger, one of those that Lazy lists", start)

    def _pattern_or_part(self, name: str, values: list[object], options: dict[str, object], start: int) -> Rule:
        """Return a pattern as a rule, or the rule of a run of consecutive texts, which may be empty."""
        texts = [value for value in values if isinstance(value, str)]
        if options or not values or len(texts) < len(values) or (name == "Regex" and len(texts) > 1):
            self._fail(f"{name} takes {'one text, a pattern' if name == 'Regex' else 'texts'}", start)
        if name == "Regex":
            try:
                pattern = parse_regex(texts[0])
                inside = without_anchors(pattern)
                return Pattern(inside, has_anchors=inside != pattern)
            except GrammarError as error:
                self._fail(f"the pattern {texts[0]!r}: {error}", start)
        if len(texts) > _MAX_SUBSTRING:
            self._fail(f"Substring takes at most {_MAX_SUBSTRING} texts", start)
        # The run that begins at a text is this text and, perhaps, the run that begins at the next one.
        run: Rule = Concatenation(())
        begun: list[Rule] = [run]
        for text in reversed(texts):
            name = f"Substring {start} {len(begun)}"
            self._made[name] = Alternatives((Concatenation(()), Concatenation((_text(text), run))))
            run = RuleReference(name)
            begun.append(run)
        return Alternatives(tuple(begun))

    def _value(self) -> object:
        """Read an argument of a macro: a text, a number, a flag, a rule or several of these, with the space around."""
        self._skip(_ANY_SPACE)
        start = self._at
        found: object
        if self._take('"'):
            found = "".join(iter(lambda: None if self._take('"') else self._character(start), None))
        elif self._take("("):
            several: list[object] = []
            self._skip(_ANY_SPACE)
            while not self._take(")"):
                several.append(self._value())
                if not self._take(",") and self._text[self._at : self._at + 1] != ")":
                    self._fail("expected , or ) in a tuple")
                self._skip(_ANY_SPACE)
            found = tuple(several)
        elif self._text[start : start + 1] == "<":
            found = self._token(start)
        elif self._take("Regex("):
            found = self._macro("Regex", start)
        elif match := _INTEGER.match(self._text, self._at):
            self._at, found = match.end(), int(match[0])
        elif (name := self._name()) is not None:
            found = {"true": True, "false": False}.get(name)
            if found is None:
                self._uses.setdefault(name, start)
                found = RuleReference(name)
        else:
            self._fail("expected a text in quotes, a number, true, false, a rule or a tuple", start)
        self._skip(_ANY_SPACE)
        return found

    def _dispatch(self, name: str, kind: type, values: list[object], options: dict[str, object], start: int) -> Rule:
        pairs: list[tuple[Any, RuleReference]] = []
        for value in values:
            match value:
                case (trigger, RuleReference() as content) if type(trigger) is kind and trigger != "":
                    pairs.append((trigger, content))
                case _:
                    self._fail(f"{name} takes pairs of a {'token' if kind is int else 'text'} and a rule", start)
        loops, excludes = options.get("loop_after_dispatch", True), options.get("excludes", ())
        if not isinstance(loops, bool):
            self._fail("loop_after_dispatch is true or false", start)
        if not isinstance(excludes, tuple) or not all(type(each) is kind and each != "" for each in excludes):
            self._fail(f"excludes is a tuple of {'tokens' if kind is int else 'texts'}", start)
        for each in excludes:
            if any(each == trigger or (kind is str and trigger.startswith(each)) for trigger, _ in pairs):
                self._fail(f"the trigger {each!r} is excluded", start)
        if kind is str:
            return Dispatch(tuple(pairs), excludes, loops)
        free = Repetition(TokenSet((*(trigger for trigger, _ in pairs), *excludes), True, position=start), 0, None)
        if not pairs:
            return free
        dispatched = [Concatenation((TokenSet((token,), position=start), content)) for token, content in pairs]
        once = Concatenation((free, Alternatives(tuple(dispatched))))
        return Concatenation((Repetition(once, 0, None), free)) if loops else Alternatives((free, once))

    def _group(self, start: int) -> Rule:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            self._fail(f"groups nested deeper than {_MAX_NESTING}", start)
        self._space()
        inner = self._alternatives()
        if not self._take(")"):
            self._fail("a ( that is never closed", start)
        self._depth -= 1
        return inner

    def _character(self, start: int) -> str:
        if self._at >= len(self._text) or self._text[self._at] in "\r\n":
            self._fail("a literal or class that is never closed", start)
        if self._text[self._at] != "\\":
            self._at += 1
            return self._text[self._at - 1]
        match = _ESCAPE.match(self._text, self._at)
        digits = match and (match[1] or match[2] or match[3])
        if match is None or (digits and int(digits, 16) > MAX_CODE_POINT):
            self._fail("an unknown escape")
        self._at = match.end()
        return chr(int(digits, 16)) if digits else _CONTROL.get(match[4], match[4])

    def _literal(self, start: int) -> Rule:
        text = ""
        while not self._take('"'):
            text += self._character(start)
        return _text(text)

    def _class(self, start: int) -> CharSet:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            at = self._at
            low = high = ord(self._character(start))
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = ord(self._character(start))
            if high < low:
                self._fail("a reversed range", at)
            ranges.append((low, high))
        found = charset(ranges)
        return complement(found) if negated else found


def _text(text: str) -> Chars | Seq:
    found = literal(text)
    assert isinstance(found, Chars | Seq)
    return found
