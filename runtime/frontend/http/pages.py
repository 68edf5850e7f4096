"""Pages for browsers: `/docs` shows every route; with `--no-page`, `/` describes the server.

They load nothing from other hosts, and need no key: a browser cannot send one before it has a page. So they show
nothing that a key protects. With keys, `/` names the model only to requests that have one.
"""

from __future__ import annotations

import json
import re
import shlex
from html import escape
from importlib import resources
from string import Template
from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse, Response

from ...protocol.errors import RuntimeFailed
from ...protocol.version import __version__
from ..text.generation import Generator
from .dashboard.access import liveness
from .scope import SCOPE_API_KEY

# Swagger UI's own build, from the package fastapi-swagger; PUBLIC_PATHS in scope.py lists these paths too.
ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
_HOME_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_NOT_GUESSED = {"x-content-type-options": "nosniff"}
_CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is the capital of France?"}]})
_TEXT = ("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 8})
_EXAMPLES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "One of several answers",
        "/v1/constrained",
        {"prompt": "The capital of France is", "choices": [" Paris", " Rome", " Oslo"]},
    ),
    (
        "JSON of a schema",
        "/v1/constrained",
        {
            "prompt": "Paris, a city in France, as JSON: ",
            "json_schema": {
                "type": "object",
                "properties": {"kind": {"enum": ["city", "river"]}, "capital": {"type": "boolean"}},
                "required": ["kind", "capital"],
                "additionalProperties": False,
            },
        },
    ),
]
_HOME = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
pre { padding: .75rem 1rem; border: 1px solid #8886; border-radius: .4rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
h2 { font-size: 1rem; margin: 1.75rem 0 .25rem; }
nav a { margin-right: 1.25rem; }
</style>
</head>
<body>
<h1>ramiform $version</h1>
$about
<nav><a href="docs">API reference</a><a href="v1/models">Models</a><a href="health">Health</a><a
href="metrics">Metrics</a></nav>
$examples
</body>
</html>
"""
)


class PagesApi:
    """`has_keys`: all routes but these pages need an API key. `has_home`: `/` is the page here, not that of `page/`."""

    def __init__(self, generator: Generator, *, has_keys: bool, has_home: bool) -> None:
        self._generator = generator
        self._has_keys = has_keys
        self._has_home = has_home

    @property
    def router(self) -> APIRouter:
        router = APIRouter()
        if self._has_home:
            router.add_api_route("/", self.home, methods=["GET", "HEAD"], include_in_schema=False)
        router.add_api_route("/docs", self.docs, methods=["GET"], include_in_schema=False)
        for name in ASSETS:
            router.add_api_route(f"/docs/{name}", self.asset, methods=["GET"], include_in_schema=False)
        return router

    async def home(self, request: Request) -> Response:
        if (answer := liveness(request)) is not None:
            return answer
        title, about, status = "ramiform", "", 200
        if self._has_keys and request.scope.get(SCOPE_API_KEY) is None:
            about = "<p>Requests need an API key: <code>Authorization: Bearer KEY</code>.</p>"
        else:
            try:
                info = self._generator.core.require_info()
            except RuntimeFailed:
                about, status = "<p>The model is not loaded. <a href='health'>Health</a> says why.</p>", 503
            else:
                title = f"{info.name} - ramiform"
                about = f"<p><b>{escape(info.name)}</b>, {info.context_length} tokens of context.</p>"
        page = _HOME.substitute(
            title=escape(title), version=escape(__version__), about=about, examples=self._examples(request)
        )
        headers = {"content-security-policy": _HOME_POLICY, **_NOT_GUESSED}
        return HTMLResponse(page, status, headers if status == 200 else {"retry-after": "1", **headers})

    async def docs(self, request: Request) -> Response:
        page = get_swagger_ui_html(
            # Relative: the server may be behind a prefix.
            openapi_url="openapi.json",
            title="ramiform: API reference",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon-32x32.png",
        )
        page.headers.update({"content-security-policy": _DOCS_POLICY, **_NOT_GUESSED})
        return page

    async def asset(self, request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        path = str(resources.files("fastapi_swagger.resources") / name)
        return FileResponse(path, media_type=ASSETS[name], headers=_NOT_GUESSED)

    def _examples(self, request: Request) -> str:
        first = ("An answer", *(_TEXT if self._generator.tokenizer.chat is None else _CHAT))
        return "\n".join(
            f"<h2>{escape(title)}</h2>\n<pre><code>{escape(self._curl(request, path, body))}</code></pre>"
            for title, path, body in (first, *_EXAMPLES)
        )

    def _curl(self, request: Request, path: str, body: dict[str, Any]) -> str:
        """Return a curl command for a POSIX shell, on one line."""
        words = ["curl", _base_url(request) + path, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
        if (socket := _unix_socket(request)) is not None:
            words[1:1] = ["--unix-socket", socket]
        line = shlex.join(words)
        # The shell inserts the key, so no page and no shell history contains it.
        return line + ' -H "Authorization: Bearer $API_KEY"' if self._has_keys else line


def _base_url(request: Request) -> str:
    """Return the server's URL as the client sees it. The Host header counts only if it is a plain host and port."""
    host = request.headers.get("host", "")
    if _HOST.fullmatch(host) is None:
        name, port = request.scope.get("server") or ("localhost", None)
        host = "localhost" if port is None else f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return f"{request.url.scheme}://{host}{request.scope.get('root_path', '')}"


def _unix_socket(request: Request) -> str | None:
    name, port = request.scope.get("server") or (None, None)
    return name if port is None else None
