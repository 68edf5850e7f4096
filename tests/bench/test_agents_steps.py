"""The profile of agents' steps: the least time of a step by hand, and the parts of a small case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ramiform.bench.agents import steps as agents_steps
from ramiform.bench.agents.steps import LiveStep, Replayed, Round, case_row, cost_of, kind_of, kind_rows, live_steps
from ramiform.bench.peers.limits import Machine, Work, third_cache_bytes
from ramiform.bench.random_models import tiny_llama
from ramiform.runtime.core.main import load_core
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import DraftNode, ForwardPlan, ForwardResult, Row, Sample
from ramiform.runtime.scheduler.plan_log import LoggedPlan, LoggedResult

MACHINE = Machine(read=10.0, fma=20.0, product=5.0)
# Three layers of 4 parameters, one of which is for keys and values; 2 FLOP a layer for each key.
WORK = Work(layers=12, head=5, weight_bytes=34, kv_bytes=2, attention=6, num_layers=3, kv_layer=1)
GREEDY = Sample(temperature=0.0, draw=0)


def row(num_tokens: int, first: int, pages: Sequence[int] = (), sample: Sample | None = None) -> Row:
    return Row(rid="", tokens=[1] * num_tokens, first_position=first, pages=list(pages), sample=sample)


def live(rows: list[Row], *, step: int = 0, free: float = 0.0, began: float = 0.0, ended: float = 1.0) -> LiveStep:
    plan = ForwardPlan(step=step, copies=[], rows=rows)
    return LiveStep(plan, ForwardResult(step=step, rows=[]), free, began, ended)


def test_tokens_that_sample_nothing_need_only_keys_and_values_of_the_last_layer() -> None:
    # Two layers and the last one's keys and values: 2 * 9 FLOP a token; in two layers 4 a key of 3 + 4 + 5.
    assert WORK.step_flops([row(3, 2)]) == 3 * 18 + 4 * 12
    # The last of them sampled: 3 parameters of the last layer, 5 of the head, and 2 FLOP for each of its 5 keys.
    assert WORK.step_flops([row(3, 2, sample=GREEDY)]) == 3 * 18 + 4 * 12 + 2 * 8 + 2 * 5
    assert WORK.step_flops([row(1, 7, sample=GREEDY)] * 2) == 2 * (2 * 17 + 6 * 8)


def test_each_draft_token_is_sampled_and_sees_only_its_ancestors() -> None:
    tree = Row(
        rid="",
        tokens=[1, 2, 3],
        first_position=10,
        pages=[],
        sample=GREEDY,
        parents=[-1, -1],
        nodes=[DraftNode(draw=0), DraftNode(draw=0)],
    )
    assert WORK.step_flops([tree]) == 3 * 2 * 17 + 6 * (11 + 12 + 12)


def test_a_page_that_several_rows_see_is_read_once_and_only_as_far_as_it_was_filled() -> None:
    # Page 4 is full, page 5 has 4 tokens, page 6 has 1; page 7 is written by the step.
    rows = [row(1, 20, [4, 5]), row(1, 17, [4, 6]), row(9, 0, [7])]
    assert WORK.step_bytes(rows) == 34 + 2 * (16 + 4 + 1)
    assert WORK.touched_bytes([rows, rows[:1]]) == 34 + 2 * 16 * 4


def test_reading_counts_as_far_as_it_outgrows_the_cache() -> None:
    decode = live([row(1, 15, [0], GREEDY)])  # 2 * 17 + 6 * 16 = 130 FLOP; 34 + 2 * 15 = 64 bytes
    fits = cost_of(decode, 10.0, WORK, MACHINE, cache_bytes=64)
    assert (fits.compute, fits.reading, fits.least) == (130 / 20, 64 / 10, 130 / 20)
    outgrows = cost_of(decode, 10.0, WORK, Machine(4.0, 20.0, 5.0), cache_bytes=4)
    assert (outgrows.compute, outgrows.reading, outgrows.least) == (130 / 20, 64 / 4, 60 / 4)


def test_the_third_cache_is_found_by_its_level(tmp_path: Path) -> None:
    assert third_cache_bytes(tmp_path) == 0
    for index, level, size in (("index0", "1", "32K"), ("index3", "3", "32768K")):
        (tmp_path / index).mkdir()
        (tmp_path / index / "level").write_text(f"{level}\n")
        (tmp_path / index / "size").write_text(f"{size}\n")
    assert third_cache_bytes(tmp_path) == 32 << 20


@pytest.mark.parametrize(
    ("num_decodes", "num_longer", "kind"),
    [
        (1, 0, "1 decode row"),
        (5, 0, "5-16 decode rows"),
        (64, 0, "17-64 decode rows"),
        (65, 0, "more decode rows"),
        (0, 2, "prompt chunks"),
        (3, 1, "mixed"),
    ],
)
def test_kinds_of_steps(num_decodes: int, num_longer: int, kind: str) -> None:
    assert kind_of([row(1, 5)] * num_decodes + [row(9, 0)] * num_longer) == kind


def test_a_log_tells_when_steps_began_and_since_when_the_core_was_free() -> None:
    plans = [ForwardPlan(step=step, copies=[], rows=[row(1, 0)]) for step in (3, 4)]
    first, second = (ForwardResult(step=plan.step, rows=[], seconds=1.5) for plan in plans)
    entries = [
        LoggedPlan(plans[0], [], 10.0),
        LoggedResult(first, 11.5),
        LoggedPlan(None, [], 11.5),
        LoggedPlan(plans[1], [], 12.0),
        LoggedResult(second, 13.0),
    ]
    assert live_steps(entries) == [
        LiveStep(plans[0], first, 10.0, 10.0, 11.5),
        LiveStep(plans[1], second, 11.5, 12, 13),
    ]


def test_the_parts_of_a_case_add_up() -> None:
    rows = [row(1, 15, [0], GREEDY)]  # 6.5 s of multiplications
    steps = [live(rows, began=1.0, free=1.0, ended=11.0), live(rows, began=13.0, free=11.0, ended=23.0)]
    costs = [cost_of(step, seconds, WORK, MACHINE, 100) for step, seconds in zip(steps, (9.0, 8.0), strict=True)]
    case = case_row("judge", Round(0.0, 30.0, 26.0, None), steps, costs)
    parts = ("replayed steps", "live steps more", "between steps", "no work")
    assert [float(case[part]) for part in parts] == [17.0, 3.0, 2.0, 4.0]
    assert (case["least of steps"], case["at the limit"]) == ("13.000", "22.000")
    assert (case["faster, with the rest"], case["faster, without it"]) == (26 / 22, 2.0)
    decodes, every = kind_rows(costs)
    assert decodes | {"step": "all"} == every
    assert (every["steps"], every["live, ms"], every["replayed, ms"]) == (2, 10_000, 8_500)


@pytest.mark.exhaustive
def test_a_small_case_replays_with_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replay_here(config: CoreConfig, cases: Sequence[Sequence[LiveStep]], rounds: int) -> list[Replayed]:
        engine = load_core(config).engine
        return [agents_steps.replay(engine, steps, rounds) for steps in cases]

    monkeypatch.setattr(agents_steps, "replay_apart", replay_here)  # a new process would import everything again
    monkeypatch.setattr(agents_steps, "measure_machine", lambda dtype: MACHINE)
    (tmp_path / "model").mkdir()
    model, out = tiny_llama(tmp_path / "model"), tmp_path / "report.md"
    agents_steps.main(
        str(model), agents="judge", at_once="2", shared="20", rounds=1, replays=2, unlogged=False, out=out
    )
    report = out.read_text()
    assert "100.0% of the replay's tokens are the log's" in report
    table = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| ")]
    [every] = [cells for cells in table if cells[0] == "all"]
    steps = [cells for cells in table if cells[0].endswith(("row", "rows", "chunks", "mixed"))]
    assert [sum(int(cells[at].replace(",", "")) for cells in steps) for at in (1, 2)] == [
        int(each.replace(",", "")) for each in every[1:3]
    ]
    [case] = [cells for cells in table if cells[0] == "judge, 2, 20"]
    whole, *parts = (float(cell) for cell in case[2:7])
    assert sum(parts) == pytest.approx(whole, abs=0.003)
