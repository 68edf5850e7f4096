"""Typed reading of a JSON object's fields, with errors that name the file, the field and its value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import CheckpointError, UnsupportedField

_MAX_COUNT = 1 << 32  # of any count in a configuration; larger ones are mistakes, which would overflow sizes


def read_json_object(file: Path) -> dict[str, Any]:
    """Read the JSON object in `file`. Raises CheckpointError when the file holds none."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(file, f"not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(file, f"must hold a JSON object, got {type(raw).__name__}")
    return raw


class ConfigFields:
    """The fields of the JSON object `raw`. `null` counts as absent, as in the library that writes these files."""

    def __init__(self, raw: dict[str, Any], file: Path, within: str = "") -> None:
        self.raw = raw
        self.file = file
        self._within = within

    def updated(self, values: dict[str, Any]) -> ConfigFields:
        """Return these fields with some values replaced."""
        return ConfigFields(self.raw | values, self.file, self._within)

    def nested(self, field: str) -> ConfigFields:
        """Return the fields of the object in `field`; of an empty one when the field is absent."""
        value = self.raw.get(field)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.invalid(field, "must be an object")
        return ConfigFields(value, self.file, f"{self._within}{field}.")

    def count(self, field: str, *, default: int | None = None, least: int = 1, most: int = _MAX_COUNT) -> int:
        """Return an integer of at least `least` and at most `most`."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.invalid(field, f"must be an integer of at least {least}")
        if value > most:
            raise self.invalid(field, f"must be at most {most}")
        return value

    def number(self, field: str, *, default: float | None = None) -> float:
        """Return a positive number."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.invalid(field, "must be a positive number")
        return float(value)

    def numbers(self, field: str, count: int) -> tuple[float, ...]:
        """Return a list of `count` positive numbers."""
        value = self._value(field, None)
        if not isinstance(value, list) or len(value) != count:
            raise self.invalid(field, f"must list {count} numbers")
        items = ConfigFields(
            {str(place): item for place, item in enumerate(value)}, self.file, f"{self._within}{field}."
        )
        return tuple(items.number(place) for place in items.raw)

    def boolean(self, field: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._value(field, default)
        if not isinstance(value, bool):
            raise self.invalid(field, "must be true or false")
        return value

    def one_of(self, field: str, choices: Sequence[str], *, default: str) -> str:
        """Return one of the strings `choices`."""
        value = self._value(field, default)
        if value not in choices:
            raise self.unsupported(field, f"supported: {', '.join(choices)}; {value!r} is")
        return str(value)

    def exactly(self, field: str, wanted: Any) -> None:
        """Refuse another value than `wanted`."""
        if self.raw.get(field) != wanted:
            raise self.unsupported(field, f"supported: {wanted!r}; {self.raw.get(field)!r} is")

    def modules(self, field: str) -> list[str]:
        """Return a list of modules' names; "re:" begins a pattern."""
        names = self.raw.get(field) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.invalid(field, "must list names of modules")
        for name in names:
            try:
                re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
            except re.error as error:
                raise self.invalid(field, f"must list names and patterns, not {name!r} ({error})") from None
        return names

    def _value(self, field: str, default: Any) -> Any:
        value = self.raw.get(field)
        if value is None:
            if default is None:
                raise CheckpointError(self.file, f"the field {self._within}{field} is missing")
            return default
        return value

    def invalid(self, field: str, problem: str) -> CheckpointError:
        """Make the error for a value that is wrong."""
        return CheckpointError(self.file, f"{self._within}{field} {problem}, got {self.raw.get(field)!r}")

    def unsupported(self, field: str, what: str) -> UnsupportedField:
        """Make the error for a value that is valid but not computed here."""
        return UnsupportedField(self.file, f"{self._within}{field}: {what} not supported")
