"""Reads grammars in llguidance's dialect of Lark: `%json`, `%lark`, tokens, `&` and `~`, attributes, parameters.

Knows nothing of what the parts mean. `stop` is refused by name: it hides text that the model has written.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from ...errors import GrammarError
from ..cfg import MAX_GRAMMAR_REPEAT, MAX_GRAMMAR_TEXT
from .lexemes import LarkLexeme, LexemeCursor
from .parameters import BITS, CONDITIONS, FUNCTIONS, MAX_VALUE, WHOLE, Condition, Function
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

_MAX_NESTING = 60
MAX_TOKEN = 1 << 31  # numbers of tokens are lower
_MAX_CAPTURE_NAME = 200  # characters
_MAX_TEMPERATURE = 100.0  # as of a request
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_COMMON = {
    "ESCAPED_STRING": r'ESCAPED_STRING: /"(?:[^"\\\n]|\\[^\n])*"/',
    "C_COMMENT": r"C_COMMENT: /\/\*(?:[^*]|\*+[^*\/])*\*+\//",
}


def read_grammar(text: str) -> LarkGrammar:
    """Read a grammar. Raises GrammarError with the position of what is wrong or not supported."""
    if len(text) > MAX_GRAMMAR_TEXT:
        raise GrammarError(f"the grammar is longer than {MAX_GRAMMAR_TEXT} characters")
    try:
        return _LarkReader(text).grammar(is_nested=False)
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None


class _LarkReader(LexemeCursor):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._is_parametric = False  # the rule that is read

    # Definitions.

    def grammar(self, *, is_nested: bool) -> LarkGrammar:
        found: dict[str, LarkDefinition] = {}
        ignored: list[Part] = []
        skips_at_start = False
        self.lines()
        while self.now.kind != "end" and not (is_nested and self.now.text == "}"):
            lexeme = self.now
            if self.take("%ignore"):
                ignored.append(self._choice())
            elif self.take("%import"):
                self._import(found)
            elif self.take("%llguidance"):
                skips_at_start |= self._options(lexeme)
            elif lexeme.kind in ("rule", "terminal"):
                definition = self._definition()
                if definition.name in found:
                    self.fail(f"{definition.name} is defined twice", lexeme.at)
                found[definition.name] = definition
            else:
                self.fail("expected a rule, a terminal, %ignore, %import or %llguidance")
            if self.now.kind not in ("line", "end") and not (is_nested and self.now.text == "}"):
                self.fail("expected a part of the rule or the end of the line")
            self.lines()
        return LarkGrammar(found, tuple(ignored), skips_at_start)

    def _options(self, lexeme: LarkLexeme) -> bool:
        known = ("no_forcing", "allow_initial_skip")  # the first is about speed only
        if not isinstance(lexeme.value, dict):
            self.fail("%llguidance takes an object", lexeme.at)
        for name, value in lexeme.value.items():
            if name not in known:
                self.fail(f"the option {name} of %llguidance is not supported: leave it out", lexeme.at)
            if not isinstance(value, bool):
                self.fail(f"the option {name} of %llguidance is true or false", lexeme.at)
        return bool(lexeme.value.get("allow_initial_skip", False))

    def _import(self, found: dict[str, LarkDefinition]) -> None:
        at = self.now.at
        is_common = self.of_kind("rule").text == "common"
        has_dot = self.take(".")
        if not is_common or not (has_dot or self.now.text == "("):
            self.fail("imports are from Lark's own grammar common only", at)
        if self.take("("):
            names = [self.of_kind("terminal")]
            while self.take(","):
                names.append(self.of_kind("terminal"))
            self.expect(")")
        else:
            names = [self.of_kind("terminal")]
        alias = self.of_kind("terminal").text if len(names) == 1 and self.take("->") else None
        common = _common().definitions
        for name in names:
            if name.text not in common:
                self.fail(f"Lark's grammar common has no terminal {name.text}", name.at)
            todo = [name.text]
            for inner in todo:  # what it is made of keeps its name, but where the grammar has one of its own
                todo += [each for each in _names_in(common[inner].body) if each not in todo]
                if inner not in found:
                    found[inner] = common[inner]
            if alias is not None:
                found[alias] = common[name.text]

    def _definition(self) -> LarkDefinition:
        lexeme = self.read()
        name = lexeme.text.lstrip("!?")
        is_rule = lexeme.kind == "rule"
        if self.take("."):
            self.fail("priorities are not supported: every terminal takes its longest match", lexeme.at)
        if self.now.text == "{":
            self.fail("templates are not supported beside llguidance's syntax: write parameters, name::_", self.now.at)
        is_parametric = self.take("::")
        if is_parametric:
            self.expect("_")
        attributes_at = self.now.at
        attributes: dict[str, Any] = self._attributes(name) if is_rule and self.take("[") else {}
        if is_parametric and (attributes.keys() - {"capture"} or not is_rule):
            self.fail("only a rule without attributes but capture has a parameter", attributes_at)
        self.expect(":")
        around, self._is_parametric = self._is_parametric, is_parametric
        found = LarkDefinition(name, self._choice(), lexeme.at, is_parametric, **attributes)
        self._is_parametric = around
        return found

    def _attributes(self, rule: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        begin = self.now.at
        while True:
            key = self.of_kind("rule")
            value_at = self.now.at
            has_value = self.take("=")
            if key.text == "lazy" and not has_value:
                found["lazy"] = True
            elif key.text == "suffix" and has_value:
                found |= {"suffix": self._value(), "lazy": True}
            elif key.text == "max_tokens" and has_value:
                number = self.of_kind("number")
                if not number.text.isdecimal() or not 0 < int(number.text) < MAX_TOKEN:
                    self.fail("max_tokens is a natural number above 0", number.at)
                found["max_tokens"] = int(number.text)
            elif key.text == "stop" and has_value:
                self.fail("stop hides text that the model has written, and is not supported: write suffix=", key.at)
            elif key.text == "temperature" and has_value:
                number = self.of_kind("number")
                if number.text[:2].lower() == "0x" or not 0 <= float(number.text) <= _MAX_TEMPERATURE:
                    self.fail(f"temperature is a number from 0 to {_MAX_TEMPERATURE:g}", number.at)
                found["temperature"] = float(number.text)
            elif key.text == "capture" or (key.text == "stop_capture" and has_value):
                name = self._string(self.of_kind("string"))[0] if has_value else rule
                if not 0 < len(name) <= _MAX_CAPTURE_NAME:
                    self.fail(f"the name of a capture has 1 to {_MAX_CAPTURE_NAME} characters", key.at)
                found["capture" if key.text == "capture" else "suffix_capture"] = name
            else:
                self.fail(f"{key.text} is no attribute of the rule {rule}", key.at if not has_value else value_at)
            if not self.take(","):
                break
        self.expect("]")
        if "suffix_capture" in found and "suffix" not in found:
            self.fail("stop_capture names the text of a suffix, and this rule has none", begin)
        return found

    # Expressions.

    def _choice(self) -> Part:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            self.fail(f"groups nested deeper than {_MAX_NESTING}")
        parts = [self._alternative()]
        while self._bar():
            parts.append(self._alternative())
        self._depth -= 1
        return parts[0][0] if len(parts) == 1 and parts[0][1] is None else LarkChoice(tuple(parts))

    def _bar(self) -> bool:
        at = self.next
        self.lines()
        if self.take("|"):
            self.lines()
            return True
        self.next = at
        return False

    def _alternative(self) -> tuple[Part, Condition | None]:
        at = self.now.at
        parts = [self._sequence()]
        while self.take("&"):
            parts.append(self._sequence())
        condition = self._condition() if self.take("%if") else None
        if self.take("->"):
            self.of_kind("rule")  # Lark's name of the alternative in a tree
        return (parts[0] if len(parts) == 1 else LarkBoth(tuple(parts), at)), condition

    def _sequence(self) -> Part:
        parts = []
        while not (
            self.now.kind in ("line", "end")
            or self.now.text in ("%if",)
            or (self.now.kind == "mark" and self.now.text in ("|", "&", "->", ")", "]", "}"))
        ):
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else LarkSequence(tuple(parts))

    def _repeated(self) -> Part:
        at = self.now.at
        if self.take("~"):
            return self._with_bounds(LarkNot(self._atom(), at))
        return self._with_bounds(self._atom())

    def _with_bounds(self, part: Part) -> Part:
        at = self.now.at
        if self.now.kind == "mark" and self.now.text in ("*", "+", "?"):
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.read().text]
        elif self.now.text == "~" and self.lexemes[self.next + 1].kind == "number":
            self.next += 1
            least = self._count()
            most = self._count() if self.take("..") else least
        elif self.take("{"):
            least = 0 if self.now.text == "," else self._count()
            most = least
            if self.take(","):
                most = None if self.now.text == "}" else self._count()
            self.expect("}")
        else:
            return part
        if max(least, most or 0) > MAX_GRAMMAR_REPEAT or (most is not None and most < least):
            self.fail(f"a repeat with reversed bounds, or beyond {MAX_GRAMMAR_REPEAT}", at)
        return LarkRepeated(part, least, most)

    def _count(self) -> int:
        number = self.of_kind("number")
        if not number.text.isdecimal() or len(number.text) > 9:
            self.fail("expected a natural number", number.at)
        return int(number.text)

    def _atom(self) -> Part:
        if self.take("("):
            found = self._grouped(")")
        elif self.take("["):
            found = LarkRepeated(self._grouped("]"), 0, 1)
        else:
            return self._value()
        return found

    def _grouped(self, end: str) -> Part:
        self.lines()
        found = self._choice()
        self.lines()
        self.expect(end)
        return found

    def _value(self) -> Part:
        lexeme = self.read()
        at = lexeme.at
        match lexeme.kind:
            case "string":
                text, ignores_case = self._string(lexeme)
                if not self.take(".."):
                    return LarkText(text, ignores_case, None, at)
                last, _ = self._string(self.of_kind("string"))
                if len(text) != 1 or len(last) != 1 or last < text or ignores_case:
                    self.fail("a range is of two characters in order", at)
                return LarkText(text, False, last, at)
            case "regex":
                pattern, _, flags = lexeme.text[1:].rpartition("/")
                return LarkPattern(pattern, flags, at)
            case "rule" | "terminal":
                parameter = self._parameter() if self.take("::") else None
                if self.now.text == "{" and self.lexemes[self.next + 1].kind not in ("number", "mark"):
                    self.fail("templates are not supported beside llguidance's syntax: write parameters, name::_")
                return LarkName(lexeme.text.lstrip("!?"), parameter, at)
            case "token":
                return self._token(lexeme)
            case "grammar":
                return LarkNested(lexeme.text[1:], at)
            case "keyword" if lexeme.text == "%json":
                return LarkJson(lexeme.value, at)
            case "keyword" if lexeme.text == "%regex":
                return self._substring(lexeme)
            case "keyword" if lexeme.text == "%lark":
                self.expect("{")
                self._depth += 1
                if self._depth > _MAX_NESTING:
                    self.fail(f"grammars nested deeper than {_MAX_NESTING}", at)
                found = LarkNested(self.grammar(is_nested=True), at)
                self._depth -= 1
                self.expect("}")
                return found
            case _:
                self.fail("expected a text, a pattern, a name, a token or a group", at)

    def _string(self, lexeme: LarkLexeme) -> tuple[str, bool]:
        ignores_case = lexeme.text.endswith("i")
        quoted = lexeme.text.removesuffix("i")
        text = re.sub(r"\\(?:x(..)|.)", lambda found: rf"\u00{found[1]}" if found[1] else found[0], quoted)
        return str(json.loads(text)), ignores_case

    def _token(self, lexeme: LarkLexeme) -> TokenRanges:
        if not lexeme.text.startswith("<["):
            return TokenRanges(lexeme.text, (), False, lexeme.at)
        inside = lexeme.text[2:-2] if lexeme.text.endswith("]>") else ""
        is_excluded = inside.startswith("^")
        if inside == "*":
            return TokenRanges(None, (), True, lexeme.at)
        ranges = []
        for part in inside.removeprefix("^").split(","):
            found = _RANGE.fullmatch(part)
            low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if not low <= high < MAX_TOKEN:
                self.fail("tokens are numbers and ranges of them, <[7]>, <[7-9,12]>, <[^7]> or <[*]>", lexeme.at)
            ranges.append((low, high))
        return TokenRanges(None, tuple(ranges), is_excluded, lexeme.at)

    def _substring(self, lexeme: LarkLexeme) -> LarkSubstring:
        match lexeme.value:
            case {"substring_chunks": [*chunks]} if len(lexeme.value) == 1 and all(type(c) is str for c in chunks):
                return LarkSubstring(tuple(chunks))
            case {"substring_words": str(text)} if len(lexeme.value) == 1:
                return LarkSubstring(tuple(re.findall(r"\w+|\s+|[^\w\s]+", text)))
            case {"substring_chars": str(text)} if len(lexeme.value) == 1:
                return LarkSubstring(tuple(text))
        self.fail("%regex takes one of substring_chunks, substring_words and substring_chars", lexeme.at)

    # Parameters.

    def _parameter(self) -> Function:
        lexeme = self.read()
        if lexeme.kind != "number" and not self._is_parametric:
            self.fail("the rule has no parameter: only a number can be given from it", lexeme.at)
        if lexeme.text == "_":
            return lambda p: p
        if lexeme.kind == "number":
            value = self._number(lexeme)
            return lambda p: value
        if lexeme.text not in FUNCTIONS:
            self.fail(f"a parameter is a number, _, or one of {', '.join(FUNCTIONS)}", lexeme.at)
        kinds, make = FUNCTIONS[lexeme.text]
        return make(*self._arguments(kinds))

    def _condition(self) -> Condition:
        lexeme = self.of_kind("rule")
        if not self._is_parametric:
            self.fail("a condition is on the parameter of a rule, and this rule has none", lexeme.at)
        if lexeme.text not in CONDITIONS:
            self.fail(f"a condition is one of {', '.join(CONDITIONS)}", lexeme.at)
        self._depth += 1
        if self._depth > _MAX_NESTING:
            self.fail(f"conditions nested deeper than {_MAX_NESTING}", lexeme.at)
        kinds, make = CONDITIONS[lexeme.text]
        arguments = self._arguments(kinds) if kinds or self.now.text == "(" else []
        self._depth -= 1
        found: Condition = make(*arguments)
        return found

    def _arguments(self, kinds: tuple[str, ...]) -> list[Any]:
        self.expect("(")
        found: list[Any] = []
        for number, kind in enumerate(kinds):
            if number:
                self.expect(",")
            match kind:
                case "condition":
                    found.append(self._condition())
                case "range":
                    found.append(self._bits())
                case _:
                    lexeme = self.of_kind("number")
                    value = self._number(lexeme)
                    if kind == "bit" and value >= BITS:
                        self.fail(f"a parameter has {BITS} bits, from 0 on", lexeme.at)
                    found.append(value)
        self.expect(")")
        return found

    def _bits(self) -> tuple[int, int]:
        at = self.now.at
        if self.take("_"):
            return WHOLE
        self.expect("[")
        low = self._number(self.of_kind("number"))
        self.expect(":")
        high = self._number(self.of_kind("number"))
        self.expect("]")
        if not 0 <= low < high <= BITS:
            self.fail(f"a range of bits is [first:end] within {BITS}", at)
        return low, high

    def _number(self, lexeme: LarkLexeme) -> int:
        try:
            value = int(lexeme.text, 0)
        except ValueError:
            value = -1
        if not 0 <= value <= MAX_VALUE:
            self.fail(f"a parameter is a whole number of {BITS} bits", lexeme.at)
        return value


def _names_in(part: Part) -> list[str]:
    match part:
        case LarkName(name=name):
            return [name]
        case LarkSequence(parts=parts) | LarkBoth(parts=parts):
            return [name for inner in parts for name in _names_in(inner)]
        case LarkChoice(parts=parts):
            return [name for inner, _ in parts for name in _names_in(inner)]
        case LarkRepeated(part=inner) | LarkNot(part=inner):
            return _names_in(inner)
    return []


@cache
def _common() -> LarkGrammar:
    """Return Lark's library of terminals, with those rewritten that look around themselves or are lazy."""
    text = (files("lark") / "grammars" / "common.lark").read_text()
    for name, line in _COMMON.items():
        text = re.sub(rf"(?m)^{name}\s*:.*$", line.replace("\\", r"\\"), text)
    return _LarkReader(text).grammar(is_nested=False)
