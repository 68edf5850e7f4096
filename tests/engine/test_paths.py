"""Paths by which an engine computes plans. Judge: the general path, with every field of a plan's structs in turn.

A field that is new in a struct has no value here, and `test_every_field_has_values` fails until it gets one. Then each
path equals the general one, or refuses plans with the field.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from ramiform.kernels.cpu.step import arguments, decoder_step
from ramiform.runtime.engine import ForwardEngine, build_engine, needs, paths
from ramiform.runtime.engine.draft_source import DraftStep
from ramiform.runtime.engine.last_tokens import LastTokens
from ramiform.runtime.engine.needs import STRUCTS, Need, needs_of, sampling_needs
from ramiform.runtime.engine.paths.compiled import CompiledStep
from ramiform.runtime.engine.paths.general import General
from ramiform.runtime.engine.paths.graphs import GraphReplay
from ramiform.runtime.engine.paths.kept_arrays import KeptArrays
from ramiform.runtime.engine.paths.path import EngineParts, Forward
from ramiform.runtime.engine.paths.path import Path as EnginePath
from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.models.parallel.group import SINGLE_RANK
from ramiform.runtime.models.pictures.features import PictureFeatures
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.pictures import Picture, PictureRun, RowPicture
from ramiform.runtime.scheduler.plan import (
    PENDING,
    DraftNode,
    DraftSpec,
    ForwardPlan,
    PageCopy,
    Penalties,
    Row,
    RowResult,
    RowSampling,
    RowState,
    Sample,
    SamplingPlan,
    Score,
    StateCopy,
)
from ramiform.tests.composition.lora_files import write_adapter
from ramiform.tests.composition.threads import groups, number, on_each
from ramiform.tests.engine.test_graphs_on_ranks import CountedReplays, with_graphs

VOCABULARY = 150
LENGTHS = (9, 20, 33)  # tokens that rows have behind them
NUM_PAGES = 4  # of a row
COPY = 3 * NUM_PAGES  # a page that no row has
CAPTURES = (0, 2)
PICTURE = Picture(key=bytes(32), pixels=b"", shape=(1, 1, 1, 1), runs=[PictureRun(0, 11)])


class Tower:
    """Features as a vision tower has them."""

    def __init__(self, hidden_size: int) -> None:
        self.width = hidden_size
        self._features_NE = torch.randn(11, hidden_size, generator=torch.Generator().manual_seed(3))

    def features(self, picture: Picture) -> torch.Tensor:
        return self._features_NE


def with_pictures(engine: ForwardEngine) -> ForwardEngine:
    """Return the engine, which computes pictures now."""
    model = engine._runner.model
    tower: Any = Tower(model.config.hidden_size)
    place: dict[str, Any] = {"device": model.device, "dtype": model.dtype, "group": SINGLE_RANK}
    model.pictures = PictureFeatures(tower, 1 << 20, **place)
    return engine


class FeatureRecorder:
    """A draft source that drafts nothing and keeps the tokens and features it gets."""

    caught_up = 0.0

    def __init__(self, captures: tuple[int, ...]) -> None:
        self.captures = captures
        self.steps: list[tuple[list[list[int]], torch.Tensor | None]] = []

    def follow(self, step: DraftStep) -> list[None]:
        self.steps.append(([row.kept for row in step.rows], step.features_TE))
        return [None] * len(step.rows)

    def skip(self, rows: Sequence[Row]) -> None:
        self.steps.append(([row.tokens for row in rows], None))

    def copy(self, copies: Sequence[PageCopy]) -> None:
        pass

    def use_loops(self) -> None:
        pass


def pages(row: int) -> list[int]:
    return list(range(row * NUM_PAGES, (row + 1) * NUM_PAGES))


def mask(draw: random.Random) -> bytes:
    words = np.zeros(-(-VOCABULARY // 32), np.int32)
    words[draw.randrange(4)] = draw.getrandbits(30) | 1
    return words.tobytes()


def row(draw: random.Random, index: int, **fields: Any) -> Row:
    """Return a decode row behind prompt `index`."""
    sample = Sample(temperature=draw.choice([0.0, 1.0]), draw=draw.getrandbits(62))
    own = pages(index) + fields.pop("more_pages", [])
    base = {"tokens": [draw.randrange(VOCABULARY)], "first_position": LENGTHS[index], "pages": own}
    return Row(**{"rid": str(index)} | base | {"sample": sample} | fields)


def tree(draw: random.Random, **node: Any) -> dict[str, Any]:
    tokens = draw.sample(range(VOCABULARY), k=4)
    nodes = [DraftNode(draw=draw.getrandbits(62), **node) for _ in range(3)]
    sample = Sample(temperature=0.8, draw=draw.getrandbits(62), num_top_logprobs=1)
    return {
        "tokens": tokens,
        "parents": draw.choice([[-1, 0, 1], [-1, 0, 0], [-1, -1, 1]]),
        "nodes": nodes,
        "sample": sample,
    }


def sampled(draw: random.Random, **fields: Any) -> dict[str, Any]:
    return {"sample": Sample(**{"temperature": 0.7, "draw": draw.getrandbits(62)} | fields)}


def penalties(draw: random.Random) -> Penalties:
    return Penalties(
        frequency=1.5, presence=0.5, repetition=1.3, prompt=[3, 4], output=draw.choices(range(VOCABULARY), k=9)
    )


Fields = Callable[[random.Random], dict[str, Any]]
# Values of each field that are not its default, as fields of the plan or of one of its rows, with the fields that go
# with them.
PLANS: dict[Need, Fields] = {
    "ForwardPlan.step": lambda draw: {"step": draw.randrange(1, 99)},
    "ForwardPlan.copies": lambda draw: {"copies": [PageCopy(1, COPY, 16), PageCopy(COPY, 39, draw.randrange(1, 9))]},
    "ForwardPlan.rows": lambda draw: {},
    "ForwardPlan.followed": lambda draw: {"followed": True},
    "ForwardPlan.states": lambda draw: {"states": [StateCopy(0, 1)]},
    "ForwardPlan.window_copies": lambda draw: {"window_copies": [PageCopy(1, 2, 3)]},
    "ForwardPlan.num_decodes": lambda draw: {"num_decodes": draw.randrange(2, 6)},
    "ForwardPlan.end_tokens": lambda draw: {
        "num_decodes": 6, "end_tokens": frozenset(draw.choices(range(VOCABULARY), k=60))
    },
}  # fmt: skip
ROWS: dict[Need, Fields] = {
    "Row.rid": lambda draw: {"rid": f"another {draw.random()}"},
    "Row.tokens": lambda draw: {"tokens": draw.choices(range(VOCABULARY), k=draw.randrange(2, 30))},
    "Row.first_position": lambda draw: {"first_position": draw.randrange(3, 9)},
    "Row.pages": lambda draw: {"more_pages": [COPY + draw.randrange(3)]},
    "Row.window_pages": lambda draw: {},  # `plan_of` gives them to all rows
    "Row.follows": lambda draw: {"follows": draw.randrange(3), "tokens": [PENDING], "sample": None},
    "Row.sample": lambda draw: {"sample": None},
    "Row.mask": lambda draw: {"mask": mask(draw)},
    "Row.score": lambda draw: {
        "tokens": draw.choices(range(VOCABULARY), k=6),
        "score": Score(first=draw.randrange(3), targets=[5, 6], num_top=2, of=(3,)),
    },
    "Row.pool_from": lambda draw: {"tokens": [4, 5, 6], "pool_from": draw.randrange(3)},
    "Row.parents": tree,
    "Row.nodes": tree,
    "Row.draft": lambda draw: {"draft": DraftSpec(2, 2, 4, 1.0)},
    "Row.state": lambda draw: {"state": RowState(draw.randrange(3))},
    "Row.adapter": lambda draw: {"adapter": 1},
    "Row.rope_length": lambda draw: {"rope_length": draw.choice([7, 300])},
    "Row.pictures": lambda draw: {
        "tokens": draw.choices(range(VOCABULARY), k=9),
        "pictures": [RowPicture(PICTURE, draw.randrange(6), 1, 5), RowPicture(PICTURE, 0, 7, draw.choice([1, 2]))],
    },
    "Row.rope_offset": lambda draw: {"rope_offset": draw.choice([-7, -2])},
    "Row.draws": lambda draw: sampled(draw) | {"draws": [draw.getrandbits(62) for _ in range(5)]},
    "Row.widened": lambda draw: {"tokens": draw.choices(range(VOCABULARY), k=draw.randrange(1, 30)), "widened": True},
    "Row.routes_from": lambda draw: {"routes_from": draw.randrange(3)},
    "RowState.slot": lambda draw: {"state": RowState(draw.randrange(3))},
    "RowState.saves": lambda draw: {"state": RowState(1, [(1, 2)])},
    "DraftNode.draw": tree,
    "DraftNode.mask": lambda draw: tree(draw, mask=mask(draw)),
    "DraftNode.dry": lambda draw: tree(draw, dry={draw.randrange(VOCABULARY): 9.0}),
    "DraftNode.temperature": lambda draw: tree(draw, temperature=draw.choice([0.0, 2.0])),
    "Sample.temperature": lambda draw: sampled(draw, temperature=draw.uniform(0.0, 2.0)),
    "Sample.top_k": lambda draw: sampled(draw, temperature=draw.choice([0.0, 1.5]), top_k=draw.randrange(1, 9)),
    "Sample.top_p": lambda draw: sampled(draw, temperature=draw.choice([0.0, 1.5]), top_p=draw.uniform(0.1, 0.9)),
    "Sample.min_p": lambda draw: sampled(draw, temperature=1.5, min_p=draw.uniform(0.01, 0.5)),
    "Sample.top_n_sigma": lambda draw: sampled(draw, temperature=1.5, top_n_sigma=draw.uniform(0.1, 2.0)),
    "Sample.typical_p": lambda draw: sampled(draw, temperature=1.5, typical_p=draw.uniform(0.1, 0.9)),
    "Sample.xtc_probability": lambda draw: sampled(draw, temperature=1.5, xtc_probability=1.0, xtc_threshold=0.01),
    "Sample.xtc_threshold": lambda draw: sampled(draw, temperature=1.5, xtc_probability=0.5, xtc_threshold=0.02),
    "Sample.dynatemp_range": lambda draw: sampled(draw, temperature=1.5, dynatemp_range=draw.uniform(0.1, 2.0)),
    "Sample.dynatemp_exponent": lambda draw: sampled(draw, temperature=1.0, dynatemp_range=1.0, dynatemp_exponent=2.0),
    "Sample.draw": lambda draw: sampled(draw),
    "Sample.penalties": lambda draw: sampled(draw, penalties=penalties(draw)),
    "Sample.logit_bias": lambda draw: sampled(draw, logit_bias={draw.randrange(VOCABULARY): 9.0}),
    "Sample.dry": lambda draw: sampled(draw, dry={draw.randrange(VOCABULARY): 9.0}),
    "Sample.num_top_logprobs": lambda draw: sampled(draw, num_top_logprobs=draw.randrange(4)),
    "Sample.logprobs_of": lambda draw: sampled(draw, num_top_logprobs=1, logprobs_of=(draw.randrange(9), 7)),
    "Sample.logprob_details": lambda draw: sampled(draw, num_top_logprobs=1, logprob_details=True),
}
SEVERAL = ("ForwardPlan.num_decodes", "ForwardPlan.end_tokens")  # with further decode steps


def plan_of(draw: random.Random, chosen: Sequence[Need]) -> ForwardPlan:
    """Return a plan of two or three rows, one for each of the chosen fields of rows."""
    own = iter([ROWS[name](draw) for name in chosen if name in ROWS])
    order = draw.sample(range(3), k=draw.choice([2, 3]))
    rows = [row(draw, index, **next(own, {})) for index in order]
    rows.sort(key=lambda own: own.widened)
    if "Row.window_pages" in chosen:
        rows = [msgspec.structs.replace(own, window_pages=own.pages) for own in rows]
    fields: dict[str, Any] = {"step": 0, "copies": [], "followed": False}
    for name in chosen:
        fields |= PLANS[name](draw) if name in PLANS else {}
    return ForwardPlan(**fields, rows=rows)


def prompts() -> ForwardPlan:
    draw = random.Random(5)
    rows = [
        Row(rid=str(r), tokens=draw.choices(range(VOCABULARY), k=n), first_position=0, pages=pages(r))
        for r, n in enumerate(LENGTHS)
    ]
    return ForwardPlan(step=0, copies=[], rows=rows, followed=False)


def run(engine: Any, plan: ForwardPlan, draw: random.Random) -> list[RowResult]:
    """Return a plan's results, behind the prompts. Rows that follow others follow decode rows of the same requests."""
    engine.run(prompts())
    if not plan.is_open:
        return engine.run(plan).rows
    before = ForwardPlan(step=7, copies=[], rows=[row(draw, index) for index in range(3)], followed=False)
    launched = engine.launch(before)
    rows = [
        own
        if own.follows is None
        else msgspec.structs.replace(
            own,
            first_position=LENGTHS[own.follows] + 1,
            pages=pages(own.follows),
            window_pages=pages(own.follows) if own.window_pages else [],
        )
        for own in plan.rows
    ]
    following = engine.launch(msgspec.structs.replace(plan, rows=rows, num_decodes=1))
    launched.wait()
    sampling = [
        draw.choice([None, RowSampling(row(draw, 0).sample or Sample(draw=1)), RowSampling(Sample(draw=1), mask(draw))])
        for own in plan.rows
        if own.follows is not None
    ]
    following.sample(SamplingPlan(plan.step, sampling))
    return following.wait().rows


