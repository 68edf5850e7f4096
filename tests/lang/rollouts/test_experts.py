"""Experts of rollouts and of an engine's answers. Judge: transformers' routers over the very token ids."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ramiform
from ramiform import ProgramState, assistant, gen, user
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.errors import RequestError
from ramiform.tools.check_logprobs import Mismatch, RuntimeSetting, compare, generate, trainer_logprobs
from ramiform.tools.replay_experts import recorded_experts, replayed_experts

CONFIG = transformers.Qwen3MoeConfig(
    vocab_size=2048,
    hidden_size=64,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=48,
    norm_topk_prob=True,
    initializer_range=0.2,
    eos_token_id=2,
)
LAYERS, CHOSEN = CONFIG.num_hidden_layers, CONFIG.num_experts_per_tok

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(SHIPPED_MODEL / name, path)
    return path


@pytest.fixture(scope="module")
def judge(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ramiform.Engine]:
    with ramiform.Engine(
        str(folder), dtype="float32", num_pages=256, enable_return_routed_experts=True, log_level="error"
    ) as engine:
        yield engine


def logprobs(model: Any, ids: list[int], experts_TLK: torch.Tensor | None = None) -> torch.Tensor:
    """Return transformers' log-probabilities of all ids but the first, by its own experts or by those given."""
    tokens = torch.tensor([ids])
    with torch.inference_mode():
        if experts_TLK is None:
            logits = model(tokens, use_cache=False).logits[0]
        else:
            with replayed_experts(model, experts_TLK[None]):
                logits = model(tokens, use_cache=False).logits[0]
    found: torch.Tensor = logits[:-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    return found


def own_experts(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the experts [T, L, K] of transformers' routers."""
    found: list[torch.Tensor] = []
    routers = [module for _, module in model.named_modules() if type(module).__name__ == "Qwen3MoeTopKRouter"]
    hooks = [module.register_forward_hook(lambda _, __, output: found.append(output[2])) for module in routers]
    logprobs(model, ids)
    for hook in hooks:
        hook.remove()
    return torch.stack(found, dim=1)


def agreement(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one == other).all(-1).float().mean())


def test_an_answer_has_the_experts_of_all_tokens_and_of_a_cached_prefix(engine: ramiform.Engine, judge: Any) -> None:
    prompt = list(range(40, 100))
    sampling = {"max_new_tokens": 9, "ignore_eos": True, "sampling_seed": 4}
    first, again = (
        engine.generate(input_ids=prompt, sampling_params=sampling, return_routed_experts=True) for _ in "ab"
    )
    assert again["meta_info"]["cached_tokens"] > 40 > first["meta_info"]["cached_tokens"]
    experts_TLK = recorded_experts(first["meta_info"], LAYERS, CHOSEN)
    ids = [*prompt, *first["output_ids"]]
    assert experts_TLK.shape == (len(ids), LAYERS, CHOSEN)
    assert (experts_TLK[-1] == -1).all()
    assert agreement(experts_TLK[:-1], own_experts(judge, ids)[:-1]) > 0.98
    assert again["output_ids"] == first["output_ids"]
    assert torch.equal(recorded_experts(again["meta_info"], LAYERS, CHOSEN), experts_TLK)
    later = engine.generate(
        input_ids=prompt, sampling_params=sampling, return_routed_experts=True, routed_experts_start_len=60
    )
    found = recorded_experts(later["meta_info"], LAYERS, CHOSEN)
    assert (found[:60] == -1).all()
    assert torch.equal(found[60:], experts_TLK[60:])
    assert "routed_experts" not in engine.generate(input_ids=prompt, sampling_params=sampling)["meta_info"]


def test_a_prompt_alone_has_its_experts(engine: ramiform.Engine, judge: Any) -> None:
    prompt = list(range(300, 340))
    for _ in "ab":  # computed, then cached whole
        result = engine.generate(input_ids=prompt, sampling_params={"max_new_tokens": 0}, return_routed_experts=True)
        experts_TLK = recorded_experts(result["meta_info"], LAYERS, CHOSEN)
        assert agreement(experts_TLK[:-1], own_experts(judge, prompt)[:-1]) > 0.98


def test_a_start_behind_the_prompt_is_refused(engine: ramiform.Engine) -> None:
    with pytest.raises(RequestError, match="from 0 to the prompt's 3 tokens, got 4") as caught:
        engine.generate(input_ids=[5, 6, 7], return_routed_experts=True, routed_experts_start_len=4)
    assert caught.value.param == "routed_experts_start_len"


@ramiform.function
def talk(s: ProgramState, town: str) -> None:
    s += user(f"A word about {town}, please.") + assistant(gen("first", max_tokens=8, ignore_eos=True))
    for end in s.fork(2):
        end += user("And another one?") + assistant(gen("second", max_tokens=8, ignore_eos=True))


def test_trajectories_have_the_experts_of_each_token_through_forks(engine: ramiform.Engine, judge: Any) -> None:
    [group] = ramiform.rollouts(
        talk, [{"town": "Rome"}], lambda example, state: 0.0, group=2, seed=1, backend=engine.runtime,
        return_routed_experts=True,
    )  # fmt: skip
    assert len(group.trajectories) == 4
    rows = ramiform.Rollouts([group]).rows()
    for one, row in zip(group.trajectories, rows, strict=True):
        experts = one.tokens.experts
        assert row["experts"] == experts
        end = one.generations[-1].end
        assert None not in experts[: end - 1]
        assert experts[end - 1 :] == [None] * (len(experts) - end + 1)
        unknown = [[-1] * CHOSEN] * LAYERS
        experts_TLK = torch.tensor([unknown if each is None else each for each in experts])
        known = slice(0, end - 1)
        assert agreement(experts_TLK[known], own_experts(judge, one.tokens.ids)[known]) > 0.98
        own = logprobs(judge, one.tokens.ids, experts_TLK)
        for place, value in enumerate(one.tokens.logprobs):
            assert value is None or value == pytest.approx(float(own[place - 1]), abs=2e-4)


def test_without_being_asked_there_are_none(engine: ramiform.Engine) -> None:
    [group] = ramiform.rollouts(talk, [{"town": "Rome"}], lambda example, state: 0.0, group=1, backend=engine.runtime)
    assert not any(group.trajectories[0].tokens.experts)
    assert "experts" not in ramiform.Rollouts([group]).rows()[0]


def test_a_runtime_that_records_none_refuses_by_name(backend: ramiform.Runtime) -> None:
    with pytest.raises(RequestError, match="served with --enable-return-routed-experts") as caught:
        ramiform.rollouts(talk, [{"town": "Rome"}], lambda example, state: 0.0, group=1, return_routed_experts=True)
    assert caught.value.param == "return_routed_experts"


@pytest.mark.exhaustive
def test_replay_removes_the_mismatch_that_is_no_rounding(folder: Path) -> None:
    samples = generate(folder, RuntimeSetting("bfloat16", False), 24, 1)
    own = [value for one in samples for value in one.logprobs]
    replayed, others = (
        Mismatch.of(own, trainer_logprobs(folder, samples, "bfloat16", replays=replays)) for replays in (True, False)
    )
    assert others.largest > 2 * replayed.largest
    assert others.mean > 1.2 * replayed.mean


@pytest.mark.exhaustive
def test_check_logprobs_replays_and_tells_the_mismatch_without(folder: Path) -> None:
    report = compare(folder, RuntimeSetting("float32", True), "float32", num_tokens=16, seed=1)
    assert report.agreeing is not None
    assert report.compared[0].own_experts is not None
