"""Layers with a window give up their pages behind it, and no token changes by that.

Small random checkpoints in float32 with a window of 20 tokens, in all layers and in some. Judges: transformers' greedy
tokens, each computed from the whole sequence; and the requests one by one in a runtime that keeps all pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.models.linear import DenseLinear
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.speculation.draft_model import DraftModelSource
from ramiform.runtime.speculation.medusa import MedusaHead, MedusaSource

from .alone import AnyTree, Got, run
from .lora_files import merged, write_adapter
from .test_any_model import SIZES
from .test_speculation import REQUESTS, check, crowding_requests
from .threads import RanksEngine

SHAPE: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "num_pages": 64,
    "prefill_budget": 32,
    "max_running": 8,
    "speculative": "off",
    "window_ratio": 0.4,
}
FIELDS = {**SIZES, "max_position_embeddings": 512, "head_dim": 16}
TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
KINDS: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 20},
    "Gemma3Text": {"sliding_window": 20, "num_hidden_layers": 3, "layer_types": TYPES},
}
Model = tuple[PreTrainedModel, Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(kind: str) -> Model:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        config = getattr(transformers, f"{kind}Config")(**{**FIELDS, **KINDS[kind]})
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        path = tmp_path_factory.mktemp("checkpoint")
        model.save_pretrained(path)
        return model.eval(), path

    return make


def make_engine(path: Path, source: DraftSource | None = None, **settings: Any) -> ForwardEngine:
    return build_engine(CoreConfig(**SHAPE | settings), path, make_source=lambda *_, **__: source)


@torch.inference_mode()
def greedy(model: PreTrainedModel, tokens: Sequence[int], count: int) -> list[int]:
    ids = list(tokens)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(tokens) :]


def request(rid: str, tokens: list[int], count: int) -> Generate:
    return Generate(
        rid=rid, tokens=tokens, sampling=SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    )


def some_tokens(count: int, seed: int) -> list[int]:
    return [10 + (7 * place + 311 * seed) % 2000 for place in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_turns_and_forks_get_transformers_tokens(kind: str, models: Any) -> None:
    model, path = models(kind)
    first = some_tokens(75, seed=1)
    prompts = {"first": first, "again": first, "inside a page": [*first[:61], *some_tokens(9, seed=5)]}
    wanted = {rid: greedy(model, tokens, 9) for rid, tokens in prompts.items()}
    prompts["next turn"] = [*first, *wanted["first"], *some_tokens(30, seed=2)]
    wanted["next turn"] = greedy(model, prompts["next turn"], 9)
    engine = make_engine(path)
    assert engine.info.num_window_pages == 26
    requests = [request(rid, tokens, 9) for rid, tokens in prompts.items()]
    got, stats, plans = run(requests, engine=engine, stagger=30, **SHAPE)
    assert {rid: mine.ids for rid, mine in got.items()} == wanted
    assert stats.num_cached_tokens >= 74 + 61 + 75 + 8, "what is reused is exact to the token"
    assert all(plan.rows[0].window_pages for plan in plans)


SHAPES: dict[str, dict[str, Any]] = {
    "cached": {},
    "few pages": {"num_pages": 40, "window_ratio": 0.25, "max_running": 4},
    "no cache, chunks": {"prefix_cache": False, "prefill_budget": 16},
    "overlap, n-grams": {"overlap": "on", "speculative": "ngram", "speculative_adaptive": False},
    "int8 keys and values": {"kv_dtype": "int8"},
    "deterministic": {"deterministic": True},
    "two ranks": {"tp": 2},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_request_asks_for_is_the_same_as_with_all_pages(kind: str, models: Any) -> None:
    path, alone = models(kind)[1], dict[str, dict[str, Got]]()
    shapes = SHAPES if kind == "Gemma3Text" else {name: SHAPES[name] for name in ("few pages", "no cache, chunks")}
    for name, shape in shapes.items():
        dtype = shape.get("kv_dtype", "auto")
        if dtype not in alone:
            own = {"prefix_cache": False, "num_pages": 512, "window_ratio": 1.0, "kv_dtype": dtype}
            engine = make_engine(path, **own)
            assert not engine.info.num_window_pages
            alone[dtype] = run(REQUESTS[:16], engine=engine, stagger=40, **SHAPE | own)[0]
        config = CoreConfig(**SHAPE | shape)
        engine = RanksEngine(config, path, 2) if config.tp == 2 else build_engine(config, path)
        got, stats, _ = run(REQUESTS[:16], engine=engine, **SHAPE | shape)
        assert engine.info.num_window_pages, name
        check(got, alone[dtype], tolerance=1e-3)
        assert (stats.num_cached_tokens > 0) == shape.get("prefix_cache", True)


@pytest.mark.slow
def test_any_draft_trees_and_retractions_change_no_token(models: Any) -> None:
    path, requests = models("Gemma3Text")[1], crowding_requests()
    own = {"num_pages": 512, "window_ratio": 1.0}
    alone = run(requests, engine=make_engine(path, **own), **SHAPE | own)[0]
    outputs = [(one.tokens, alone[one.rid].ids) for one in requests]
    shape = {
        "num_pages": 44,
        "prefill_budget": 64,
        "speculative": "eagle",
        "speculative_adaptive": False,
        "speculative_eagle_topk": 3,
        "max_running": 24,
    }
    got, stats, _ = run(requests, engine=make_engine(path, AnyTree(4, outputs), **shape), **SHAPE | shape)
    check(got, alone, tolerance=1e-3)
    assert stats.num_accepted_tokens > 0
    assert stats.num_retractions > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["early-exit", "medusa"])
def test_sources_that_follow_the_model_change_no_token(name: str, models: Any) -> None:
    path, own = models("Gemma3Text")[1], {"num_pages": 512, "window_ratio": 1.0}
    alone = run(REQUESTS[:8], engine=make_engine(path, **own), **SHAPE | own)[0]
    model = load_model(path, device=torch.device("cpu"), dtype=torch.float32)
    if name == "early-exit":
        source: DraftSource = DraftModelSource(model.first_layers(2), SHAPE["num_pages"], 0)
    else:
        heads = [MedusaHead([], DenseLinear(model.parameters.dense_head())) for _ in range(2)]
        source = MedusaSource(heads, model.config)
    shape = {"speculative": name, "speculative_adaptive": False}
    got, stats, _ = run(REQUESTS[:8], engine=make_engine(path, source, **shape), **SHAPE | shape)
    check(got, alone, tolerance=1e-3)
    assert stats.num_guessed_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_beside_the_base_get_the_tokens_of_merged_weights(kind: str, models: Any, tmp_path: Path) -> None:
    model, path = models(kind)
    adapter = write_adapter(tmp_path / "adapter", path, seed=4)
    whole = merged(tmp_path / "merged", path, adapter)
    tuned = transformers.AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32, attn_implementation="eager")
    engine, tokens = make_engine(path), some_tokens(75, seed=6)
    engine.load_adapter(1, read_adapter(adapter, engine.model_config, max_rank=8))
    wanted = {"base": greedy(model, tokens, 30), "tuned": greedy(tuned.eval(), tokens, 30)}
    assert wanted["base"] != wanted["tuned"]
    wanted |= {f"{rid} again": ids for rid, ids in wanted.items()}
    requests = [
        msgspec.structs.replace(request(rid, tokens, 30), adapter_number=number, namespace=str(number))
        for rid in wanted
        for number in [int("tuned" in rid)]
    ]
    got, stats, _ = run(requests, engine=engine, stagger=12, **SHAPE)
    assert {rid: mine.ids for rid, mine in got.items()} == wanted
    assert stats.num_cached_tokens == 2 * 74


def test_a_long_output_holds_no_more_window_pages_than_its_window(models: Any) -> None:
    path = models("Mistral")[1]
    engine = make_engine(path)
    got, _, plans = run([request("long", some_tokens(40, seed=3), 400)], engine=engine, **SHAPE)
    assert len(got["long"].ids) == 400
    last = plans[-1].rows[0]
    assert len(last.pages) == 28
    # Those of 20 tokens, of the page that the window begins in, and one more.
    assert max(len(set(plan.rows[0].window_pages)) for plan in plans) <= 5
    assert engine.info.kv_bytes == 26 * 16 * 2 * 2 * 16 * 2 * 4, "pages of other layers take no memory"


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_too_small_for_window_pages_still_holds_the_context(kind: str, models: Any) -> None:
    engine = make_engine(models(kind)[1], num_pages=None, window_ratio=None, max_running=1, context_length=128)
    assert (engine.info.num_pages, engine.info.num_window_pages) == (128 // 16, 0)
