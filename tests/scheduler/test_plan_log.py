"""A log replays to the same plans; under other settings the same requests give the same tokens."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import resource
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from ramiform.radix.window_pages import WindowSizes
from ramiform.runtime.core.grammar_cache import GrammarCache
from ramiform.runtime.core.pipeline import Pipeline
from ramiform.runtime.protocol.core import (
    BACKGROUND_PRIORITY,
    EndStates,
    FlushCache,
    Generate,
    ProgramProgress,
    SoftPin,
)
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint
from ramiform.runtime.replay.replay import PlanMismatch, replay, what_if
from ramiform.runtime.scheduler.plan_log import (
    MAX_LOG_BYTES,
    LogEntry,
    LoggedPlan,
    LoggingScheduler,
    LogHeader,
    PlanLog,
    read_log,
)
from ramiform.runtime.scheduler.scheduler import CacheSizes
from ramiform.tests.fuzzing import fuzz, mutated_bytes

from .fake_model import VOCABULARY
from .harness import Runtime, generate


class RealGrammars:
    """Real grammars that become ready when `compile` is called, so that runs do not depend on threads."""

    def __init__(self) -> None:
        self._grammars = GrammarCache(VOCABULARY.token_bytes, VOCABULARY.eos_ids)
        self._pending: list[tuple[Future[Any], Future[Any]]] = []

    def get(self, constraint: Constraint) -> Future[Any]:
        ready: Future[Any] = Future()
        self._pending.append((ready, self._grammars.get(constraint)))
        return ready

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Ignored: the grammar is compiled all the same."""

    def compile(self) -> None:
        for ready, compiled in self._pending:
            if (error := compiled.exception()) is not None:
                ready.set_exception(error)
            else:
                ready.set_result(compiled.result())
        self._pending.clear()


CONSTRAINTS = [
    None,
    None,
    None,
    Constraint("choices", '["ab", "baa"]'),
    Constraint("regex", "a+b"),
    Constraint("regex", "("),
]


def logged_run(
    seed: int, max_bytes: int = MAX_LOG_BYTES, windows: WindowSizes | None = None
) -> tuple[list[bytes], Runtime]:
    """A run with everything that may happen to a scheduler, in a pool that is too small for it."""
    draw = random.Random(seed)
    shape: dict[str, Any] = {"num_pages": 24, "num_host_pages": draw.choice([0, 10])}
    if windows is not None:
        shape |= {"num_host_pages": 0, "windows": windows}
    runtime = Runtime(
        **shape,
        budget=16,
        order=draw.choice(["fcfs", "lpm", "dfs", "program"]),
        eviction=draw.choice(["lru", "lfu", "priority", "program", "program"]),
        grammars=RealGrammars(),
        speculative=draw.choice(["off", "ngram", "eagle", "lookahead"]),
    )
    ahead = draw.choice([True, False])
    file = io.BytesIO()
    header = LogHeader.of(runtime.config, VOCABULARY, CacheSizes(**shape, page_size=4), context_length=200)
    log = PlanLog(header, file, max_bytes=max_bytes)
    runtime.retokenise = log.retokenise(runtime.retokenise)
    logging = LoggingScheduler(runtime.scheduler, log)
    runtime.scheduler = logging  # type: ignore[assignment]
    runtime.pipeline = Pipeline(runtime, logging, ahead=ahead, clock=lambda: runtime.engine.now)
    stems = [draw.choices([2, 3], k=20) for _ in range(3)]
    for i in range(40):
        runtime.add(
            generate(
                f"r{i}",
                [*draw.choice(stems), *draw.choices([2, 3, 4], k=draw.randrange(1, 9))],
                program=draw.choice([None, "p", "q"]),
                soft_pins=[SoftPin(draw.randrange(4), draw.choice([None, 9, 16])) for _ in range(draw.randrange(3))],
                priority=draw.choice([0, BACKGROUND_PRIORITY, 1]),
                constraint=draw.choice(CONSTRAINTS),
                temperature=1.0,
                seed=i,
                max_new_tokens=draw.randrange(0, 12),
                continued=draw.choice([0, 0, 1, 2]),
            ),
        )
        match draw.randrange(12):
            case 0:
                runtime.scheduler.handle(EndStates("p", draw.choice([None, [0, 2]])), 0.0)
            case 1:
                runtime.scheduler.handle(FlushCache(0), 0.0)
            case 2:
                runtime.grammars.compile()
        if i % 7 == 6:
            runtime.abort(f"r{i}")
        if draw.random() < 0.5:
            runtime.step()
    runtime.finish()
    return file.getvalue().splitlines(keepends=True), runtime


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_plan_comes_out_as_it_was_logged(seed: int) -> None:
    lines, runtime = logged_run(seed)
    figures = replay(read_log(lines))
    assert figures.stats is not None
    assert figures.stats.num_steps == len(runtime.plans)
    assert figures.num_computed == runtime.engine.num_computed


