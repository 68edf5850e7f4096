r"""Sets of code points by Unicode property: `\p{...}`, Python's `\w`, and case variants.

General categories come from the standard library's `unicodedata`, scripts and binary properties from the `regex`
package. Every set is computed on first use.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, Literal

import numpy as np

from ..charset import MAX_CODE_POINT, CharSet, charset

# How letters of different case are equal: as in Python's `re`; the same, but no letter of ASCII equals one beyond it;
# or by the simple case folding of ECMA-262's flags `iu`.
CaseRule = Literal["python", "separate", "ecma"]
_LONG_NAMES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Combining_Mark": "M", "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd",
    "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf", "Other_Punctuation": "Po", "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk", "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Surrogate": "Cs",
    "Private_Use": "Co", "Unassigned": "Cn",
}  # fmt: skip
_BINARY = (
    "Alphabetic Alpha Lowercase Lower Uppercase Upper White_Space space Cased Emoji Emoji_Presentation ID_Start IDS "
    "ID_Continue IDC XID_Start XIDS XID_Continue XIDC Ideographic Ideo Hex_Digit Hex Math Dash Diacritic Dia"
).split()


def property_set(name: str) -> CharSet | None:
    r"""Return the set of `\p{name}`, spelled as in ECMA-262, or a script's name alone; None if the name is unknown."""
    if name == "Any":
        return ((0, MAX_CODE_POINT),)
    if name == "ASCII":
        return ((0, 0x7F),)
    if name in ("ASCII_Hex_Digit", "AHex"):
        return ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
    key, equals, value = name.rpartition("=")
    if key in ("", "General_Category", "gc") and (found := _category(_LONG_NAMES.get(value, value))) is not None:
        return found
    if not equals and value in _BINARY:
        return _by_regex(name)
    is_script = key in ("", "Script", "sc", "Script_Extensions", "scx") and re.fullmatch("[A-Z][A-Za-z_]+", value)
    return _by_regex(name if equals else f"Script={name}") if is_script else None


def python_class(letter: str) -> CharSet:
    r"""Return the code points that Python's `\d`, `\w` or `\s` matches without re.ASCII."""
    return _runs(re.compile(rf"\{letter}+").finditer(_all_characters()))


@lru_cache(maxsize=256)
def case_variants(ranges: CharSet, rule: CaseRule) -> CharSet:
    """Add the case variants of a set's members, where those are single characters."""
    found = list(ranges)
    for code, others in _cases(rule):
        if any(low <= code <= high for low, high in ranges):
            found += [(other, other) for other in others]
    return charset(found)


def _runs(matches: Iterable[re.Match[str]]) -> CharSet:
    return tuple((match.start(), match.end() - 1) for match in matches)


@cache
def _all_characters() -> str:
    return np.arange(MAX_CODE_POINT + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    runs: dict[str, list[tuple[int, int]]] = {}
    low = 0
    for category, group in groupby(map(unicodedata.category, _all_characters())):
        count = sum(1 for _ in group)
        runs.setdefault(category, []).append((low, low + count - 1))
        low += count
    return runs


@cache
def _category(name: str) -> CharSet | None:
    """Return the set of a general category. `L` covers all categories that begin with L; `LC` is cased letters."""
    parts = ("Lu", "Ll", "Lt") if name == "LC" else tuple(part for part in _categories() if name in (part, part[0]))
    return charset(pair for part in parts for pair in _categories()[part]) if parts else None


@lru_cache(maxsize=64)
def _by_regex(name: str) -> CharSet | None:
    import regex  # type: ignore[import-untyped, unused-ignore]  # here, because few patterns need it

    try:
        pattern: Any = regex.compile(rf"\p{{{name}}}+")
    except regex.error:
        return None
    return _runs(pattern.finditer(_all_characters()))


@cache
def _cases(rule: CaseRule) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Pair each cased code point with its variants."""
    cased = "".join(c for c in _all_characters() if c.lower() != c or c.upper() != c)
    groups: list[str] = []
    if rule == "ecma":
        same: dict[str, str] = {}
        for character in cased:
            key = next((k for k in (character.casefold(), character.lower()) if len(k) == 1), character)
            same[key] = same.get(key, "") + character
        # A character may fold to one that is not cased itself.
        groups = ["".join(dict.fromkeys(key + group)) for key, group in same.items()]
    else:
        done: set[str] = set()
        for character in cased:
            if character not in done:
                group = "".join(re.findall(f"(?i:{re.escape(character)})", cased))
                done.update(group)
                groups.append(group)
    if rule == "separate":
        groups = ["".join(filter(str.isascii, group)) or group for group in groups]
    return tuple((ord(c), tuple(map(ord, group.replace(c, "")))) for group in groups for c in group if len(group) > 1)
