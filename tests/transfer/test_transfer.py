"""Pages from one core to another: computed there, cached here, refused, lost on the way, moved."""

from __future__ import annotations

import importlib.util
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import zmq

from ramiform.runtime.core.disk_cache import open_disk_cache
from ramiform.runtime.engine import kv_statistics
from ramiform.runtime.engine.kv_pool import PAGE_SIZE
from ramiform.runtime.models.stored.kv_scales import KvStatistics, constants_digest
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Abort, MovePrefixes
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.keys import make_keys
from ramiform.runtime.transfer.exporter import PrefixExporter
from ramiform.runtime.transfer.hub import MAX_PEERS, uses_transfers
from ramiform.runtime.transfer.messages import (
    MAX_UNCONFIRMED_BYTES,
    CancelFetch,
    FetchPrefix,
    Greet,
    Greeting,
    PagesSent,
    PagesTaken,
    PagesWanted,
)
from ramiform.runtime.transfer.replication import PrefixSender
from ramiform.runtime.transfer.sockets import PeerSocket

from .cores import Core, alone, run

draw = random.Random(11)
PROMPT = [draw.randrange(20, 1000) for _ in range(333)]
has_nixl = importlib.util.find_spec("nixl_cu12") is not None


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        yield f"ipc://{folder}/prefill"


def pair(address: str, **settings: Any) -> tuple[Core, Core]:
    """A prefill core, which computes 64 tokens a step, and a decode core connected to it."""
    prefill = Core(role="prefill", transfer_bind=address, prefill_budget=64, **settings)
    decode = Core(role="decode", prefill_workers=address, **settings)
    run([prefill, decode], lambda: decode.hub._fetcher.connected)
    return prefill, decode


