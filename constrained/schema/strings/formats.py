r"""Patterns of the string formats that are enforced. Each accepts only what its RFC allows.

A format that is not regular, or whose automaton would be huge, is a subset:

- `hostname`: 63 characters in the first label, 30 in six more (whole names stay below 253), no `--` in third place.
- `idn-hostname`: in addition, labels of up to ten letters of common scripts written from left to right.
- `email`, `idn-email`: domains as in `hostname` and `idn-hostname`, quoted local parts of up to 31 characters.
- `time`, `date-time`: no leap seconds, which most readers refuse; up to twelve digits after the point of seconds.
- `duration`: RFC 3339's grammar, in which a year is not followed by days; numbers of up to twelve digits.
- `regex`: the syntax that ECMA-262 and Python share. Groups are nested up to three deep; a look-ahead stands in up to
  one group, or has up to one group in it. Look-behind has one width and no brackets. Groups have no names and are not
  referred to. Bounds of quantifiers are below 1000, and not both above 99.
- `uri-template`: prefixes below 1000, no percent signs in names.
- `relative-json-pointer`: no zero but the last digit, because `jsonschema` refuses others.

All other formats in `PATTERNS` are complete. Formats that are not in it are annotations.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np

from ...budget import CompileBudget
from ...regex.char_dfa import CharDfa, trimmed_char_dfa
from ...regex.dfa import DEAD, START
from ...regex.subset import char_dfa
from ...regex.syntax.expression import Expression
from ...regex.syntax.parser import parse_regex

_MAX_DIGITS = 12  # of a fraction of seconds, or a number in a duration: without a bound, a model may never end them

# RFC 3339
_DAY28 = r"(?:0[1-9]|1\d|2[0-8])"
_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000)"  # not 0000
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY28}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
_TIME = rf"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{{1,{_MAX_DIGITS}}})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_COUNT = rf"\d{{1,{_MAX_DIGITS}}}"
_DURATION_TIME = rf"T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_DURATION_DATE = rf"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
_DURATION = rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|{_COUNT}W)"


def _label(end: str, inner: str, most: int) -> str:
    """Return the pattern of a label: characters `inner`, ends `end`, no `--` in third place (RFC 1123, RFC 5891)."""
    return (
        rf"(?:{end}(?:{inner}?{end})?|{end}{inner}{end}{inner}{{0,{most - 4}}}{end}"
        rf"|{end}{inner}-{end}(?:{inner}{{0,{most - 5}}}{end})?)"
    )


def _ipv6() -> str:
    """Return the pattern of eight groups, the last two perhaps an IPv4 address, with at most one `::` (RFC 4291)."""
    forms = [rf"(?:{_GROUP}:){{7}}{_GROUP}", rf"(?:{_GROUP}:){{6}}{_IPV4}"]
    for before in range(8):
        head = rf"(?:{_GROUP}:){{{before - 1}}}{_GROUP}" if before else ""
        after = 7 - before
        forms.append(rf"{head}::(?:(?:{_GROUP}:){{0,{after - 1}}}{_GROUP})?" if after else rf"{head}::")
        if after >= 2:
            forms.append(rf"{head}::(?:{_GROUP}:){{0,{after - 2}}}{_IPV4}")
    return f"(?:{'|'.join(forms)})"


_LETTER_DIGIT = "[A-Za-z0-9]"
_HOSTNAME = rf"{_label(_LETTER_DIGIT, '[A-Za-z0-9-]', 63)}(?:\.{_label(_LETTER_DIGIT, '[A-Za-z0-9-]', 30)}){{0,6}}"
_IDN_LETTERS = (  # lower case where there is case: all PVALID under RFC 5892, none written from right to left
    r"a-z0-9\u00df-\u00f6\u00f8-\u00ff\u03b1-\u03c1\u03c3-\u03c9\u0430-\u045f\u3041-\u3096\u4e00-\u9fa5\uac00-\ud7a3"
)
_IDN_LABEL = _label(f"[{_IDN_LETTERS}]", f"[{_IDN_LETTERS}-]", 10)
_IDN_HOSTNAME = rf"(?:{_HOSTNAME}|{_IDN_LABEL}(?:\.{_IDN_LABEL}){{0,3}})"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_IPV6 = _ipv6()

# RFC 5321, RFC 6531. A local part has at most 64 characters: up to 32 escapes, or what the look-ahead counts.
_ATOM = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~-"
_BEYOND_ASCII = (  # no controls, spaces, format characters; nothing after U+FDFF
    r"\u00a1-\u00ac\u00ae-\u167f\u1681-\u1fff\u2010-\u2027\u2030-\u205e\u2070-\u2fff\u3001-\ud7ff\uf900-\ufdcf"
)


def _email(atom: str, host: str) -> str:
    local = rf"[{atom}]+(?:\.[{atom}]+)*"
    quoted = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,31}"'
    return rf'^(?=[^@"]{{1,64}}@|")(?:{local}|{quoted})@(?:{host}|\[(?:{_IPV4}|IPv6:{_IPV6})\])'


def _uri(more: str, private: str, *, relative: bool) -> str:
    """Return the pattern of RFC 3986, with the characters that RFC 3987 adds if `more` and `private` are given."""
    character = rf"[A-Za-z0-9._~!$&'()*+,;={more}-]|%[0-9A-Fa-f]{{2}}"
    segment = rf"(?:{character}|[:@])"
    first = rf"(?:{character}|@)+" if relative else rf"{segment}+"  # a colon would end a scheme
    literal = rf"\[(?:{_IPV6}|[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]"
    authority = rf"(?:(?:{character}|:)*@)?(?:{literal}|(?:{character})*)(?::\d*)?"
    part = rf"(?://{authority}(?:/{segment}*)*|/(?:{segment}+(?:/{segment}*)*)?|{first}(?:/{segment}*)*)?"
    scheme = "" if relative else "[A-Za-z][A-Za-z0-9+.-]*:"
    return rf"{scheme}{part}(?:\?(?:{segment}|[/?{private}])*)?(?:#(?:{segment}|[/?])*)?"


_PLANES = "".join(rf"\u{{{plane:x}0000}}-\u{{{plane:x}fffd}}" for plane in range(1, 14))
_UCS = rf"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef{_PLANES}\u{{e1000}}-\u{{efffd}}"
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_URI, _IRI = _uri("", "", relative=False), _uri(_UCS, _PRIVATE, relative=False)

# RFC 6570, RFC 6901
_VARIABLE = r"\w(?:\.?\w)*(?::[1-9]\d{0,2}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&()*+,./0-9:;=?@A-Z\[\]_a-z~{_UCS}{_PRIVATE}-]|%[0-9A-Fa-f]{{2}}"
    rf"|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"


_HEX = "[0-9A-Fa-f]"
# First characters of blocks of letters: a range may lead from one block to a later one.
_BLOCKS = "\u00a1\u00c0\u00d0\u00e0\u00f0\u0100\u0250\u0370\u0400\u0500\u0900\u3040\u30a0\u4e00\u9fa0\uac00\ud7a4"


# Stand for the content of a group and of a look-ahead.
_GROUPED, _AHEAD = "\ue000", "\ue001"
# Kinds of groups that may be open at once: up to three groups, or a look-ahead and a group, one in the other.
_OPEN = ["", "g", "gg", "ggg", "a", "ag", "ga"]


def _flat_regex() -> str:
    """Return the pattern of patterns in which the content of every group is one character."""
    escape = rf"\\(?:[dDwWsSnrtfv.*+?^$()\[\]{{}}|\\/-]|x{_HEX}{{2}}|u(?:[0-9A-CE-Fa-ce-f]{_HEX}|[Dd][0-7]){_HEX}{{2}})"
    plain = rf"(?:\.|{escape}|[ -#%-',/-9:->@-Z_-z~\u00a1-\ud7ff\u{{10000}}-\u{{10ffff}}-])"
    # A range would begin with an item before a hyphen, so single hyphens stand first or last.
    item = rf"(?:[ -,.-Z\[_-~\u00a1-\ud7ff]|{_ranges()}|{escape}|\\b)"
    single = rf"(?:\[\^?-?(?:{item}\^*)+-?\]|{plain}|\((?:\?:)?{_GROUPED})"
    # Anchors, look-around and alternatives may stand anywhere; nothing repeats them. Look-behind has one width.
    others = rf"[|^$]|\\[bB]|\(\?<[=!]{plain}*\)|\(\?[=!]{_AHEAD}"
    return rf"(?:{single}(?:(?:[*+?]|\{{{_counts()}\}})\??)?|{others})*"


def regex_chars(budget: CompileBudget) -> CharDfa:
    """Return the automaton of the format `regex`: that of flat patterns, copied for each choice of open groups."""
    flat = char_dfa(parse_regex(_flat_regex(), "ecma"), budget).minimal()
    closing = flat.alphabet.class_of(ord(")"))
    marks = {kind: flat.alphabet.class_of(ord(mark)) for kind, mark in (("g", _GROUPED), ("a", _AHEAD))}
    after = {kind: int(flat.table[:, mark].max()) for kind, mark in marks.items()}
    num_inner = flat.num_states - 1
    first = {kinds: number * num_inner for number, kinds in enumerate(_OPEN)}  # state q becomes q + first[kinds]
    blocks = []
    for kinds in _OPEN:
        block = np.where(flat.table == DEAD, DEAD, flat.table + first[kinds])[1:]
        block[:, list(marks.values())] = DEAD
        if kinds:
            block[flat.accepting[1:], closing] = after[kinds[-1]] + first[kinds[:-1]]
        blocks.append(block)
    table = np.concatenate([np.zeros((1, flat.alphabet.num_classes), np.int32), *blocks])
    for kinds in _OPEN:
        for kind, mark in marks.items():
            if kinds + kind in first:
                # Before its content, a group reads on as the content does.
                states = np.flatnonzero(flat.table[:, mark]) + first[kinds]
                table[states] = np.where(table[states] == DEAD, table[START + first[kinds + kind]], table[states])
    accepting = np.zeros(len(table), np.bool_)
    accepting[: flat.num_states] = flat.accepting
    return trimmed_char_dfa(flat.alphabet, table, accepting)


def _ranges() -> str:
    """Return the pattern of ranges inside brackets, whose first character is not after the last."""
    # Of printable ASCII all but [ \ ] ^ and - may begin a range, and end it.
    found = [rf"\x{low:02x}-[\x{low:02x}-Z_-~]" for low in range(0x20, 0x5B) if low != 0x2D]
    found += [rf"\x{low:02x}-[\x{low:02x}-~]" for low in range(0x5F, 0x7F)]
    found += [rf"[\u{ord(low):04x}-\u{ord(end) - 1:04x}]-[\u{ord(end):04x}-\ud7ff]" for low, end in pairwise(_BLOCKS)]
    for low, digit in enumerate("0123456789abcde"):
        either = f"[{digit}{digit.upper()}]"
        larger = "".join(f"{high:x}{high:X}" for high in range(low + 1, 16))
        not_surrogate = f"[{larger.replace('dD', '')}]{_HEX}" + ("|[Dd][0-7]" if "d" in larger else "")
        if digit != "d":
            found.append(rf"\\u{either}{_HEX}{{3}}-\\u(?:{not_surrogate}){_HEX}{{2}}")
        found.append(rf"\\x{either}{_HEX}-\\x[{larger}]{_HEX}")
    return "|".join(found)


def _counts() -> str:
    """Return the pattern of a quantifier's bounds: the second, if there is one, is not below the first."""
    units = "|".join(f"{low},[{low}-9]" for low in range(10))
    tens = "|".join(f"{low}(?:{units.replace(',', f',{low}')}|[0-9],[{low + 1}-9][0-9])" for low in range(1, 9))
    nineties = f"9(?:{units.replace(',', ',9')})"
    return rf"(?:\d{{1,3}},?|{units}|\d,[1-9]\d{{1,2}}|{tens}|{nineties}|[1-9]\d,[1-9]\d{{2}})"


PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "email": _email(_ATOM, _HOSTNAME),
    "idn-email": _email(_ATOM + _BEYOND_ASCII, _IDN_HOSTNAME),
    "hostname": _HOSTNAME,
    "idn-hostname": _IDN_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": f"{_URI}|{_uri('', '', relative=True)}",
    "iri": _IRI,
    "iri-reference": f"{_IRI}|{_uri(_UCS, _PRIVATE, relative=True)}",
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]+0?)(?:#|{_POINTER})",
    "regex": _flat_regex(),  # of which `regex_chars` is the nested form
}

_ANYTHING = r"[^]*"
# Supersets of the formats of which PATTERNS has only a subset: all other texts are certainly not of the format.
_POSSIBLE = {
    "hostname": r"[A-Za-z0-9._-]*",
    "idn-hostname": r"[A-Za-z0-9._\u0080-\u{10ffff}-]*",
    **dict.fromkeys(("email", "idn-email"), r"[^]*@[^]*"),
    "time": r"[^]{2}:[^]{2}:[^]*",
    "date-time": r"[^]{10}[Tt ][^]{2}:[^]{2}:[^]*",
    "duration": r"P[^]*",
    "regex": _ANYTHING,
    "uri-template": _ANYTHING,
    "relative-json-pointer": r"\d[^]*",
}


@cache
def possible_expression(name: str) -> Expression | None:
    """Return a superset of a format that is known in part only, or None for other formats."""
    return parse_regex(_POSSIBLE[name], "ecma") if name in _POSSIBLE else None


@cache
def format_expression(name: str) -> Expression | None:
    """Return the expression of a format, or None if it is not enforced."""
    return parse_regex(PATTERNS[name], "ecma") if name in PATTERNS else None
