"""Large JSON documents, read so that other threads go on meanwhile, and bounded in what they may hold.

The standard library's own reader in C holds the interpreter's lock until it has read everything. This one is its
reader in Python, but for long lists of numbers, which are read in C a slice at a time. Knows no routes.
"""

from __future__ import annotations

import json
import re
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from ....protocol.errors import RequestError
from ...text.offload import CancellationToken

LARGE = 1 << 18  # bytes from which a document is read here
MAX_LIST_ENTRIES = 1 << 19  # of one list that holds other things than numbers
MAX_NUMBERS = 1 << 20  # of one list of numbers, unless a prompt may have more tokens
MAX_VALUES = 1 << 20  # of a document; lists of numbers count as one
_SLICE = 1 << 16  # characters that C reads at a time
_CHECKED = 1 << 10  # values between two looks at whether somebody still waits
_NUMBERS = re.compile(r"[-+.0-9eE, \t\n\r]*")

_Found = tuple[Any, int]  # a value, and where the text goes on


def read_json(text: str, cancellation: CancellationToken, *, max_numbers: int = MAX_NUMBERS) -> Any:
    """The value that `text` writes, as `json.loads` reads it.

    Raises RequestError naming the member of the outermost object that holds too much; else what `json.loads` raises.
    """
    return _JsonReader(cancellation, max_numbers).decode(text)


class _LastKey(dict[str, str]):
    """Takes the keys of one object, and remembers the last."""

    last: str | None = None

    def setdefault(self, key: str, default: str | None = None) -> Any:
        self.last = key
        return default


class _JsonReader(json.JSONDecoder):
    def __init__(self, cancellation: CancellationToken, max_numbers: int) -> None:
        super().__init__()
        self._cancellation = cancellation
        self._max_numbers = max_numbers
        self._num_values = 0
        self._members = _LastKey()
        self._depth = 0
        self.parse_object = self._read_object
        self.parse_array = self._read_array
        self.scan_once = py_make_scanner(self)

    def _read_value(self, text: str, start: int) -> _Found:
        self._num_values += 1
        if self._num_values % _CHECKED == 0:
            self._cancellation.check()
        if self._num_values > MAX_VALUES:
            raise self._too_much(f"the body holds more than {MAX_VALUES} values")
        found: _Found = self.scan_once(text, start)
        return found

    def _read_object(
        self, start: tuple[str, int], strict: bool, scan: Any, hook: Any, pairs_hook: Any, memo: dict[str, str]
    ) -> _Found:
        self._depth += 1
        keys = self._members if self._depth == 1 else memo
        found: _Found = JSONObject(start, strict, self._read_value, hook, pairs_hook, keys)
        self._depth -= 1
        return found

    def _read_array(self, start: tuple[str, int], scan: Any) -> _Found:
        numbers = self._read_numbers(*start)
        if numbers is not None:
            return numbers
        self._depth += 1
        num_entries = 0

        def read_entry(text: str, at: int) -> _Found:
            nonlocal num_entries
            num_entries += 1
            if num_entries > MAX_LIST_ENTRIES:
                raise self._too_much(f"a list has more than {MAX_LIST_ENTRIES} entries")
            return self._read_value(text, at)

        found: _Found = JSONArray(start, read_entry)
        self._depth -= 1
        return found

    def _read_numbers(self, text: str, start: int) -> _Found | None:
        """The list that begins before `start`; None unless all its entries are numbers."""
        numbers: list[Any] = []
        at = start
        if text[at : at + 1] == "]":
            return numbers, at + 1
        while True:
            self._cancellation.check()
            run = _NUMBERS.match(text, at, at + _SLICE)
            assert run is not None
            end = run.end()
            is_last = text[end : end + 1] == "]"
            if not is_last:
                end = text.rfind(",", at, end)
                if run.end() < at + _SLICE or end < 0:
                    return None
            if not text[at:end].strip() and not (is_last and at == start):
                return None
            try:
                numbers += json.loads(f"[{text[at:end]}]")
            except ValueError:  # the other way of reading says what is wrong, and where
                return None
            if len(numbers) > self._max_numbers:
                raise self._too_much(f"a list has more than {self._max_numbers} numbers")
            if is_last:
                return numbers, end + 1
            at = end + 1

    def _too_much(self, what: str) -> RequestError:
        name = self._members.last
        return RequestError(what if name is None else f"{name}: {what}", param=name, code="too_large")