def equal(mine: RowResult, wanted: RowResult) -> None:
    assert (mine.tokens, mine.is_finite, mine.after_nodes) == (wanted.tokens, wanted.is_finite, wanted.after_nodes)
    for a, b in zip((*mine.logprobs, *mine.scores), (*wanted.logprobs, *wanted.scores), strict=True):
        assert a.id == b.id
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
        assert [p for p, _ in a.top] == pytest.approx([p for p, _ in b.top], abs=1e-4)
        assert a.of == pytest.approx(b.of, abs=1e-4)
        assert (a.details is None) == (b.details is None)
    assert (mine.pooled is None) == (wanted.pooled is None)
    if mine.pooled is not None and wanted.pooled is not None:
        own, plain = (np.frombuffer(pooled, dtype="<f4") for pooled in (mine.pooled, wanted.pooled))
        assert own == pytest.approx(plain, abs=1e-3)


def walk(ours: Any, judge: ForwardEngine, kind: type[EnginePath]) -> set[Need]:
    """Compute a plan for each field, and plans of several, by the path `kind` of both engines or not at all. Return the
    needs of the computed plans. No weights of these models are widened, so the judge may compute all rows together."""
    runner = getattr(ours, "engines", [ours])[0]._runner
    (path,) = (one for one in runner.paths if type(one) is kind)
    met: set[Need] = set()
    draw = random.Random(kind.name)
    names = [name for name in [*PLANS, *ROWS] if name != "Row.routes_from" or runner.pool.routes is not None]
    chosen: list[list[Need]] = [[name] for name in names for _ in range(3)]
    chosen += [["ForwardPlan.num_decodes", "Row.draws"], ["ForwardPlan.end_tokens", "Sample.penalties"]]
    chosen += [draw.sample(names, k=3) for _ in range(40)]
    for fields in chosen:
        plan = plan_of(draw, fields)
        many = any(name in SEVERAL for name in fields)
        if many and (any(len(own.tokens) > 1 or own.sample is None or own.mask for own in plan.rows) or plan.is_open):
            continue  # such plans are not made
        own = needs_of(plan)
        if not path.meets(own.rows):
            continue
        seed = draw.random()
        together = msgspec.structs.replace(
            plan, rows=[msgspec.structs.replace(own, widened=False) for own in plan.rows]
        )
        found = run(ours, plan, random.Random(seed))
        wanted = run(judge, together, random.Random(seed))
        for mine, theirs in zip(found, wanted, strict=True):
            equal(mine, theirs)
        met |= own.rows | own.sampling
    return met


