"""Requests leave nothing behind that only a collection of cycles frees."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest

from ramiform.runtime.frontend.records.log import Owner, ProgramLog
from ramiform.runtime.frontend.records.recorder import ProgramRecorder, RecordedRuns
from ramiform.runtime.frontend.records.request import RequestRecord
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import Append, Open, Text
from ramiform.tests.frontend.harness import house, run, says
from ramiform.tests.frontend.http.transport.peers import Peer, connected

OWNER = Owner("http")
MESSAGES = [{"role": "user", "content": "Hi"}]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}),
    "stream": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "stream": True}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}),
    "response": ("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "store": False}),
    "native": ("/generate", {"text": "Hi", "sampling_params": {"max_new_tokens": 2}}),
    "tokens": ("/tokenize", {"prompt": "Hi"}),
    "refused": ("/v1/completions", {"prompt": "Hi", "zebra": 1}),
}


async def ask(peer: Peer, path: str, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    await peer.send(f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    head = (await peer.reader.readuntil(b"\r\n\r\n")).lower()
    if b"chunked" in head:
        await peer.reader.readuntil(b"\r\n0\r\n\r\n")
    else:
        await peer.reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


@pytest.mark.slow
@pytest.mark.parametrize(("num_requests", "max_freed"), [(20, 15), pytest.param(500, 50, marks=pytest.mark.exhaustive)])
def test_requests_leave_no_cycles(num_requests: int, max_freed: int) -> None:
    async def main() -> None:
        async with house(says("Hello"), http=True) as built, connected(built) as peer:
            found = {}
            gc.collect()
            gc.freeze()  # so that each collection below walks what requests made
            for kind, request in KINDS.items():
                for number in range(5 + num_requests):
                    if number == 5:  # what the first ones leave is made once
                        gc.collect()
                        gc.disable()
                    await ask(peer, *request)
                found[kind] = gc.collect()
                gc.enable()
            assert {kind: number for kind, number in found.items() if number > max_freed} == {}

    try:
        run(main())
    finally:
        gc.enable()


def test_a_dropped_record_is_free_at_once() -> None:
    log = ProgramLog(max_records=1)
    gc.disable()
    try:
        gone = []
        for _ in range(3):
            record = RequestRecord(log, Owner("http", None), "POST /generate")
            sample = record.add([1, 2], SamplingParams(), 0.0)
            sample.close()
            record.end("POST /generate", 200)
            gone.append(weakref.ref(record))
        del record, sample
        assert [one() is None for one in gone] == [True, True, False]
    finally:
        gc.enable()


def test_a_dropped_program_that_might_have_gone_on_is_free_at_once() -> None:
    """Over HTTP a program may go on with another request; its record is kept for that, and by a timer."""

    async def main() -> None:
        log, runs = ProgramLog(max_records=2), RecordedRuns()
        gone: list[weakref.ref[Any]] = []
        for number in range(5):
            recorder = ProgramRecorder(log, OWNER, run=runs.find(OWNER, f"run {number}"))
            recorder.receive(Open(1, 1))
            recorder.receive(Append(1, 0, [Text("x")]))
            [newest] = log.rows(limit=1)
            gone.append(weakref.ref(log._by_id[newest.row.id].record))
            recorder.ended(1, None)
            del recorder
        assert [one() is None for one in gone] == [True, True, True, False, False]

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()
