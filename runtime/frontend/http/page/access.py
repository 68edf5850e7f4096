"""Says who may see which data of the page.

A server has several users if it has several API keys. Then a key sees its own requests only; an admin key sees that
the others' exist, without their titles and texts. `--page-texts off` takes all texts away.
"""

from __future__ import annotations

from typing import NamedTuple

from starlette.requests import HTTPConnection

from ....protocol.config import PageTextsName
from ..middleware.auth import ApiKeys
from ..scope import SCOPE_API_KEY, SCOPE_IS_ADMIN


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

    def sees(self, viewer: Viewer, owner: str | None, *, over_http: bool = True) -> bool:
        """Return True if the viewer may know of what `owner`, a key, asked. Programs over ZMQ have no key."""
        return viewer.is_admin or self._is_own(viewer, owner, over_http)

    def reads(self, viewer: Viewer, owner: str | None, *, over_http: bool = True) -> bool:
        """Return True if the viewer may read the titles and texts of what `owner` asked."""
        if self._texts == "off":
            return False
        return self._is_own(viewer, owner, over_http) or (self._texts == "on" and viewer.is_admin)

    def names(self, viewer: Viewer, owner: str | None, *, over_http: bool = True) -> bool:
        """Return True if the viewer may read titles: also where texts are off, but only of its own requests."""
        return self._is_own(viewer, owner, over_http) or self.reads(viewer, owner, over_http=over_http)

    def reads_tree(self, viewer: Viewer) -> bool:
        """Return True if the viewer may read the texts in the prefix cache, which are of all users."""
        if self._texts == "off":
            return False
        return not self.keys.several or (self._texts == "on" and viewer.is_admin)

    def _is_own(self, viewer: Viewer, owner: str | None, over_http: bool) -> bool:
        return not self.keys.several or (over_http and viewer.key == owner)
