"""Calls that a model writes without the markers of its format: bare, or in a fence.

Such a text is a call where it is the whole answer, but for white space and one sentence before it, and where it names
a known tool and fits its arguments. Other text that shows a call stays text: an example, a part of an explanation, or
JSON that the user asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import regex

from .calls import ToolCall, load_json, read_json_call, skip_separators, typed_call, value_end
from .formats import ToolFormat
from .schemas import ArgumentsSchema

_MAX_BEFORE = 400  # characters before a call
_MEMBERS = frozenset({"name", "arguments", "parameters", "type", "id", "function", "index"})
_FENCE = r"(?:```[\w-]*\s*+)?"
_SENTENCE = r"(?![#>*|\d-])(?:[^\n<{\[`.!?]|`[^`\n<]{1,64}`|[.!?]+[^\s<{\[`.!?])+(?:[.!?:]+|\n)\s*+"
_JSON = rf"""(?:\[\s*+)?\{{\s*+["'](?:{"|".join(sorted(_MEMBERS))})["']\s*+:"""
_MAY_BEGIN = regex.compile(r"\s*+(?:[{\[]|```|`{0,2}$)")
_OPENED = regex.compile(rf"\s*{_FENCE}(?:\[\s*)?")  # what precedes the JSON of a call
_SHOWS = regex.compile(  # a sentence before JSON that is shown, and meant as no call
    r"\b(?:examples?|e\.g|for instance|such as|samples?|format(?:ted)?|syntax|schema|template|like (?:this|so)|"
    r"looks? (?:like|as)|would|could|might|should|can be|definitions?|hypothetical\w*|"
    r"do not|don't|never|previous\w*|earlier|already)\b",
    regex.IGNORECASE,
)
_MAX_ASKED = 2000  # characters of a message
_ASKED = regex.compile(
    r"\b(?:show|write|give|print|output|produce|return|answer|reply|respond|explain|"
    r"describe|how (?:would|do|can|could))\b[^.?!\n]{0,200}\b(?:JSON|examples?|schemas?|syntax|samples?)\b",
    regex.IGNORECASE,
)


class BareCalls:
    """Reads one answer as it streams. It holds back what may be a call; the rest passes."""

    def __init__(self, tool_format: ToolFormat, schemas: Mapping[str, ArgumentsSchema]) -> None:
        self._format, self._schemas = tool_format, schemas
        self._unmarked, self._call, self._begin = _patterns(
            tool_format.unmarked, tuple(schemas) if tool_format.unmarked is not None else ()
        )
        self._text = ""  # the answer so far, until it is known not to be a call
        self._num_passed = 0
        self._call_at: int | None = None  # the answer is a call if it is one from here to its end
        self._is_text = not schemas

    def feed(self, text: str) -> str:
        """Return the text that is surely no call."""
        if self._is_text:
            return text
        self._text += text
        if self._call_at is not None:
            return ""
        begun = self._begin.match(self._text, partial=True)
        if begun is None or (begun.partial and len(self._text) > _MAX_BEFORE):
            return self._give_up()
        if begun.partial:
            return self._pass(self._first_hold())
        if begun["said"] is not None and _SHOWS.search(begun["said"]):
            return self._give_up()
        self._call_at = begun.start("call")
        return self._pass(len(self._text[: self._call_at].rstrip()))

    def finish(self, *, before_call: bool) -> tuple[str, list[ToolCall]]:
        """Return the rest of the text and the calls. `before_call`: a call in the format's own form follows."""
        calls = [] if self._call_at is None or before_call else self._read(self._text[self._call_at :])
        rest = "" if calls else self._give_up()
        return ("" if before_call and _OPENED.fullmatch(rest) else rest), calls

    def _give_up(self) -> str:
        self._is_text = True
        return self._pass(len(self._text))

    def _pass(self, end: int) -> str:
        begin, self._num_passed = self._num_passed, max(end, self._num_passed)
        return self._text[begin:end]

    def _first_hold(self) -> int:
        """Return where a call may begin in a text that has none yet."""
        found = _MAY_BEGIN.search(self._text)
        first = len(self._text) if found is None else found.start()
        if self._unmarked is not None:
            for line in (0, self._text.rfind("\n") + 1):
                begin = line + len(self._text[line:]) - len(self._text[line:].lstrip())
                if self._call.match(self._text, begin, partial=True) is not None:
                    first = min(first, len(self._text[:begin].rstrip()))
        return first

    def _read(self, text: str) -> list[ToolCall]:
        text = text.rstrip()
        if self._format.end_marker is not None:  # whose begin is missing
            text = text.removesuffix("```").rstrip().removesuffix(self._format.end_marker)
        try:
            calls = self._read_json(text) or self._read_unmarked(text)
            calls = [typed_call(call, self._schemas[call.name]) if call.has_texts else call for call in calls]
        except (ValueError, KeyError):
            return []
        is_meant = all(self._schemas[call.name].fits(load_json(call.arguments)) for call in calls)
        return calls if is_meant else []

    def _read_json(self, text: str) -> list[ToolCall]:
        calls: list[ToolCall] = []
        at = skip_separators(text, 0)
        while at < len(text):
            try:
                end = value_end(text, at)
                value = load_json(text[at:end])
            except ValueError:
                return []
            items = value if isinstance(value, list) else [value]
            if not all(map(_is_call, items)):
                return []
            calls += map(read_json_call, items)
            at = skip_separators(text, end)
        return calls if all(call.name in self._schemas for call in calls) else []

    def _read_unmarked(self, text: str) -> list[ToolCall]:
        text = text[skip_separators(text, 0) :].removesuffix("```").rstrip()
        if self._unmarked is None or self._unmarked.match(text) is None:
            return []
        calls, end = self._format.read(text)
        return calls if not text[end:].strip() and all(call.name in self._schemas for call in calls) else []


@lru_cache(maxsize=64)
def _patterns(
    unmarked: str | None, names: tuple[str, ...]
) -> tuple[regex.Pattern[str] | None, regex.Pattern[str], regex.Pattern[str]]:
    """Return patterns of how a call in the format's form begins, any call, and an answer that may be one."""
    own = None if unmarked is None else unmarked.replace("NAME", f"(?:{'|'.join(map(regex.escape, names))})")
    written = rf"{_FENCE}(?:{_JSON if own is None else f'{_JSON}|{own}'})"
    begin = regex.compile(rf"\s*+(?P<said>{_SENTENCE})?(?P<call>{written})")
    return None if own is None else regex.compile(own), regex.compile(written), begin


def _is_call(item: Any) -> bool:
    """Return True for an object of a name and arguments, alone or as OpenAI's `function`."""
    if not isinstance(item, dict) or not item.keys() <= _MEMBERS or item.get("type", "function") != "function":
        return False
    if isinstance(item.get("function"), dict):
        return "name" not in item and _is_call(item["function"])
    return "function" not in item and ("arguments" in item) is not ("parameters" in item)


def asks_to_be_shown(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the last user message asks for JSON or an example as the answer itself."""
    last = next((message.get("content") for message in reversed(messages) if message.get("role") == "user"), None)
    return isinstance(last, str) and _ASKED.search(last[-_MAX_ASKED:]) is not None
