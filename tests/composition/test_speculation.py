"""Guesses change the number of passes and nothing else: whoever makes them, whatever a request asks for.

On the model that ships, in float32. Tokens and reasons to finish are compared exactly, log-probabilities within
`TOLERANCE`, since a row of another length adds the same numbers in another order. The strongest source proposes any
tree at all, and peeks at the true output so that some of it is right, at any depth and on any branch.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
import torch

from ramiform.runtime.engine import ForwardEngine
from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.linear import DenseLinear
from ramiform.runtime.models.load import load_model
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams, SamplingParams, TokenDetails
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.speculation.draft_model import DraftModelSource
from ramiform.runtime.speculation.medusa import MedusaHead, MedusaSource

from .alone import TOKENIZER, AnyTree, Got, make_engine, run
from .mix import SCHEMA, WORDS

TOLERANCE = 1e-4
TEXTS = [
    "Question: What is the capital of France?\nAnswer:",
    "Ada lives in Oslo. Bo lives in Rome. Ada lives in Oslo. Bo lives in",
    "The spider has eight legs. The bird has two legs. The spider",
]

# Rules with temperatures of their own, and captures.
TEMPERED = r"""start: (hot cold){1,3} "."
hot[temperature=1.5, capture]: /( [a-z]{1,7}){1,3},/
cold[temperature=0, capture]: /( [a-z]{1,7}){1,3}/ ";"
"""


def make_requests(size: int, seed: int) -> list[Generate]:
    """Every kind of sampling, prompts that share prefixes."""
    draw = random.Random(seed)
    requests = []
    for index in range(size):
        text = draw.choice(TEXTS) + " ".join(["", *draw.choices(WORDS, k=draw.choice([0, 0, 2, 30]))])
        params: dict[str, Any] = {"max_new_tokens": draw.choice([2, 9, 24]), "temperature": 0.0, "ignore_eos": True}
        if draw.random() < 0.5:
            params |= {"temperature": draw.choice([0.5, 1.0]), "seed": draw.randrange(3)}
            further = {"typical_p": 0.9, "xtc_probability": 0.3, "dynatemp_range": 0.4}
            params |= draw.choice([{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.02, "top_n_sigma": 0.7} | further])
        params |= [
            {},
            {"frequency_penalty": 0.6, "repetition_penalty": 1.3},
            {"constraint": Constraint("regex", r"( [a-z]{2,7}){3,9}\.")},
            {"constraint": Constraint("json_schema", json.dumps(SCHEMA)), "max_new_tokens": 40},
            {"stop": ("e ", "is", ". ")},
            {"logit_bias": dict.fromkeys(range(40, 60), 4.0), "presence_penalty": 0.5},
            {"ignore_eos": False, "min_new_tokens": min(6, params["max_new_tokens"])},
            {"stop_token_ids": (TOKENIZER.encode(" in")[-1], TOKENIZER.encode(" a")[-1])},
        ][index % 8]
        if index % 16 == 11:
            params |= {"constraint": Constraint("grammar", TEMPERED), "max_new_tokens": 40}
        if index % 16 in (8, 9):
            params |= {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_penalty_last_n": [None, 30][index % 2]}
        wants, own = draw.random() < 0.6, {"details": index % 3 > 0, "of": (index + 9,)[: index % 2]}
        logprobs = (
            LogprobParams(num_top=draw.choice([0, 2]), prompt_from=draw.choice([None, 3]), **own) if wants else None
        )
        tokens = TOKENIZER.encode(text, add_bos=True)
        requests.append(Generate(rid=f"r{index}", tokens=tokens, sampling=SamplingParams(**params), logprobs=logprobs))
    return requests


def crowding_requests() -> list[Generate]:
    """Requests of which some must be retracted: outputs that end soon raise the scheduler's expectations."""
    tokens = TOKENIZER.encode("Ada lives in Oslo. Bo lives in", add_bos=True)
    params: list[dict[str, Any]] = [{"stop": ("a", "e")}] * 12 + [{"min_new_tokens": 100}] * 12
    return [
        Generate(
            rid=f"r{seed}",
            tokens=[*tokens, seed + 40],
            sampling=SamplingParams(max_new_tokens=100, temperature=1.5, seed=seed, ignore_eos=True, **own),
            logprobs=LogprobParams(num_top=1, prompt_from=0, details=seed % 2 == 0) if seed % 3 == 0 else None,
        )
        for seed, own in enumerate(params)
    ]