without_nixl = pytest.mark.skipif(not has_nixl, reason="without the extra nixl")
FORMATS = ("fp32", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4")
CARRIERS = [("zmq", name) for name in FORMATS]


@pytest.mark.slow
@pytest.mark.parametrize(("transfer", "kv_dtype"), [*CARRIERS, pytest.param("nixl", "int8", marks=without_nixl)])
def test_a_prompt_computed_elsewhere_has_the_same_pages_and_tokens(address: str, transfer: str, kv_dtype: str) -> None:
    prefill, decode = pair(address, kv_dtype=kv_dtype, transfer=transfer)
    expected = alone(prefill, PROMPT)
    decode.ask("one", PROMPT)
    run([prefill, decode], lambda: "one" in decode.finished)
    assert decode.outputs["one"] == expected
    assert decode.finished["one"].num_cached == 320
    whole = PROMPT[:320]
    ours, theirs = decode.pages.read(whole, "", 0), prefill.pages.read(whole, "", 0)
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)
    counters = decode.hub._fetcher.counters
    assert (counters.num_tokens, counters.num_failures) == (320, 0)
    assert 0 < counters.num_early_tokens < 320
    for core in (prefill, decode):
        core.assert_no_page_is_lost()


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_ids_are_the_same_transferred_warm_forked_and_back_from_the_host(
    address: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judge: the prefill runtime alone, with an empty cache."""
    prefill, decode = pair(address, kv_dtype=kv_dtype, num_pages=48, host_kv_memory=0.02)
    expected, branch = alone(prefill, PROMPT, max_new_tokens=24), PROMPT[:200] + [7] * 40
    expected_branch = alone(prefill, branch, max_new_tokens=24)
    decode.ask("transferred", PROMPT, max_new_tokens=24)
    run([prefill, decode], lambda: "transferred" in decode.finished)
    theirs = prefill.pages.read(PROMPT[:320], "", 0)
    assert theirs is not None
    monkeypatch.setattr(decode.scheduler._remote, "_fetch", None)
    decode.ask("warm", PROMPT, max_new_tokens=24)
    run([decode], lambda: "warm" in decode.finished)
    for rid, tokens in (("one", PROMPT), ("the same", PROMPT), ("a branch", branch)):
        decode.ask(rid, tokens, max_new_tokens=24)
    run([decode], lambda: len(decode.finished) == 5)
    for number in range(4):  # what takes the pages
        decode.ask(f"other {number}", [number + 50] * 7 + PROMPT[::-1])
        run([decode], lambda number=number: f"other {number}" in decode.finished)
    num_promoted = decode.cache.stats.num_promoted_pages
    decode.ask("back", PROMPT, max_new_tokens=24)
    run([decode], lambda: "back" in decode.finished)
    assert decode.cache.stats.num_promoted_pages >= num_promoted + 20
    for rid in ("transferred", "warm", "one", "the same", "back"):
        assert decode.outputs[rid] == expected, rid
        assert decode.finished[rid].num_cached >= 320, rid
    assert decode.outputs["a branch"] == expected_branch
    assert decode.finished["a branch"].num_cached >= 192
    ours = decode.pages.read(PROMPT[:320], "", 0)
    assert ours is not None
    assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_samples_and_branches_of_a_prompt_share_one_fetch(address: str) -> None:
    prefill, decode = pair(address)
    for number in range(3):
        decode.ask(f"sample {number}", PROMPT, temperature=1.0, seed=number)
    decode.ask("branch", PROMPT[:300] + [7] * 20)
    assert len(decode.hub._fetcher._fetches) == 1
    run([prefill, decode], lambda: len(decode.finished) == 4)
    expected = [alone(prefill, PROMPT, temperature=1.0, seed=number) for number in range(3)]
    assert [decode.outputs[f"sample {number}"] for number in range(3)] == expected
    assert decode.outputs["branch"] == alone(prefill, PROMPT[:300] + [7] * 20)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before it is connected", "while pages come"])
def test_a_prompt_is_computed_here_when_the_other_runtime_is_gone(address: str, when: str) -> None:
    prefill, decode = pair(address)
    expected = alone(prefill, PROMPT)
    decode.ask("one", PROMPT)
    if when == "while pages come":
        run([prefill, decode], lambda: decode.hub._fetcher.counters.num_tokens > 0)
    server = prefill.hub._server
    assert server is not None
    server.socket.close(linger=0)
    run([decode], lambda: "one" in decode.finished)
    assert decode.outputs["one"] == expected
    assert decode.hub._fetcher.counters.num_failures == 1
    decode.ask("two", PROMPT[::-1])
    run([decode], lambda: "two" in decode.finished)
    decode.assert_no_page_is_lost()


@pytest.mark.slow
def test_a_silent_runtime_is_given_up_after_a_time(address: str) -> None:
    now = [0.0]
    prefill = Core(transfer_bind=address)
    decode = Core(prefill_workers=address, clock=lambda: now[0])
    run([prefill, decode], lambda: decode.hub._fetcher.connected)
    decode.ask("one", PROMPT)
    for _ in range(20):
        decode.step()
    assert "one" not in decode.finished
    now[0] += 21.0
    run([decode], lambda: "one" in decode.finished)
    assert decode.outputs["one"] == alone(prefill, PROMPT)


@pytest.mark.slow
def test_an_aborted_request_ends_its_fetch_on_both_sides(address: str) -> None:
    prefill, decode = pair(address)
    decode.ask("one", PROMPT)
    run([prefill, decode], lambda: decode.hub._fetcher.counters.num_tokens > 0)
    decode.scheduler.handle(Abort("one"), 0.0)
    run([prefill, decode], lambda: not (decode.hub.active or prefill.hub.active) and prefill.scheduler.idle)
    for core in (prefill, decode):
        core.assert_no_page_is_lost()


@pytest.mark.exhaustive
def test_few_pages_are_shared_by_requests_and_fetches(address: str) -> None:
    prefill = Core(transfer_bind=address, prefill_budget=64, num_pages=40)
    decode = Core(prefill_workers=address, num_pages=40, host_kv_memory=0.01)
    run([prefill, decode], lambda: decode.hub._fetcher.connected)
    prompts = [PROMPT[number:] + PROMPT[:number] for number in range(0, 60, 10)]
    expected = [alone(prefill, prompt, max_new_tokens=40) for prompt in prompts]
    for number, prompt in enumerate(prompts):
        decode.ask(str(number), prompt, max_new_tokens=40)
    run([prefill, decode], lambda: len(decode.finished) == len(prompts))
    assert [decode.outputs[str(number)] for number in range(len(prompts))] == expected
    for core in (prefill, decode):
        run([core], lambda core=core: core.scheduler.idle and not core.hub.active)
        core.assert_no_page_is_lost()


def test_a_receiver_that_vanishes_costs_the_sender_nothing(address: str) -> None:
    prefill = Core(transfer_bind=address, prefill_budget=16)
    context: zmq.Context[Any] = zmq.Context()
    peer = PeerSocket(context, address, None, max_bytes=1 << 20)
    got: list[Any] = []

    def receive() -> list[Any]:
        got.extend(message for message, _ in peer.receive())
        return got

    peer.send(Greet(prefill.layout))
    while not list(peer.changes()):
        pass
    peer.send(Greet(prefill.layout))
    run([prefill], receive)
    assert isinstance(got[0], Greeting)
    peer.send(FetchPrefix(call=1, tokens=PROMPT, namespace="", first=0))
    run([prefill], lambda: any(isinstance(message, PagesSent) for message in receive()))
    peer.close()
    context.term()
    run([prefill], lambda: prefill.scheduler.idle and not prefill.hub.active)
    prefill.assert_no_page_is_lost()


def test_a_receiver_that_confirms_nothing_leaves_room_for_others() -> None:
    pages = Mock()
    pages.shape.page_bytes = MAX_UNCONFIRMED_BYTES // 64
    pages.num_cached.side_effect = lambda tokens, namespace: len(tokens) // PAGE_SIZE
    pages.read.side_effect = lambda tokens, namespace, first: torch.zeros(len(tokens) // PAGE_SIZE - first, 1)
    sent: Counter[bytes] = Counter()

    def send(peer: bytes, message: Any, payload: object) -> bool:
        sent[peer] += message.count if isinstance(message, PagesSent) else 0
        return True

    exporter = PrefixExporter(pages, lambda message, owner: [], lambda rid: 0, send)
    for peer in (b"silent", b"slow", b"other"):
        exporter.begin(peer, FetchPrefix(call=1, tokens=[7] * (100 * PAGE_SIZE), namespace="", first=0), 0.0)
        exporter.work(0.0, None, set())
    assert sent == {b"silent": 32, b"slow": 16, b"other": 8}
    for _ in range(200):
        exporter.confirm(b"other", PagesTaken(1, 1), None, 1.0)
        exporter.work(1.0, None, set())
    assert sent[b"other"] == 100


DIFFERENT: dict[str, dict[str, Any]] = {
    "kv_dtype": {"kv_dtype": "bf16"},
    "dtype": {"dtype": "bfloat16", "kv_dtype": "fp32"},
    "context_length": {"context_length": 512},
    "quantize": {"quantize": "int8"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("field", "settings"), DIFFERENT.items(), ids=DIFFERENT)
def test_another_layout_is_refused_by_name(
    address: str, field: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    prefill = Core(transfer_bind=address, kv_dtype="fp32")
    decode = Core(prefill_workers=address, **{"kv_dtype": "fp32"} | settings)
    run([prefill, decode], lambda: f"{field} is" in caplog.text)
    assert not decode.hub._fetcher.connected
    decode.ask("one", PROMPT)
    run([decode], lambda: "one" in decode.finished)


def elsewhere(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Core:
    """A core whose statistics were measured where sums come out otherwise, as on another device."""
    with monkeypatch.context() as patch:
        patch.setattr(kv_statistics, "_TEXT", "Elsewhere, " + kv_statistics._TEXT)
        return Core(**settings)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
def test_a_runtime_without_pages_stores_by_the_statistics_of_the_one_that_computes_its_prompts(
    address: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = elsewhere(monkeypatch, role="prefill", transfer_bind=address, prefill_budget=64, kv_dtype=kv_dtype)
    decode = Core(role="decode", prefill_workers=address, kv_dtype=kv_dtype)
    before = decode.engine.kv_shape.scales
    assert before != prefill.engine.kv_shape.scales
    expected = alone(prefill, PROMPT, max_new_tokens=12)
    run([prefill, decode], lambda: decode.hub._fetcher.connected)
    assert decode.engine.kv_shape.scales == prefill.engine.kv_shape.scales
    decode.ask("one", PROMPT, max_new_tokens=12)
    run([prefill, decode], lambda: "one" in decode.finished)
    assert decode.outputs["one"] == expected
    assert decode.finished["one"].num_cached == 320
    # Computed here or there, and stored here: the same bytes.
    ours, theirs = (core.pages.read(PROMPT[:320], "", 0) for core in (decode, prefill))
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)
    assert alone(decode, PROMPT, max_new_tokens=12) == expected
    decode.ask("again", PROMPT)
    monkeypatch.setattr(decode.scheduler._remote, "_fetch", None)
    run([decode], lambda: "again" in decode.finished)
    own = decode.pages.read(PROMPT[:320], "", 0)
    assert own is not None
    assert torch.equal(own, theirs)


@pytest.mark.slow
def test_a_runtime_with_pages_keeps_its_statistics_and_says_so(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefill = elsewhere(monkeypatch, transfer_bind=address, kv_dtype="int8")
    decode = Core(prefill_workers=address, kv_dtype="int8")
    monkeypatch.setattr(decode.scheduler._remote, "_fetch", None)
    expected = alone(decode, PROMPT)
    before = decode.engine.kv_shape.scales
    decode.ask("first", PROMPT)  # before the connection is made
    for answers in decode._pipeline.advance():
        del answers
    run([prefill, decode], lambda: "kv_scales is" in caplog.text)
    assert "pages are held here already. Start both with one --kv-scales FILE" in caplog.text
    assert (decode.hub._fetcher.connected, decode.engine.kv_shape.scales) == (set(), before)
    decode.ask("second", PROMPT)
    run([decode], lambda: "second" in decode.finished)
    assert decode.outputs["second"] == expected


@pytest.mark.slow
def test_a_file_pins_the_scales_of_a_runtime(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured = Core(kv_dtype="int4")
    file = tmp_path / "statistics"
    constants = measured.engine._runner.pool.constants
    assert isinstance(constants, KvStatistics)
    kv_statistics.write_statistics(constants, 175, file)
    prefill = elsewhere(monkeypatch, transfer_bind=address, kv_dtype="int4")
    decode = Core(prefill_workers=address, kv_dtype="int4", kv_scales=str(file))
    run([prefill, decode], lambda: "kv_scales is" in caplog.text)
    assert "those here are a file's or the checkpoint's" in caplog.text
    assert not decode.hub._fetcher.connected
    pinned = elsewhere(monkeypatch, transfer_bind=address + "2", kv_dtype="int4", kv_scales=str(file))
    other = Core(prefill_workers=address + "2", kv_dtype="int4", kv_scales=str(file))
    run([pinned, other], lambda: other.hub._fetcher.connected)


@pytest.mark.slow
def test_a_disk_cache_pins_the_statistics_of_its_pages(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefill = elsewhere(monkeypatch, transfer_bind=address, kv_dtype="int8")
    decode = Core(prefill_workers=address, kv_dtype="int8", disk_cache=str(tmp_path / "pages"))
    disk, before = open_disk_cache(decode.config, decode.info, decode.cache, decode.pages), decode.layout.kv_scales
    run([prefill, decode], lambda: "kv_scales is" in caplog.text)
    assert "pages on disk are stored by those here" in caplog.text
    assert (decode.hub._fetcher.connected, decode.engine.kv_shape.scales) == (set(), before)
    disk.close()


@pytest.mark.slow
def test_statistics_are_adopted_from_one_runtime_only(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = Core(transfer_bind=address, kv_dtype="fp8")
    there = elsewhere(monkeypatch, transfer_bind=address + "2", kv_dtype="fp8")
    decode = Core(prefill_workers=f"{address},{address}2", kv_dtype="fp8")
    run([here, decode], lambda: decode.hub._fetcher.connected)
    run([here, there, decode], lambda: "kv_scales is" in caplog.text)
    assert "pages are exchanged with another runtime already" in caplog.text
    assert len(decode.hub._fetcher.connected) == 1
    assert decode.engine.kv_shape.scales == here.engine.kv_shape.scales


@pytest.mark.slow
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_replica_without_pages_takes_statistics_along_with_prefixes(
    address: str, is_empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = elsewhere(monkeypatch, transfer_keys="unused", kv_dtype="int4")
    target = Core(transfer_bind=address, kv_dtype="int4")
    for core in (source,) if is_empty else (source, target):
        core.ask("one", PROMPT)
        run([core], lambda core=core: "one" in core.finished)
    source.hub.move(b"", MovePrefixes(1, address))
    replies: list[Any] = []
    run([source, target], lambda: replies.extend(source.hub.take_replies()) or replies)
    error, moved = replies[0][1].error, replies[0][1].moved
    if is_empty:
        assert (error, moved.num_sequences, moved.num_left) == (None, 1, 0)
        target.ask("two", PROMPT)
        run([target], lambda: "two" in target.finished)
        assert target.outputs["two"] == source.outputs["one"]
        assert target.finished["two"].num_cached >= 320
    else:
        assert (error.param, error.code) == ("kv_scales", "kv_layout_mismatch")
        assert "pages are held here already" in error.message
        assert not source.hub._peers


@pytest.mark.parametrize("forged", ["another digest", "not finite", "a factor of 0", "too short", "nothing"])
def test_statistics_that_are_not_what_a_sender_says_are_dropped(forged: str) -> None:
    core = Core(kv_dtype="int8")
    before, own = core.engine.kv_shape.scales, core.pages.constants()
    assert own is not None
    numbers = own.clone()
    numbers[0 if forged != "a factor of 0" else 2, 1, 0, 3] = {"not finite": float("nan"), "a factor of 0": 0.0}.get(
        forged, 7.5
    )
    data = numbers.numpy().tobytes()
    digest = "0" * 16 if forged == "another digest" else constants_digest(numbers)
    data = {"too short": data[:-4], "nothing": b""}.get(forged, data)
    assert not core.pages.adopt(data, digest)
    assert core.engine.kv_shape.scales == before
    now = core.pages.constants()
    assert now is not None
    assert torch.equal(now, own)
    good = own * 1.5
    assert core.pages.adopt(good.numpy().tobytes(), constants_digest(good))
    assert core.pages.shape.scales == constants_digest(good) != before


@pytest.mark.slow
def test_prefixes_move_to_a_replica_with_the_same_pages(address: str) -> None:
    source, target = Core(transfer_keys="unused"), Core(transfer_bind=address)
    for number in range(3):
        source.ask(str(number), PROMPT[: 200 + 40 * number] + [number] * 30)
    run([source], lambda: len(source.finished) == 3)
    source.hub.move(b"frontend", MovePrefixes(7, address, b"sessions"))
    replies: list[Any] = []
    run([source, target], lambda: replies.extend(source.hub.take_replies()) or replies)
    [(owner, reply)] = replies
    assert (owner, reply.call, reply.error) == (b"frontend", 7, None)
    assert (reply.moved.num_sequences, reply.moved.num_left) == (3, 0)
    assert target.hub.take_sessions() == [b"sessions"]
    for sequence in source.pages.sequences():
        namespace, tokens = source.pages.tokens(sequence)
        ours, theirs = source.pages.read(tokens, namespace, 0), target.pages.read(tokens, namespace, 0)
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
    assert source.hub._peers == {}


@pytest.mark.slow
def test_a_replica_takes_prefixes_into_free_pages_only(address: str) -> None:
    source, target = Core(transfer_keys="unused"), Core(transfer_bind=address, num_pages=30)
    for number in range(3):
        source.ask(str(number), [number + 50] * 5 + PROMPT[:200])
        run([source], lambda number=number: str(number) in source.finished)
    source.hub.move(b"", MovePrefixes(1, address))
    replies: list[Any] = []
    run([source, target], lambda: replies.extend(source.hub.take_replies()) or replies)
    moved = replies[0][1].moved
    assert (moved.num_sequences, moved.num_left) == (2, 1)
    assert target.pages.num_cached([52] * 5 + PROMPT[:187], "") == 12, "what was used last goes first"


def test_moving_to_nobody_fails_clearly(address: str) -> None:
    now = [0.0]
    source = Core(transfer_keys="unused", clock=lambda: now[0])
    source.hub.move(b"", MovePrefixes(1, address))
    source.step()
    now[0] += 11.0
    source.step()
    [(_, reply)] = source.hub.take_replies()
    assert reply.error is not None
    assert "was not reached within 10 s" in reply.error.message


@pytest.mark.parametrize("to", [f"ipc:///tmp/{'x' * 200}", "tcp://no host:7100", "tcp://*:7100"])
def test_moving_to_an_address_that_cannot_be_one_fails_and_the_core_goes_on(to: str, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    source = Core(transfer_keys=str(tmp_path / "keys"))
    source.hub.move(b"", MovePrefixes(1, to))
    [(_, reply)] = source.hub.take_replies()
    assert reply.error is not None
    assert (reply.error.param, "cannot connect to" in reply.error.message) == ("to", True)
    assert not source.hub._peers


@pytest.mark.slow
def test_a_peer_that_asks_is_remembered_however_many_others_come_and_go(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is forgotten would get no answer, since it greets only once."""
    core = Core(transfer_bind=address)
    monkeypatch.setattr(core.hub, "_send", lambda receiver, message, pages=None: True)
    for number in range(MAX_PEERS + 1):
        core.hub._serve(b"%d" % number, Greet(core.layout), b"", 0.0)
        core.hub._serve(b"0", CancelFetch(1), b"", 0.0)
    assert (b"0" in core.hub._greeted, b"1" in core.hub._greeted) == (True, False)
    assert len(core.hub._greeted) == MAX_PEERS


def test_an_answer_to_what_was_not_offered_is_passed_over() -> None:
    core = Core()
    sender = PrefixSender(core.pages, lambda message, pages: None, b"sessions", 0.0)
    sender.take(PagesWanted(0, 0), 0.0)
    sender.work(0.0)
    assert sender.result is None


@pytest.mark.slow
def test_over_tcp_only_the_holders_of_the_keys_exchange_pages(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    make_keys(tmp_path / "others")
    keys = {"transfer_keys": str(tmp_path / "keys")}
    prefill = Core(transfer_bind="tcp://127.0.0.1:0", **keys)
    assert prefill.hub.address is not None
    decode = Core(prefill_workers=prefill.hub.address, **keys)
    stranger = Core(prefill_workers=prefill.hub.address, transfer_keys=str(tmp_path / "others"))
    run([prefill, decode, stranger], lambda: decode.hub._fetcher.connected)
    decode.ask("one", PROMPT)
    run([prefill, decode, stranger], lambda: "one" in decode.finished)
    assert decode.hub._fetcher.counters.num_tokens == 320
    assert not stranger.hub._fetcher.connected


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "transfer_bind": ({"role": "prefill"}, "role prefill needs transfer_bind"),
    "prefill_workers": ({"role": "decode"}, "role decode needs prefill_workers"),
    "transfer_keys": ({"transfer_bind": "tcp://127.0.0.1:0"}, "make them with `ramiform keys"),
    "prefix_cache": ({"transfer_bind": "ipc:///tmp/x", "prefix_cache": False}, "through the prefix cache"),
    "log_plans": ({"transfer_bind": "ipc:///tmp/x", "log_plans": "x"}, "could not be replayed"),
}


@pytest.mark.parametrize(("param", "wrong"), WRONG.items(), ids=WRONG)
def test_settings_that_do_not_go_together_are_refused_by_name(param: str, wrong: tuple[dict[str, Any], str]) -> None:
    settings, message = wrong
    with pytest.raises(RequestError, match=message) as caught:
        uses_transfers(CoreConfig(**settings))
    assert caught.value.param == param


def test_a_wrong_address_is_named() -> None:
    with pytest.raises(RequestError, match=r"tcp://HOST:PORT or ipc://PATH, got 'http://x'"):
        uses_transfers(CoreConfig(prefill_workers="http://x"))
