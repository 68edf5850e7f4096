"""A log plays back to the same plans; under other settings the same requests give the same tokens."""

from __future__ import annotations

import io
import random

import msgspec
import pytest

from ramify.runtime.protocol.errors import RequestError
from ramify.runtime.replay import Difference, replay, what_if
from ramify.runtime.scheduler.plan_log import Entry, Header, LoggingScheduler, Planned, read_log

from .harness import VOCABULARY, Runtime, generate


def logged_run(seed: int) -> tuple[list[bytes], Runtime]:
    draw = random.Random(seed)
    runtime = Runtime(num_pages=24, budget=16)
    file = io.BytesIO()
    header = Header.of(runtime.config, VOCABULARY, num_pages=24, num_host_pages=0, page_size=4, context_length=200)
    runtime.scheduler = LoggingScheduler(runtime.scheduler, header, file)  # type: ignore[assignment]
    stems = [draw.choices([2, 3], k=20) for _ in range(3)]
    for i in range(30):
        runtime.add(
            generate(
                f"r{i}",
                [*draw.choice(stems), *draw.choices([2, 3, 4], k=draw.randrange(1, 9))],
                program=draw.choice([None, "p", "q"]),
                temperature=1.0,
                seed=i,
                max_new_tokens=draw.randrange(0, 12),
            )
        )
        if i % 7 == 6:
            runtime.abort(f"r{i}")
        if draw.random() < 0.5:
            runtime.step()
    runtime.finish()
    return file.getvalue().splitlines(keepends=True), runtime


@pytest.mark.parametrize("seed", range(5))
def test_every_plan_comes_out_as_it_was_logged(seed: int) -> None:
    lines, runtime = logged_run(seed)
    figures = replay(read_log(lines))
    assert figures.stats is not None
    assert figures.stats.num_steps == len(runtime.plans)
    assert figures.num_computed == runtime.engine.num_computed


def test_a_plan_that_differs_is_shown() -> None:
    entries = list(read_log(logged_run(0)[0]))
    at = next(i for i, entry in enumerate(entries) if isinstance(entry, Planned) and entry.plan is not None)
    entry = entries[at]
    assert isinstance(entry, Planned)
    assert entry.plan is not None
    row = msgspec.structs.replace(entry.plan.rows[0], first_position=3)
    plan = msgspec.structs.replace(entry.plan, rows=[row, *entry.plan.rows[1:]])
    entries[at] = msgspec.structs.replace(entry, plan=plan)
    with pytest.raises(Difference, match="first_position"):
        replay(entries)


@pytest.mark.parametrize(
    "changes", [{"order": "lpm"}, {"eviction": "lru"}, {"num_pages": 60}, {"prefix_cache": False}, {"max_running": 1}]
)
def test_under_other_settings_the_same_requests_run_to_the_end(changes: dict[str, object]) -> None:
    lines, _ = logged_run(1)
    entries: list[Entry] = list(read_log(lines))
    before, after = replay(entries), what_if(entries, **changes)
    assert before.stats is not None
    assert after.stats is not None
    assert after.stats.num_running == after.stats.num_waiting == 0
    # Those that were aborted may get further, or less far.
    assert abs(after.stats.num_output_tokens - before.stats.num_output_tokens) <= 4 * 12
    if "prefix_cache" in changes:
        assert after.stats.num_cached_tokens == 0
        assert after.num_computed > before.num_computed


def test_a_cut_line_ends_the_log_and_anything_else_is_refused() -> None:
    lines, _ = logged_run(2)
    assert len(list(read_log([*lines[:-1], lines[-1][:10]]))) == len(lines) - 1
    with pytest.raises(RequestError, match="does not begin"):
        list(read_log(lines[1:]))
    with pytest.raises(RequestError, match="line 2"):
        list(read_log([lines[0], b'{"type": "nonsense"}\n']))
    with pytest.raises(RequestError, match="line 1"):
        list(read_log([b"hello\n"]))
    with pytest.raises(RequestError, match="empty"):
        replay(read_log([]))
