"""The records of requests over HTTP. Judge: the answers that the client got."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import ramiform


def latest(url: str, title: str) -> dict[str, Any]:
    """Return the view of the latest request with that title, once it is over."""
    row = None
    while row is None or row["status"] == "running":  # the test's own timeout ends this
        rows = httpx.get(f"{url}/v1/ramiform/programs").json()["programs"]
        row = next((row for row in rows if row["title"] == title), None)
    view: dict[str, Any] = httpx.get(f"{url}/v1/ramiform/programs/{row['id']}").json()
    return view


def test_a_request_has_a_state_for_each_sample(url: str) -> None:
    body = {"model": "", "prompt": "The capital of", "max_tokens": 6, "n": 3, "seed": 1}
    answer = httpx.post(f"{url}/v1/completions", json=body).json()
    view = latest(url, "POST /v1/completions")
    assert (view["kind"], view["status"], len(view["states"])) == ("request", "done", 3)
    for choice, state in zip(answer["choices"], view["states"], strict=True):
        prompt, generated = state["events"]
        assert prompt["text"] == "The capital of"
        assert generated["text"] == choice["text"]
        assert generated["finish"] == choice["finish_reason"]
        assert {"prefill", "decode"} <= {span["cause"] for span in state["spans"]}
        assert state["spans"][-1]["end"] == pytest.approx(state["end"])
    assert view["completion_tokens"] == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_chats_are_recorded_however_they_are_answered(url: str, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0, "stream": stream}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    answer.raise_for_status()
    view = latest(url, "POST /v1/chat/completions")
    assert (view["status"], view["generations"], view["completion_tokens"]) == ("done", 1, 5)


def test_a_request_whose_client_leaves_is_lost(url: str) -> None:
    body = {"model": "", "prompt": "A", "max_tokens": 1900, "n": 4, "ignore_eos": True, "stream": True}
    status = "done"
    while status == "done":  # all may have been sent before the client has left
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            next(answer.iter_lines())
        view = latest(url, "POST /v1/completions")
        status = view["status"]
    assert status == "lost"
    assert view["states"][0]["events"][-1]["end"] is not None


def test_a_request_that_fails_has_its_error(url: str) -> None:
    body = {"model": "", "prompt": "A", "max_tokens": 3, "regex": "("}
    answer = httpx.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 400
    view = latest(url, "POST /v1/completions")
    assert view["status"] == "failed"
    assert view["error"] in answer.json()["error"]["message"]


def test_requests_that_do_not_generate_are_not_recorded(url: str) -> None:
    before = httpx.get(f"{url}/v1/ramiform/programs").json()["kept"]
    for path in ("/health", "/v1/models", "/get_model_info", "/v1/ramiform/programs"):
        httpx.get(f"{url}{path}").raise_for_status()
    assert httpx.post(f"{url}/v1/completions", json={"prompt": 3}).status_code == 400
    assert httpx.get(f"{url}/v1/ramiform/programs").json()["kept"] == before


def test_unknown_records_and_wrong_pages_are_errors(url: str) -> None:
    answer = httpx.get(f"{url}/v1/ramiform/programs/none")
    assert answer.status_code == 404
    assert "'none'" in answer.json()["error"]["message"]
    for query in ("limit=0", "limit=10001", "before=x"):
        assert httpx.get(f"{url}/v1/ramiform/programs?{query}").status_code == 400


@pytest.mark.exhaustive
def test_every_frontend_shows_the_records_of_all() -> None:
    @ramiform.function
    def short(s: ramiform.ProgramState) -> None:
        s += "A" + ramiform.gen("a", max_tokens=2)

    with ramiform.Runtime(port=0, dtype="float32", num_pages=256, frontends=2, log_level="error") as runtime:
        url = runtime.url
        assert url is not None
        runs = []
        for _ in range(2):  # new clients go to the frontends in turn
            with ramiform.RuntimeEndpoint(runtime.address) as endpoint:
                runs.append(short.run(backend=endpoint).text())
        for _ in range(8):  # connections of HTTP too
            httpx.post(f"{url}/v1/completions", json={"model": "", "prompt": "A", "max_tokens": 2}).raise_for_status()
        for _ in range(8):
            page = httpx.get(f"{url}/v1/ramiform/programs?limit=100").json()
            assert len(page["programs"]) == page["kept"] == 10
            assert [row["seq"] for row in page["programs"]] == sorted(row["seq"] for row in page["programs"])[::-1]
            assert len({row["id"].partition("-")[0] for row in page["programs"]}) == 2
            for row in page["programs"]:
                view = httpx.get(f"{url}/v1/ramiform/programs/{row['id']}").json()
                assert view["title"] == row["title"]


@pytest.mark.parametrize("ids", [[10**9], [-1], [5, 1 << 40]])
def test_ids_that_are_none_are_the_requests_error_and_its_record_has_no_text(url: str, ids: list[int]) -> None:
    answer = httpx.post(f"{url}/generate", json={"input_ids": ids, "sampling_params": {"max_new_tokens": 2}})
    assert answer.status_code == 400
    rows = httpx.get(f"{url}/v1/ramiform/programs?limit=1").json()["programs"]
    assert httpx.get(f"{url}/v1/ramiform/programs/{rows[0]['id']}").status_code == 200
