"""Keys that middleware adds to the ASGI scope, and the paths that are exempt from authentication."""

from __future__ import annotations

from starlette.types import Scope

from ..records.log import Owner

SCOPE_API_KEY = "ramiform.key"  # the valid API key of the request, or None
SCOPE_IS_ADMIN = "ramiform.may_administer"  # True if the request may affect other users
SCOPE_SEND_BODY = "ramiform.parts"  # `send` of the outermost middleware, for parts of a body except the last

# For supervisors: exempt from keys and limits. llama-server has the second, platforms ask the third.
HEALTH_PATHS = frozenset({"/health", "/v1/health", "/ping"})
PUBLIC_PATHS = HEALTH_PATHS | frozenset(
    {
        # Pages for browsers, which cannot send a key before they have a page. They are the same on every server.
        # So are the files of the page at `/`, below PAGE_FILES.
        "/",
        "/docs",
        "/docs/favicon-32x32.png",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/openapi.json",
    }
)
PAGE_FILES = "/page/"
LIVE_PATH = "/v1/ramiform/live"  # a WebSocket whose first message has the key


def is_public(path: str) -> bool:
    """Return True for a path that needs no API key."""
    return path in PUBLIC_PATHS or path.startswith(PAGE_FILES)


def owner_of(scope: Scope) -> Owner:
    """Return who sent the request, for its record."""
    return Owner("http", scope.get(SCOPE_API_KEY))
