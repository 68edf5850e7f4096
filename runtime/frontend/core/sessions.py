"""Sessions of clients: which requests belong to one conversation, as clients tell in headers and fields.

The core treats a session as a program: its prefixes are kept while it waits, and go first once it has ended. A session
belongs to the API key that names it, and is the same in every frontend.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, NamedTuple

from ...protocol.core import Retention
from ...protocol.errors import RequestError
from .tenant import current_tenant

# Of clients and routers, by precedence. A request's own field precedes them.
SESSION_HEADERS = (
    "x-session-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
)
MAX_RETENTION_SECONDS = 86400.0
MAX_RETENTION_HINTS = 8  # of a request, the last ones
_NUM_SOUGHT = 256  # characters of a text that are looked for in the prompt
_TTL = re.compile(r"([0-9]{1,6})([smh])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MAX_SESSIONS_PER_KEY = 1024  # of one frontend; the one used least recently is ended first


class RetentionHint(NamedTuple):
    """A client asks to keep a prompt for so many seconds, up to the end of a text in it; None: all of it."""

    seconds: float
    text: str | None = None


class SessionId(NamedTuple):
    """A client's name of a session. `is_shared`: several conversations may have it, so that none replaces another."""

    name: str
    is_shared: bool = False


_header_session: ContextVar[str | None] = ContextVar("ramiform_session", default=None)


def note_headers(headers: Mapping[str, str]) -> None:
    """Note the session that the headers of the current HTTP request name."""
    _header_session.set(next((value for name in SESSION_HEADERS if (value := headers.get(name))), None))


def requested_session(field: str | None, cache_key: str | None = None, chain: str | None = None) -> SessionId | None:
    """Return the session of the current request: of its field, else its headers, its cache key, its chain of responses.

    None: it names none, and the core recognises it by its prefix.
    """
    name = field or _header_session.get()
    if name:
        return SessionId(name)
    if cache_key:
        return SessionId(f"key {cache_key}", is_shared=True)
    return None if chain is None else SessionId(f"chain {chain}")


def cache_control_seconds(control: Any, where: str) -> float:
    """Return the time of Anthropic's `cache_control`. Raises RequestError for another form."""
    ttl = control.get("ttl", "5m") if isinstance(control, dict) else None
    match = _TTL.fullmatch(ttl) if isinstance(ttl, str) else None
    if match is None or not isinstance(control, dict) or control.get("type", "ephemeral") != "ephemeral":
        raise RequestError(
            f'{where} must be {{"type": "ephemeral", "ttl": "5m"}}, or "1h"; got {control!r}', param=where
        )
    return min(MAX_RETENTION_SECONDS, float(match[1]) * _UNITS[match[2]])


def core_retention(hints: Sequence[RetentionHint], text: str, num_tokens: int) -> list[Retention]:
    """Return hints for the core, of a prompt of that rendered text and so many tokens.

    The place of a text within the prompt counts in proportion: what is kept ends a few tokens before or after it.
    """
    if not hints:
        return []
    account = _core_name(current_tenant.get().key, "")
    seconds: dict[int, float] = {}
    for hint in hints[-MAX_RETENTION_HINTS:]:  # later ones cover the parts of those before
        num = num_tokens
        sought = (hint.text or "").strip()[-_NUM_SOUGHT:]
        if sought and (at := text.find(sought)) >= 0:
            num = -(-num_tokens * (at + len(sought)) // len(text))
        seconds[num] = max(seconds.get(num, 0.0), hint.seconds)
    return [Retention(num, each, account) for num, each in seconds.items()]


class ClientSessions:
    """The sessions of this frontend's clients, bounded for each API key."""

    def __init__(self, end: Callable[[str], None], max_per_key: int = MAX_SESSIONS_PER_KEY) -> None:
        """`end` is called with the core's name of a session that has ended."""
        self._end = end
        self._max_per_key = max_per_key
        self._known: dict[str | None, OrderedDict[str, None]] = {}  # the core's names by API key, used last at the end

    def note(self, session: SessionId) -> str:
        """Note a request of a session of the current API key, and return the core's name of the session."""
        key = current_tenant.get().key
        known = self._known.setdefault(key, OrderedDict())
        name = _core_name(key, session.name)
        known[name] = None
        known.move_to_end(name)
        while len(known) > self._max_per_key:
            self._end(known.popitem(last=False)[0])
        return name

    def close(self, key: str | None, name: str) -> bool:
        """End a session of an API key. Returns False if this frontend has not seen it."""
        core_name = _core_name(key, name)
        known = self._known.get(key, {})
        if core_name not in known:
            return False
        del known[core_name]
        self._end(core_name)
        return True


def _core_name(key: str | None, name: str) -> str:
    """Return a name that tells neither the key nor what the client calls its session."""
    return blake2b(repr((key, name)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