def plain(requests: Sequence[Generate]) -> dict[str, Got]:
    """Each alone, without guesses, without a cache; once in a process, whoever asks."""
    return {request.rid: _alone(msgspec.msgpack.encode(request)) for request in requests}


@cache
def _alone(encoded: bytes) -> Got:
    request = msgspec.msgpack.decode(encoded, type=Generate)
    settings: dict[str, Any] = {"speculative": "off", "prefix_cache": False}
    return run([request], engine=_engine_for_one(), **settings)[0][request.rid]


@cache
def _engine_for_one() -> ForwardEngine:
    torch.set_num_threads(1)
    return make_engine(CoreConfig(device="cpu", dtype="float32", num_pages=512, speculative="off"), None)


REQUESTS = make_requests(32, seed=5)


@pytest.fixture(scope="module")
def expected() -> dict[str, Got]:
    torch.set_num_threads(1)
    return plain(REQUESTS)


def check(got: dict[str, Got], expected: dict[str, Got], tolerance: float = TOLERANCE) -> None:
    for rid, mine in got.items():
        want = expected[rid]
        assert (mine.ids, mine.finish) == (want.ids, want.finish), rid
        assert [entry.id for entry in mine.logprobs] == [entry.id for entry in want.logprobs], rid
        flat = [[value.logprob, *(top for top, _ in value.top)] for value in mine.logprobs]
        judge = [[value.logprob, *(top for top, _ in value.top)] for value in want.logprobs]
        for ours, theirs in zip(flat, judge, strict=True):
            assert ours == pytest.approx(theirs, abs=tolerance), rid
        for value, judge_of_value in zip(mine.logprobs, want.logprobs, strict=True):
            check_details(value.details, judge_of_value.details, tolerance)


def check_details(mine: TokenDetails | None, want: TokenDetails | None, tolerance: float) -> None:
    """Compare all but how a token came about: forced text may also be sampled, and then may be spelled otherwise."""
    if mine is None or want is None:
        assert mine is want
        return
    assert mine.entropy == pytest.approx(want.entropy, abs=10 * tolerance)
    if (mine.origin == "forced") != (want.origin == "forced"):
        return
    assert mine.num_allowed == want.num_allowed
    assert [value is None for value in (*mine.top, *mine.of)] == [value is None for value in (*want.top, *want.of)]
    ours, theirs = (
        [each.masked_logprob, each.allowed_mass, *(value for value in (*each.top, *each.of) if value is not None)]
        for each in (mine, want)
    )
    assert ours == pytest.approx(theirs, abs=tolerance)


