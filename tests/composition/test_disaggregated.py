"""Prompts computed by another runtime change nothing that a client sees, whatever it asks for.

The prefill runtime computes 64 tokens a step, so that pages travel while later chunks are computed; the decode runtime
drafts with the shipped head. The judge is the prefill runtime alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import socketserver
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import gen
from ramiform.lang.backends.backend import RuntimeEndpoint
from ramiform.lang.backends.runtimes.http_runtime import HttpRuntime
from ramiform.runtime.protocol.errors import RuntimeFailed

from .mix import WORDS, Case, Expected, Target, make_mix, run_alone, run_together

SETTINGS: dict[str, Any] = {"dtype": "float32", "log_level": "error", "port": 0, "transfer": "zmq"}
LONG = " ".join(random.Random(5).choices(WORDS, k=700))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short path: that of a socket is limited."""
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def prefill(folder: Path) -> Iterator[Target]:
    bind = f"ipc://{folder}/prefill"
    with (
        ramiform.Runtime(role="prefill", transfer_bind=bind, num_pages=1024, prefill_budget=64, **SETTINGS) as runtime,
        Target(runtime) as target,
    ):
        yield target


@pytest.fixture(scope="module")
def decode(folder: Path, prefill: Target) -> Iterator[Target]:
    workers = f"ipc://{folder}/prefill,ipc://{folder}/dying"
    with (
        ramiform.Runtime(
            prefill_workers=workers,
            num_pages=1024,
            speculative="eagle",
            speculative_adaptive=False,  # whether it pays depends on the machine
            role="decode",
            remote_prefill_tokens=16,
            **SETTINGS,
        ) as runtime,
        Target(runtime) as target,
    ):
        yield target


def kill(pid: int) -> None:
    """Kill a process and all its children, so that no part of it can say goodbye."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    for child in [int(child) for task in tasks for child in (task / "children").read_text().split()]:
        kill(child)
    os.kill(pid, signal.SIGKILL)


def check(cases: Sequence[Case], prefill: Target, decode: Target) -> dict[str, Any]:
    """Run the cases on one runtime alone and on both together; return the decode runtime's statistics."""
    prefill.flush()
    expected = run_alone(cases, [prefill])
    prefill.flush()
    decode.flush()
    got = run_together(cases, decode)
    Expected(list(cases), expected).check(got)
    stats = decode.idle_stats()
    prefill.idle_stats()
    return stats


@pytest.mark.exhaustive
def test_a_mix_of_requests_and_programs_gets_what_one_runtime_gives(prefill: Target, decode: Target) -> None:
    cases = make_mix(20, decode.encode, seed=3)
    stats = check(cases, prefill, decode)
    assert stats["num_failed_fetches"] == 0
    assert stats["num_fetched_tokens"] > 200
    assert stats["num_accepted_tokens"] > 0, "the decode runtime drafted"


@pytest.mark.exhaustive
def test_pages_come_while_later_chunks_are_computed(prefill: Target, decode: Target) -> None:
    ids = decode.encode(LONG)
    before = decode.idle_stats()
    answer = decode.generate(ids, max_new_tokens=4)
    after = decode.idle_stats()
    num_whole = (len(ids) - 1) // 16 * 16
    assert answer["meta_info"]["cached_tokens"] == num_whole
    assert answer["meta_info"]["transfer_time"] > 0
    assert after["num_fetched_tokens"] - before["num_fetched_tokens"] == num_whole
    assert after["num_early_tokens"] - before["num_early_tokens"] > num_whole / 2
    assert answer["output_ids"] == prefill.generate(ids, max_new_tokens=4)["output_ids"]


@pytest.mark.exhaustive
def test_what_is_cached_here_or_asked_of_the_prompt_is_not_fetched(prefill: Target, decode: Target) -> None:
    ids = decode.encode("Once more. " + LONG)[:400]
    first = decode.generate(ids, max_new_tokens=2)
    before = decode.idle_stats()["num_fetched_tokens"]
    assert decode.generate(ids, max_new_tokens=2)["output_ids"] == first["output_ids"]
    body = {"input_ids": ids[::-1], "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    scored = [
        target.http.post("/generate", json=body | {"return_logprob": True, "logprob_start_len": 0}).json()
        for target in (decode, prefill)
    ]
    assert scored[0]["output_ids"] == scored[1]["output_ids"]
    assert decode.idle_stats()["num_fetched_tokens"] == before


