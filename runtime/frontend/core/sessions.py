"""Sessions of clients: which requests belong to one conversation, as clients tell in headers and fields.

The core treats a session as a program: its prefixes are kept while it waits, and go first once it has ended. A session
belongs to the API key that names it, and is the same in every frontend.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from hashlib import blake2b
from typing import NamedTuple

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
MAX_SESSIONS_PER_KEY = 1024  # of one frontend; the one used last is ended first


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
