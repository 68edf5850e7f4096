"""Experts that the runtime records, beside those that transformers' routers choose over the same tokens.

With shared prefixes, chunks, drafts, ranks and pages on the host, each token has the experts of its own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace

from ramiform.runtime.engine import build_engine
from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import CoreStats, Generate
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams
from ramiform.runtime.scheduler.rows.route_record import MAX_ROUTE_BYTES, RouteRecord, route_record
from ramiform.tools.replay_experts import replayed_experts

from .alone import AnyTree, Got, run
from .lora_files import merged, write_adapter
from .test_any_model import SIZES
from .test_hybrid import make_model
from .threads import RanksEngine

NUM_TOKENS = 12
MANY: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
MODELS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, **LOCAL),
    "qwen3 moe": lambda: transformers.Qwen3MoeConfig(**SIZES | {"num_hidden_layers": 3}, **MANY, mlp_only_layers=[1]),
    "qwen2 moe": lambda: transformers.Qwen2MoeConfig(**SIZES, **MANY, shared_expert_intermediate_size=24),
    "olmoe": lambda: transformers.OlmoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True),
    "dense": lambda: transformers.Qwen2Config(**SIZES),
}
MIXTURES = [name for name in MODELS if name != "dense"]
RECORDED: dict[str, Any] = {"enable_return_routed_experts": True, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    made: dict[str, tuple[Any, Path]] = {}

    def make(name: str) -> tuple[Any, Path]:
        if name not in made:
            made[name] = make_model(MODELS[name](), tmp_path_factory.mktemp("checkpoint"))
        return made[name]

    return make


def requests(count: int = 5) -> list[Generate]:
    """Return requests of which most share a prefix that ends within a page."""
    made = []
    for number in range(count):
        tokens = [10 + (7 * place) % 1900 for place in range(40)] + [11 * number, 5] * (1 + number % 3)
        sampling = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True, seed=number, temperature=1.0)
        made.append(
            Generate(
                rid=str(number),
                tokens=tokens,
                sampling=sampling,
                logprobs=LogprobParams() if number % 2 else None,
                routed_from=(0, 0, 21, len(tokens), 7)[number],
            )
        )
    return made


@torch.inference_mode()
def routed(model: Any, ids: Sequence[int]) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Return the experts that transformers' routers choose for all tokens, by layer, and by how much of a probability
    the last of them leads over the first that is left out."""
    chosen: dict[int, torch.Tensor] = {}
    leads: dict[int, torch.Tensor] = {}

    def note(layer: int, _: Any, __: Any, output: tuple[torch.Tensor, ...]) -> None:
        shares_TN, K = output[0].float().softmax(-1), output[2].shape[1]
        best_TK = shares_TN.topk(K + 1).values
        chosen[layer], leads[layer] = output[2], (best_TK[:, :-1] - best_TK[:, 1:]).min(1).values

    hooks = [
        module.register_forward_hook(partial(note, int(name.split(".")[2])))
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Router")
    ]
    model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return chosen, leads


def check(model: Any, asked: Sequence[Generate], got: dict[str, Got]) -> None:
    """Compare what was recorded with what the routers of transformers choose, where rounding does not decide."""
    num_judged = 0
    for request in asked:
        mine, first = got[request.rid], request.routed_from
        assert mine.error is None
        assert mine.routes is not None
        assert first is not None
        ids = [*request.tokens, *mine.ids]
        shape = model.config.num_hidden_layers, model.config.num_experts_per_tok
        assert (mine.routes.first, mine.routes.num_layers, mine.routes.num_chosen) == (first, *shape)
        experts_TLK = np.frombuffer(mine.routes.experts, "<i2").reshape(-1, *shape)
        assert len(experts_TLK) == len(ids) - 1 - first
        chosen, leads = routed(model, ids)
        for layer in range(shape[0]):
            if layer not in chosen:
                assert (experts_TLK[:, layer] == -1).all()
                continue
            is_clear = leads[layer][first:-1] > 1e-4
            num_judged += int(is_clear.sum())
            np.testing.assert_array_equal(experts_TLK[is_clear, layer], chosen[layer][first:-1][is_clear])
    assert num_judged > 100


CELLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"prefill_budget": 16},
    "one plan ahead": {"overlap": "on", "prefill_budget": 16},
    "deterministic": {"deterministic": True},
}


def engine_of(path: Path, source: AnyTree | None = None, **settings: Any) -> Any:
    own = RECORDED | {"num_pages": 64, "speculative": "off"} | settings
    return build_engine(CoreConfig(**own), path, make_source=lambda *_, **__: source)


def served(path: Path, asked: Sequence[Generate], **settings: Any) -> tuple[dict[str, Got], CoreStats]:
    own = RECORDED | {"num_pages": 64, "speculative": "off"} | settings
    engine = RanksEngine(CoreConfig(**own), path, 2) if "tp" in own else engine_of(path, **settings)
    got, stats, _ = run(asked, engine=engine, stagger=4, **own)
    return got, stats


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_each_token_has_the_experts_of_its_forward(cell: str, checkpoint: Callable[[str], tuple[Any, Path]]) -> None:
    model, path = checkpoint("qwen3 moe")
    got, stats = served(path, requests(), **CELLS[cell])
    assert stats.num_cached_tokens > 60, "prefixes were to be reused"
    check(model, requests(), got)


