"""Constraints in every dialect of clients are obeyed."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from .prompts import CHAT, PERSON

PATTERN = "[a-c]{3}-[0-9]{2}"
WORDS = ["river", "mountain"]


def is_valid(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


DIALECTS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}}, is_valid),
    ({"structured_outputs": {"json": PERSON}}, is_valid),
    ({"structured_outputs": {"json": json.dumps(PERSON)}}, is_valid),
    ({"structured_outputs": {"regex": PATTERN}}, re.compile(PATTERN).fullmatch),
    ({"structured_outputs": {"regex": PATTERN}, "guided_regex": PATTERN}, re.compile(PATTERN).fullmatch),
    ({"structured_outputs": {"choice": WORDS}}, WORDS.__contains__),
    ({"guided_json": PERSON}, is_valid),
    ({"guided_regex": PATTERN}, re.compile(PATTERN).fullmatch),
    ({"guided_choice": WORDS}, WORDS.__contains__),
    ({"regex": PATTERN}, re.compile(PATTERN).fullmatch),
    ({"json_schema": json.dumps(PERSON)}, is_valid),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "check"), DIALECTS, ids=[json.dumps(fields)[:60] for fields, _ in DIALECTS])
def test_every_dialect_is_obeyed(http: httpx.Client, model: str, fields: dict[str, Any], check: Any) -> None:
    body: dict[str, Any] = {"model": model, "temperature": 1.3, "seed": 1, "n": 3, "max_tokens": 200}
    chat = http.post("/v1/chat/completions", json=body | fields | {"messages": CHAT}).json()
    for choice in chat["choices"]:
        assert choice["finish_reason"] == "stop"
        assert check(choice["message"]["content"])
    completion = http.post("/v1/completions", json=body | fields | {"prompt": "Answer: "}).json()
    for choice in completion["choices"]:
        assert check(choice["text"])


def test_an_answer_that_can_only_end_takes_no_pass_to_end(http: httpx.Client, model: str) -> None:
    """Its pattern is new, so its last mask is not known yet. With log-probabilities the end is sampled."""

    def growth(**fields: Any) -> tuple[str, int]:
        before = http.get("/get_server_info").json()["num_forced_tokens"]
        body = {"model": model, "prompt": "Answer:", "regex": "[4-6]", "max_tokens": 9, **fields}
        [choice] = http.post("/v1/completions", json=body).json()["choices"]
        assert choice["text"] in set("456")
        return choice["finish_reason"], http.get("/get_server_info").json()["num_forced_tokens"] - before

    assert growth() == ("stop", 1)
    assert growth(logprobs=0) == ("stop", 0)


@pytest.mark.slow
def test_json_mode_begins_an_object(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=CHAT, temperature=0, response_format={"type": "json_object"}, max_tokens=400
    )
    text = answer.choices[0].message.content
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert is_object(text)


def test_a_pydantic_model_comes_back(client: OpenAI, model: str) -> None:
    class Place(BaseModel):
        kind: Literal["city", "river"]
        sure: bool

    answer = client.chat.completions.parse(model=model, messages=CHAT, response_format=Place, max_tokens=100)
    assert isinstance(answer.choices[0].message.parsed, Place)


@pytest.mark.parametrize("names", [["kind", "sure"], ["sure", "kind"]])
def test_a_strict_schema_is_followed_in_its_order(client: OpenAI, model: str, names: list[str]) -> None:
    properties = {name: {"type": "boolean"} for name in names}
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    named: Any = {"name": "place", "schema": schema, "strict": True}
    chat = client.chat.completions.create(
        model=model,
        messages=CHAT,
        response_format={"type": "json_schema", "json_schema": named},
        n=8,
        seed=1,
        temperature=1.3,
        max_tokens=100,
    )
    response = client.responses.create(
        model=model, input="Is it far?", text={"format": {"type": "json_schema", **named}}, max_output_tokens=100
    )
    answers = [choice.message.content for choice in chat.choices] + [response.output_text]
    assert [list(json.loads(answer)) for answer in answers] == [names] * 9


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "p", "schema": {"properties": {"a": {"type": "nothing"}}}},
            }
        },
        "response_format",
        "/properties/a/type",
    ),
    ({"guided_json": {"type": "nothing"}}, "guided_json", "/type"),
    ({"structured_outputs": {"regex": "[a-"}}, "structured_outputs.regex", ""),
    ({"regex": "(a"}, "regex", ""),
    ({"json_schema": "{"}, "json_schema", ""),
    ({"guided_choice": []}, "guided_choice", ""),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", ""),
    ({"response_format": {"type": "yaml"}}, "response_format", "yaml"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "response_format"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "regex"),
    ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "guided_regex", "exclude one another"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "guided_json"),
]


@pytest.mark.parametrize(("fields", "param", "word"), WRONG, ids=[json.dumps(fields)[:60] for fields, *_ in WRONG])
@pytest.mark.parametrize("stream", [False, True])
def test_a_constraint_that_is_wrong_is_a_400_before_anything_streams(
    http: httpx.Client, model: str, fields: dict[str, Any], param: str, word: str, stream: bool
) -> None:
    for path, prompt in (("/v1/chat/completions", {"messages": CHAT}), ("/v1/completions", {"prompt": "a"})):
        response = http.post(path, json={"model": model, "stream": stream, "n": 2, **prompt, **fields})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert word in error["message"]


def test_the_client_raises_it_as_its_own_error(client: OpenAI, model: str) -> None:
    with pytest.raises(BadRequestError, match="nothing") as caught:
        client.chat.completions.create(
            model=model,
            messages=CHAT,
            stream=True,
            response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "nothing"}}},
        )
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_grammar")
