"""Patterns of the texts that stand for dates, times, durations, decimals, bytes, networks and numbers as names.

JSON Schema's formats admit texts that parsers refuse, and the other way round: `date-time` requires a time zone, which
`datetime.isoformat()` often lacks; `duration` has no fractions of seconds. Patterns match the whole text; their syntax
is common to ECMA-262 and Python.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any, Literal

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]{1,6})?"  # microseconds: what Python keeps
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_DAYS = "(?:1?[0-9]{1,6}Y(?:[0-9]{1,3}D)?|[0-9]{1,8}D)"  # together below the largest timedelta
_HOURS = (
    r"T(?:[0-9]{1,8}H(?:[0-9]{1,8}M)?(?:[0-9]{1,8}(?:\.[0-9]{1,6})?S)?|[0-9]{1,8}M(?:[0-9]{1,8}(?:\.[0-9]{1,6})?S)?"
)
_HOURS += r"|[0-9]{1,8}(?:\.[0-9]{1,6})?S)"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "(?:0|[1-9a-f][0-9a-f]{0,3})"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEADS = ["", _GROUP, *(f"{_GROUP}(?::{_GROUP}){{{num}}}" for num in range(1, 7))]
_TAILS = ["", f"(?:{_GROUP})?", *(f"(?:{_GROUP}(?::{_GROUP}){{0,{num}}})?" for num in range(1, 7))]
_SHORTENED = "|".join(f"{head}::{tail}" for head, tail in zip(_HEADS, reversed(_TAILS), strict=True))
_IPV6 = f"(?:(?:{_GROUP}:){{7}}{_GROUP}|{_SHORTENED})"
_DIGITS = "[0-9]{1,18}"

Zone = Literal["required", "none"] | None  # None: with or without one

DECIMAL = r"^-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?(?:E[+-]?[0-9]{1,3})?$"
FLOAT = rf"^-?(?:0|[1-9][0-9]{{0,17}})(?:\.{_DIGITS})?$"
COMPLEX = rf"^(?:-?{_DIGITS}(?:\.{_DIGITS})?[+-]|-?){_DIGITS}(?:\.{_DIGITS})?j$"
BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
BASE64URL = "^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?$"
HEX = "^(?:[0-9a-f]{2})*$"
NOT_PADDED = r"^(?:\S(?:[\s\S]*\S)?)?$"  # no white space around it
ASCII = "^[ -~]*$"


def date_pattern(low: datetime.date | None = None, high: datetime.date | None = None) -> str:
    """Return the pattern of ISO dates from `low` to `high`."""
    return f"^{_ahead(_iso(low), _iso(high), '0001-01-01', '9999-12-31')}{_DATE}$"


def datetime_pattern(zone: Zone, low: datetime.datetime | None = None, high: datetime.datetime | None = None) -> str:
    """Return the pattern of ISO dates with times. Bounded ones have whole seconds, in UTC if a bound has a zone."""
    bounds = [bound for bound in (low, high) if bound is not None]
    if not bounds:
        return f"^{_DATE}T{_CLOCK}{_FRACTION}{_zone(zone)}$"
    aware = bounds[0].tzinfo is not None
    low, high = (bound.astimezone(datetime.UTC) if bound and bound.tzinfo else bound for bound in (low, high))
    ahead = _ahead(_seconds(low), _seconds(high), "0001-01-01T00:00:00", "9999-12-31T23:59:59")
    return f"^{ahead}{_DATE}T{_CLOCK}{'Z' if aware else ''}$"


def time_pattern(zone: Zone, low: datetime.time | None = None, high: datetime.time | None = None) -> str:
    """Return the pattern of ISO times; bounded ones are in whole seconds, without a zone."""
    if low is None and high is None:
        return f"^{_CLOCK}{_FRACTION}{_zone(zone)}$"
    return f"^{_ahead(_seconds(low), _seconds(high), '00:00:00', '23:59:59')}{_CLOCK}$"


def duration_pattern(low: int | None = None, high: int | None = None, *, years: bool = True) -> str:
    """Return the pattern of ISO durations; bounded ones, from `low` to `high` seconds, have seconds only."""
    if low is None and high is None:
        days = _DAYS if years else "[0-9]{1,8}D"
        return f"^-?P(?:{days}(?:{_HOURS})?|{_HOURS})$"
    limit = 10**9
    low, high = max(-limit, -limit if low is None else low), min(limit, limit if high is None else high)
    parts = []
    if high >= 0:
        parts.append(f"PT{_naturals(max(low, 0), high)}S")
    if low < 0:
        parts.append(f"-PT{_naturals(max(-high, 1), -low)}S")
    return f"^(?:{'|'.join(parts)})$"


def integer_pattern(low: int | None = None, high: int | None = None) -> str:
    """Return the pattern of integers from `low` to `high`, of up to 18 digits where there is no bound."""
    if low is None and high is None:
        return "^(?:0|-?[1-9][0-9]{0,17})$"
    low = -max(10**18, 10 * abs(high or 0)) if low is None else low
    high = max(10**18, 10 * abs(low)) if high is None else high
    parts = []
    if low < 0:
        parts.append(f"-{_naturals(max(-high, 1), -low)}")
    if high >= 0:
        parts.append(_naturals(max(low, 0), high))
    return f"^(?:{'|'.join(parts)})$"


def decimal_digits_pattern(digits: int) -> str:
    """Return the pattern of decimals with up to `digits` digits, zeros included."""
    ways = [rf"[1-9][0-9]{{0,{digits - 1}}}", "0"]
    ways += [rf"[0-9]\.[0-9]{{1,{digits - 1}}}"] if digits > 1 else []
    ways += [rf"[1-9][0-9]{{{whole - 1}}}\.[0-9]{{1,{digits - whole}}}" for whole in range(2, digits)]
    return f"^-?(?:{'|'.join(ways)})$"


def uuid_pattern(version: int) -> str:
    """Return the pattern of UUIDs of a version."""
    some = "[0-9a-f]"
    return f"^{some}{{8}}-{some}{{4}}-{version:x}{some}{{3}}-[89ab]{some}{{3}}-{some}{{12}}$"


def network_pattern(version: str, what: str) -> str:
    """Return the pattern of an address, a network or an interface of "ipv4", "ipv6" or, of either, "ipvany".

    IPv6 addresses are in lower case; IPv6 networks have prefixes of whole groups.
    """
    match version, what:
        case "ipvany", _:
            either = (network_pattern(one, what)[1:-1] for one in ("ipv4", "ipv6"))
            return f"^(?:{'|'.join(either)})$"
        case "ipv4", "address":
            return f"^{_IPV4}$"
        case "ipv6", "address":
            return f"^{_IPV6}$"
        case "ipv4", "interface":
            return f"^{_IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?$"
        case "ipv6", "interface":
            return f"^{_IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?$"
        case "ipv4", "network":
            return f"^(?:{'|'.join(map(_ipv4_network, range(33)))})$"
        case _:
            groups = "|".join(f"{_GROUP}(?::{_GROUP}){{{num - 1}}}::/{16 * num}" for num in range(1, 7))
            return f"^(?:::/0|{groups}|{_IPV6}(?:/128)?)$"


def url_pattern(schemes: list[str], *, with_host: bool) -> str:
    """Return the pattern of URLs with one of the schemes and a host name."""
    label = "[a-z0-9]{1,20}(?:-[a-z0-9]{1,20})?"
    host = rf"(?:{label}\.){{{1 if with_host else 0},4}}[a-z]{{2,20}}"
    path = r"(?:/[A-Za-z0-9._~-]{0,60}){0,12}(?:\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?"
    return f"^(?:{'|'.join(schemes)})://{host}(?::[1-9][0-9]{{0,3}})?{path}$"


def whole_seconds(low: Any, high: Any, above: Any, below: Any) -> tuple[Any, Any]:
    """Return bounds of dates with times in whole seconds: `low` to `high`, after `above`, before `below`."""
    second = datetime.timedelta(seconds=1)
    lows = [bound for bound in (_up(low), above and above.replace(microsecond=0) + second) if bound is not None]
    highs = [bound and bound.replace(microsecond=0) for bound in (high, _up(below) and _up(below) - second)]
    return max(lows, default=None), min((bound for bound in highs if bound is not None), default=None)


def _up(moment: Any) -> Any:
    """Return the moment, or the next whole second."""
    if moment is None or not moment.microsecond:
        return moment
    return moment.replace(microsecond=0) + datetime.timedelta(seconds=1)


def _iso(day: datetime.date | None) -> str | None:
    return None if day is None else day.isoformat()


def _seconds(moment: datetime.datetime | datetime.time | None) -> str | None:
    return None if moment is None else moment.replace(tzinfo=None).isoformat(timespec="seconds")


def _zone(zone: Zone) -> str:
    return {"required": _ZONE, "none": "", None: f"{_ZONE}?"}[zone]


def _ahead(low: str | None, high: str | None, first: str, last: str) -> str:
    """Return a look-ahead that admits what stands from `low` to `high`: texts of one width sort as their values do."""
    if low is None and high is None:
        return ""
    return f"(?={_between(low or first, high or last)})"


def _between(low: str, high: str) -> str:
    """Return the pattern of texts from `low` to `high`, of their width, with other characters at digits only."""
    if low > high:
        raise ValueError(f"nothing is from {low} to {high}")
    if low == high:
        return low
    at = next(index for index, (a, b) in enumerate(zip(low, high, strict=True)) if a != b)
    head, below, above = low[:at], int(low[at]), int(high[at])
    rest_low, rest_high = low[at + 1 :], high[at + 1 :]
    ways = [f"{below}{_beyond(rest_low, up=True)}", f"{above}{_beyond(rest_high, up=False)}"]
    if above - below > 1:
        ways.append(f"{_digit(below + 1, above - 1)}{_any(rest_low)}")
    return f"{head}(?:{'|'.join(ways)})"


def _beyond(bound: str, *, up: bool) -> str:
    """Return the pattern of texts from the bound on, or up to it."""
    ways = [bound]
    for index, digit in enumerate(bound):
        if digit.isdigit() and digit != ("9" if up else "0"):
            further = _digit(int(digit) + 1, 9) if up else _digit(0, int(digit) - 1)
            ways.append(f"{bound[:index]}{further}{_any(bound[index + 1 :])}")
    return f"(?:{'|'.join(ways)})"


def _any(text: str) -> str:
    return "".join("[0-9]" if character.isdigit() else character for character in text)


def _digit(low: int, high: int) -> str:
    return str(low) if low == high else f"[{low}-{high}]"


def _naturals(low: int, high: int) -> str:
    """Return the pattern of natural numbers from `low` to `high`, without leading zeros."""
    ways = []
    for width in range(len(str(low)), len(str(high)) + 1):
        least, most = max(low, 10 ** (width - 1) if width > 1 else 0), min(high, 10**width - 1)
        ways.append(_between(f"{least:0{width}}", f"{most:0{width}}"))
    if not ways:
        raise ValueError(f"no number is from {low} to {high}")
    return f"(?:{'|'.join(ways)})"


def _ipv4_network(bits: int) -> str:
    """Return the pattern of addresses whose bits after the first `bits` are zero, with `/bits`."""
    whole, part = divmod(bits, 8)
    octets = [_OCTET] * whole
    if part:
        octets.append(f"(?:{'|'.join(str(value) for value in range(0, 256, 1 << (8 - part)))})")
    octets += ["0"] * (4 - len(octets))
    return r"\.".join(octets) + (f"/{bits}" if bits < 32 else "(?:/32)?")


def decimal_bound(value: Any) -> int | float:
    """Return a bound of decimals as a number that JSON writes exactly enough."""
    exact = Decimal(value)
    return int(exact) if exact == exact.to_integral_value() else float(exact)
