"""What schemathesis makes of our OpenAPI document finds no server error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

SECONDS = 500


def with_model(described: Any, model: str) -> Any:
    """The document with the one model that there is, so that bodies get beyond it."""
    for schema in described["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {
                "enum": [model] if "model" in schema.get("required", ()) else [model, None]
            }
    return described


def test_the_document_is_true_of_every_route(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    assert "422" not in json.dumps(described["paths"])
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/decisions", "/generate", "/tokenizer_info"):
        assert path in described["paths"]
    for operations in described["paths"].values():
        for operation in operations.values():
            assert {"200", "400", "401", "404", "413", "429", "503"} <= set(operation["responses"])
            assert operation.get("summary")
            assert operation.get("description")
    assert http.get("/docs").status_code == 200


# Every route with random bodies; those that answer quickly with each field's edges, and what is just beyond them.
PHASES = {
    "fuzzing": [],
    "coverage": [
        "--include-path-regex",
        "^/(v1/(decisions|embeddings)|detokenize|abort_request)$",
    ],
}
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
]


@pytest.mark.parametrize("phase", PHASES)
def test_the_document_says_which_bodies_are_answered(
    http: httpx.Client, url: str, model: str, tmp_path: Path, phase: str
) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(with_model(http.get("/openapi.json").json(), model)))
    checks = CHECKS + ["negative_data_rejection"] * (phase == "coverage")
    command = [Path(sys.executable).parent / "schemathesis", "run", document, "--url", url, *PHASES[phase]]
    command += ["--checks", ",".join(checks), "--max-examples", "8", "--phases", phase, "--seed", "1"]
    command += ["--request-timeout", "120", "--suppress-health-check", "too_slow"]  # how fast it is is not the question
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    assert http.get("/health").status_code == 200