def test_every_field_has_values() -> None:
    """A new field needs a value here; paths that do not declare it then refuse it."""
    fields = {f"{struct.__name__}.{field.name}" for struct in STRUCTS for field in msgspec.structs.fields(struct)}
    assert fields == PLANS.keys() | ROWS.keys()
    draw = random.Random(1)
    handled = needs.OF_THE_STEP | needs.OF_EVERY_PATH
    for name in fields - handled - {"ForwardPlan.rows"}:
        plan = plan_of(draw, [name])
        if name in needs.FILTERS:
            drawn = [
                msgspec.structs.replace(own, sample=msgspec.structs.replace(own.sample, temperature=1.0))
                for own in plan.rows
            ]
            plan = msgspec.structs.replace(plan, rows=drawn)
        own = needs_of(plan)
        assert name in own.rows | own.sampling, name


def test_a_new_field_is_a_need_that_no_path_declares(monkeypatch: pytest.MonkeyPatch, engine: ForwardEngine) -> None:
    class NewRow(Row, frozen=True, kw_only=True):
        steering: str | None = None

    class NewSample(Sample, frozen=True, kw_only=True):
        novelty: float = 0.0

    NewRow.__name__, NewSample.__name__ = "Row", "Sample"
    monkeypatch.setattr(needs, "_ROW", needs.conditions_of(NewRow))
    monkeypatch.setattr(needs, "_SAMPLE", needs.conditions_of(NewSample))
    base = {"rid": "", "tokens": [1], "first_position": 0, "pages": [0]}
    plain, steered = (NewRow(**base, sample=NewSample(draw=0), steering=value) for value in (None, "left"))
    new = NewRow(**base, sample=NewSample(draw=0, novelty=0.5))
    declared = [
        [path.name for path in engine._runner.paths if path.meets(_needs(one).rows)] for one in (plain, steered, new)
    ]
    assert declared == [["kept arrays", "compiled", "general"], ["general"], ["kept arrays", "compiled", "general"]]
    assert sampling_needs([plain]) <= KeptArrays.samples
    assert sampling_needs([new]) == {"Sample.novelty"}


