"""Several frontends for one core: together they answer as one does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import ramiform
from ramiform.tests.processes.processes import children

from .scrape import scrape
from .servers import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--frontends", "3") as started:
        yield started


@ramiform.function
def count(s: ramiform.ProgramState, start: str) -> None:
    s += start
    branches = s.fork(2)
    branches += ramiform.gen("next", max_tokens=3, temperature=0, ignore_eos=True)
    branches.join()
    s += ramiform.gen("rest", max_tokens=3, temperature=0, ignore_eos=True)


@pytest.mark.exhaustive
def test_requests_over_many_connections_are_all_answered_and_counted_once(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        before = scrape(client)

    def ask(index: int) -> str:
        body = {"text": f"Number {index % 5}", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
        with httpx.Client(base_url=server.url, timeout=120) as one:
            return str(one.post("/generate", json=body).json()["text"])

    with ThreadPoolExecutor(12) as threads:
        texts = list(threads.map(ask, range(60)))
    assert all(texts[index] == texts[index % 5] for index in range(60))
    for _ in range(6):  # whichever frontend answers
        with httpx.Client(base_url=server.url, timeout=120) as client:
            asked = scrape(client).since(before)
        assert asked("ramiform_http_requests_total", route="/generate", status="200") == 60
        assert asked("ramiform_time_to_first_token_seconds_count") == asked("ramiform_queue_seconds_count") == 60
        assert asked("ramiform_request_generated_tokens_sum") == asked("ramiform_generated_tokens_total")


@pytest.mark.exhaustive
def test_programs_are_sent_on_in_turn_and_give_what_one_frontend_gives(server: Server) -> None:
    backends = [ramiform.RuntimeEndpoint(server.address) for _ in range(5)]
    try:
        addresses = [backend.connection()._connection._link._address for backend in backends]
        assert len(set(addresses)) == 3
        results = [
            (state["rest"], state["next"]) for backend in backends for state in [count.run("One two", backend=backend)]
        ]
        assert len({str(result) for result in results}) == 1
    finally:
        for backend in backends:
            backend.close()


@pytest.mark.exhaustive
def test_a_request_is_aborted_from_whichever_frontend_hears_of_it(server: Server) -> None:
    body = {
        "text": "x",
        "rid": "mine",
        "stream": True,
        "sampling_params": {
            "max_new_tokens": 1900,
            "ignore_eos": True,
            "temperature": 1,
            "n": 4,
        },  # runs for many seconds
    }
    num_aborted = 0
    while num_aborted < 4:
        with (
            httpx.Client(base_url=server.url, timeout=120) as client,
            client.stream("POST", "/generate", json=body) as response,
        ):
            lines = response.iter_lines()
            next(lines)
            with httpx.Client(base_url=server.url, timeout=120) as other:
                assert other.post("/abort_request", json={"rid": "mine"}).status_code == 200
            last = [line for line in lines if line][-2]
            assert '"type":"abort"' in last or '"type":"length"' in last  # ended by itself before it was aborted
            num_aborted += '"type":"abort"' in last


@pytest.mark.exhaustive
def test_a_conversation_goes_on_at_whichever_frontend_hears_of_it(server: Server) -> None:
    previous = None
    for turn in range(6):
        with httpx.Client(base_url=server.url, timeout=120) as client:
            body = {
                "model": "ramiform-demo",
                "input": f"Hello {turn}",
                "previous_response_id": previous,
                "max_output_tokens": 4,
            }
            response = client.post("/v1/responses", json=body)
            assert response.status_code == 200, response.text
            previous = response.json()["id"]
        with httpx.Client(base_url=server.url, timeout=120) as client:
            assert client.get(f"/v1/responses/{previous}").json()["id"] == previous
            [item] = client.get(f"/v1/responses/{previous}/input_items").json()["data"]
            assert f"Hello {turn}" in str(item)
    with httpx.Client(base_url=server.url, timeout=120) as client:
        assert client.delete(f"/v1/responses/{previous}").status_code == 200
    for _ in range(4):
        with httpx.Client(base_url=server.url, timeout=120) as client:
            assert client.get(f"/v1/responses/{previous}").status_code == 404


@pytest.mark.exhaustive
def test_a_dead_frontend_ends_all() -> None:
    with serving("--frontends", "2") as server:
        pids = children(server.pid)
        frontend = next(
            pid
            for pid in pids
            if b"ramiform.runtime.processes.frontend_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(frontend, signal.SIGKILL)
        status, said = server.end()
        assert status == 1
        assert "the frontend 1" in said
        assert "was killed by signal 9" in said


@pytest.mark.exhaustive
def test_all_frontends_drain() -> None:
    with serving("--frontends", "2") as server:
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}

        all_stream = threading.Barrier(6, lambda: server.process.send_signal(signal.SIGTERM), timeout=120)

        def ask(_: int) -> str:
            with (
                httpx.Client(base_url=server.url, timeout=120) as client,
                client.stream("POST", "/generate", json=body) as response,
            ):
                lines = response.iter_lines()
                next(lines)
                all_stream.wait()
                return [line for line in lines if line][-1]

        with ThreadPoolExecutor(6) as threads:
            assert set(threads.map(ask, range(6))) == {"data: [DONE]"}
        assert server.end() == (0, "")