SHAPES = {
    "small trees": {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 6},
    "large trees, chunks": {
        "speculative_num_steps": 8,
        "speculative_num_draft_tokens": 24,
        "prefill_budget": 64,
        "max_running": 8,
    },
    "few pages": {"num_pages": 20, "speculative_num_steps": 6, "speculative_num_draft_tokens": 12},
    "adaptive, host memory": {"num_pages": 24, "host_kv_memory": 0.01, "speculative_adaptive": True},
    "no cache, no jumps": {"prefix_cache": False, "jump_forward": False},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_any_trees_leave_outputs_as_they_are(expected: dict[str, Got], shape: dict[str, Any]) -> None:
    outputs = [(request.tokens, expected[request.rid].ids) for request in REQUESTS]
    settings = {"speculative": "eagle", "speculative_adaptive": False} | shape
    got, stats, _ = run(REQUESTS, source=AnyTree(1, outputs), **settings)
    check(got, expected)
    origins = Counter(value.details.origin for mine in got.values() for value in mine.logprobs if value.details)
    assert (origins["forced"] > 0) == settings.get("jump_forward", True)
    assert (origins["accepted"] > 0) >= (not settings["speculative_adaptive"])
    if not settings["speculative_adaptive"]:  # else the clock decides how much is tried
        assert sum(stats.accepted_lengths[2:]) > 5
    if shape.get("num_pages") == 20:
        assert stats.num_evicted_pages > 20


class Siblings(AnyTree):
    """Proposes `topk` tokens at each depth, the right one at any place among them, and the next depth below it."""

    def __init__(self, topk: int, outputs: Sequence[tuple[list[int], list[int]]]) -> None:
        super().__init__(topk, outputs)
        self._topk = topk

    def _any(self, row: DraftRow, tokens: list[int]) -> DraftTree:
        draw, want = self._random, row.want
        assert want is not None
        wholes = (prompt + output for prompt, output in self._outputs)
        right = next((whole for whole in wholes if whole[: len(tokens)] == tokens), [])[len(tokens) :]
        nodes: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in right[: min(want.steps, want.num_tokens // self._topk)]:
            place = draw.randrange(self._topk)
            parents += [parent] * self._topk
            parent = len(nodes) + place
            nodes += [(token + other - place) % len(TOKENIZER.token_bytes) for other in range(self._topk)]
        return DraftTree(nodes, parents, [-0.1] * len(nodes))


@pytest.fixture(scope="module")
def deterministic() -> tuple[list[Generate], dict[str, Got]]:
    """Requests whose outputs cross boundaries of key blocks, and their results alone, without guesses."""
    requests = [
        Generate(
            rid=f"r{index}",
            tokens=TOKENIZER.encode(" ".join([TEXTS[index], *WORDS * 20]), add_bos=True)[:length],
            sampling=SamplingParams(max_new_tokens=12, temperature=temperature, seed=index, ignore_eos=True),
            logprobs=LogprobParams(num_top=5),
        )
        for index, (length, temperature) in enumerate([(60, 0.0), (55, 0.0), (124, 1.0)])
    ]
    settings: dict[str, Any] = {"deterministic": True, "speculative": "off", "prefix_cache": False}
    return requests, {request.rid: run([request], **settings)[0][request.rid] for request in requests}


@pytest.mark.slow
@pytest.mark.parametrize("topk", [1, 2, 4])
def test_deterministic_logprobs_keep_their_bits_whatever_is_guessed(
    topk: int, deterministic: tuple[list[Generate], dict[str, Got]]
) -> None:
    requests, expected = deterministic
    outputs = [(request.tokens, expected[request.rid].ids) for request in requests]
    got, stats, _ = run(
        requests,
        source=Siblings(topk, outputs),
        deterministic=True,
        speculative="eagle",
        speculative_adaptive=False,
        speculative_num_steps=4,
        speculative_eagle_topk=topk,
        speculative_num_draft_tokens=4 * topk,
    )
    assert sum(stats.accepted_lengths[2:]) > 5
    for rid, mine in got.items():
        want = expected[rid]
        assert mine.ids == want.ids
        assert [(entry.logprob, entry.top) for entry in mine.logprobs] == [
            (entry.logprob, entry.top) for entry in want.logprobs
        ]


TEXT_SOURCES = {
    "ngram": {},
    "suffix": {},
    "lookahead": {"speculative_num_steps": 3, "speculative_num_draft_tokens": 25, "num_pages": 40},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("source", "shape"), TEXT_SOURCES.items(), ids=TEXT_SOURCES)
def test_guesses_from_texts(expected: dict[str, Got], source: str, shape: dict[str, Any]) -> None:
    got, stats, _ = run(REQUESTS, speculative=source, speculative_adaptive=False, **shape)
    check(got, expected)
    assert stats.num_accepted_tokens > 0


FORCING = [
    Constraint("json_schema", json.dumps(SCHEMA)),
    Constraint("regex", r"(Ada|Bo) lives in (Oslo|Rome), as the spider does\. (Ada|Bo) has (two|eight) legs\."),
]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["suffix", "peeking"])
def test_drafts_over_forced_text_leave_outputs_as_they_are(source: str) -> None:
    """Texts from which a source may copy, and one that knows the outputs; whatever else shapes a token."""
    shapes: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 3},
        {"frequency_penalty": 0.8, "repetition_penalty": 1.2},
        {"logit_bias": dict.fromkeys(range(40, 60), 4.0), "temperature": 0.7, "seed": 1},
        {"min_new_tokens": 12, "dry_multiplier": 2.0, "dry_allowed_length": 1},
        {"stop": ("ges", "spid")},
        {"max_new_tokens": 17},
    ]
    requests = [
        Generate(
            rid=f"{number} {text[:3]} {index}",
            tokens=TOKENIZER.encode(text, add_bos=True),
            sampling=SamplingParams(**{"max_new_tokens": 40, "temperature": 0.0, "constraint": constraint} | shape),
            logprobs=LogprobParams(num_top=1) if index == 2 else None,
        )
        for number, constraint in enumerate(FORCING)
        for text in TEXTS[1:]
        for index, shape in enumerate(shapes)
    ]
    expected = plain(requests)
    settings: dict[str, Any] = {"speculative": source, "speculative_adaptive": False}
    if source == "peeking":
        outputs = [(request.tokens, expected[request.rid].ids) for request in requests]
        settings |= {"speculative": "eagle", "source": AnyTree(1, outputs)}
    got, stats, plans = run(requests, **settings)
    check(got, expected)
    nodes = [node for plan in plans for row in plan.rows for node in row.nodes]
    num_alone = sum(node.mask is not None and int.from_bytes(node.mask, "little").bit_count() == 1 for node in nodes)
    assert num_alone > 20, "forced text in drafts"
    assert stats.num_guessed_tokens < len(nodes), "which is no guess"
    assert stats.num_accepted_tokens > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_outputs_that_came_before_are_guessed_in_any_shape(expected: dict[str, Got], shape: dict[str, Any]) -> None:
    """Every request again, while the first ones run and after they ended: most of an output is known then."""
    again = [msgspec.structs.replace(request, rid=f"again {request.rid}") for request in REQUESTS]
    settings = {"speculative": "suffix", "speculative_adaptive": False} | shape
    got, stats, _ = run([*REQUESTS, *again], **settings)
    check(got, expected | {f"again {rid}": output for rid, output in expected.items()})
    if not settings["speculative_adaptive"]:
        assert sum(stats.accepted_lengths[2:]) > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_deterministic_outputs_keep_their_bits_with_suffix_chains(overlap: str) -> None:
    """A chain's rows are computed as they would be one by one. Log-probabilities are compared exactly."""
    requests = make_requests(12, seed=9)
    again = [msgspec.structs.replace(request, rid=f"again {request.rid}") for request in requests]
    settings: dict[str, Any] = {"deterministic": True, "overlap": overlap}
    expected = run(requests, speculative="off", **settings)[0]
    got, stats, _ = run(
        [*requests, *again],
        speculative="suffix",
        speculative_adaptive=False,
        speculative_eagle_topk=1,
        **settings,
    )
    check(got, expected | {f"again {rid}": output for rid, output in expected.items()}, tolerance=0.0)
    assert stats.num_accepted_tokens > 20


