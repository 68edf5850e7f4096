"""Pictures from a request to a token, without the frontend. Judge: transformers' greedy tokens and their
log-probabilities."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import CoreStats, Generate
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.pictures import Picture, PictureRun, check_pictures
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams, SamplingParams
from ramiform.runtime.scheduler.plan import ForwardPlan
from ramiform.runtime.scheduler.request import length_limit
from ramiform.runtime.scheduler.rows.pictures import before_part, whole_chunk, with_ids
from ramiform.runtime.tokenizer import image_processors
from ramiform.runtime.tokenizer.errors import TokenizerError
from ramiform.tests.composition import alone
from ramiform.tests.composition.alone import AnyTree

from .checkpoint import KINDS, Made, Part, judged, make_checkpoint, picture, prompt

NUM_NEW = 10
A, B, WIDE = picture(1), picture(2), picture(3, 120, 30)


class Case(NamedTuple):
    """A prompt with what the judge says after it."""

    tokens: list[int]
    pictures: list[Picture]
    ids: list[int]
    logprobs: list[float]

    def request(self, rid: str, *, logprobs: LogprobParams | None = None, **params: Any) -> Generate:
        sampling = SamplingParams(**{"temperature": 0.0, "max_new_tokens": NUM_NEW, "ignore_eos": True} | params)
        return Generate(rid=rid, tokens=self.tokens, pictures=self.pictures, sampling=sampling, logprobs=logprobs)


@pytest.fixture(scope="module", params=[*KINDS])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), request.param)


@pytest.fixture(scope="module")
def cases(made: Made) -> dict[str, Case]:
    parts: dict[str, list[Part]] = {
        "one": ["Look at this: ", A, "What is it?"],
        "another": ["Look at this: ", B, "What is it?"],  # the same token ids
        "asked again": ["Look at this: ", A, "How large is it? Say it in one word."],
        "two": ["First ", A, " then ", WIDE, " and ", A, "Which differs?"],
        "text": ["There is nothing to look at."],
    }
    found = {}
    for name, own in parts.items():
        tokens, pictures = prompt(made, *own)
        found[name] = Case(
            tokens, pictures, *judged(made, tokens, [each for each in own if not isinstance(each, str)], NUM_NEW)
        )
    assert found["one"].tokens == found["another"].tokens
    assert found["one"].ids != found["another"].ids
    return found


def engine_of(made: Made, *, source: Any = None, **settings: Any) -> ForwardEngine:
    own = {"device": "cpu", "dtype": "float32", "num_pages": 128, "picture_bytes": 1 << 20} | settings
    return build_engine(CoreConfig(**own), made.path, make_source=lambda target, **_: source)


def run(requests: Sequence[Generate], **settings: Any) -> tuple[dict[str, alone.Got], CoreStats, list[ForwardPlan]]:
    """Run requests as `alone.run` does, with a scheduler that takes pictures."""
    return alone.run(requests, **{"picture_bytes": 1} | settings)


def num_passes(engine: ForwardEngine) -> int:
    assert engine.pictures is not None
    return engine.pictures.passes.num


def test_pictures_alone_and_in_a_batch_have_the_judges_tokens_and_logprobs(made: Made, cases: dict[str, Case]) -> None:
    engine = engine_of(made)
    requests = [case.request(name, logprobs=LogprobParams(num_top=0)) for name, case in cases.items()]
    got, _, plans = run(requests, engine=engine, stagger=0)
    for name, case in cases.items():
        assert got[name].ids == case.ids, name
        assert [own.logprob for own in got[name].logprobs] == pytest.approx(case.logprobs, abs=2e-4)
    assert max(len(plan.rows) for plan in plans) > 1
    assert num_passes(engine) == 3  # A, B and the wide one: once each, whatever shows them


def test_a_picture_may_be_cut_into_chunks_at_any_token(made: Made, cases: dict[str, Case]) -> None:
    engine = engine_of(made)
    got, _, plans = run([cases["two"].request("a")], engine=engine, prefill_budget=7)
    assert got["a"].ids == cases["two"].ids
    with_pictures = sum(len(plan.rows[0].pictures) > 0 for plan in plans)
    if made.kind == "Gemma3":  # each is computed at once, though the budget is smaller
        assert with_pictures == 3
    else:
        assert with_pictures > 5
    assert num_passes(engine) == 2


def test_outputs_wait_for_one_picture_a_step(made: Made, cases: dict[str, Case]) -> None:
    def begun(*names: str, stagger: int) -> list[int]:
        """Return how many pictures begin in each step that has some."""
        requests = [cases[name].request(name) for name in names]
        got, _, plans = run(requests, engine=engine_of(made), stagger=stagger)
        assert {name: got[name].ids for name in names} == {name: cases[name].ids for name in names}
        keys = [{part.picture.key for row in plan.rows for part in row.pictures if part.first == 0} for plan in plans]
        return [len(each) for each in keys if each]

    assert begun("two", "another", stagger=0) == [3]
    assert begun("text", "two", stagger=2) == [1, 1, 1]  # the first one begins once more
    assert begun("text", "two", "another", stagger=2) == [1, 1, 1, 1]


def test_a_second_question_computes_only_its_own_text(made: Made, cases: dict[str, Case]) -> None:
    first, second, other = (cases[name] for name in ("one", "asked again", "another"))
    got, stats, plans = run(
        [first.request("a"), second.request("b"), other.request("c")], engine=engine_of(made), stagger=40
    )
    assert [got[name].ids for name in "abc"] == [first.ids, second.ids, other.ids]
    end = first.pictures[0].runs[-1].first + first.pictures[0].runs[-1].count
    before = first.pictures[0].runs[0].first
    lengths = {"b": len(second.tokens), "c": len(other.tokens)}
    computed = dict.fromkeys(lengths, 0)  # tokens of the prompts
    for row in (row for plan in plans for row in plan.rows if row.rid in lengths):
        computed[row.rid] += max(0, min(len(row.tokens), lengths[row.rid] - row.first_position))
    assert computed["b"] <= len(second.tokens) - end
    assert computed["c"] >= len(other.tokens) - before  # another picture shares nothing of this one
    assert stats.num_cached_tokens >= end


def test_features_that_were_dropped_are_computed_again(made: Made, cases: dict[str, Case]) -> None:
    engine = engine_of(made, picture_bytes=1)
    got, _, _ = run([cases["two"].request("a")], engine=engine, prefill_budget=9)
    assert got["a"].ids == cases["two"].ids
    assert num_passes(engine) == 3  # A again, since the wide one came between


def test_a_wrong_number_of_features_fails_its_request_alone(
    made: Made, cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(made)
    features = engine.pictures
    assert features is not None
    whole, wrong = features._tower.features, cases["another"].pictures[0].key
    monkeypatch.setattr(features._tower, "features", lambda own: whole(own)[int(own.key == wrong) :])
    names = ("one", "another", "text")
    got, _, _ = run([cases[name].request(name) for name in names], engine=engine, stagger=0, errors=["model"])
    assert (got["one"].ids, got["text"].ids) == (cases["one"].ids, cases["text"].ids)
    assert got["another"].error is not None
    assert not got["another"].ids


def test_a_retracted_request_goes_on_with_the_same_tokens(made: Made, cases: dict[str, Case]) -> None:
    num_pages = max(-(-(len(case.tokens) + NUM_NEW) // 16) for case in cases.values())
    urgent = replace(cases["another"].request("urgent"), priority=5)
    settings = {"num_pages": num_pages, "prefill_budget": 32}
    got, stats, _ = run([cases["two"].request("a"), urgent], engine=engine_of(made, **settings), stagger=2, **settings)
    assert stats.num_retractions
    assert [got["a"].ids, got["urgent"].ids] == [cases["two"].ids, cases["another"].ids]


@pytest.mark.parametrize("source", ["ngram", "any tree"])
def test_drafts_keep_the_tokens(made: Made, cases: dict[str, Case], source: str) -> None:
    requests = [cases[name].request(name) for name in ("one", "two")]
    if source == "ngram":
        got, _, _ = run(requests, engine=engine_of(made), speculative="ngram")
    else:
        tree = AnyTree(3, [(cases[name].tokens, cases[name].ids) for name in ("one", "two")])
        engine = engine_of(made, source=tree, speculative="eagle", speculative_adaptive=False)
        got, stats, _ = run(requests, engine=engine, speculative="eagle", speculative_adaptive=False)
        assert stats.num_accepted_tokens
    assert {name: got[name].ids for name in ("one", "two")} == {name: cases[name].ids for name in ("one", "two")}


def test_a_grammar_constrains_what_is_said_of_a_picture(made: Made, cases: dict[str, Case]) -> None:
    constraint = Constraint("regex", "(yes|no|perhaps)[.!]")
    params = {"constraint": constraint, "ignore_eos": False}
    case = cases["one"]
    whole, _, _ = run([case.request("a", **params)], engine=engine_of(made))
    cut, _, _ = run([case.request("a", **params)], engine=engine_of(made), prefill_budget=11)
    assert whole["a"].ids == cut["a"].ids
    text = made.tokenizer.decode(whole["a"].ids)
    assert text in {f"{word}{mark}" for word in ("yes", "no", "perhaps") for mark in ".!"}


def test_pictures_that_do_not_fit_the_prompt_are_refused(made: Made, cases: dict[str, Case]) -> None:
    case = cases["one"]
    own = replace(case.pictures[0], grid=None)
    num = len(case.tokens)
    check_pictures([own], num)
    wrong = {
        "pixels are not of the shape": replace(own, pixels=own.pixels[:-1]),
        "are not of the shape \\(0,": replace(own, shape=(0, *own.shape[1:])),
        "not of the shape": replace(own, grid=(own.num_features, 2)),
        "places overlap": replace(own, runs=[*own.runs, own.runs[-1]]),
        "places end at token": replace(own, runs=[PictureRun(num - 1, 2)]),
    }
    for words, each in wrong.items():
        with pytest.raises(RequestError, match=words):
            check_pictures([each], num)


def test_ids_of_pictures_are_their_digests_whatever_process_makes_them() -> None:
    places = [PictureRun(1, 3), PictureRun(5, 2)]
    own = Picture(key=b"a" * 32, pixels=b"", shape=(1, 1, 1, 1), runs=places)
    other = replace(own, key=b"b" * 32)
    ids = with_ids([7] * 8, [own])
    assert ids == with_ids([7] * 8, [own])
    assert [ids[place] for place in (0, 4, 7)] == [7, 7, 7]
    placed = [ids[place] for place in (1, 2, 3, 5, 6)]
    assert len({*placed}) == 5
    assert min(placed) >= 1 << 31
    assert max(placed) < 1 << 32
    assert not {*placed} & {*with_ids([7] * 8, [other])}
    longer = replace(own, runs=[PictureRun(1, 6)])
    assert not {*placed} & {*with_ids([7] * 8, [longer])}
    assert [before_part([own], end) for end in range(9)] == [0, 1, 1, 1, 1, 1, 1, 7, 8]


def test_a_chunk_ends_in_no_picture_that_attends_both_ways() -> None:
    runs = [PictureRun(3, 4), PictureRun(9, 2)]
    causal = Picture(key=b"a" * 32, pixels=b"", shape=(1, 1, 1, 1), runs=runs)
    both_ways = replace(causal, attends_both_ways=True)
    assert [whole_chunk([causal], 0, num) for num in range(13)] == [*range(13)]
    assert [whole_chunk([both_ways], 0, num) for num in range(13)] == [0, 1, 2, 3, 3, 3, 3, 7, 8, 9, 9, 11, 12]
    assert [whole_chunk([both_ways], 3, num) for num in range(7)] == [0, 4, 4, 4, 4, 5, 6]
    assert [whole_chunk([both_ways], 5, num) for num in range(4)] == [0, 2, 2, 3]  # a part of it is cached


def test_what_a_core_cannot_compute_is_refused(made: Made, cases: dict[str, Case]) -> None:
    case = cases["one"]
    limits = {"vocab_size": 1 << 20, "context_length": 512, "num_slots": 512}
    cut = replace(case.request("a"), tokens=case.tokens[: case.pictures[0].end])
    if case.pictures[0].attends_both_ways:
        with pytest.raises(RequestError, match="ends in an image"):
            length_limit(cut, **limits)
    else:
        assert length_limit(cut, **limits) == len(cut.tokens) + NUM_NEW
    assert length_limit(replace(cut, sampling=replace(cut.sampling, max_new_tokens=0)), **limits) == len(cut.tokens)
    with pytest.raises(RequestError, match="images need picture_bytes"):
        length_limit(case.request("a"), **limits, reads_pictures=False)


def test_what_reads_no_pictures_is_refused_by_name(made: Made) -> None:
    with pytest.raises(RequestError, match="LlamaForCausalLM reads text only here: leave out picture_bytes"):
        build_engine(CoreConfig(device="cpu", picture_bytes=1), SHIPPED_MODEL)
    refused: dict[str, list[tuple[dict[str, Any], str]]] = {
        "Gemma3": [({"deterministic": True}, "attend both ways"), ({"streaming_window": 64}, "attend both ways")],
        "Qwen2VL": [({"streaming_window": 64}, "positions of three numbers")],
        "Qwen3VL": [({"pp": 2}, "go into several layers"), ({"kv_dtype": "int8"}, "have three: use auto")],
    }
    for settings, words in refused.get(made.kind, []):
        with pytest.raises(RequestError, match=words):
            engine_of(made, **settings)


def test_without_transformers_the_error_says_what_to_install(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = image_processors.READERS[f"{made.kind}ForConditionalGeneration"]
    monkeypatch.setitem(sys.modules, f"transformers.models.{reader.module}.image_processing_pil_{reader.module}", None)
    with pytest.raises(TokenizerError, match=r"install ramiform\[transformers\]"):
        image_processors.PictureProcessor(made.path, f"{made.kind}ForConditionalGeneration")


def test_placeholders_that_are_not_as_many_as_features_are_refused_at_the_start(made: Made, tmp_path: Path) -> None:
    if made.kind != "SmolVLM":
        pytest.skip("one class suffices")
    folder = tmp_path / "other"
    shutil.copytree(made.path, folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | {"max_image_size": {"longest_edge": 64}}))
    with pytest.raises(CheckpointError, match="4 placeholders, its vision tower 16 features"):
        engine_of(made._replace(path=folder))
