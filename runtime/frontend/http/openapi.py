"""Corrections of FastAPI's OpenAPI document: status 400 for wrong bodies, streams, API keys."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI


def install_openapi(app: FastAPI, *, has_keys: bool) -> None:
    """Remove FastAPI's own 422 responses, and add the API key."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = describe()
            for path in described["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                described.get("components", {}).get("schemas", {}).pop(name, None)
            if has_keys:
                described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                described["security"] = [{"key": []}]
                described["paths"]["/health"]["get"]["security"] = []
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