@pytest.mark.exhaustive
def test_pages_of_one_rank_fit_two_and_come_back(folder: Path, prefill: Target) -> None:
    ids = prefill.encode("Two ranks. " + LONG)[:300]
    expected = prefill.generate(ids, max_new_tokens=12)["output_ids"]
    workers = f"ipc://{folder}/prefill"
    with (
        ramiform.Runtime(tp=2, num_pages=256, prefill_workers=workers, remote_prefill_tokens=16, **SETTINGS) as runtime,
        Target(runtime) as target,
    ):
        assert target.generate(ids, max_new_tokens=12)["output_ids"] == expected
        assert target.idle_stats()["num_fetched_tokens"] == 288
        prefill.flush()
        assert target.http.post("/drain", params={"to": workers}).json()["num_left"] == 0
    answer = prefill.generate(ids, max_new_tokens=12)
    assert answer["output_ids"] == expected
    assert answer["meta_info"]["cached_tokens"] >= 288


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kv_dtype", "ranks"), [("int4", (1, 2)), ("int8", (2, 1))])
def test_ranks_of_another_number_store_by_the_sender_s_statistics(
    kv_dtype: str, ranks: tuple[int, int], folder: Path
) -> None:
    """Sums of two ranks differ from those of one in their last bits, and with them the statistics."""
    bind = f"ipc://{folder}/{kv_dtype}"
    common = {"num_pages": 256, "kv_dtype": kv_dtype, "speculative": "off", **SETTINGS}
    receiver = {"role": "decode", "prefill_workers": bind, "remote_prefill_tokens": 16}
    with (
        ramiform.Runtime(role="prefill", transfer_bind=bind, tp=ranks[0], **common) as first,
        Target(first) as prefill,
    ):
        ids = prefill.encode("Ranks. " + LONG)[:300]
        expected = prefill.generate(ids, max_new_tokens=12)["output_ids"]
        with ramiform.Runtime(tp=ranks[1], **receiver, **common) as second, Target(second) as decode:
            assert decode.generate(ids, max_new_tokens=12)["output_ids"] == expected
            assert decode.idle_stats()["num_fetched_tokens"] == 288
            # What it computes itself is stored by the same statistics.
            short = ids[:15]
            assert (
                decode.generate(short, max_new_tokens=12)["output_ids"]
                == prefill.generate(short, max_new_tokens=12)["output_ids"]
            )
            prefill.flush()
            assert decode.http.post("/drain", params={"to": bind}).json()["num_left"] == 0
        again = prefill.generate(ids, max_new_tokens=12)
        assert again["output_ids"] == expected
        assert again["meta_info"]["cached_tokens"] >= 288


@pytest.mark.exhaustive
def test_a_killed_prefill_runtime_costs_time_and_no_tokens(folder: Path, prefill: Target, decode: Target) -> None:
    bind = f"ipc://{folder}/dying"
    attempt = 0
    while not decode.idle_stats()["num_failed_fetches"]:  # a fast prefill runtime may answer all before it is killed
        attempt += 1
        prompts = [decode.encode(f"{attempt} {number} " + LONG) for number in range(6)]
        expected = [prefill.generate(ids, max_new_tokens=6)["output_ids"] for ids in prompts]
        dying = ramiform.Runtime(role="prefill", transfer_bind=bind, num_pages=1024, prefill_budget=16, **SETTINGS)
        try:
            with Target(dying) as other, ThreadPoolExecutor(len(prompts)) as pool:
                answers = [pool.submit(decode.generate, ids, max_new_tokens=6) for ids in prompts]
                number = 0
                while not other.http.get("/server_info").json()["num_prompt_tokens"]:
                    decode.generate(decode.encode(f"{attempt} {number} is not for it. " * 9), max_new_tokens=1)
                    number += 1
                kill(dying.pid)
                assert [answer.result()["output_ids"] for answer in answers] == expected
        finally:
            dying.shutdown()
    decode.flush()
    stats = decode.idle_stats()
    assert stats["num_free_pages"] == stats["num_pages"]


