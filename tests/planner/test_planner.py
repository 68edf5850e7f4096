"""Capacity planning. Judges: published figures of known models, the parameters that the loader allocates, and orderings
that hold for any constants."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ramiform.cli import app
from ramiform.runtime.engine.kv_format import KV_DTYPES
from ramiform.runtime.engine.kv_pool import PAGE_SIZE, bytes_per_page
from ramiform.runtime.models.config import ModelConfig, parse_config
from ramiform.runtime.models.parallel.group import SingleRank
from ramiform.runtime.models.parallel.shard import Shard
from ramiform.runtime.models.parallel.stage import Stage
from ramiform.runtime.models.parameters import allocate_parameters, checkpoint_destinations, num_parameters
from ramiform.runtime.models.size import model_size
from ramiform.tools.planner.choose import arrangements, choose
from ramiform.tools.planner.devices import DEVICES
from ramiform.tools.planner.estimate import Arrangement, Workload, estimate
from ramiform.tools.planner.memory import kv_bytes, possible_kv_formats, read_bytes, weight_bytes

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "max_position_embeddings": 131072}
LLAMA_8B = LLAMA | {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "attention_bias": True,
}
MIXTRAL = LLAMA_8B | {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
QWEN2_MOE = QWEN3 | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [1],
}
LATENT = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
LATENT |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1408, "first_k_dense_replace": 1}
WORKLOAD = Workload(prompt=1024, context=2048, concurrency=32)


def config(raw: dict[str, Any]) -> ModelConfig:
    return parse_config(raw, Path("config.json"))


@pytest.mark.parametrize(
    "raw",
    [
        LLAMA_8B,
        QWEN3,
        QWEN3 | {"tie_word_embeddings": False},
        QWEN3 | {"head_dim": 16},
        MIXTRAL,
        QWEN3_MOE | {"decoder_sparse_step": 2},
        QWEN2_MOE,
    ],
)
def test_parameters_are_those_that_loading_would_allocate(raw: dict[str, Any]) -> None:
    assert model_size(config(raw)).num_parameters == num_parameters(config(raw))


def test_the_sizes_are_the_published_ones() -> None:
    # The Llama 3 herd (Grattafiori et al. 2024): 8.03 and 70.6 billion parameters; the larger takes 141 GB in bf16, its
    # KV 320 KiB a token, 160 KiB in FP8, and would take 2.5 MiB without grouped queries. Ours has scales beside FP8.
    assert model_size(config(LLAMA_8B)).num_parameters == pytest.approx(8.03e9, rel=1e-3)
    large = config(LLAMA_70B)
    assert weight_bytes(model_size(large), "bf16") == pytest.approx(141e9, rel=2e-3)
    assert kv_bytes(large, "bf16") == 320 * 1024
    assert kv_bytes(large, "fp8") == 160 * 1024 + large.num_layers * 2 * large.num_kv_heads * 2
    assert kv_bytes(replace(large, num_kv_heads=64), "bf16") == 2.5 * 2**20
    assert kv_bytes(config(LLAMA_8B), "bf16") == 128 * 1024


def test_the_sizes_of_mixtures_are_the_published_ones() -> None:
    # Mixtral of experts (Jiang et al. 2024): 47 billion parameters, 13 of them for a token. Qwen3's model card: 30.5
    # billion, 3.3 of them.
    mixtral, qwen = model_size(config(MIXTRAL)), model_size(config(QWEN3_MOE))
    assert (round(mixtral.num_parameters / 1e9), round(mixtral.num_active / 1e9)) == (47, 13)
    assert qwen.num_parameters == pytest.approx(30.5e9, rel=2e-3)
    assert qwen.num_active == pytest.approx(3.3e9, rel=0.02)


def test_one_token_reads_its_experts_and_many_tokens_read_all() -> None:
    size = model_size(config(MIXTRAL))
    one, two, many = (read_bytes(size, "bf16", num_tokens) for num_tokens in (1, 2, 1000))
    assert one == pytest.approx(2 * (size.num_active - size.embedding))
    assert two - one == pytest.approx(2 * size.experts * (3 / 4) * (1 / 4))
    assert many == pytest.approx(2 * (size.num_parameters - size.embedding))


def test_the_floor_of_a_token_is_what_the_weights_take_to_read() -> None:
    # 15.0 GB are read for each token of Llama 8B: 3.5 ms at 4.3 TB/s, and 30 us for each 1,000 tokens of context.
    from msgspec.structs import replace as changed

    device = changed(DEVICES["h200"], bandwidth=4.3e12)
    short = estimate(config(LLAMA_8B), device, Workload(prompt=1, context=3, concurrency=1), Arrangement())
    assert short.step_seconds == pytest.approx(3.5e-3, rel=0.01)
    long = estimate(config(LLAMA_8B), device, Workload(prompt=10000, context=10002, concurrency=1), Arrangement())
    assert (long.step_seconds - short.step_seconds) / 10 == pytest.approx(30e-6, rel=0.03)


def test_seventy_billion_parameters_need_two_large_devices_or_narrow_weights() -> None:
    large = config(LLAMA_70B)
    assert estimate(large, DEVICES["h100"], WORKLOAD, Arrangement()).max_sequences == 0
    assert estimate(large, DEVICES["h100"], WORKLOAD, Arrangement(tp=2)).max_sequences < 5  # 141 GB of 144
    assert estimate(large, DEVICES["h100"], WORKLOAD, Arrangement(tp=4)).max_sequences > 100
    assert estimate(large, DEVICES["h100"], WORKLOAD, Arrangement(tp=2, weights="fp8")).max_sequences > 50
    assert estimate(large, DEVICES["h100"], WORKLOAD, Arrangement(weights="int4")).max_sequences > 10


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize(
    "raw", [QWEN3, QWEN3 | {"tie_word_embeddings": False}, QWEN2_MOE], ids=["tied", "untied", "moe"]
)
def test_a_stage_is_planned_with_what_its_rank_would_allocate(raw: dict[str, Any], num_stages: int) -> None:
    model = config(raw)
    device = DEVICES["h100"]
    held, pages = [], []
    for stage in (Stage(index, num_stages) for index in range(num_stages)):
        group = SingleRank(Shard(), stage)
        parts = checkpoint_destinations(
            allocate_parameters(model, device="meta", dtype=torch.bfloat16, group=group), model, group
        )
        held.append(sum(torch.Size(part.shape).numel() for part in parts.values()))
        pages.append(bytes_per_page(stage.local(model), torch.bfloat16))
        assert stage.size_of(model).num_parameters == held[-1]
    planned = estimate(model, device, Workload(prompt=1, context=160, concurrency=1), Arrangement(pp=num_stages))
    assert planned.weight_bytes == 2 * max(held)
    # Weights and activations of these models are nothing beside the memory, so what it holds is KV.
    free = device.memory * 0.9
    assert planned.max_sequences == pytest.approx(free / (10 * max(pages)), rel=0.01)


def test_a_window_saves_reading_and_memory_but_not_on_stages() -> None:
    model, device = config(LLAMA_8B), DEVICES["h100"]
    windowed = replace(model, windows=(1024,) * model.num_layers)
    workload = Workload(prompt=8192, context=16384, concurrency=16)
    whole, part = (estimate(one, device, workload, Arrangement()) for one in (model, windowed))
    # 1,024 tokens of 16,384, and a page more.
    assert part.max_sequences == pytest.approx(whole.max_sequences * 1024 / 65, rel=0.05)
    assert part.step_seconds < whole.step_seconds
    # Half of the layers, with half as many window pages as pages.
    mixed = replace(model, windows=(1024, None) * (model.num_layers // 2))
    assert estimate(mixed, device, workload, Arrangement()).max_sequences == pytest.approx(
        whole.max_sequences / 0.75, rel=0.05
    )
    on_stages = [estimate(one, device, workload, Arrangement(pp=2)) for one in (model, windowed)]
    assert on_stages[0].max_sequences == on_stages[1].max_sequences


def test_stages_make_room_and_prompts_faster_and_no_token() -> None:
    # A step of few rows is not worth cutting, so only one stage works at a time.
    model, device = config(LLAMA_70B), DEVICES["h200"]
    one, two, four = (estimate(model, device, WORKLOAD, Arrangement(pp=pp)) for pp in (1, 2, 4))
    assert one.step_seconds < two.step_seconds < four.step_seconds < 1.02 * one.step_seconds
    assert one.max_sequences < two.max_sequences < four.max_sequences
    assert four.prefill_seconds < two.prefill_seconds < one.prefill_seconds
    # As many micro-batches as stages: (2 S - 1) / S of them one after the other, each an S-th of an S-th.
    assert two.prefill_seconds == pytest.approx(one.prefill_seconds * 3 / 4, rel=0.05)
    assert four.prefill_seconds == pytest.approx(one.prefill_seconds * 7 / 16, rel=0.1)


def test_only_divisible_arrangements_are_offered() -> None:
    model = config(LLAMA_8B | {"intermediate_size": 14338, "num_key_value_heads": 8})
    assert {one.tp for one in arrangements(model, 8)} == {1, 2}


def test_a_sequence_of_a_hybrid_model_has_a_state_too() -> None:
    model = config(
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        }
    )
    assert model_size(model).num_parameters == pytest.approx(79.7e9, rel=0.01)  # the model's card: 80 billion
    assert kv_bytes(model, "bf16") == 12 * 2 * 2 * 256 * 2
    state = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    workload = Workload(prompt=1024, context=2048, concurrency=16)
    found = estimate(model, DEVICES["b200"], workload, Arrangement(weights="fp8"))
    each = 2048 * kv_bytes(model, "bf16") + state
    assert found.max_sequences * each < DEVICES["b200"].memory - found.weight_bytes < 2 * found.max_sequences * each
    assert {one.num_devices for one in arrangements(model, 8)} == {1}  # as the runtime refuses more


sizes = st.sampled_from([LLAMA_8B, LLAMA_70B, MIXTRAL])
kinds = st.sampled_from(sorted(DEVICES))


@pytest.mark.slow
@given(sizes, kinds, st.integers(1, 512), st.integers(2, 4000), st.integers(1, 4000))
def test_orderings_hold_for_any_estimate(
    raw: dict[str, Any], kind: str, concurrency: int, prompt: int, more: int
) -> None:
    model, device = config(raw), DEVICES[kind]
    workload = Workload(prompt=prompt, context=prompt + more, concurrency=concurrency)
    base = estimate(model, device, workload, Arrangement())
    busier = estimate(
        model, device, Workload(prompt=prompt, context=prompt + more, concurrency=2 * concurrency), Arrangement()
    )
    assert busier.step_seconds >= base.step_seconds
    assert busier.tokens_per_second >= base.tokens_per_second * 0.999
    assert estimate(model, device, workload, Arrangement(kv="fp8")).max_sequences >= base.max_sequences
    for weights in ("fp8", "int4"):
        narrow = estimate(model, device, workload, Arrangement(weights=weights))
        assert narrow.step_seconds <= base.step_seconds
        assert narrow.max_sequences >= base.max_sequences
    halves = estimate(model, device, workload, Arrangement(tp=2))
    assert halves.weight_bytes == pytest.approx(base.weight_bytes / 2)
    assert halves.max_sequences >= base.max_sequences
    piped = estimate(model, device, workload, Arrangement(pp=2))
    assert base.weight_bytes / 2 <= piped.weight_bytes < base.weight_bytes
    reused = estimate(
        model, device, Workload(prompt=prompt, cached=prompt - 1, context=prompt + more, concurrency=1), Arrangement()
    )
    assert reused.prefill_seconds <= base.prefill_seconds
    slower = estimate(model, device, workload, Arrangement(), efficiency=0.5)
    assert slower.step_seconds == pytest.approx(2 * base.step_seconds)


@pytest.mark.slow
def test_the_choice_fits_and_meets_the_targets_with_the_fewest_devices() -> None:
    model, device = config(LLAMA_70B), DEVICES["h100"]
    chosen = choose(model, device, 8, WORKLOAD, max_ttft=0.5, max_itl=0.03)
    assert chosen
    everything = [estimate(model, device, WORKLOAD, one) for one in arrangements(model, 8)]
    meets = [
        one.arrangement
        for one in everything
        if one.max_sequences >= 32 and one.prefill_seconds <= 0.5 and one.step_seconds <= 0.03
    ]
    assert sorted(map(str, meets)) == sorted(str(one.arrangement) for one in chosen)
    numbers = [one.arrangement.num_devices for one in chosen]
    assert numbers == sorted(numbers)
    assert all(one.tp * one.pp <= 8 for one in meets)


def test_a_million_tokens_cost_the_hours_they_take() -> None:
    one = estimate(config(LLAMA_8B), DEVICES["h100"], WORKLOAD, Arrangement(tp=2))
    hours = 1e6 / one.tokens_per_second / 3600
    assert one.cost_per_million(3.0) == pytest.approx(2 * 3.0 * hours)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return str(tmp_path)


@pytest.mark.slow
def test_the_command_shows_a_plan(folder: str) -> None:
    shown = CliRunner().invoke(app, ["plan", folder, "--gpus", "8xh100", "--price", "2.5", "--itl", "40"])
    assert shown.exit_code == 0, shown.output
    assert "70.6 billion parameters" in shown.output
    assert "328 kB" in shown.output
    assert "cost/1M" in shown.output
    said = " ".join(shown.output.split())
    assert re.search("disk cache of a million tokens: .*bf16 305.2 GiB, .*fp8 155.0 GiB, .*int4 8", said)


@pytest.mark.parametrize("head_dim", [64, 80, 128, 126])
def test_a_plan_says_what_a_token_takes_in_each_format(folder: str, head_dim: int) -> None:
    """Judge: the pool's pages."""
    raw = LLAMA_70B | {"head_dim": head_dim}
    (Path(folder) / "config.json").write_text(json.dumps(raw))
    config = parse_config(raw, Path("config.json"))
    dtypes = KV_DTYPES.copy()
    if head_dim % 4:
        del dtypes["int4"]
    pages = {
        name: bytes_per_page(config, dtype, is_scaled=name in ("fp8", "int8", "int4")) for name, dtype in dtypes.items()
    }
    for name, page in pages.items():
        shown = CliRunner().invoke(app, ["plan", folder, "--gpus", "8xh100", "--kv-dtype", name])
        assert shown.exit_code == 0, shown.output
        rows = [line.split() for line in shown.output.splitlines() if line.strip()[:1].isdigit()]
        assert {row[3] for row in rows if row[0] in "1248"} == {name}
        [said] = re.findall(r"KV of a token: (.*?) disk", " ".join(shown.output.split()))
        kilobytes = {one.split()[0]: float(one.split()[1]) for one in said.split(", ")}
        assert kilobytes.keys() == pages.keys()
        assert kilobytes[name] == pytest.approx(page / PAGE_SIZE / 1000, rel=5e-3)
    if head_dim == 64:
        assert kv_bytes(config, "int8") / kv_bytes(config, "int4") >= 1.88


