"""Lists which keywords of a schema are enforced, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import GrammarError
from ..schema.compile import check_location
from ..schema.document import Document, Location
from ..schema.keywords import ANNOTATIONS, KEYWORDS, child, meant_keyword
from ..schema.strings.formats import PATTERNS

MAX_REFUSALS = 10  # each takes up to 60 million steps
Status = Literal["enforced", "annotation", "warning"]
_HOLDERS = frozenset(("$defs", "definitions"))
_KNOWN_ANNOTATIONS = (
    ANNOTATIONS
    | _HOLDERS
    | frozenset(("deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"))
    | frozenset(("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment"))
)
_SINCE = {"const": 6, "contains": 6, "if": 7, "then": 7, "else": 7}
_SINCE |= {"minContains": 2019, "maxContains": 2019, "prefixItems": 2020}
# Keywords that mean something only beside one of others.
_BESIDE = {
    "if": ("then", "else"),
    **dict.fromkeys(("then", "else"), ("if",)),
    **dict.fromkeys(("minContains", "maxContains"), ("contains",)),
}


@dataclass(frozen=True)
class KeywordUse:
    """A keyword at its pointer: enforced, an annotation, or a warning with a reason why it enforces nothing."""

    pointer: str
    status: Status
    reason: str = ""


def keyword_uses(document: Document) -> Iterator[KeywordUse]:
    """Yield every keyword of a schema's subschemas."""
    for location in document.all:
        if isinstance(location.schema, dict):
            for keyword in location.schema:
                reason = _without_effect(keyword, location)
                status: Status = "warning" if reason else "enforced"
                if keyword in _KNOWN_ANNOTATIONS:
                    status, reason = "annotation", ""
                yield KeywordUse(child(location.pointer, keyword), status, reason)


def refusals(document: Document) -> list[GrammarError]:
    """Return what is refused in each subschema by itself, up to `MAX_REFUSALS`."""
    found: list[GrammarError] = []
    for location in document.all:
        if len(found) == MAX_REFUSALS:
            break
        try:
            check_location(location, document)
        except GrammarError as error:
            found.append(error)
    return found


def _without_effect(keyword: str, location: Location) -> str:
    """Return the reason why a keyword enforces nothing, else an empty string."""
    draft, schema = location.draft, location.schema
    value = schema[keyword]
    if keyword in ("extends", "disallow") and draft == 3:
        return ""  # refused
    if keyword == "nullable":
        if value is not True or "type" in schema:
            return ""
        return "without 'type' it says nothing"
    if keyword not in KEYWORDS:
        meant = meant_keyword(keyword)
        return "unknown keyword" + (f": did you mean {meant!r}?" if meant else "")
    if location.ref_is_alone and "$ref" in schema and keyword != "$ref":
        return f"beside '$ref' it says nothing in draft {draft}"
    if draft is not None and draft < _SINCE.get(keyword, 0):
        return f"no keyword of draft {draft}"
    if (others := _BESIDE.get(keyword)) and not any(other in schema for other in others):
        return f"without {' or '.join(map(repr, others))} it says nothing"
    if keyword == "format" and isinstance(value, str) and value not in PATTERNS:
        return f"unknown format {value!r}"
    if keyword == "additionalItems" and not isinstance(schema.get("items"), list):
        return "without an array in 'items' it says nothing"
    if keyword == "required" and isinstance(value, bool) and draft != 3:
        return "a boolean is draft 3's, and says nothing here"
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        bound = keyword.removeprefix("exclusive").lower()
        return "" if bound in schema else f"a boolean says nothing without {bound!r}"
    return ""