@pytest.mark.slow
def test_pages_of_the_host_keep_their_experts_and_retracted_requests_theirs(
    checkpoint: Callable[[str], tuple[Any, Path]],
) -> None:
    model, path = checkpoint("qwen3 moe")
    few = {"num_pages": 8, "host_kv_memory": 0.001}
    first, *_ = made = requests()
    other = replace(first, rid="other", tokens=[500 + (13 * place) % 1400 for place in range(116)])
    asked = [first, other, replace(first, rid="again")]
    got, stats, _ = run(asked, engine=engine_of(path, **few), stagger=30, **RECORDED | few)
    assert stats.num_promoted_pages > 0
    check(model, asked, got)
    assert got["again"].routes == got["0"].routes
    many = [replace(one, sampling=replace(one.sampling, max_new_tokens=40)) for one in made]
    got, stats, _ = run(many, engine=engine_of(path, **few), stagger=0, **RECORDED | few)
    assert stats.num_retractions > 0
    check(model, many, got)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "qwen2 moe", "olmoe"])
def test_other_families_too(name: str, checkpoint: Callable[[str], tuple[Any, Path]]) -> None:
    model, path = checkpoint(name)
    check(model, requests(), served(path, requests())[0])


@pytest.mark.slow
def test_ranks_record_what_one_does(checkpoint: Callable[[str], tuple[Any, Path]]) -> None:
    model, path = checkpoint("mixtral")
    check(model, requests(), served(path, requests(), tp=2)[0])
    check(model, requests(), served(path, requests(), tp=2, ep=2)[0])


@pytest.mark.slow
def test_an_adapter_s_requests_have_the_experts_of_merged_weights(
    checkpoint: Callable[[str], tuple[Any, Path]], tmp_path: Path
) -> None:
    model, path = checkpoint("qwen3 moe")
    adapter = write_adapter(tmp_path / "adapter", path, seed=4, targets=("q_proj", "v_proj"))
    whole = merged(tmp_path / "merged", path, adapter)
    tuned = transformers.AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32).eval()
    engine = engine_of(path, max_loras=1)
    engine.load_adapter(1, read_adapter(adapter, engine.model_config, max_rank=8))
    theirs = [replace(one, rid=f"tuned {one.rid}", adapter_number=1, namespace="1") for one in requests()]
    got, _, _ = run([*requests(), *theirs], engine=engine, stagger=4, **RECORDED, num_pages=64, speculative="off")
    check(model, requests(), got)
    check(tuned, theirs, got)
    assert any(got[one.rid].routes != got[f"tuned {one.rid}"].routes for one in requests())


@pytest.mark.slow
def test_rejected_drafts_leave_no_experts(checkpoint: Callable[[str], tuple[Any, Path]]) -> None:
    model, path = checkpoint("qwen3 moe")
    expected, _ = served(path, requests())
    trees = AnyTree(2, [(request.tokens, expected[request.rid].ids) for request in requests()])
    own = {"speculative": "eagle", "speculative_num_steps": 4, "speculative_num_draft_tokens": 8, "num_pages": 64}
    got, stats, _ = run(requests(), engine=engine_of(path, trees, **own), stagger=4, **RECORDED | own)
    assert stats.num_accepted_tokens > 5
    assert stats.num_guessed_tokens > stats.num_accepted_tokens
    assert {rid: mine.ids for rid, mine in got.items()} == {rid: mine.ids for rid, mine in expected.items()}
    check(model, requests(), got)


@pytest.mark.slow
def test_an_aborted_request_has_the_experts_of_what_it_got(checkpoint: Callable[[str], tuple[Any, Path]]) -> None:
    model, path = checkpoint("mixtral")
    own = {"num_pages": 64, "speculative": "off"}
    got, _, _ = run(requests(3), engine=engine_of(path), aborts={6: "0"}, **RECORDED | own)
    assert 0 < len(got["0"].ids) < NUM_TOKENS
    check(model, requests(3), got)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_replayed_experts_are_used_and_the_weights_are_the_trainer_s(
    name: str, checkpoint: Callable[[str], tuple[Any, Path]]
) -> None:
    model, _ = checkpoint(name)
    ids_1T = torch.tensor([[10 + (7 * place) % 1900 for place in range(30)]])
    chosen, _ = routed(model, ids_1T[0].tolist())
    K = model.config.num_experts_per_tok
    experts_TLK = torch.full((30, model.config.num_hidden_layers, K), -1)
    for layer, own_TK in chosen.items():
        experts_TLK[:, layer] = own_TK
    with torch.inference_mode():
        own_TV = model(ids_1T, use_cache=False).logits[0]
        with replayed_experts(model, experts_TLK[None]):
            same_TV = model(ids_1T, use_cache=False).logits[0]
        others_TLK = experts_TLK.clone()
        others_TLK[20:, 0] = (others_TLK[20:, 0] + 1) % 5
        with replayed_experts(model, others_TLK[None]):
            others_TV = model(ids_1T, use_cache=False).logits[0]
            forced, _ = routed(model, ids_1T[0].tolist())
        again_TV = model(ids_1T, use_cache=False).logits[0]
    torch.testing.assert_close(same_TV, own_TV)
    torch.testing.assert_close(others_TV[:20], own_TV[:20])
    assert ((others_TV[20:] - own_TV[20:]).abs().amax(1) > 1e-3).all()
    assert torch.equal(forced[0], others_TLK[:, 0])
    assert torch.equal(again_TV, own_TV)


