"""`top_n_sigma` on every route that samples, and in programs. Judge: greedy answers, which a tiny one must give."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import ramiform
from ramiform import gen

CHAT = [{"role": "user", "content": "Name a colour."}]
TINY, OFF = 1e-6, -1
# A route's body, where its sampling fields stand, what it calls the number of tokens and the seed, and its text.
ROUTES: dict[str, tuple[dict[str, Any], str | None, dict[str, Any], list[str | int]]] = {
    "/v1/completions": ({"prompt": "The sky is"}, None, {"max_tokens": 12, "seed": 3}, ["choices", 0, "text"]),
    "/v1/chat/completions": (
        {"messages": CHAT},
        None,
        {"max_tokens": 12, "seed": 3},
        ["choices", 0, "message", "content"],
    ),
    "/v1/responses": (
        {"input": "Name a colour."},
        None,
        {"max_output_tokens": 12, "seed": 3},
        ["output", 0, "content", 0, "text"],
    ),
    "/generate": (
        {"text": "The sky is"},
        "sampling_params",
        {"max_new_tokens": 12, "sampling_seed": 3},
        ["text"],
    ),
    "/api/chat": (
        {"messages": CHAT, "stream": False},
        "options",
        {"num_predict": 12, "seed": 3, "top_k": 0, "top_p": 1.0},
        ["message", "content"],
    ),
    "/api/generate": (
        {"prompt": "The sky is", "stream": False},
        "options",
        {"num_predict": 12, "seed": 3, "top_k": 0, "top_p": 1.0},
        ["response"],
    ),
}


def answer(http: httpx.Client, path: str, **fields: Any) -> str:
    body, where, length, place = ROUTES[path]
    fields = length | fields
    response = http.post(path, json=body | (fields if where is None else {where: fields}))
    assert response.status_code == 200, response.text
    found = response.json()
    for step in place:
        found = found[step]
    return str(found)


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_draws_within_the_deviations(http: httpx.Client, path: str) -> None:
    greedy = answer(http, path, temperature=0)
    drawn = answer(http, path, temperature=2.0)
    assert drawn != greedy
    assert answer(http, path, temperature=2.0, top_n_sigma=TINY) == greedy
    assert answer(http, path, temperature=2.0, top_n_sigma=OFF) == drawn
    assert answer(http, path, temperature=0, top_n_sigma=2.0) == greedy


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_excludes_the_top_choice(http: httpx.Client, path: str) -> None:
    second = {"temperature": 1.0, "top_k": 2, "xtc_probability": 1, "xtc_threshold": 0.0}  # only the last is left
    other_seed = {"sampling_seed" if path == "/generate" else "seed": 4}
    found = answer(http, path, **second)
    assert found == answer(http, path, **second | other_seed) != answer(http, path, temperature=0)


def test_a_typical_token_is_not_always_the_likeliest(http: httpx.Client) -> None:
    words = {"regex": " (blue|green|red|zebra)", "temperature": 1.0}
    one = {answer(http, "/v1/completions", **words, typical_p=1e-6, seed=seed) for seed in range(4)}
    assert len(one) == 1  # the token whose surprise is nearest the entropy
    cold = words | {"dynatemp_range": 1.0, "top_k": 1}  # one token left: temperature 0
    assert answer(http, "/v1/completions", **cold) == answer(http, "/v1/completions", **words | {"temperature": 0})


def test_with_filters_and_a_grammar_the_deviations_are_of_what_they_leave(http: httpx.Client) -> None:
    words = {"regex": " (blue|green|red|zebra)", "temperature": 2.0}
    greedy = answer(http, "/v1/completions", **words | {"temperature": 0})
    for others in ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"frequency_penalty": 1.0}):
        assert answer(http, "/v1/completions", **words, **others, top_n_sigma=TINY) == greedy


@pytest.mark.parametrize("value", [-2, "1", float(1 << 33)])
def test_a_value_out_of_range_is_refused_by_name(http: httpx.Client, value: object) -> None:
    for path, (body, where, length, _) in ROUTES.items():
        fields = length | {"top_n_sigma": value}
        response = http.post(path, json=body | (fields if where is None else {where: fields}))
        assert response.status_code == 400
        assert "top_n_sigma" in response.text


def test_a_program_draws_within_the_deviations(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def sky(s: Any, top_n_sigma: float | None = None) -> None:
        s += "The sky is" + gen("x", max_tokens=12, seed=3, top_n_sigma=top_n_sigma)

    greedy = sky.run(temperature=0)["x"]
    assert sky.run(temperature=2.0)["x"] != greedy
    assert sky.run(TINY, temperature=2.0)["x"] == greedy


def test_run_takes_it_for_all_gens(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def sky(s: Any) -> None:
        s += "The sky is" + gen("x", max_tokens=12, seed=3)

    assert sky.run(temperature=2.0, top_n_sigma=TINY)["x"] == sky.run(temperature=0)["x"]