def test_window_pages_are_logged_and_grow_with_the_pages() -> None:
    lines, runtime = logged_run(3, windows=WindowSizes(14, 6))
    entries = list(read_log(lines))
    before, roomy = replay(entries), what_if(entries, num_pages=24 * 100)
    assert before.stats is not None
    assert roomy.stats is not None
    assert before.num_computed == runtime.engine.num_computed > roomy.num_computed
    assert before.stats.num_lost_window_pages > 0
    assert roomy.stats.num_lost_window_pages == 0


def test_a_plan_that_differs_is_shown() -> None:
    entries = list(read_log(logged_run(0)[0]))
    at = next(i for i, entry in enumerate(entries) if isinstance(entry, LoggedPlan) and entry.plan is not None)
    entry = entries[at]
    assert isinstance(entry, LoggedPlan)
    assert entry.plan is not None
    row = msgspec.structs.replace(entry.plan.rows[0], first_position=3)
    plan = msgspec.structs.replace(entry.plan, rows=[row, *entry.plan.rows[1:]])
    entries[at] = msgspec.structs.replace(entry, plan=plan)
    with pytest.raises(PlanMismatch, match="first_position"):
        replay(entries)


@pytest.mark.parametrize(
    "changes",
    [
        {"order": "lpm"},
        {"eviction": "lru"},
        {"num_pages": 60},
        {"prefix_cache": False},
        {"max_running": 1},
        {"speculative": "suffix", "speculative_adaptive": False},
    ],
)
def test_under_other_settings_the_same_requests_run_to_the_end(changes: dict[str, object]) -> None:
    lines, _ = logged_run(1)
    entries: list[LogEntry] = list(read_log(lines))
    before, after = replay(entries), what_if(entries, **changes)
    assert before.stats is not None
    assert after.stats is not None
    assert after.stats.num_running == after.stats.num_waiting == 0
    # Those that were aborted may get further, or less far.
    assert abs(after.stats.num_output_tokens - before.stats.num_output_tokens) <= 4 * 12
    if "speculative" in changes:
        assert after.stats.num_accepted_tokens > 0
    if "prefix_cache" in changes:
        assert after.stats.num_cached_tokens == 0
        assert after.num_computed > before.num_computed


def test_a_cut_line_ends_the_log_and_anything_else_is_refused() -> None:
    lines, _ = logged_run(2)
    assert len(list(read_log([*lines[:-1], lines[-1][:10]]))) == len(lines) - 1
    with pytest.raises(RequestError, match="does not begin"):
        list(read_log(lines[1:]))
    for line in (b'{"type": "nonsense"}\n', b'{"type": "plan", "settled": ["\xff"]}\n'):
        with pytest.raises(RequestError, match="line 2"):
            list(read_log([lines[0], line]))
    with pytest.raises(RequestError, match="line 1"):
        list(read_log([b"hello\n"]))
    with pytest.raises(RequestError, match="empty"):
        replay(read_log([]))


def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, _ = logged_run(3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open(tmp_path / "plans", "wb") as file:
        log = PlanLog(msgspec.json.decode(whole[0], type=LogHeader), file)
        resource.setrlimit(resource.RLIMIT_FSIZE, (sum(map(len, whole[:9])) + 10, limits[1]))
        try:
            for line in whole[1:]:
                log.write(msgspec.json.decode(line, type=LogEntry))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caplog.text.count("the plan log ends here") == 1
    with open(tmp_path / "plans", "rb") as lines:
        assert len(list(read_log(lines))) == 9


def test_logs_of_earlier_versions_have_their_names_of_soft_pins_and_progress() -> None:
    request = generate("a", [1, 2], soft_pins=[SoftPin(3)], progress=ProgramProgress(2))
    fields = msgspec.json.decode(msgspec.json.encode(request))
    assert (fields["claims"], fields["outlook"]) == (
        [{"state": 3, "num_tokens": None}],
        {"num_generations": 2, "width": 1, "complete": False},
    )
    assert msgspec.json.decode(msgspec.json.encode(fields), type=Generate) == request


def test_a_log_ends_where_it_is_full_and_plays_as_far_as_it_goes() -> None:
    whole, _ = logged_run(3)
    size = sum(map(len, whole))
    part, _ = logged_run(3, max_bytes=size // 2)
    assert whole[: len(part)] == part
    assert sum(map(len, part)) <= size // 2 < sum(map(len, whole[: len(part) + 1]))
    figures = replay(read_log(part))
    assert figures.stats is not None
    assert figures.stats.num_steps > 0


@fuzz(st.deferred(lambda: mutated_bytes([b"".join(logged_lines()[:count]) for count in (1, 3, 40)])), examples=60)
def test_any_log_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        list(read_log(data.splitlines(keepends=True)))


@functools.cache
def logged_lines() -> list[bytes]:
    return logged_run(2)[0]
