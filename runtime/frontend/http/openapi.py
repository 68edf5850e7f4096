"""Corrections of FastAPI's OpenAPI document: status 400 for wrong bodies, streams, API keys."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response


def schemas_of(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schemas of answers and their parts, by name."""
    _, found = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = found["$defs"]
    return schemas


def install_openapi(app: FastAPI, *, has_keys: bool, schemas: dict[str, Any]) -> None:
    """Remove FastAPI's own 422 responses; add the API key, and `schemas` of bodies and answers that FastAPI does not
    know.

    Also adds the document's route. It needs no key, so it must be cheap: the document is encoded once.
    """
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = describe()
            for path in described["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                described.get("components", {}).get("schemas", {}).pop(name, None)
            known = described.setdefault("components", {}).setdefault("schemas", {})
            assert not known.keys() & schemas.keys(), "two schemas with one name"
            known.update(schemas)
            if has_keys:
                described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                described["security"] = [{"key": []}]
                for path in ("/health", "/v1/health", "/ping"):
                    for operation in described["paths"][path].values():
                        operation["security"] = []
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    @cache
    def encoded() -> bytes:
        return msgspec.json.encode(openapi())

    async def document(request: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    app.add_route("/openapi.json", document, include_in_schema=False)
