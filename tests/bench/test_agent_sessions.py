"""The replay of recorded sessions, judged by the trace's own sums and by endless memory."""

from __future__ import annotations

import json
import lzma
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ramiform.bench.agents.recorded_sessions import live_working_set, load, schedule
from ramiform.bench.agents.session_admission import AdmissionRule, AdmissionSettings
from ramiform.bench.agents.sessions import (
    LOOK_SECONDS,
    PARTS,
    Hints,
    Outcome,
    Part,
    play_workloads,
    replay,
)

HINTS: list[Hints] = ["none", "headers", "closed", "program"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Sessions of tools, users and rewritten prompts, read from a file like the recorded ones."""
    draw, sessions = random.Random(0), []
    for _ in range(24):
        start, size, turns = 0.0, 0, []
        for _ in range(draw.randrange(3, 14)):
            shared = size if draw.random() < 0.9 else size // 4
            size = shared + draw.randrange(5, 60)
            stop = draw.choice(["tool_use", "tool_use", "tool_use", "end_turn"])
            turns.append([start, 0.0, 1.0, size, shared, stop, draw.randrange(20, 300)])
            start += draw.expovariate(1 / (5 if stop == "tool_use" else 200))
        sessions.append(turns)
    file = tmp_path_factory.mktemp("sessions") / "sessions.json.xz"
    file.write_bytes(lzma.compress(json.dumps(sessions).encode()))
    plain = Path(str(file).removesuffix(".xz"))
    plain.write_text(json.dumps(sessions))
    assert load(file) == load(plain)
    return load(file)


def play(
    recorded: Any,
    policy: str,
    pool: float,
    hints: Hints = "program",
    host_pool: float = 0.0,
    without: Part | None = None,
) -> Outcome:
    return replay(
        recorded, policy, pool=pool, host_pool=host_pool, live=8, hints=hints, seed=0, slow=1.0, without=without
    )


@pytest.mark.parametrize("hints", HINTS)
def test_with_memory_for_everything_nothing_is_recomputed(recorded: Any, hints: Hints) -> None:
    outcome = play(recorded, "program", 20.0, hints)
    assert outcome.num_recomputed == 0
    assert outcome.num_whole == outcome.num_turns == sum(turn.num_shared > 0 for turns in recorded for turn in turns)
    assert outcome.num_reusable == sum(
        min(turn.num_shared, turn.num_blocks - 1) for turns in recorded for turn in turns
    )
    assert len(outcome.ttfts) == sum(map(len, recorded))
    assert len(outcome.job_times) == len(recorded)


@pytest.mark.parametrize("rule", ["lru", "forecast", "clairvoyant"])
def test_what_memory_has_not_comes_from_a_disk_that_has_room(recorded: Any, rule: str) -> None:
    """Judge: memory alone."""
    settings: dict[str, Any] = {"pool": 0.6, "host_pool": 0.0, "live": 8, "hints": "program", "seed": 0, "slow": 1.0}
    alone = replay(recorded, "lru", **settings)
    ample = replay(recorded, "lru", disk=(20.0, rule), **settings)
    small = replay(recorded, "lru", disk=(0.5, rule), **settings)
    assert ample.num_recomputed == 0 < small.num_recomputed < alone.num_recomputed
    assert ample.num_fetched >= alone.num_recomputed
    assert ample.num_reusable == alone.num_reusable


@pytest.mark.slow
def test_what_is_read_ahead_need_not_be_read_when_a_request_comes(recorded: Any) -> None:
    settings: dict[str, Any] = {"pool": 0.5, "host_pool": 0.0, "live": 8, "hints": "program", "seed": 0, "slow": 1.0}
    when_asked = replay(recorded, "program", disk=(20.0, "lru"), **settings)
    ahead = replay(recorded, "program", disk=(20.0, "lru"), reads_ahead=True, **settings)
    assert ahead.num_recomputed == when_asked.num_recomputed == when_asked.num_ahead == 0 < ahead.num_ahead
    assert ahead.num_fetched < when_asked.num_fetched


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["forecast", "clairvoyant"])
def test_admission_lets_turns_wait_for_a_bounded_time(recorded: Any, rule: AdmissionRule) -> None:
    """Judge: the same without admission, and memory for everything."""
    settings: dict[str, Any] = {"host_pool": 0.0, "live": 8, "hints": "program", "seed": 0, "slow": 1.0}
    longest = 20.0
    gate = AdmissionSettings(rule, longest, horizon=600.0)
    at_once = replay(recorded, "program", pool=0.5, **settings)
    later = replay(recorded, "program", pool=0.5, admission=gate, **settings)
    assert 0 < later.num_delayed < len(later.ttfts) == sum(map(len, recorded))
    assert later.num_reusable == at_once.num_reusable
    assert later.num_recomputed < at_once.num_recomputed
    assert 0 < later.longest_delay <= longest + LOOK_SECONDS
    assert sum(later.job_times) > sum(at_once.job_times)
    assert replay(recorded, "program", pool=20.0, admission=gate, **settings).num_delayed == 0


@pytest.mark.slow
@pytest.mark.parametrize("pool", [0.5, 0.7])
def test_sessions_by_headers_recompute_as_much_as_programs(recorded: Any, pool: float) -> None:
    """Name the sessions as HTTP clients do; with their ends told, they must be worth what programs are."""
    recomputed = {hints: play(recorded, "program", pool, hints).num_recomputed for hints in HINTS}
    assert recomputed["closed"] == pytest.approx(recomputed["program"], rel=0.05)
    assert recomputed["closed"] < recomputed["headers"] <= 1.05 * recomputed["none"]


@pytest.mark.slow
def test_who_knows_the_trace_recomputes_least_and_who_knows_programs_less_than_who_knows_nothing(recorded: Any) -> None:
    recomputed = {policy: play(recorded, policy, 0.6).num_recomputed for policy in ("lru", "program", "clairvoyant")}
    assert 0 < recomputed["clairvoyant"] < recomputed["program"] < recomputed["lru"]


@pytest.mark.exhaustive
def test_leaving_out_what_programs_tell_recomputes_more_and_other_parts_something_else(recorded: Any) -> None:
    whole = play(recorded, "program", 0.6)
    left_out = {name: play(recorded, "program", 0.6, without=part).num_recomputed for name, part in PARTS.items()}
    assert left_out["ends of programs"] == play(recorded, "program", 0.6, "headers").num_recomputed
    assert left_out["ends of programs"] > whole.num_recomputed
    assert left_out["kinds of waits"] != whole.num_recomputed != left_out["a program's own history"]
    assert play(recorded, "program", 0.6, without=Part()).num_recomputed == whole.num_recomputed


@pytest.mark.slow
def test_no_workload_takes_longer_than_with_lru() -> None:
    rows = play_workloads(0.1, 0)
    assert len(rows) == 6
    for row in rows:
        assert 0 < row["program: job s"] <= 1.001 * row["lru: job s"], row


@pytest.mark.slow
def test_sessions_are_recognised_without_hints(recorded: Any) -> None:
    told = play(recorded, "program", 0.6, "headers").num_recomputed
    recognised = play(recorded, "program", 0.6, "none").num_recomputed
    assert abs(recognised - told) < 0.1 * told


def test_a_host_tier_holds_what_the_device_has_no_room_for(recorded: Any) -> None:
    outcome = play(recorded, "program", 0.6, host_pool=20.0)
    assert outcome.num_recomputed == 0
    assert outcome.num_demoted > 0 < outcome.num_promoted


def test_the_working_set_counts_live_sessions_only(recorded: Any) -> None:
    # One after the other, the working set is what one session holds.
    sessions = schedule(recorded, 1, seed=0)
    for before, after in pairwise(sessions):
        after.start = before.start + before.turns[-1].after + 1.0
    largest = max(turn.num_blocks for turns in recorded for turn in turns)
    assert 0 < live_working_set(sessions) <= largest