@pytest.mark.exhaustive
def test_a_session_goes_on_at_another_replica_with_the_same_tokens(
    folder: Path, prefill: Target, decode: Target
) -> None:
    prefill.flush()
    decode.flush()
    ids = decode.encode(LONG)[:300]
    params = {"max_new_tokens": 20, "temperature": 0.8, "sampling_seed": 4, "ignore_eos": True}
    session = decode.http.post("/open_session", json={"capacity_of_str_len": 1000}).json()

    def turn(target: Target, tokens: list[int], rid: str | None) -> Any:
        body = {"input_ids": tokens, "sampling_params": params, "session_params": {"id": session, "rid": rid}}
        answer = target.http.post("/generate", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = turn(decode, ids, None)
    prefill.flush()  # it computed the prompt: now it has nothing
    drained = decode.http.post("/drain", params={"to": f"ipc://{folder}/prefill"}).json()
    assert drained["num_sessions"] >= 1
    assert drained["num_left"] == 0
    assert decode.http.get("/health").status_code == 503
    moved = turn(prefill, ids[1:6], first["meta_info"]["id"])
    stayed = turn(decode, ids[1:6], first["meta_info"]["id"])
    assert moved["output_ids"] == stayed["output_ids"]
    history = len(ids) + len(first["output_ids"])
    assert moved["meta_info"]["prompt_tokens"] == history + 5
    assert moved["meta_info"]["cached_tokens"] >= (history - 1) // 16 * 16


class Switch(socketserver.ThreadingTCPServer):
    """A router that sends connections to the replica at `url`, and ends those to the one before."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.upstreams: list[socket.socket] = []
        super().__init__(("127.0.0.1", 0), Relay)

    def turn(self, url: str) -> None:
        """Send connections elsewhere from now on."""
        self.url = url
        for upstream in self.upstreams:
            with contextlib.suppress(OSError):
                upstream.shutdown(socket.SHUT_RDWR)
        self.upstreams.clear()


class Relay(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Switch)
        host, _, port = self.server.url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as upstream:
            self.server.upstreams.append(upstream)
            pairs = {self.request: upstream, upstream: self.request}
            while True:
                for source in select.select(list(pairs), [], [])[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    pairs[source].sendall(data)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["http", "zmq"])
def test_a_program_goes_on_at_another_replica_with_the_same_tokens(
    folder: Path, prefill: Target, decode: Target, way: str
) -> None:
    assert decode.runtime.url is not None
    assert prefill.runtime.url is not None
    prefill.flush()
    decode.flush()
    switch = Switch(decode.runtime.url)
    threading.Thread(target=switch.serve_forever, daemon=True).start()
    moved: list[dict[str, Any]] = []

    @ramiform.function
    def story(s: ramiform.ProgramState, drains: bool) -> None:
        s += LONG[:600] + gen("first", max_tokens=20, temperature=0.9, seed=3, ignore_eos=True)
        forks = s.fork(2)
        for index, fork in enumerate(forks):
            fork += f" Then {index}:" + gen("then", max_tokens=8, temperature=0.9, seed=index, ignore_eos=True)
            fork += " Good:" + ramiform.select("good", choices=[" yes", " no"])
        assert all(fork["good"] for fork in forks)
        if drains:
            prefill.flush()
            params = {"to": f"ipc://{folder}/prefill"}
            if way == "zmq":
                params["programs_to"] = prefill.runtime.address
            moved.append(decode.http.post("/drain", params=params).json())
            assert prefill.runtime.url is not None
            switch.turn(prefill.runtime.url)
            while way == "zmq" and endpoint.connection().address != prefill.runtime.address:
                threading.Event().wait(0.01)
        forks.join("concate_and_append")
        s += " So" + gen("last", max_tokens=12, temperature=0.9, seed=5, regex=r"[a-z ]{5,30}", return_logprob=True)

    endpoint = RuntimeEndpoint(decode.runtime.address)
    over_http = HttpRuntime(f"http://127.0.0.1:{switch.server_address[1]}")
    num_before = prefill.idle_stats()["num_output_tokens"]
    with endpoint, contextlib.closing(over_http):
        state = story.run(drains=True, backend=endpoint if way == "zmq" else over_http)
        ids = [state.get_meta_info(name)["output_ids"] for name in ("first", "last")]
        num_cached = state.get_meta_info("last")["cached_tokens"]
        num_new = state.get_meta_info("last")["completion_tokens"]
        text = state.text()
    switch.shutdown()
    switch.server_close()
    assert prefill.idle_stats()["num_output_tokens"] - num_before == num_new, "only the last was generated there"
    alone = story.run(drains=False, backend=decode.runtime)
    assert ids == [alone.get_meta_info(name)["output_ids"] for name in ("first", "last")]
    assert text == alone.text()
    assert moved[0]["num_left"] == 0
    assert num_cached > 150, "of the prompt and the first output, nothing was computed again"


@pytest.mark.exhaustive
def test_programs_that_cannot_follow_fail_clearly(folder: Path, prefill: Target, decode: Target) -> None:
    nowhere, here = f"ipc://{folder}/nowhere", {"to": f"ipc://{folder}/prefill"}
    refused = decode.http.post("/drain", params=here | {"programs_to": "localhost"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "programs_to")
    assert decode.http.post("/drain", params=here).status_code == 200, "it sends programs nowhere"

    @ramiform.function
    def story(s: ramiform.ProgramState) -> None:
        s += "The river" + gen("first", max_tokens=4, temperature=0)
        assert s["first"]
        assert decode.http.post("/drain", params=here | {"programs_to": nowhere}).status_code == 200
        while True:
            s += " and" + gen("next", max_tokens=2, temperature=0)
            assert s["next"] is not None

    with RuntimeEndpoint(decode.runtime.address) as endpoint, pytest.raises(RuntimeFailed, match="could not follow to"):
        story.run(backend=endpoint)
    assert decode.runtime.is_alive()
    assert decode.http.post("/drain", params={"to": "http://x"}).status_code == 400
