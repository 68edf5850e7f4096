"""Pictures with everything else that a core does. Judge: transformers' greedy tokens, or the same request alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.pictures import PictureRun
from ramiform.runtime.protocol.sampling import LogprobParams
from ramiform.runtime.transfer.messages import FetchEnded, FetchPrefix
from ramiform.tests.composition.alone import AnyTree, Got
from ramiform.tests.composition.lora_files import write_adapter
from ramiform.tests.composition.threads import RanksEngine
from ramiform.tests.transfer.conftest import closed_cores as closed_cores  # a fixture
from ramiform.tests.transfer.cores import Core, alone
from ramiform.tests.transfer.cores import run as run_cores

from .checkpoint import Made, judged, make_checkpoint, picture, prompt
from .test_core import NUM_NEW, Case, engine_of, num_passes, run

A, B = picture(1), picture(2, 120, 30)
LONG = "Once more, and in many words: " * 6
TEXTS = ["What is it?", "How large is it? Say it in one word.", "Who made it, and when?", "Is it red? Yes or no."]


@pytest.fixture(scope="module", params=["SmolVLM", "Gemma3", "Qwen2_5_VL"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), request.param)


def case_of(made: Made, *parts: Any) -> Case:
    tokens, pictures = prompt(made, *parts)
    images = [part for part in parts if not isinstance(part, str)]
    return Case(tokens, pictures, *judged(made, tokens, images, NUM_NEW))


@pytest.fixture(scope="module")
def forks(made: Made) -> list[Case]:
    """Four questions about one picture."""
    return [case_of(made, LONG, A, text) for text in TEXTS]


@pytest.fixture(scope="module")
def mixed(made: Made) -> list[Case]:
    """Several pictures, some of them twice, and text alone."""
    return [
        case_of(made, "First ", A, " then ", B, " and ", A, "Which differs?"),
        case_of(made, LONG, B, "What of this?"),
        case_of(made, "First ", A, " then ", A, "Which differs?"),
        case_of(made, LONG, "There is nothing to look at."),
    ]


def check(cases: list[Case], got: dict[str, Got]) -> None:
    assert [got[str(index)].ids for index in range(len(cases))] == [case.ids for case in cases]


def requests_of(cases: list[Case], **params: Any) -> list[Any]:
    return [case.request(str(index), **params) for index, case in enumerate(cases)]


def test_four_forks_of_a_picture_cost_one_pass_and_their_own_texts(made: Made, forks: list[Case]) -> None:
    engine = engine_of(made)
    got, _, plans = run(requests_of(forks), engine=engine, stagger=0)
    check(forks, got)
    assert num_passes(engine) == 1
    end = forks[0].pictures[0].end
    rows = [row for plan in plans for row in plan.rows if row.pictures]
    computed = sum(part.count for row in rows for part in row.pictures)
    assert computed == forks[0].pictures[0].num_features  # by one of them
    assert sum(len(row.tokens) for row in rows) < end + max(len(case.tokens) - end for case in forks) + 1


SETTINGS: dict[str, dict[str, Any]] = {
    "few pages, host memory": {"num_pages": "few", "host_kv_memory": 0.01},
    "few pages, chunks": {"num_pages": "few", "prefill_budget": 24},
    "overlap": {"overlap": "on"},
    "no cache": {"prefix_cache": False},
    "suffix drafts": {"speculative": "suffix", "speculative_adaptive": False},
    "two ranks": {"tp": 2},
    "two stages": {"pp": 2},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_mix_of_pictures_has_the_judges_tokens(made: Made, mixed: list[Case], settings: dict[str, Any]) -> None:
    engine: Any
    if is_small := settings.get("num_pages") == "few":
        settings = settings | {"num_pages": max(len(case.tokens) + NUM_NEW for case in mixed) // 16 + 1}
    if "tp" in settings or "pp" in settings:
        own = {"device": "cpu", "dtype": "float32", "num_pages": 128, "picture_bytes": 1 << 20, **settings}
        ranks = settings.get("tp", 1)
        engine = RanksEngine(CoreConfig(**own), made.path, ranks, stages=settings.get("pp", 1))
    else:
        engine = engine_of(made, **settings)
    later = [replace(request, rid=f"again {request.rid}") for request in requests_of(mixed)]
    got, stats, _ = run([*requests_of(mixed), *later], engine=engine, stagger=4, **settings)
    check(mixed, got)
    assert [got[request.rid].ids for request in later] == [case.ids for case in mixed]
    if is_small:
        assert stats.num_evicted_pages + stats.num_retractions + stats.num_demoted_pages
        assert stats.num_promoted_pages or "host_kv_memory" not in settings


def test_log_probabilities_of_a_prompt_with_pictures_are_those_of_the_judge(made: Made, mixed: list[Case]) -> None:
    logprobs = LogprobParams(prompt_from=0, num_top=0)
    whole, _, _ = run([mixed[0].request("a", logprobs=logprobs)], engine=engine_of(made))
    cut, _, _ = run([mixed[0].request("a", logprobs=logprobs)], engine=engine_of(made), prefill_budget=19)
    assert whole["a"].ids == cut["a"].ids == mixed[0].ids
    own, other = ([each and each.logprob for each in got["a"].prompt_logprobs] for got in (whole, cut))
    assert len(own) == len(mixed[0].tokens)
    assert own[1:] == pytest.approx(other[1:], abs=2e-4)
    assert [each.logprob for each in whole["a"].logprobs] == pytest.approx(mixed[0].logprobs, abs=2e-4)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4", "bf16"])
def test_quantised_keys_have_the_tokens_of_the_same_request_alone(made: Made, mixed: list[Case], kv_dtype: str) -> None:
    if made.kind == "Qwen2_5_VL" and kv_dtype != "bf16":
        with pytest.raises(RequestError, match="images of Qwen2_5_VLForConditionalGeneration have three"):
            engine_of(made, kv_dtype=kv_dtype)
        return
    engine = engine_of(made, kv_dtype=kv_dtype)
    plain = {"prefix_cache": False, "kv_dtype": kv_dtype}
    expected = [run([case.request("a")], engine=engine, **plain)[0]["a"].ids for case in mixed]
    got, stats, _ = run([*requests_of(mixed), mixed[0].request("again")], engine=engine, kv_dtype=kv_dtype)
    assert [got[str(index)].ids for index in range(len(mixed))] == expected
    assert got["again"].ids == expected[0]
    assert stats.num_cached_tokens


def test_an_adapter_of_the_text_part_changes_what_is_said_of_a_picture(
    made: Made, mixed: list[Case], tmp_path: Path
) -> None:
    names = list(load_file(made.path / "model.safetensors"))
    linear = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    targets = [
        name.removesuffix(".weight").partition(".")[2]
        for name in names
        if ("text_model" in name or "language_model" in name or name.startswith("model.layers"))
        and name.endswith(tuple(f"{each}.weight" for each in linear))
    ]
    adapter = write_adapter(tmp_path / "adapter", made.path, seed=3, targets=targets)
    own, changed = load_file(adapter / "adapter_model.safetensors"), load_file(made.path / "model.safetensors")
    for name in [name for name in own if name.endswith("lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        changed[f"{module}.weight"] += 8 / 6 * (own[name.replace("lora_A", "lora_B")] @ own[name])
    other = tmp_path / "merged"
    other.mkdir()
    (other / "config.json").write_text((made.path / "config.json").read_text())
    save_file(changed, other / "model.safetensors", metadata={"format": "pt"})
    judge = made._replace(model=type(made.model).from_pretrained(other).eval())
    expected = judged(judge, mixed[0].tokens, [A, B, A], NUM_NEW)[0]
    assert expected != mixed[0].ids
    engine = engine_of(made)
    engine.load_adapter(1, read_adapter(adapter, engine.model_config, max_rank=8))
    adapted = replace(mixed[0].request("adapted"), adapter_number=1, namespace="adapter")
    got, _, plans = run([*requests_of(mixed), adapted], engine=engine, stagger=0)
    assert got["adapted"].ids == expected
    check(mixed, got)
    assert max(len(plan.rows) for plan in plans) > 1
    assert num_passes(engine) == 2


def test_pages_of_pictures_come_back_from_the_disk(made: Made, forks: list[Case], tmp_path: Path) -> None:
    long = case_of(made, LONG, A, LONG, "What is it?")
    other = case_of(made, LONG, B, LONG, "What is it?")
    settings = {"disk_cache": str(tmp_path / "cache")}
    first, _, _ = run([long.request("a")], engine=engine_of(made, **settings), path=made.path, **settings)
    engine = engine_of(made, **settings)
    second, stats, _ = run([long.request("a"), other.request("b")], engine=engine, path=made.path, **settings)
    assert first["a"].ids == second["a"].ids == long.ids
    assert second["b"].ids == other.ids  # no page of the other picture
    assert stats.disk is not None
    assert stats.disk.num_hit_tokens >= long.pictures[0].end
    assert num_passes(engine) == 1  # that of the other picture


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        yield f"ipc://{folder}/prefill"


def test_a_prompt_with_pictures_is_computed_by_another_runtime(made: Made, mixed: list[Case], address: str) -> None:
    case = case_of(made, "First ", A, " then ", B, LONG, "Which differs?")
    own: dict[str, Any] = {"path": made.path, "picture_bytes": 1 << 20}
    prefill = Core(role="prefill", transfer_bind=address, prefill_budget=64, **own)
    decode = Core(role="decode", prefill_workers=address, **own)
    run_cores([prefill, decode], lambda: decode.hub._fetcher.connected)
    expected = alone(prefill, case.tokens, case.pictures, max_new_tokens=NUM_NEW)
    assert expected == case.ids
    decode.ask("one", case.tokens, case.pictures, max_new_tokens=NUM_NEW)
    run_cores([prefill, decode], lambda: "one" in decode.finished)
    assert decode.outputs["one"] == expected
    whole = (len(case.tokens) - 1) // 16 * 16
    assert decode.hub._fetcher.counters.num_tokens == whole > case.pictures[-1].end
    assert num_passes(decode.engine) == 0
    for core in (prefill, decode):
        core.assert_no_page_is_lost()
    sent: list[Any] = []
    prefill.hub._exporter._send = lambda peer, message, pages: sent.append(message) is None
    wrong = replace(case.pictures[0], runs=[PictureRun(3, 1 << 40)])
    message = FetchPrefix(call=9, tokens=case.tokens, namespace="", first=0, pictures=[wrong])
    prefill.hub._exporter.begin(b"peer", message, 0.0)
    assert isinstance(sent[0], FetchEnded)
    assert sent[0].error is not None


def test_any_draft_trees_leave_the_tokens_as_they_are(made: Made, mixed: list[Case]) -> None:
    settings = {"speculative": "eagle", "speculative_adaptive": False}
    tree = AnyTree(5, [(case.tokens, case.ids) for case in mixed])
    got, stats, _ = run(requests_of(mixed), engine=engine_of(made, source=tree, **settings), **settings)
    check(mixed, got)
    assert stats.num_accepted_tokens


def test_weights_do_not_change_while_pictures_are_read(made: Made) -> None:
    engine = engine_of(made)
    with pytest.raises(RequestError, match="leave out picture_bytes"):
        engine.prepare_weights(str(made.path))
