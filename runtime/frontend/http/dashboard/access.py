"""Says who gets the page, and may see which of its data.

A server has several users if it has several API keys. Then a key sees its own requests only; an admin key sees that
the others' exist, without their titles and texts. `--page-texts off` takes all texts away.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response

from ....programs.records.view import ProgramRow, ProgramView, hidden_error, without_texts
from ....protocol.config import PageTextsName
from ...records.log import OwnedRow, OwnedView, Owner
from ..middleware.auth import ApiKeys
from ..scope import SCOPE_API_KEY, SCOPE_IS_ADMIN

HIDDEN_TITLE = "of another key"


def liveness(request: Request) -> Response | None:
    """Return the answer to a client of Ollama's that looks whether a server is there; None for a browser."""
    if "text/html" in request.headers.get("accept", ""):
        return None
    return PlainTextResponse("Ollama is running", headers={"vary": "accept"})


class Viewer(NamedTuple):
    """Somebody who looks at the page's data: a valid key, or None without one."""

    key: str | None
    is_admin: bool

    @classmethod
    def of(cls, connection: HTTPConnection) -> Viewer:
        """Return who sent a request that the middleware let through."""
        return cls(connection.scope[SCOPE_API_KEY], connection.scope[SCOPE_IS_ADMIN])


class PageAccess:
    """Access to the page's data on a server with these keys."""

    def __init__(self, keys: ApiKeys, texts: PageTextsName) -> None:
        self.keys = keys
        self._texts = texts

    def sees(self, viewer: Viewer, owner: Owner) -> bool:
        """Return True if the viewer may know of what `owner` asked."""
        return viewer.is_admin or self._is_own(viewer, owner)

    def names(self, viewer: Viewer, owner: Owner) -> bool:
        """Return True if the viewer may read the titles of what `owner` asked, also where texts are off."""
        return self._is_own(viewer, owner) or self.reads(viewer, owner)

    def reads(self, viewer: Viewer, owner: Owner) -> bool:
        """Return True if the viewer may read the texts of what `owner` asked."""
        if self._texts == "off":
            return False
        return self._is_own(viewer, owner) or (self._texts == "on" and viewer.is_admin)

    def reads_tree(self, viewer: Viewer, *, is_own: bool) -> bool:
        """Return True if the viewer may read a text in the prefix cache. `is_own`: only the viewer's key uses it."""
        if self._texts == "off":
            return False
        return not self.keys.several or is_own or (self._texts == "on" and viewer.is_admin)

    def shown_row(self, viewer: Viewer, owned: OwnedRow) -> ProgramRow | None:
        """Return a record's row as the viewer may see it, or None."""
        if not self.sees(viewer, owned.owner):
            return None
        row = owned.row
        if not self.names(viewer, owned.owner):
            row = msgspec.structs.replace(row, title=HIDDEN_TITLE, place=None)
        if self.reads(viewer, owned.owner):
            return row
        return msgspec.structs.replace(row, error=hidden_error(row.error), excerpt=None)

    def shown_view(self, viewer: Viewer, owned: OwnedView) -> ProgramView | None:
        """Return a record's view as the viewer may see it, or None."""
        if not self.sees(viewer, owned.owner):
            return None
        view = owned.view if self.reads(viewer, owned.owner) else without_texts(owned.view)
        return view if self.names(viewer, owned.owner) else without_names(view)

    def _is_own(self, viewer: Viewer, owner: Owner) -> bool:
        # A program over ZMQ has no key, and so is nobody's over HTTP.
        return not self.keys.several or (owner.way == "http" and viewer.key == owner.api_key)


def without_names(view: ProgramView) -> ProgramView:
    """Return a view without title, labels, places and names: only kinds, times and numbers are left."""
    replace = msgspec.structs.replace
    states = [
        replace(
            state,
            events=[replace(event, label=event.kind, name=None, place="", waits=()) for event in state.events],
            spans=[replace(span, place="") for span in state.spans],
        )
        for state in view.states
    ]
    return replace(view, title=HIDDEN_TITLE, place=None, states=states, lines=[], source={})