def test_what_cannot_be_replayed_is_refused(checkpoint: Callable[[str], tuple[Any, Path]]) -> None:
    dense, _ = checkpoint("dense")
    with pytest.raises(RequestError, match="Qwen2ForCausalLM has no routers"), replayed_experts(dense, torch.zeros(4)):
        pass
    model, _ = checkpoint("mixtral")
    for experts, message in (
        (torch.zeros(1, 3, 2, 3, dtype=torch.int64), r"chooses \{2\} experts for a token, got 3"),
        (torch.zeros(1, 3, 1, 2, dtype=torch.int64), "layers, chosen"),
        (torch.full((1, 3, 2, 2), 5), "from -1 to 4"),
    ):
        with pytest.raises(RequestError, match=message), replayed_experts(model, experts):
            pass
    three = torch.zeros(1, 3, 2, 2, dtype=torch.int64)
    mismatch = pytest.raises(RequestError, match="has 4 tokens, and experts were given for 3")
    with mismatch, replayed_experts(model, three):
        model(torch.tensor([[5, 6, 7, 8]]))
    made = transformers.AutoModelForCausalLM.from_config(transformers.GptOssConfig(**SIZES, **LOCAL, head_dim=16))
    with pytest.raises(RequestError, match="the model has a GptOssTopKRouter"), replayed_experts(made, three):
        pass


REFUSED: dict[str, dict[str, Any]] = {
    "pp": {"pp": 2},
    "streaming_window": {"streaming_window": 32},
    "disk_cache": {"disk_cache": "/nowhere"},
    "transfer_bind": {"transfer_bind": "ipc:///nowhere"},
    "prefill_workers": {"prefill_workers": "ipc:///nowhere"},
    "log_plans": {"log_plans": "/nowhere"},
    "quantize": {"quantize": "int8"},
    "kv_dtype": {"kv_dtype": "int8"},
}


@pytest.mark.parametrize("setting", REFUSED)
def test_settings_that_lose_experts_are_refused(setting: str, checkpoint: Callable[[str], tuple[Any, Path]]) -> None:
    _, path = checkpoint("mixtral")
    with pytest.raises(RequestError, match=f"{setting} is not known to go with enable_return_routed") as caught:
        engine_of(path, **REFUSED[setting])
    assert caught.value.param == setting


def test_a_dense_model_and_a_runtime_that_records_nothing_are_named(
    checkpoint: Callable[[str], tuple[Any, Path]],
) -> None:
    with pytest.raises(RequestError, match="experts of Qwen2ForCausalLM are not recorded") as caught:
        engine_of(checkpoint("dense")[1])
    assert caught.value.param == "enable_return_routed_experts"
    [request] = requests(1)
    with pytest.raises(RequestError, match="served with --enable-return-routed-experts") as asked:
        route_record(request, None, 60)
    assert asked.value.param == "return_routed_experts"


def test_bounds_of_a_request_are_checked_before_it_runs() -> None:
    [request] = requests(1)
    num_prompt = len(request.tokens)
    assert route_record(replace(request, routed_from=None), (2, 2), 60) is None
    for wrong in (-1, num_prompt + 1):
        with pytest.raises(RequestError, match=f"from 0 to the prompt's {num_prompt} tokens, got {wrong}"):
            route_record(replace(request, routed_from=wrong), (2, 2), 60)
    most = MAX_ROUTE_BYTES // (2 * 4 * 8)
    assert route_record(request, (4, 8), most + 1) is not None
    with pytest.raises(RequestError, match=f"the experts of {most + 1} tokens take") as caught:
        route_record(request, (4, 8), most + 2)
    assert caught.value.code == "too_long"


def test_a_record_keeps_the_first_experts_and_fills_what_was_never_computed() -> None:
    record = RouteRecord(2, (1, 1))

    def experts(*values: int) -> bytes:
        return np.array(values, "<i2").tobytes()

    assert (record.wanted_from(0, 2), record.wanted_from(0, 3), record.wanted_from(4, 6)) == (None, 2, 4)
    record.take(2, experts(1, 2, 3))
    assert record.wanted_from(0, 5) is None  # computed again after a retraction
    record.take(5, experts(4))
    record.take(8, experts(9))  # those between never came: asked for again
    assert record.next_position == 6
    record.cut(4)
    assert np.frombuffer(record.of(8).experts, "<i2").tolist() == [1, 2, -1, -1, -1]
    assert record.of(1).experts == b""
