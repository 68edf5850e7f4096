"""docs/use/http.md, docs/use/batches.md and docs/use/ollama.md agree with the server's OpenAPI document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import ramiform

DOCS = (Path(ramiform.__file__).parent / "docs/use/http.md").read_text("utf-8")
OLLAMA = (Path(ramiform.__file__).parent / "docs/use/ollama.md").read_text("utf-8")
BATCHES = (Path(ramiform.__file__).parent / "docs/use/batches.md").read_text("utf-8")
UNDESCRIBED = {"/", "/page/...", "/v1/ramiform/live"}  # OpenAPI has no pages and no WebSockets here
WORDS = frozenset(re.findall(r"[a-z_0-9]+", DOCS + OLLAMA + BATCHES))


@pytest.mark.slow
def test_every_route_is_documented_and_no_other(http: httpx.Client) -> None:
    table = DOCS.partition("## Routes")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(?:[A-Z]+ )?(/[^`]*)`", table)) - {"/v1"}
    served = {path.replace("{model}", "{id}").replace("{response_id}", "{id}") for path in document(http)["paths"]}
    assert documented - UNDESCRIBED == served - {"/v1/tokenize", "/v1/detokenize"}
    assert documented >= UNDESCRIBED


def test_every_field_is_documented(http: httpx.Client) -> None:
    schemas = document(http)["components"]["schemas"]
    bodies = [name for name in schemas if name.endswith("Body")]
    assert len(bodies) >= 10
    unknown = {(name, field) for name in bodies for field in schemas[name]["properties"] if field not in WORDS}
    assert unknown == set()


def document(http: httpx.Client) -> dict[str, Any]:
    described: dict[str, Any] = http.get("/openapi.json").json()
    return described
