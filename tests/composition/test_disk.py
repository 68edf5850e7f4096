"""Prefixes from the disk change nothing that a client sees. The judge is a runtime without a disk cache."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform.runtime.frontend.core.journal import FLUSH_SECONDS
from ramiform.tests.frontend.harness import shipped_tokenizer

from .mix import WORDS, Expected, Target, make_mix, run_alone, run_together
from .test_disaggregated import kill

SETTINGS: dict[str, Any] = {"dtype": "float32", "log_level": "error", "port": 0}
LONG = " ".join(random.Random(7).choices(WORDS, k=900))
LETTERS = [
    token for token, data in enumerate(shipped_tokenizer().token_bytes) if data in (b"t", b"h", b"e", b"n", b" ")
]
SAVED_SECONDS = 5.0  # after which a kill loses nothing


@pytest.fixture(scope="module")
def plain() -> Iterator[Target]:
    with ramiform.Runtime(num_pages=1024, **SETTINGS) as runtime, Target(runtime) as target:
        yield target


def end_by_kill(target: Target) -> None:
    """Kill every process of a runtime once it has saved what it has."""
    deadline = time.monotonic() + SAVED_SECONDS
    before = -1
    while (saved := target.idle_stats()["disk"]["num_saved"]) != before and time.monotonic() < deadline:
        before = saved
        time.sleep(0.6)
    kill(target.runtime.pid)


def test_a_restarted_runtime_goes_on_from_the_disk(plain: Target, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    ids = plain.encode(LONG)
    with ramiform.Runtime(disk_cache=folder, num_pages=1024, **SETTINGS) as runtime, Target(runtime) as first:
        begun = first.generate(ids, max_new_tokens=40)["output_ids"]
        assert first.idle_stats()["disk"]["is_writer"]
        end_by_kill(first)
    assert begun == plain.generate(ids, max_new_tokens=40)["output_ids"]
    turn = [*ids, *begun, *plain.encode(" And then?")]
    with ramiform.Runtime(disk_cache=folder, num_pages=1024, **SETTINGS) as runtime, Target(runtime) as second:
        answer = second.generate(turn, max_new_tokens=40)
        stats = second.idle_stats()
    assert answer["output_ids"] == plain.generate(turn, max_new_tokens=40)["output_ids"]
    num_saved = (len(ids) + len(begun) - 1) // 16 * 16
    assert answer["meta_info"]["cached_tokens"] == stats["disk"]["num_hit_tokens"] == num_saved
    assert stats["disk"]["num_damaged"] == 0


def test_a_quiet_end_saves_all_and_notes_what_is_to_be_read_ahead(plain: Target, tmp_path: Path) -> None:
    """The second request comes within the seconds between two notes, and ends as the runtime does."""
    folder, ids = str(tmp_path / "cache"), plain.encode(LONG)
    longer = [*ids, *plain.encode(" ".join(reversed(LONG.split())))][:1900]
    with ramiform.Runtime(disk_cache=folder, num_pages=1024, **SETTINGS) as runtime, Target(runtime) as target:
        for prompt in (ids, longer):
            target.generate(prompt, max_new_tokens=1)
    with ramiform.Runtime(disk_cache=folder, num_pages=1024, **SETTINGS) as runtime, Target(runtime) as target:
        deadline = time.monotonic() + 30
        num_whole = len(longer) // 16 * 16
        while (ahead := target.idle_stats()["disk"]["num_ahead_tokens"]) < num_whole and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ahead == num_whole
        answer = target.generate([*longer, *ids[:20]], max_new_tokens=8)
    assert answer["meta_info"]["cached_tokens"] >= num_whole
    assert answer["output_ids"] == plain.generate([*longer, *ids[:20]], max_new_tokens=8)["output_ids"]


def chat(target: Target, messages: list[Any]) -> tuple[str, list[int], int]:
    """Return an answer's text and ids, and how many generated ids its prompt had. It has one letter a token, which the
    tokenizer would not choose."""
    body = {
        "messages": messages,
        "max_tokens": 24,
        "temperature": 0.0,
        "allowed_token_ids": LETTERS,
        "return_token_ids": True,
    }
    answered = target.http.post("/v1/chat/completions", json=body)
    answered.raise_for_status()
    answer = answered.json()
    choice = answer["choices"][0]
    num = answer["usage"]["prompt_tokens_details"]["remembered_tokens"]
    return choice["message"]["content"], choice["token_ids"], num


def open_session(target: Target) -> None:
    target.http.post("/open_session", json={"capacity_of_str_len": 1000, "session_id": "mine"}).raise_for_status()


def in_session(target: Target, rid: str, parent: str | None, ids: list[int]) -> list[int]:
    body = {
        "rid": rid,
        "input_ids": ids,
        "session_params": {"id": "mine", "rid": parent},
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 12},
    }
    answered = target.http.post("/generate", json=body)
    answered.raise_for_status()
    found: list[int] = answered.json()["output_ids"]
    return found


def wait_until_written(folder: Path) -> None:
    """Wait until the file of what the frontend remembers has grown no more for three of its writes."""
    [file] = folder.glob("conversations/*/0.journal")
    size, still = 0, 0
    while not size or still < 3:
        time.sleep(FLUSH_SECONDS)
        still = still + 1 if file.stat().st_size == size else 0
        size = file.stat().st_size


def test_chats_and_sessions_go_on_after_a_kill_as_if_there_had_been_none(plain: Target, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    messages: list[Any] = [{"role": "user", "content": "Tell me about cats."}]
    first_ids, next_ids = plain.encode("The story of a dog."), plain.encode(" Then")

    def begin(target: Target) -> tuple[list[Any], list[int]]:
        text, ids, _ = chat(target, messages)
        open_session(target)
        assert in_session(target, "one", None, first_ids)
        return [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}], ids

    with ramiform.Runtime(disk_cache=str(folder), num_pages=256, **SETTINGS) as runtime, Target(runtime) as target:
        later, said = begin(target)
        wait_until_written(folder)
        end_by_kill(target)
    begun, expected_said = begin(plain)
    assert begun == later
    assert said == expected_said
    expected = chat(plain, later)
    assert expected[2] == len(said), "the ids are not the tokenizer's"
    with ramiform.Runtime(disk_cache=str(folder), num_pages=256, **SETTINGS) as runtime, Target(runtime) as target:
        assert chat(target, later) == expected
        assert in_session(target, "two", "one", next_ids) == in_session(plain, "two", "one", next_ids)


def test_a_mix_on_a_small_pool_gets_what_a_large_one_gives(plain: Target, tmp_path: Path) -> None:
    cases = make_mix(24, plain.encode, seed=11)
    plain.flush()
    expected = Expected(list(cases), run_alone(cases, [plain]))
    settings = {**SETTINGS, "disk_cache": str(tmp_path / "cache"), "num_pages": 160, "host_kv_memory": 0.01}
    with ramiform.Runtime(**settings) as runtime, Target(runtime) as target:
        expected.check(run_together(cases, target))
        end_by_kill(target)
    with ramiform.Runtime(**settings) as runtime, Target(runtime) as target:
        expected.check(run_together(cases, target))
        stats = target.idle_stats()
    assert stats["disk"]["num_hit_tokens"] > 0
    assert stats["disk"]["num_damaged"] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", [{"tp": 2, "speculative": "eagle"}, {"pp": 2, "speculative": "off"}], ids=str)
def test_ranks_and_stages_share_the_folder_of_two_runtimes(
    settings: dict[str, Any], plain: Target, tmp_path: Path
) -> None:
    ids = plain.encode(LONG)[:900]
    expected = plain.generate(ids, max_new_tokens=24)["output_ids"]
    settings = {**SETTINGS, "disk_cache": str(tmp_path / "cache"), "num_pages": 512, **settings}
    with ramiform.Runtime(**settings) as runtime, Target(runtime) as first:
        assert first.generate(ids, max_new_tokens=24)["output_ids"] == expected
        time.sleep(1.5)  # until it is saved
        with ramiform.Runtime(**settings) as other, Target(other) as second:
            answer = second.generate(ids, max_new_tokens=24)
            disk = second.idle_stats()["disk"]
            assert not disk["is_writer"], "the first one writes"
            assert answer["output_ids"] == expected
            assert answer["meta_info"]["cached_tokens"] == disk["num_hit_tokens"] == (len(ids) - 1) // 16 * 16


@pytest.mark.exhaustive
def test_what_another_runtime_computed_comes_from_the_disk_after_a_restart(plain: Target, tmp_path: Path) -> None:
    ids = plain.encode(LONG)[:600]
    num_whole = (len(ids) - 1) // 16 * 16
    expected = plain.generate(ids, max_new_tokens=16)["output_ids"]
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as short:  # the path of a socket is limited
        bind = f"ipc://{short}/prefill"
        common = {**SETTINGS, "num_pages": 512, "transfer": "zmq"}
        settings = {**common, "role": "decode", "prefill_workers": bind, "disk_cache": str(tmp_path / "cache")}
        with ramiform.Runtime(role="prefill", transfer_bind=bind, **common):
            with ramiform.Runtime(**settings) as runtime, Target(runtime) as first:
                assert first.generate(ids, max_new_tokens=16)["output_ids"] == expected
                assert first.idle_stats()["num_fetched_tokens"] == num_whole
                end_by_kill(first)
            with ramiform.Runtime(**settings) as runtime, Target(runtime) as second:
                answer, stats = second.generate(ids, max_new_tokens=16), second.idle_stats()
    assert answer["output_ids"] == expected
    assert answer["meta_info"]["cached_tokens"] == stats["disk"]["num_hit_tokens"] == num_whole
    assert stats["num_fetched_tokens"] == 0
