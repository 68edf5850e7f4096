"""Read large JSON documents without blocking other threads, and bound their size.

The standard library's C reader holds the GIL until it has read everything. This reader is the library's Python version,
except that C reads long lists of numbers slice by slice.
"""

from __future__ import annotations

import json
import re
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from ....protocol.errors import RequestError
from ...text.offload import CancellationToken

LARGE = 1 << 18  # bytes; larger documents are read here
MAX_LIST_ENTRIES = 1 << 19  # per list with entries other than numbers
MAX_NUMBERS = 1 << 20  # per list of numbers, unless the context is longer
MAX_VALUES = 1 << 20  # per document; a list of numbers counts as one
_SLICE = 1 << 16  # characters per slice
_CHECK_INTERVAL = 1 << 10  # values between two checks for cancellation
_NUMBERS = re.compile(r"[-+.0-9eE, \t\n\r]*")

_Parsed = tuple[Any, int]  # a value, and the index after it


def read_json(text: str, cancellation: CancellationToken, *, max_numbers: int = MAX_NUMBERS) -> Any:
    """Parse `text` like `json.loads`.

    Raises RequestError naming the outermost object's member that is too large; else what `json.loads` raises.
    """
    return _JsonReader(cancellation, max_numbers).decode(text)


class _LastKey(dict[str, str]):
    """Dict that accepts the keys of one object and remembers the last."""

    last: str | None = None

    def setdefault(self, key: str, default: str | None = None) -> Any:
        self.last = key
        return default


class _JsonReader(json.JSONDecoder):
    """JSON decoder that checks limits and cancellation at each value."""

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

    def _read_value(self, text: str, start: int) -> _Parsed:
        self._num_values += 1
        if self._num_values % _CHECK_INTERVAL == 0:
            self._cancellation.check()
        if self._num_values > MAX_VALUES:
            raise self._too_large_error(f"the body holds more than {MAX_VALUES} values")
        parsed: _Parsed = self.scan_once(text, start)
        return parsed

    def _read_object(
        self, start: tuple[str, int], strict: bool, scan: Any, hook: Any, pairs_hook: Any, memo: dict[str, str]
    ) -> _Parsed:
        self._depth += 1
        keys = self._members if self._depth == 1 else memo
        parsed: _Parsed = JSONObject(start, strict, self._read_value, hook, pairs_hook, keys)
        self._depth -= 1
        return parsed

    def _read_array(self, start: tuple[str, int], scan: Any) -> _Parsed:
        numbers = self._read_numbers(*start)
        if numbers is not None:
            return numbers
        self._depth += 1
        num_entries = 0

        def read_entry(text: str, at: int) -> _Parsed:
            nonlocal num_entries
            num_entries += 1
            if num_entries > MAX_LIST_ENTRIES:
                raise self._too_large_error(f"a list has more than {MAX_LIST_ENTRIES} entries")
            return self._read_value(text, at)

        parsed: _Parsed = JSONArray(start, read_entry)
        self._depth -= 1
        return parsed

    def _read_numbers(self, text: str, start: int) -> _Parsed | None:
        """Parse the list that begins before `start`; return None unless all its entries are numbers."""
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
            except ValueError:  # the general reader reports the error and its position
                return None
            if len(numbers) > self._max_numbers:
                raise self._too_large_error(f"a list has more than {self._max_numbers} numbers")
            if is_last:
                return numbers, end + 1
            at = end + 1

    def _too_large_error(self, what: str) -> RequestError:
        name = self._members.last
        return RequestError(what if name is None else f"{name}: {what}", param=name, code="too_large")
