"""The route that checks and probes constraints, on the model that ships. Judges: the texts that a constraint lists, the
masks that the core sampled under, and marks in sources at the places of their faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ramiform.runtime.frontend.http.dashboard import constraint
from ramiform.runtime.frontend.http.dashboard.constraint import ConstraintChecker
from ramiform.runtime.frontend.text.offload import CancellationToken, WorkCancelledError
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.sampling import Constraint
from ramiform.runtime.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(SHIPPED_MODEL)
CHOICES = [" Paris", " Paris, of course", " Oslo", " Ålesund"]
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}}, "required": ["legs"]}'
)


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


def checked(http: httpx.Client, constraint: dict[str, Any], text: str = "", **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/ramiform/constraint", json={"constraint": constraint, "text": text, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.slow
def test_the_state_after_every_text_is_what_the_choices_say(http: httpx.Client) -> None:
    texts = [choice.encode() for choice in CHOICES]
    for place in range(len(CHOICES[1]) + 1):  # forwards and backwards, as one types
        for text in (CHOICES[1][:place], CHOICES[3][: -place or None]):
            before = text.encode()
            allowed = {
                token
                for token, data in enumerate(TOKENIZER.token_bytes)
                if data and any(each.startswith(before + data) for each in texts)
            }
            if before in texts:
                allowed |= set(TOKENIZER.eos_ids)
            answer = checked(http, {"choices": CHOICES}, text, top=7)
            assert answer["ok"]
            assert "rejected_at" not in answer
            state = answer["state"]
            assert (state["accepts"], state["allowed"], state["position"]) == (
                before in texts,
                len(allowed),
                len(before),
            )
            assert [token["id"] for token in state["tokens"]] == sorted(allowed)[:7]
            rest = [each[len(before) :] for each in texts if each.startswith(before)]
            common = (
                next(n for n in range(99) if len({each[:n] for each in rest}) > 1 or b"" in rest or n > len(rest[0]))
                - 1
            )
            forced = b"" if before in texts else rest[0][: max(0, common)]
            assert state["forced"].encode() == forced.decode("utf-8", "ignore").encode()


@pytest.mark.parametrize(
    "constraint",
    [
        {"json_schema": SCHEMA},
        {"regex": r" ([a-z]{2,5} ){1,3}[0-9]+"},
        {"grammar": 'root ::= " a" ("b" | "cd" root)* "."'},
        {"grammar": 'start: " a" (WORD " ")+ "."\nWORD: /[b-d]{2,4}/'},
    ],
)
def test_the_masks_are_those_of_the_core(http: httpx.Client, constraint: dict[str, Any]) -> None:
    body = {"prompt": "Say:", "max_tokens": 24, "seed": 1, "logprobs": 0, "token_details": True}
    response = http.post("/v1/completions", json=body | constraint).json()
    details, before = response["choices"][0]["logprobs"]["details"], b""
    assert len(details) > 2
    for entry in details:
        state = checked(http, constraint, before.decode())["state"]
        if entry["origin"] == "forced":
            assert state["forced"].encode().startswith(bytes(entry["bytes"]))
        else:
            assert state["allowed"] == entry["num_allowed"]
        before += bytes(entry["bytes"])


@pytest.mark.parametrize(
    ("kind", "source", "pointer", "message"),
    [
        ("json_schema", '{"type": "object",\n  "properties": «}', None, "no JSON"),
        ("json_schema", '{"type": "object" «"properties": {}}', None, "no JSON"),
        ("json_schema", '{"é🙂": 1,\n"type": «"strin"}', "/type", "strin"),
        (
            "json_schema",
            '{"properties": {"a/b": {"pattern": "x\\u0041\\n[«b-a]"}}}',
            "/properties/a~1b/pattern",
            "range",
        ),
        ("json_schema", '{"patternProperties": {"é[«z-a]": true}}', "/patternProperties/é[z-a]", "range"),
        ("regex", "é🙂(a|«*)", None, ""),
        ("regex", "[«z-a]", None, "range"),
        ("grammar", 'root ::= "a" | «other\n', None, "other"),
        ("grammar", 'root ::= "a" «)\n', None, ""),
        ("grammar", 'start: "a" | «other\n', None, "other"),
        ("grammar", 'start: "é" B\n«B: /x(/\n', None, "terminal B"),
        ("structural_tag", '{"format": {"type": «"tg"}}', "/format/type", "tg"),
        ("structural_tag", '{"format" «1}', None, "no JSON"),
        (
            "structural_tag",
            '{"format": {"type": "tag", "begin": "é", "content": {"type": "regex", "pattern": "a[«z-a]"}, "end": "!"}}',
            "/format/content/pattern",
            "range",
        ),
    ],
)
def test_a_fault_is_shown_at_its_place(
    http: httpx.Client, kind: str, source: str, pointer: str | None, message: str
) -> None:
    offset = source.index("«")
    source = source.replace("«", "")
    answer = checked(http, {kind: source})
    error = answer["error"]
    assert not answer["ok"]
    assert message in error["message"]
    before = source[:offset]
    assert (error["offset"], error["line"], error["column"]) == (
        offset,
        before.count("\n") + 1,
        offset - before.rfind("\n"),
    )
    assert error["pointer"] == pointer
    refused = [line for line in answer["report"] if line["status"] == "refused"]
    assert (refused[0]["note"], refused[0]["offset"]) == (error["message"], offset)


def test_every_keyword_is_reported(http: httpx.Client) -> None:
    schema = {"type": "string", "pattern": "^a", "title": "A", "then": True, "x-y": 1}
    report = checked(http, {"json_schema": json.dumps(schema)})["report"]
    statuses = {line["keyword"]: (line["pointer"], line["status"], bool(line["note"])) for line in report}
    assert statuses == {
        "type": ("/type", "enforced", False),
        "pattern": ("/pattern", "enforced", False),
        "title": ("/title", "annotation", False),
        "then": ("/then", "warning", True),
        "x-y": ("/x-y", "warning", True),
    }


def test_a_schema_that_is_no_text_has_pointers_but_no_places(http: httpx.Client) -> None:
    error = checked(http, {"json_schema": {"properties": {"a": {"pattern": "("}}}})["error"]
    assert (error["pointer"], error["offset"], error["line"]) == ("/properties/a/pattern", None, None)
    assert checked(http, {"json_schema": True})["ok"]


@pytest.mark.parametrize(
    ("constraint", "text", "offset", "allowed"),
    [
        ({"regex": "é+🙂b"}, "éé🙂cb", 3, "'b'"),
        ({"choices": ["ab", "abc"]}, "abd", 2, "'c'"),
        ({"choices": ["ab", "abc"]}, "abd", 2, "the end of the text"),
        ({"json_schema": SCHEMA}, '{"legs": "4"}', 9, "a digit"),
        ({"grammar": 'root ::= "a"+'}, "aab", 2, "the end of the text"),
    ],
)
def test_a_text_that_leaves_the_grammar_is_told_where(
    http: httpx.Client, constraint: dict[str, Any], text: str, offset: int, allowed: str
) -> None:
    answer = checked(http, constraint, text)
    assert answer["ok"]
    assert answer["rejected_at"]["offset"] == offset
    assert allowed in answer["rejected_at"]["allowed"]
    before = checked(http, constraint, text[:offset])
    assert "rejected_at" not in before
    assert answer["state"] == before["state"]
    assert answer["state"]["position"] == len(text[:offset].encode())


def test_the_readings_of_a_schema_can_be_chosen(http: httpx.Client) -> None:
    schema = '{"properties": {"b": {"const": 1}, "a": {"const": 2}}}'
    text = '{"a": 2, "b"'
    assert "rejected_at" in checked(http, {"json_schema": schema}, text)
    assert "rejected_at" not in checked(http, {"json_schema": schema, "additional_properties": "schema"}, text)
    own = {"additional_properties": "schema", "order": "schema"}
    assert "rejected_at" in checked(http, {"json_schema": schema, **own}, text)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "constraint"),
        ({"constraint": {}}, "constraint"),
        ({"constraint": {"regex": "a", "choices": ["a"]}}, "constraint.choices"),
        ({"constraint": {"regex": "a", "additional_properties": "schema"}}, "constraint.additional_properties"),
        ({"constraint": {"regex": "a", "pattern": "b"}}, "constraint.pattern"),
        ({"constraint": {"regex": "a" * 600_000}}, "constraint.regex"),
        ({"constraint": {"regex": "a"}, "text": "a" * 70_000}, "text"),
        ({"constraint": {"regex": "a"}, "top": -1}, "top"),
    ],
)
def test_a_malformed_body_is_refused_by_its_field(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = http.post("/v1/ramiform/constraint", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_what_is_too_complex_is_an_answer_and_harms_no_other(http: httpx.Client) -> None:
    hostile: list[dict[str, Any]] = [
        {"regex": "(a{1,3000}b){1,3000}"},
        {"grammar": "root ::= root root | (" * 300},
        {"json_schema": "[" * 5000},
        {"json_schema": '{"not": ' * 200 + "{}" + "}" * 200},
        {"json_schema": '{"const": "\\ud800"}'},
        {"choices": ["a"] * 20_000 + ["b" * 10_000]},
    ]
    with ThreadPoolExecutor(len(hostile)) as pool:
        answers = list(pool.map(lambda constraint: checked(http, constraint), hostile))
    assert [answer["ok"] for answer in answers] == [False] * 5 + [True]
    assert all(answer["error"]["message"] for answer in answers[:5])
    assert checked(http, {"regex": "ab"}, "a")["state"]["forced"] == "b"


def test_a_check_ends_when_its_client_leaves_and_when_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = ConstraintChecker(TOKENIZER, len(TOKENIZER.token_bytes), CoreConfig())
    large = Constraint("regex", "([a-z]{1,40}[0-9]){1,60}")
    cancellation = CancellationToken()
    assert checker.answer(large, "", 1, cancellation)["ok"]
    cancellation.cancel()
    other = Constraint("regex", "([a-z]{1,41}[0-9]){1,61}")
    with pytest.raises(WorkCancelledError):
        checker.answer(other, "", 1, cancellation)
    monkeypatch.setattr(constraint, "_MAX_STEPS", 10_000)
    answer = checker.answer(other, "", 1, CancellationToken())
    assert (answer["ok"], answer["error"]["message"]) == (False, "it takes too long to check")
    assert checker.answer(large, "", 1, CancellationToken())["ok"], "what was compiled before is kept"
    monkeypatch.undo()
    assert checker.answer(other, "", 1, CancellationToken())["ok"], "and nothing is left of what was not"


@pytest.mark.exhaustive
def test_a_process_that_is_not_asked_loads_no_compilers() -> None:
    code = "import sys, ramiform.runtime.frontend.http.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert "ramiform.runtime.frontend.http.dashboard.constraint" in loaded
    assert not loaded & {"numba", "torch", "ramiform.constrained.compile", "ramiform.runtime.core.grammar_cache"}
