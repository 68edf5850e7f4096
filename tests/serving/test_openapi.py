"""schemathesis finds no server error with the OpenAPI document."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from ramiform.tests.fuzzing import FUZZ_SECONDS

SECONDS = 500
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


def with_test_data(described: Any, http: httpx.Client, model: str) -> Any:
    """The document with names of what there is: the one model, and a stored response for each operation on one.

    Without the routes of adapters, of which there are none.
    """
    for path in [path for path in described["paths"] if path.endswith("_lora_adapter")]:
        del described["paths"][path]
    for schema in described["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": [model, None]}
        if "grammar_lazy" in schema.get("properties", {}):  # it needs a grammar, and triggers of one kind
            schema["properties"]["grammar_lazy"] = {"enum": [False]}
    described["components"]["schemas"]["GenerateBody"]["properties"]["session_params"] = {"type": "null"}
    described["components"]["schemas"]["BatchBody"]["properties"]["input_file_id"] = {"enum": [new_file(http)]}
    for path, operations in described["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "model":
                    parameter["schema"] = {"enum": [model]}
                elif parameter["name"] == "response_id":
                    stored = http.post("/v1/responses", json={"input": "a", "max_output_tokens": 1, "background": True})
                    parameter["schema"] = {"enum": [stored.json()["id"]]}
                elif parameter["name"] == "conversation_id":
                    parameter["schema"] = {"enum": [conversation := new_conversation(http)]}
                elif parameter["name"] == "file_id":
                    parameter["schema"] = {"enum": [new_file(http)]}
                elif parameter["name"] == "batch_id":
                    parameter["schema"] = {"enum": [new_batch(http, path)]}
                elif parameter["name"] == "item_id":  # of that conversation
                    [item] = http.get(f"/v1/conversations/{conversation}/items").json()["data"]
                    parameter["schema"] = {"enum": [item["id"]]}
    return described


def new_file(http: httpx.Client) -> str:
    form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("requests.jsonl", b"{}")}}
    return str(http.post("/v1/files", **form).json()["id"])


def new_batch(http: httpx.Client, path: str) -> str:
    """Begin a batch of the API whose route is at `path`."""
    if path.startswith("/v1/messages"):
        params = {"model": "", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
        body: dict[str, Any] = {"requests": [{"custom_id": "a", "params": params}]}
        return str(http.post("/v1/messages/batches", json=body).json()["id"])
    return str(http.post("/v1/batches", json=BATCH | {"input_file_id": new_file(http)}).json()["id"])


def new_conversation(http: httpx.Client) -> str:
    items = [{"role": "user", "content": "a"}]
    return str(http.post("/v1/conversations", json={"items": items}).json()["id"])


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


# Refused whatever is asked, because the model that ships has no tokens for infilling, and no relevance.
FOR_OTHER_MODELS = ("/infill", "/v1/classify", "/v1/rerank")


# Their examples need a folder or tensors, a trainer's group, or a runtime that nobody else asks meanwhile.
NEEDS_MORE = (
    "_lora_adapter",
    "_from_disk",
    "_from_tensor",
    "_from_distributed",
    "_weights_update_group",
    "_memory_occupation",
)


def test_every_body_has_an_example_that_is_answered(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    bodies = {
        path: operation["requestBody"]["content"]["application/json"]["schema"]
        for path, operations in described["paths"].items()
        for operation in operations.values()
        if "application/json" in operation.get("requestBody", {}).get("content", ())
        if path not in ("/abort_request", "/pause_generation")
        if not path.endswith(NEEDS_MORE)
    }
    assert len(bodies) >= 13
    for path, schema in bodies.items():
        [example] = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["examples"]
        jsonschema.Draft202012Validator(schema | {"components": described["components"]}).validate(example)
        named = path.replace("{conversation_id}", new_conversation(http))
        if "input_file_id" in example:
            example |= {"input_file_id": new_file(http)}
        assert http.post(named, json=example).status_code == (400 if path in FOR_OTHER_MODELS else 200), path


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "tool", "content": "a"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "what", "refusal": "a"}]}]}),
    ("/v1/completions", {"prompt": []}),
    ("/v1/completions", {"prompt": "a", "top_p": 0}),
    ("/v1/completions", {"prompt": "a", "min_p": 2}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 200}}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"a": 1}}),
    ("/v1/completions", {"prompt": "a", "stop": [""]}),
    ("/v1/responses", {"input": ""}),
    ("/v1/responses/compact", {}),
    ("/v1/embeddings", {"input": [""]}),
    ("/v1/decisions", {"input": "a", "questions": []}),
    ("/v1/decisions", {"input": "a", "questions": [{"type": "predicate", "instructions": " "}]}),
    ("/v1/constrained", {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "regex": "a"}),
    ("/v1/constrained", {"prompt": "a"}),
    ("/v1/score", {"prompt": "a", "continuations": []}),
    ("/tokenize", {}),
    ("/generate", {"text": "a", "input_ids": [5]}),
    ("/generate", {"text": "a", "sampling_params": {"top_k": 0}}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_what_is_refused_is_wrong_by_the_document_too(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    described = http.get("/openapi.json").json()
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert http.post(path, json=body).status_code == 400
    judge = jsonschema.Draft202012Validator(schema | {"components": described["components"]})
    assert not judge.is_valid(body)


# Every route with random bodies; those that answer quickly with each field's edges, and what is just beyond them.
PHASES = {
    # Left out: others would wait for ever; needs an open session; needs another runtime; needs the
    # number of a node; needs files of weights; refuses all requests until it wakes.
    "fuzzing": [
        "--exclude-path-regex",
        "^/(pause|close_session|drain|infill|update_weights_|(init|destroy)_weights|release_memory|sleep|v1/classify|v1/rerank|v1/ramiform/tree/)",
    ],
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


@pytest.mark.exhaustive
@pytest.mark.fuzz
@pytest.mark.parametrize("phase", PHASES)
def test_the_document_says_which_bodies_are_answered(
    http: httpx.Client, url: str, model: str, tmp_path: Path, phase: str
) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(with_test_data(http.get("/openapi.json").json(), http, model)))
    checks = CHECKS + ["negative_data_rejection"] * (phase == "coverage")
    command = [Path(sys.executable).parent / "schemathesis", "run", document, "--url", url, *PHASES[phase]]
    command += [
        "--checks",
        ",".join(checks),
        "--max-examples",
        "20" if FUZZ_SECONDS else "8",
        "--phases",
        phase,
        "--seed",
        "1",
    ]
    command += ["--request-timeout", "120", "--suppress-health-check", "too_slow"]  # how fast it is is not the question
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    # A warning is of an operation whose valid bodies were all refused: the document does not say what is demanded.
    assert "WARNINGS" not in done.stdout, done.stdout.partition("WARNINGS")[2][:6000]
    assert http.get("/health").status_code == 200
