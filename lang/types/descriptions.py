"""Descriptions of types for prompts: what an answer consists of, and the members of every class in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .adapter import adapter_of
from .unions import alternatives_of

_PLAIN = {int: "a whole number", float: "a number", bool: "True or False"}
_MAX_DEPTH = 4  # of lists in lists
_MAX_INDENT = 8  # of the members of members, two for each


def result_text(kind: Any) -> str:
    """Return the sentence that says what an answer of this type consists of; nothing for text."""
    if kind is str:
        return ""
    if kind in _PLAIN:
        return f"Answer with {_PLAIN[kind]}, and nothing else."
    return _Description(adapter_of(kind).schema).text()


class _Description:
    """Describes a schema. The members of a class stand below the first place that names it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._shown = set[int]()

    def text(self) -> str:
        [*alternatives] = alternatives_of(self._root, self._root)
        if len(alternatives) == 1 and alternatives[0].get("properties"):
            self._shown.add(id(alternatives[0]))
            return "\n".join(["Answer with a JSON object of these members:", *self._members(alternatives[0], "")])
        first = f"Answer with {self._words(self._root)}, as JSON, and nothing else."
        return "\n".join([first, *self._classes(self._root, "")])

    def _members(self, part: Mapping[str, Any], indent: str) -> Iterator[str]:
        for name, member in part["properties"].items():
            alternatives = alternatives_of(member, self._root)
            text = member.get("description") or (len(alternatives) == 1 and alternatives[0].get("description"))
            yield f"{indent}- {name} ({self._words(member)})" + (f": {text}" if text else "")
            if len(indent) < _MAX_INDENT:
                yield from self._classes(member, indent + "  ")

    def _classes(self, part: Mapping[str, Any], indent: str) -> Iterator[str]:
        """Yield the names and members of the classes in a value that are not described yet."""
        classes = [one for one in self._classes_in(part) if id(one) not in self._shown]
        self._shown |= {id(one) for one in classes}
        for one in classes:
            yield f"{indent}{_name(one)}:" + (f" {one['description']}" if "description" in one else "")
            yield from self._members(one, indent)

    def _classes_in(self, part: Mapping[str, Any], depth: int = 0) -> list[Mapping[str, Any]]:
        """Return the classes of which a value, its items or its values may be."""
        found: list[Mapping[str, Any]] = []
        for one in alternatives_of(part, self._root):
            if one.get("properties"):
                found.append(one)
            elif depth < _MAX_DEPTH:
                inner = [one.get("items"), *one.get("prefixItems", ()), one.get("additionalProperties")]
                found += (cls for each in inner if isinstance(each, dict) for cls in self._classes_in(each, depth + 1))
        return list({id(one): one for one in found}.values())

    def _words(self, part: Mapping[str, Any], depth: int = 0) -> str:
        """Return in a few words what a value is."""
        alternatives = alternatives_of(part, self._root)
        if len(alternatives) != 1:
            return " or ".join(dict.fromkeys(self._words(one, depth) for one in alternatives))
        [part] = alternatives
        if "enum" in part or "const" in part:
            values = part.get("enum", [part.get("const")])
            return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in values)
        kind, items, values = part.get("type", "any value"), part.get("items"), part.get("additionalProperties")
        if part.get("properties"):
            return _name(part)
        if kind == "array" and isinstance(items, dict) and depth < _MAX_DEPTH:
            return f"list of {self._words(items, depth + 1)}"
        if kind == "object" and isinstance(values, dict) and depth < _MAX_DEPTH:
            return f"object whose values are {self._words(values, depth + 1)}"
        limits = [f"{word} {part[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in part]
        words = [" or ".join(kind) if isinstance(kind, list) else kind, *filter(None, [part.get("format")])]
        return " ".join([", ".join(words), *limits])


def _name(part: Mapping[str, Any]) -> str:
    return str(part.get("title", "object"))
