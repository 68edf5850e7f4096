"""Outputs that are continued from any of their tokens. Judge: the rest of the output that was not interrupted."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.tokenizer import load_tokenizer
from ramiform.runtime.tokenizer.detokenize import Detokenizer

from .prompts import CAPITAL, PERSON
from .test_peer_routes import chunks, post

TOKENIZER = load_tokenizer(SHIPPED_MODEL)
PROMPT = TOKENIZER.encode(CAPITAL, add_bos=True)
GREEK = r"(αβγδ|ζηθικλ|μνξοπ){2,4} fin"
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.3, "top_p": 0.95, "seed": 3, "n": 2},
    "penalised": {"temperature": 0, "frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    "biased": {"temperature": 1, "seed": 1, "logit_bias": {"300": 4}, "ignore_eos": True},
    "bad words": {"temperature": 0, "bad_words": ["Paris", "the city of", ", and"], "ignore_eos": True},
    "min tokens": {"temperature": 0, "min_tokens": 12, "max_tokens": 20},
    "regex": {"temperature": 1, "seed": 5, "guided_regex": r" ([A-Z][a-z]{2,6} ){2,4}is a (big|small) town\."},
    "partial characters": {"temperature": 1, "seed": 2, "guided_regex": GREEK, "max_tokens": 60},
    "schema": {"temperature": 1, "seed": 6, "json_schema": PERSON, "max_tokens": 60},
    "choices": {
        "temperature": 1,
        "seed": 7,
        "guided_choice": [" Paris is the capital.", " Paris, of course.", " Oslo"],
    },
    "grammar": {
        "temperature": 1,
        "seed": 8,
        "grammar": 'root ::= " yes" ("," " yes")* " done now" "."',
        "max_tokens": 40,
    },
    "stop string": {"temperature": 0, "stop": ["capital of", "ital", "zzz"], "ignore_eos": True, "max_tokens": 40},
    "stop kept": {"temperature": 0, "stop": ["apital of F"], "include_stop_str_in_output": True, "ignore_eos": True},
    "stop pattern": {"temperature": 0, "stop_regex": [r"c[a-z]+ o", r"\? *A"], "ignore_eos": True, "max_tokens": 40},
    "stop in a constraint": {
        "temperature": 0,
        "guided_regex": r" The capital of France is [A-Z][a-z]{3,8}",
        "stop": "ance i",
    },
}


def text_given(ids: list[int]) -> str:
    """Return the text of the first ids of an output, complete characters only, as if no stop string would come."""
    return Detokenizer(TOKENIZER).add(ids)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_output_goes_on_from_any_token_as_if_it_had_not_been_cut(http: httpx.Client, case: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "return_token_ids": True} | case
    whole = post(http, "/v1/completions", **body)
    for index, choice in enumerate(whole["choices"]):
        ids, text = choice["token_ids"], choice["text"]
        assert len(ids) > 2
        own = body | {"n": 1} | ({"seed": body["seed"] + index} if "seed" in body else {})
        for after in range(1, len(ids)):
            rest = own | {"prompt": PROMPT + ids[:after], "continued_tokens": after}
            rest["max_tokens"] -= after
            answer = post(http, "/v1/completions", **rest)
            [end] = answer["choices"]
            assert end["token_ids"] == ids[after:], after
            assert end["text"] == text[len(text_given(ids[:after])) :], after
            assert [end[name] for name in ("finish_reason", "stop_reason")] == [
                choice[name] for name in ("finish_reason", "stop_reason")
            ]
            assert answer["usage"]["prompt_tokens"] == len(PROMPT) + after
            assert answer["usage"]["completion_tokens"] == len(ids) - after


def test_streams_and_the_native_route_continue_too(http: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": "zzz", "json_schema": PERSON}
    [choice] = post(http, "/v1/completions", **body, return_token_ids=True)["choices"]
    ids, native = choice["token_ids"], []
    for after in (1, len(ids) // 2, len(ids) - 1):
        before, rest = PROMPT + ids[:after], choice["text"][len(text_given(ids[:after])) :]
        streamed = chunks(http, "/v1/completions", **body | {"prompt": before}, continued_tokens=after)
        assert "".join(part["text"] for chunk in streamed for part in chunk["choices"]) == rest
        params = {"max_new_tokens": 40, "temperature": 0, "json_schema": json.dumps(PERSON), "min_new_tokens": after}
        answer = post(http, "/generate", input_ids=before, sampling_params=params, continued_tokens=after)
        assert (answer["text"], answer["output_ids"]) == (rest, ids[after:])
        native.append((before, after, rest))
    batch: Any = post(
        http,
        "/generate",
        input_ids=[before for before, _, _ in native],
        sampling_params={"max_new_tokens": 40, "temperature": 0, "json_schema": json.dumps(PERSON)},
        continued_tokens=[after for _, after, _ in native],
    )
    assert [answer["text"] for answer in batch] == [rest for _, _, rest in native]


def test_an_alternative_is_followed_by_what_the_constraint_allows_there(http: httpx.Client) -> None:
    """A fork: the alternative is not what was sampled, so the rest must be that of a text that begins with it."""
    body = {"temperature": 0, "guided_choice": [" Paris is the capital.", " Oslo it is, I think."]}
    whole = " Oslo it is, I think."
    first = TOKENIZER.encode(" Os")
    answer = post(http, "/v1/completions", **body, prompt=PROMPT + first, continued_tokens=len(first), max_tokens=30)
    assert text_given(first) + answer["choices"][0]["text"] == whole


def refused(http: httpx.Client, path: str, **body: Any) -> tuple[str | None, str]:
    response = http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


def test_a_token_that_the_constraint_refuses_is_named_by_its_position(http: httpx.Client) -> None:
    good, bad = TOKENIZER.encode(" Pa"), TOKENIZER.encode("zebra")[0]
    tokens = [*PROMPT, *good, bad, *good]
    for constraint in ({"guided_choice": [" Paris", " Pandora"]}, {"guided_regex": " Pa.{4}|x"}, {"stop": "zz"}):
        body = constraint | {"prompt": tokens, "continued_tokens": 2 * len(good) + 1, "max_tokens": 4}
        if "guided_choice" in constraint:
            param, message = refused(http, "/v1/completions", **body)
            assert param == "continued_tokens"
            assert f"token {bad} at position {len(PROMPT) + len(good)} of the prompt" in message
        else:
            assert http.post("/v1/completions", json=body).status_code == 200
    ended = {"guided_regex": "a+", "prompt": [*PROMPT, *TOKENIZER.encode("a"), TOKENIZER.eos_ids[0]]}
    param, message = refused(http, "/v1/completions", **ended, continued_tokens=2)
    assert (param, f"position {len(PROMPT) + 1}" in message) == ("continued_tokens", True)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": CAPITAL, "continued_tokens": 1},
        {"prompt": [5, 6, 7], "continued_tokens": 3},
        {"prompt": [[5, 6, 7], [5, 6]], "continued_tokens": 2},
        {"prompt": [5, 6, 7], "continued_tokens": -1},
        {"prompt": [5, 6, 7], "continued_tokens": 1, "truncate_prompt_tokens": 2},
    ],
)
def test_what_is_continued_is_the_end_of_a_prompt_of_ids(http: httpx.Client, body: dict[str, Any]) -> None:
    param, _ = refused(http, "/v1/completions", **body)
    assert param == "continued_tokens"
    native = {"text" if isinstance(body["prompt"], str) else "input_ids": body["prompt"]}
    if "truncate_prompt_tokens" not in body:
        param, _ = refused(http, "/generate", **native, continued_tokens=body["continued_tokens"])
        assert param == "continued_tokens"