def test_a_plan_of_latents_offers_no_four_bits() -> None:
    latent = config(LLAMA_8B | LATENT | {"architectures": ["DeepseekV2ForCausalLM"], "num_key_value_heads": 32})
    assert possible_kv_formats(latent) == [name for name in KV_DTYPES if name != "int4"]


def test_a_plan_with_keys_and_values_in_four_bits_holds_what_the_pool_would(folder: str) -> None:
    config = parse_config(LLAMA_70B, Path("config.json"))
    pages = [bytes_per_page(config, dtype) for dtype in (torch.uint8, torch.bfloat16)]
    assert kv_bytes(config, "int4") / kv_bytes(config, "bf16") == pages[0] / pages[1]
    shown = CliRunner().invoke(app, ["plan", folder, "--gpus", "8xh100", "--kv-dtype", "int4"])
    assert shown.exit_code == 0, shown.output
    rows = [line.split() for line in shown.output.splitlines() if line.strip()[:1].isdigit()]
    assert {kv for _, _, _, kv, *_ in rows if kv.isalnum()} == {"int4"}
    (Path(folder) / "config.json").write_text(json.dumps(LLAMA_70B | {"head_dim": 126}))
    refused = CliRunner().invoke(app, ["plan", folder, "--gpus", "8xh100", "--kv-dtype", "int4"])
    assert "heads whose size is a multiple of 4, this model's is 126" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "8"], "'8'"),
        (["--gpus", "2xabacus"], "abacus"),
        (["--prompt", "5000"], "5000 < 2048"),
        (["--gpus", "1xl4"], "no arrangement"),
    ],
)
def test_invalid_arguments_are_refused(folder: str, arguments: list[str], said: str) -> None:
    shown = CliRunner().invoke(app, ["plan", folder, *arguments])
    assert shown.exit_code != 0
    assert said in shown.output + str(shown.exception)