def _needs(own: Row) -> needs.Needs:
    return needs_of(ForwardPlan(step=0, copies=[], rows=[own]))


@pytest.fixture(scope="module")
def adapter(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "1", checkpoint, seed=1)


def make_engine(
    checkpoint: Path, adapter: Path, captures: tuple[int, ...] | None, kernels: str = "auto"
) -> ForwardEngine:
    built = build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=40, kernels=kernels), checkpoint)
    source = None if captures is None else FeatureRecorder(captures)
    engine = ForwardEngine(EngineParts(built._runner.model, built._runner.pool, source=source))
    engine.load_adapter(1, read_adapter(adapter, engine.model_config, max_rank=8))
    return with_pictures(engine)


def only(engine: ForwardEngine, *kinds: type[EnginePath]) -> ForwardEngine:
    engine._runner.paths = [path for path in engine._runner.paths if type(path) in kinds]
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KeptArrays, CompiledStep, General])
def test_ids_that_are_ruled_out_are_not_drawn(kind: type[EnginePath], checkpoint: Path, adapter: Path) -> None:
    """Judge: the log-probabilities before. A mask that allows nothing else still draws one."""
    engine = make_engine(checkpoint, adapter, None)
    engine._runner.paths = [path for path in engine._runner.paths if type(path) in (kind, General)]
    engine.run(prompts())

    def decoded(sample: Sample, num_decodes: int = 1, **fields: Any) -> RowResult:
        own = Row(rid="0", tokens=[3], first_position=LENGTHS[0], pages=pages(0), sample=sample, **fields)
        [result] = engine.run(ForwardPlan(step=0, copies=[], rows=[own], num_decodes=num_decodes)).rows
        return result

    greedy, told = Sample(temperature=0, draw=1), Sample(temperature=0, draw=1, num_top_logprobs=9)
    before = [token for _, token in decoded(told).logprobs[0].top]
    assert decoded(greedy).tokens == before[:1]
    engine.rule_out(ruled := before[:5])
    assert decoded(greedy).tokens == before[5:6]
    after = decoded(told).logprobs[0]
    assert [token for _, token in after.top][:4] == before[5:]
    assert after.logprob > -20
    hot = [decoded(Sample(temperature=1.5, draw=draw), num_decodes=3).tokens for draw in range(60)]
    assert not set(ruled).intersection(chain.from_iterable(hot))
    assert len({tokens[0] for tokens in hot}) > 10
    only = np.zeros(-(-VOCABULARY // 32), np.int32)
    only[ruled[0] // 32] = np.array(1 << ruled[0] % 32, np.uint32).view(np.int32)
    assert decoded(greedy, mask=only.tobytes()).tokens == ruled[:1]
    engine.rule_out([])
    assert decoded(greedy).tokens == before[:1]


@pytest.mark.parametrize("captures", [None, (), CAPTURES], ids=["no source", "source", "features"])
@pytest.mark.parametrize("kind", [KeptArrays, CompiledStep])
def test_paths_of_a_cpu_equal_the_general_one(
    kind: type[EnginePath], captures: tuple[int, ...] | None, checkpoint: Path, adapter: Path
) -> None:
    ours = only(make_engine(checkpoint, adapter, captures), kind)
    judge = only(make_engine(checkpoint, adapter, captures), General)
    general = General.of(ours._runner)
    prompt_needs = needs_of(prompts()).rows
    if not ours._runner.paths[0].meets(prompt_needs):
        ours._runner.paths.append(general)
    met = walk(ours, judge, kind)
    (path,) = (one for one in ours._runner.paths if type(one) is kind)
    assert path.computes <= met, "a declared need was computed by no plan"
    if isinstance(path, KeptArrays):
        assert path.samples <= met
    if captures is not None:
        ours_source, wanted = ours._runner.source, judge._runner.source
        assert isinstance(ours_source, FeatureRecorder)
        assert isinstance(wanted, FeatureRecorder)
        assert [tokens for tokens, _ in ours_source.steps] == [tokens for tokens, _ in wanted.steps]


@pytest.mark.exhaustive
def test_graphs_equal_the_general_path(checkpoint: Path, adapter: Path) -> None:
    ours = with_graphs(make_engine(checkpoint, adapter, None, "reference"), SINGLE_RANK, CountedReplays())
    judge = only(make_engine(checkpoint, adapter, None, "reference"), General)
    assert [path.name for path in ours._runner.paths] == ["graphs", "general"]
    met = walk(ours, judge, GraphReplay)
    assert GraphReplay.computes <= met


@pytest.mark.exhaustive
def test_stages_equal_the_general_path_of_one_rank(checkpoint: Path, adapter: Path) -> None:
    ranks = groups(checkpoint, 1, stages=2)
    config = CoreConfig(device="cpu", dtype="float32", num_pages=40, kernels="reference")

    def build(group: Any) -> ForwardEngine:
        engine = build_engine(config, checkpoint, group=group)
        engine.load_adapter(1, read_adapter(adapter, engine.model_config, max_rank=8))
        return with_pictures(engine)

    engines = on_each(ranks, build)
    assert [[path.name for path in engine._runner.paths] for engine in engines] == [["general"]] * 2

    class Ranks:
        def __init__(self) -> None:
            self.engines = engines

        def launch(self, plan: ForwardPlan) -> Any:
            from ramiform.tests.composition.threads import RanksLaunched

            return RanksLaunched(ranks, on_each(ranks, lambda group: engines[number(group)].launch(plan)))

        def run(self, plan: ForwardPlan) -> Any:
            return self.launch(plan).wait()

    walk(Ranks(), only(make_engine(checkpoint, adapter, None, "reference"), General), General)


@pytest.mark.slow
def test_another_path_is_one_file_and_one_line(
    checkpoint: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A toy path computes prompts that sample nothing, by another path's forward, and is asked for nothing else."""

    class Prompts(EnginePath):
        name = "prompts"
        computes = frozenset({"Row.tokens", "Row.sample"})

        def __init__(self, parts: EngineParts) -> None:
            super().__init__(parts)
            self.num_computed = 0
            self._general = General.of(parts)

        def forward(self, rows: list[Row], last_tokens: LastTokens, *, features: bool) -> Forward | None:
            self.num_computed += 1
            return self._general.forward(rows, last_tokens, features=features)

    monkeypatch.setattr(paths, "PATHS", (Prompts, *paths.PATHS))
    ours, judge = make_engine(checkpoint, adapter, None), only(make_engine(checkpoint, adapter, None), General)
    assert ours._runner.paths[0].name == "prompts"
    met = walk(ours, judge, Prompts)
    assert met >= {"Row.tokens", "Row.sample"}
    toy = ours._runner.paths[0]
    assert isinstance(toy, Prompts)
    assert toy.num_computed
    assert not any(need.startswith("Row.") for need in met - {"Row.tokens", "Row.sample", "Row.mask"})


def test_the_compiled_step_takes_the_arguments_of_the_record() -> None:
    assert tuple(signature(decoder_step.decoder_layers).parameters) == arguments.PARAMETERS