@pytest.mark.exhaustive
def test_a_model_that_drafts_for_itself_is_nearly_always_right(expected: dict[str, Got]) -> None:
    """Its memory follows prefixes that are shared, copied, evicted and brought back: a wrong key would show."""
    model = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    settings = {"num_pages": 64, "host_kv_memory": 0.01, "speculative": "draft", "speculative_adaptive": False}
    source = DraftModelSource(model, 64, 4096)
    got, stats, plans = run(REQUESTS, source=source, **settings)
    check(got, expected)
    assert stats.num_demoted_pages > 0
    greedy = {
        request.rid
        for index, request in enumerate(REQUESTS)
        if request.sampling.greedy and index % 8 in (0, 4, 7)  # nothing that the draft does not know of
    }
    rows = [row for plan in plans for row in plan.rows if row.rid in greedy and row.parents]
    assert len(rows) > 5
    num_tokens = sum(len(expected[rid].ids) for rid in greedy)
    assert num_tokens / sum(row.sample is not None for plan in plans for row in plan.rows if row.rid in greedy) > 3


class FeatureRecorder:
    """Draft source that drafts nothing, and keeps the final hidden state of each position."""

    caught_up = 0.0

    def __init__(self, num_layers: int) -> None:
        self.captures = (num_layers,)
        self.states: dict[int, torch.Tensor] = {}

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        assert step.features_TE is not None
        positions = [position for row in step.rows for position in range(row.first_position, row.end)]
        self.states |= dict(zip(positions, step.features_TE.clone(), strict=True))
        return [None] * len(step.rows)

    def skip(self, rows: object) -> None:
        """Record nothing."""

    def copy(self, copies: object) -> None:
        """Copy nothing."""

    def use_loops(self) -> None:
        """Compute nothing."""


