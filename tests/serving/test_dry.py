"""DRY on every route that samples, and in programs. Judge: with an allowed length of 0 no token comes twice."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import ramiform
from ramiform import gen

from .test_top_n_sigma import ROUTES, answer

NEVER_TWICE = {"temperature": 0, "dry_multiplier": 100.0, "dry_allowed_length": 0, "dry_sequence_breakers": []}
PROMPT = "one two one two one two one two one"
BAD: list[tuple[str, Any]] = [
    ("dry_multiplier", -0.1),
    ("dry_multiplier", 101),
    ("dry_base", 0.9),
    ("dry_allowed_length", -1),
    ("dry_allowed_length", 1.5),
    ("dry_penalty_last_n", -2),
    ("dry_sequence_breakers", [""]),
    ("dry_sequence_breakers", ["a" * 41]),
    ("dry_sequence_breakers", ["a"] * 65),
    ("dry_sequence_breakers", [3]),
]


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_avoids_repetitions(http: httpx.Client, path: str) -> None:
    long = {name: 60 for name in ROUTES[path][2] if name.startswith(("max_", "num_"))}
    greedy = answer(http, path, **long, temperature=0)
    assert answer(http, path, **long, **NEVER_TWICE) != greedy
    assert answer(http, path, **long, **NEVER_TWICE, dry_penalty_last_n=0) == greedy


def test_no_token_of_the_prompt_or_the_answer_comes_again(http: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "return_token_ids": True} | NEVER_TWICE
    choice = http.post("/v1/completions", json=body | {"ignore_eos": True}).json()["choices"][0]
    ids = choice["token_ids"]
    assert len(set(ids)) == len(ids) == 20
    assert not {*ids} & {*choice["prompt_token_ids"]}
    constrained = http.post("/v1/completions", json=body | {"regex": "( two one){3}"}).json()
    assert constrained["choices"][0]["text"] == " two one" * 3, "a grammar that leaves no other token wins"


@pytest.mark.parametrize(("name", "value"), BAD)
@pytest.mark.parametrize("path", ["/v1/completions", "/generate", "/api/chat"])
def test_bad_values_are_refused_by_name(http: httpx.Client, path: str, name: str, value: Any) -> None:
    body, where, length, _ = ROUTES[path]
    fields = length | {"dry_multiplier": 1.0, name: value}
    response = http.post(path, json=body | (fields if where is None else {where: fields}))
    assert response.status_code == 400, response.text
    assert name in response.text


def test_a_program_avoids_repetitions(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def count(s: Any, multiplier: float | None = None) -> None:
        s += "The spider has eight legs. The bird has two legs. The spider has"
        s += gen("x", max_tokens=8, temperature=0, dry_multiplier=multiplier, dry_allowed_length=0)

    assert count.run(100)["x"] != count.run()["x"] == count.run(0)["x"]
