r"""The string formats that are enforced, as patterns. Each is a subset of its RFC that every reader accepts."""

from __future__ import annotations

from functools import cache

from .expression import Expression
from .regex import parse_regex

_DAY28 = r"(?:0[1-9]|1\d|2[0-8])"
_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000)"  # not 0000
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY28}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,6}}"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
# Groups before and after the `::`, at most six in all, or all eight.
_IPV6 = "|".join(
    [rf"{_GROUP}(?::{_GROUP}){{7}}", "::"]
    + [rf"(?:{_GROUP}(?::{_GROUP}){{{n - 1}}})::(?:{_GROUP}(?::{_GROUP}){{0,{6 - n}}})?" for n in range(1, 7)]
    + [rf"::{_GROUP}(?::{_GROUP}){{0,6}}", rf"{_GROUP}(?::{_GROUP}){{6}}::"]
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_URI_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"

PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|\d+W)",
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOSTNAME}",
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOSTNAME}(?::\d{{1,5}})?(?:/{_URI_CHARACTER}*)*"
    rf"(?:\?(?:{_URI_CHARACTER}|[/?])*)?(?:#(?:{_URI_CHARACTER}|[/?])*)?",
}


@cache
def format_expression(name: str) -> Expression:
    """Raises KeyError for a format that is not enforced."""
    return parse_regex(PATTERNS[name])