@pytest.mark.exhaustive
def test_medusa_heads_that_know_a_text_are_right_about_it_and_harm_no_other(expected: dict[str, Got]) -> None:
    model = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    sampling = SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True)
    request = Generate(rid="known", tokens=TOKENIZER.encode(TEXTS[1], add_bos=True), sampling=sampling)
    recorder = FeatureRecorder(model.config.num_layers)
    settings = {"speculative": "medusa", "speculative_adaptive": False, "speculative_eagle_topk": 2}
    plain, _, _ = run([request], source=recorder, **settings)
    tokens = [*request.tokens, *plain["known"].ids]
    heads = []
    for ahead in range(3):  # fewer states than their size: one matrix maps each to the token that came
        known = [place for place in recorder.states if place + 2 + ahead < len(tokens)]
        states_TE = torch.stack([recorder.states[place] for place in known])
        wanted_TV = torch.zeros(len(known), model.config.vocab_size)
        wanted_TV[range(len(known)), [tokens[place + 2 + ahead] for place in known]] = 30.0
        heads.append(MedusaHead([], DenseLinear((torch.linalg.pinv(states_TE) @ wanted_TV).T.contiguous())))
    source = MedusaSource(heads, model.config)
    got, stats, plans = run([request], source=source, **settings)
    assert got["known"].ids == plain["known"].ids
    assert stats.num_accepted_tokens >= 3 * (len(plans) - 4)
    mixed, _, _ = run(REQUESTS, source=source, num_pages=64, host_kv_memory=0.01, **settings)
    check(mixed, expected)


@pytest.mark.exhaustive
def test_the_model_s_first_layers_draft_for_it(expected: dict[str, Got]) -> None:
    model = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    source = DraftModelSource(model.first_layers(model.config.num_layers - 1), 64, 4096)
    settings = {"num_pages": 64, "host_kv_memory": 0.01, "speculative": "early-exit", "speculative_adaptive": False}
    got, stats, _ = run(REQUESTS, source=source, **settings)
    check(got, expected)
    assert stats.num_accepted_tokens > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_requests_that_are_aborted_harm_no_other(expected: dict[str, Got], seed: int) -> None:
    draw = random.Random(seed)
    # Each some steps after it came: the i-th comes before round 2 * i.
    aborts = {2 * index + draw.choice([1, 3, 5]): REQUESTS[index].rid for index in draw.sample(range(32), 12)}
    outputs = [(request.tokens, expected[request.rid].ids) for request in REQUESTS]
    settings = {"speculative": "eagle", "speculative_adaptive": False, "num_pages": 40}
    got, _, _ = run(REQUESTS, source=AnyTree(seed, outputs), aborts=aborts, stagger=2, **settings)
    assert any(mine.finish is not None and mine.finish.type == "abort" for mine in got.values())
    for rid, mine in got.items():
        if mine.finish is not None and mine.finish.type == "abort":
            assert mine.ids == expected[rid].ids[: len(mine.ids)]
        else:
            check({rid: mine}, expected)


@pytest.mark.exhaustive
def test_samples_follow_the_models_law_whatever_is_guessed() -> None:
    """Two tokens, one after the other, with free seeds: chi-square against the law computed from log-probabilities."""
    num = 600
    tokens = TOKENIZER.encode("The", add_bos=True)
    base = SamplingParams(max_new_tokens=2, temperature=4.0, top_k=3, ignore_eos=True, seed=0)
    requests = [
        Generate(rid=str(seed), tokens=tokens, sampling=msgspec.structs.replace(base, seed=seed)) for seed in range(num)
    ]
    law = two_tokens(tokens, base)
    outputs = [(tokens, list(pair)) for pair in law]
    settings = {"speculative": "eagle", "speculative_adaptive": False, "max_running": 64}
    long = [
        msgspec.structs.replace(r, sampling=msgspec.structs.replace(r.sampling, max_new_tokens=4)) for r in requests
    ]
    got, stats, _ = run(long, source=AnyTree(3, outputs), **settings)
    assert stats.num_accepted_tokens > 100
    counts = Counter(tuple(mine.ids[:2]) for mine in got.values())
    assert set(counts) <= set(law)
    cells = [(counts[pair], num * p) for pair, p in law.items() if num * p >= 5]
    assert len(cells) >= 4
    chi_square = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    assert chi_square < 2.5 * len(cells) + 10


def two_tokens(tokens: list[int], params: SamplingParams) -> dict[tuple[int, int], float]:
    """The probabilities of all pairs, from the model's own log-probabilities."""

    def following(before: list[int]) -> dict[int, float]:
        one = msgspec.structs.replace(params, max_new_tokens=1, temperature=0.0, top_k=None)
        request = Generate(rid="a", tokens=before, sampling=one, logprobs=LogprobParams(num_top=3))
        [entry] = run([request], speculative="off")[0]["a"].logprobs
        weights = {token: float(torch.tensor(value / params.temperature).exp()) for value, token in entry.top}
        return {token: weight / sum(weights.values()) for token, weight in weights.items()}

    return {
        (first, second): p * q
        for first, p in following(tokens).items()
        for second, q in following([*tokens, first]).items()
    }
