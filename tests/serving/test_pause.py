"""Generation that is paused and resumed: in the middle of streams, before requests, by every mode."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .prompts import CAPITAL

LONG = {"prompt": CAPITAL, "max_tokens": 600, "ignore_eos": True, "temperature": 0}


@pytest.fixture(autouse=True)
def resumed(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.post("/resume").status_code == 200


def is_paused(http: httpx.Client) -> bool:
    return bool(http.get("/is_paused").json()["is_paused"])


def pause(http: httpx.Client, mode: str) -> None:
    if mode == "in_place":
        assert http.post("/pause_generation", json={"mode": mode}).json()["status"] == "ok"
    else:
        assert http.post("/pause", params={"mode": mode}).json() == {"status": "paused"}


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {"))


@pytest.mark.parametrize("mode", ["keep", "in_place"])
def test_a_stream_that_is_paused_goes_on_with_the_same_tokens(http: httpx.Client, mode: str) -> None:
    expected = http.post("/v1/completions", json=LONG).json()["choices"][0]["text"]
    with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
        choices = events(response.iter_lines())
        texts = [next(choices)["text"]]
        pause(http, mode)
        assert is_paused(http)
        assert http.get("/health").status_code == 200
        assert http.get("/health_generate").status_code == 503
        assert http.post("/continue_generation").status_code == 200
        assert not is_paused(http)
        texts += [choice["text"] for choice in choices]
    assert "".join(texts) == expected


def test_requests_wait_while_generation_is_paused(http: httpx.Client) -> None:
    pause(http, "keep")
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(http.post("/v1/completions", json=LONG | {"max_tokens": 4}))

    asking = threading.Thread(target=ask)
    asking.start()
    while not http.get("/get_load").json()[0]["num_waiting_reqs"]:
        assert not answers
    assert http.post("/resume").json() == {"status": "resumed"}
    asking.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("mode", "reason"), [("abort", "abort"), ("wait", "length")])
def test_running_requests_are_aborted_or_awaited(http: httpx.Client, mode: str, reason: str) -> None:
    ended = None
    while ended != reason:  # a short one may have ended by itself before the pause
        assert http.post("/resume").status_code == 200
        with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            choices = events(response.iter_lines())
            next(choices)
            pausing = threading.Thread(target=pause, args=(http, mode))
            pausing.start()
            *_, last = choices
            pausing.join()
        ended = last["finish_reason"]
        assert ended in (reason, "length")
        assert is_paused(http)


def test_an_unknown_mode_is_refused_by_name(http: httpx.Client) -> None:
    response = http.post("/pause", params={"mode": "sleep"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "mode")
    response = http.post("/pause_generation", json={"mode": "retract"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "mode")
    assert not is_paused(http)
