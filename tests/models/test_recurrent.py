"""Hybrid models on random checkpoints in float32. Judges: transformers with the same weights, and recurrences written
as loops."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace
from transformers import PreTrainedModel

from ramiform.kernels import RecurrenceInputs
from ramiform.kernels.cpu import recurrence
from ramiform.kernels.cpu.ops import CpuOps
from ramiform.kernels.reference.ops import ReferenceOps
from ramiform.kernels.reference.recurrence import step_states
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.linear import JoinedLinear, ScaledLinear
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parameters import num_parameters
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.models.recurrent.config import JAMBA, MAMBA2, QWEN3_NEXT, RecurrentConfig
from ramiform.runtime.models.recurrent.layer import RecurrentLayer
from ramiform.runtime.models.recurrent.memory import DecodeStates, LayerStates, RecurrentStep, StateMemory, StateSpan
from ramiform.runtime.models.recurrent.scan import CHUNK, scan
from ramiform.runtime.models.recurrent.selective import SelectiveLayer, allocate_recurrent
from ramiform.runtime.models.size import model_size
from ramiform.runtime.scheduler.plan import DraftNode, RowState, StateAdvance, StateCopy

from .test_decoder_equals_transformers import assert_close, forward, load, page_tables, rows_of, tokens
from .test_families import SIZES

_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "head_dim": 24,
    "partial_rotary_factor": 0.5,
}
_EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 next": ("Qwen3Next", {**SIZES, **_DELTA, **_EXPERTS, "mlp_only_layers": [2]}),
    "qwen3.5": ("Qwen3_5Text", {**SIZES, **_DELTA}),
    "qwen3.5 moe": ("Qwen3_5MoeText", {**SIZES, **_DELTA, **_EXPERTS}),
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_expand": 2, "mamba_n_groups": 2, "mamba_d_conv": 3}
_GRANITE = {**SIZES, **_MAMBA, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 0.5,
            "shared_intermediate_size": 72}  # fmt: skip
CONFIGS |= {
    "granite 4": ("GraniteMoeHybrid", {**_GRANITE, "num_local_experts": 0}),
    "granite 4, experts": ("GraniteMoeHybrid", {**_GRANITE, "num_local_experts": 5, "num_experts_per_tok": 2,
                                                "intermediate_size": 24, "position_embedding_type": "rope"}),
    "bamba": ("Bamba", {**SIZES, **_MAMBA, "attn_layer_indices": [1], "mamba_proj_bias": True, "mlp_bias": False}),
}  # fmt: skip
CONFIGS |= {
    "lfm2": ("Lfm2", {**SIZES, "layer_types": ["conv", "full_attention", "conv"], "conv_bias": True,
                      "block_multiple_of": 8}),
    "lfm2 moe": ("Lfm2Moe", {**SIZES, **_EXPERTS, "layer_types": ["conv", "full_attention", "conv"],
                             "num_dense_layers": 1, "routed_scaling_factor": 1.5}),
}  # fmt: skip
_FALCON = {**SIZES, **_MAMBA, "mamba_d_ssm": 80, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5,
           "key_multiplier": 1.5, "attention_in_multiplier": 0.7, "attention_out_multiplier": 0.9,
           "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.5, 0.8, 1.3, 1.1, 0.9],
           "mlp_multipliers": [0.8, 0.3]}  # fmt: skip
CONFIGS |= {
    "falcon h1": ("FalconH1", _FALCON),
    "falcon h1, biases": ("FalconH1", {**_FALCON, "attention_bias": True, "mamba_proj_bias": True, "mlp_bias": True,
                                       "projectors_bias": True, "mamba_rms_norm": True}),
    "falcon h1, gate first": ("FalconH1", {**SIZES, **_MAMBA, "mamba_d_ssm": None, "mamba_rms_norm": True,
                                           "mamba_norm_before_gate": False, "num_hidden_layers": 1}),
}  # fmt: skip
CONFIGS |= {
    "jamba": ("Jamba", {**SIZES, "num_experts": 5, "expert_layer_offset": 0, "attn_layer_period": 2,
                        "attn_layer_offset": 1, "mamba_d_conv": 3, "mamba_d_state": 9, "mamba_proj_bias": True}),
    "jamba, dense": ("Jamba", {**SIZES, "num_experts": 1, "attn_layer_offset": 0, "num_hidden_layers": 2,
                               "mamba_conv_bias": False}),
}  # fmt: skip
_NEMOTRON = {**SIZES, "mamba_num_heads": 4, "mamba_head_dim": 10, "ssm_state_size": 12, "n_groups": 2,
             "head_dim": 16, "time_step_min": 1e-30}  # fmt: skip
_UNGATED = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 2.5}  # fmt: skip
CONFIGS |= {
    "nemotron-h": ("NemotronH", {**SIZES, "layers_block_type": ["linear_attention", "mlp", "full_attention",
                                                                "linear_attention", "linear_attention", "mlp"],
                                 "mamba_num_heads": 6, "mamba_head_dim": 10, "ssm_state_size": 12, "n_groups": 2,
                                 "conv_kernel": 3, "head_dim": 16, "time_step_min": 1e-30}),
    "nemotron 3": ("NemotronH", {**_NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
                                 **_UNGATED}),
    "nemotron 3, latents": ("NemotronH", {**_NEMOTRON, "layers_block_type": ["linear_attention", "moe",
                                                                             "full_attention", "mlp"],
                                          **_UNGATED, "moe_latent_size": 20, "mlp_bias": True, "n_group": 2,
                                          "topk_group": 1}),
    "nemotron-h, attention last": ("NemotronH", {**SIZES, "layers_block_type": ["mlp", "linear_attention",
                                                                                "full_attention"],
                                                 "mamba_num_heads": 4, "mamba_head_dim": 10, "ssm_state_size": 12,
                                                 "n_groups": 2, "use_bias": True, "time_step_min": 1e-30,
                                                 "head_dim": 16}),
}  # fmt: skip
every_family = pytest.mark.parametrize("name", CONFIGS)
# Granite 4.0 Micro is of a hybrid's class too.
ATTENDING = {
    "granite 4, dense": ("GraniteMoeHybrid", {**_GRANITE, "layer_types": ["full_attention"] * 3, "num_local_experts": 0,
                                              "position_embedding_type": "rope"}),
    "lfm2 moe, attention": ("Lfm2Moe", {**SIZES, **_EXPERTS, "layer_types": ["full_attention"] * 3}),
    "jamba, attention": ("Jamba", {**SIZES, "attn_layer_period": 1, "attn_layer_offset": 0, "num_experts": 1}),
}  # fmt: skip


@cache
def make_judge(name: str) -> PreTrainedModel:
    """Make a random model in which every parameter matters, and whose states forget slowly."""
    kind, fields = (CONFIGS | ATTENDING)[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{kind}Config")(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("A_log"):
                parameter.sub_(3.0)
            elif path.endswith("dt_bias"):
                parameter.sub_(1.5 + torch.rand_like(parameter))
            elif parameter.dim() == 1 or "conv1d" in path:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for bias in choice_biases(model):
            bias.copy_(0.1 * torch.randn_like(bias))
    return model.eval()


def choice_biases(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return the biases of the choice of experts, which transformers does not count as parameters."""
    return [buffer for name, buffer in model.named_buffers() if name.endswith(("correction_bias", "expert_bias"))]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp("checkpoint")
        make_judge(name).save_pretrained(path)
        return path

    return make


def expected(name: str, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return make_judge(name)(torch.tensor([prompt]), use_cache=False).logits[0]


@every_family
def test_prompts_in_one_pass_without_slots(name: str, checkpoints: Any) -> None:
    model, pool = load(checkpoints(name))
    prompts = [tokens(101, seed=1), tokens(9, seed=2)]
    rows = [
        rows_of(prompt, pages, [len(prompt)])[0] for prompt, pages in zip(prompts, page_tables(101, 9), strict=True)
    ]
    for prompt, found in zip(prompts, forward(model, pool, rows), strict=True):
        want = expected(name, prompt)
        assert float(want.std()) > 0.3, "the judge's model must not be trivial"
        assert_close(found, want)


def with_state(row: Any, slot: int, *saves: tuple[int, int]) -> Any:
    return replace(row, state=RowState(slot, list(saves)))


@every_family
def test_chunks_decode_steps_and_saved_states_in_a_batch(name: str, checkpoints: Any) -> None:
    model, pool = load(checkpoints(name))
    model.allocate_states(6)
    assert model.states is not None
    for memory in (model.states.conv_LSWC, model.states.state_LSHKV):
        memory.fill_(float("nan"))  # what was never written must never count
    lengths, parts = (101, 48, 7, 34), ([70, 30, 1], [46, 1, 1], [5, 1, 1], [1, 1, 32])
    prompts = [tokens(length, seed=length) for length in lengths]
    rows = [rows_of(*row) for row in zip(prompts, page_tables(*lengths), parts, strict=True)]
    found = []
    for number in range(3):
        step_rows = [with_state(row[number], slot) for slot, row in enumerate(rows)]
        if number == 0:  # kept on the way, in the middle of a row and at its end
            step_rows[0] = with_state(rows[0][0], 0, (33, 4), (70, 5))
        found.append(forward(model, pool, step_rows))
    for prompt, *own in zip(prompts, *found, strict=True):
        assert_close(torch.cat(own), expected(name, prompt))
    want = expected(name, prompts[0])
    for slot, position in ((4, 33), (5, 70)):
        rest = replace(rows[0][0], tokens=prompts[0][position:], first_position=position, pages=rows[0][2].pages)
        assert_close(forward(model, pool, [with_state(rest, slot)])[0], want[position:])


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_a_state_goes_on_from_the_drafts_that_were_right(num_right: int, checkpoints: Any) -> None:
    model, pool = load(checkpoints("qwen3 next"))
    model.allocate_states(2)
    prompt, [pages] = tokens(40, seed=6), page_tables(60)
    [row] = rows_of(prompt, pages, [40])
    forward(model, pool, [with_state(row, 1)])
    drafts = tokens(4, seed=8)
    chain = {"tokens": [5, *drafts[1:]], "first_position": 40, "pages": pages, "parents": [-1, 0, 1]}
    found = forward(model, pool, [with_state(replace(row, **chain, nodes=[DraftNode(draw=0)] * 3), 1)])[0]
    assert_close(found, expected("qwen3 next", [*prompt, 5, *drafts[1:]])[40:])
    kept = [*prompt, 5, *drafts[1 : 1 + num_right]]
    with torch.inference_mode():
        model.change_states([StateAdvance(1, num_right), StateCopy(1, 0)] if num_right else [StateCopy(1, 0)])
    rest = replace(row, tokens=[7, 8], first_position=len(kept), pages=pages)
    assert_close(forward(model, pool, [with_state(rest, 0)])[0], expected("qwen3 next", [*kept, 7, 8])[-2:])


@every_family
def test_parameters_are_counted_as_the_judge_counts_them(name: str, checkpoints: Any) -> None:
    config = read_config(checkpoints(name))
    judge = make_judge(name)
    assert num_parameters(config) == judge.num_parameters() + sum(map(torch.numel, choice_biases(judge)))
    assert model_size(config).num_parameters == num_parameters(config)


@pytest.mark.parametrize("is_delta", [True, False])
@pytest.mark.parametrize("count", [1, 2, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_chunks_of_a_scan_equal_single_steps(count: int, is_delta: bool) -> None:
    torch.manual_seed(count)
    H, K, V = 3, 5, 4
    q, k, v = (torch.randn(count, H, size) for size in (K, K, V))
    k = k / k.norm(dim=-1, keepdim=True)
    g, beta = -4 * torch.rand(count, H) ** 6, torch.rand(count, H) if is_delta else None
    state = torch.randn(H, K, V)
    outputs, after = scan(state, q, k, v, g, beta)
    one = state.clone()[None]
    for index in range(count):
        own_beta = None if beta is None else beta[None, index]
        inputs = RecurrenceInputs(q[None, index], k[None, index], v[None, index], g[None, index], own_beta)
        output = step_states(one, torch.tensor([0]), inputs)
        torch.testing.assert_close(outputs[index], output[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(after, one[0], atol=1e-4, rtol=1e-4)
    for h in range(H):  # and steps equal the rule as it is written
        S = state[h].clone()
        for t in range(count):
            S = torch.exp(g[t, h]) * S
            d = v[t, h] if beta is None else beta[t, h] * (v[t, h] - S.t() @ k[t, h])
            S = S + torch.outer(k[t, h], d)
        torch.testing.assert_close(after[h], S, atol=1e-4, rtol=1e-4)


# A row of one token, one in the middle of a sequence that keeps states on its way and computes two drafts, a new one
# without a slot, and one that keeps its state in another slot.
SPANS = [
    StateSpan(1, 30, 1, [(4, 2), (27, 1)], 2),
    StateSpan(30, 37, None, [], 0),
    StateSpan(37, 41, 3, [(4, 4)], 0),
]


FAMILIES = {"gated delta": QWEN3_NEXT, "mamba2": MAMBA2, "mamba1": JAMBA}
every_kind = pytest.mark.parametrize("kind", FAMILIES)


def random_layer(kind: str, dtype: torch.dtype) -> tuple[RecurrentLayer, torch.Tensor, LayerStates]:
    """Return a layer, the input projection of 41 tokens, and five slots."""
    torch.manual_seed(5)
    sizes: dict[str, Any] = {"num_key_heads": 2, "num_heads": 4, "key_size": 7, "value_size": 10, "conv_width": 4}
    sizes |= {
        "gated delta": {"norm": "before the gate"},
        "mamba2": {"conv_bias": True, "step_limit": (0.01, 0.9)},
        "mamba1": {
            "conv_bias": True,
            "norm": "none",
            "num_key_heads": 1,
            "num_heads": 1,
            "step_rank": 3,
            "value_size": 150,
        },
    }[kind]
    config = RecurrentConfig(family=FAMILIES[kind], layers=(True,), **sizes)
    layer = allocate_recurrent(config, 1e-6, device="cpu", dtype=dtype)
    for tensor in (layer.conv_WC, layer.conv_bias_C, layer.step_bias_H, layer.skip_H, layer.norm_weight):
        if tensor is not None:
            tensor.normal_()
    layer.log_decay_H.normal_().sub_(2.0)
    if isinstance(layer, SelectiveLayer):
        layer.norms_J.normal_(std=0.5)
        for linear, outputs in ((layer.select, config.selected), (layer.expand, config.inner)):
            [weight] = linear.row_destinations(0, outputs).values()
            weight.put(0.2 * torch.randn(weight.shape))
            linear.finish()
    memory = StateMemory(config, 5, device="cpu", dtype=dtype)
    memory.conv_LSWC.normal_()
    memory.state_LSHKV.normal_()
    return layer, torch.randn(41, config.projected).to(dtype), memory.layers[0]


def copied(states: LayerStates) -> LayerStates:
    return LayerStates(*(memory.clone() for memory in states))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 6e-2)], ids=str)
@every_kind
def test_loops_equal_plain_torch(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    layer, projected, states = random_layer(kind, dtype)
    step = RecurrentStep(DecodeStates(torch.tensor([0]), torch.tensor([0])), SPANS)
    mine, theirs = copied(states), copied(states)
    got = layer(projected, mine, step, CpuOps())
    want = layer(projected, theirs, step, ReferenceOps())
    torch.testing.assert_close(got.float(), want.float(), atol=tolerance, rtol=tolerance)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.float(), other.float(), atol=tolerance, rtol=tolerance)


@every_kind
def test_bits_of_loops_depend_on_no_other_row_and_no_cut(kind: str) -> None:
    layer, projected, states = random_layer(kind, torch.float32)
    whole, parts = copied(states), copied(states)
    spans = [StateSpan(1, 30, 1, [(29, 1)], 0), SPANS[1]]
    want = layer(projected, whole, RecurrentStep(DecodeStates(torch.tensor([0]), torch.tensor([0])), spans), CpuOps())
    found = []
    for start, stop in ((1, 12), (12, 13), (13, 30)):
        span = StateSpan(0, stop - start, 1, [(stop - start, 1)], 0)
        found.append(layer(projected[start:stop], parts, RecurrentStep(None, [span]), CpuOps()))
    assert torch.equal(torch.cat(found), want[1:30])
    assert torch.equal(parts.state_SHKV[1], whole.state_SHKV[1])
    assert torch.equal(parts.conv_SWC[1], whole.conv_SWC[1])


@pytest.mark.parametrize("kind", ["gated delta", "mamba1"])
def test_threads_share_a_large_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, projected, states = random_layer(kind, torch.float32)
    alone, shared = copied(states), copied(states)
    step = RecurrentStep(None, SPANS)
    want = layer(projected, alone, step, CpuOps())
    monkeypatch.setattr(recurrence, "_MIN_SHARED_WORK", 0)
    monkeypatch.setattr(recurrence, "num_threads", lambda: 3)
    assert torch.equal(layer(projected, shared, step, CpuOps())[1:], want[1:])
    assert torch.equal(alone.state_SHKV, shared.state_SHKV)


def test_factors_of_products_are_not_rounded_to_sixteen_bits(checkpoints: Any) -> None:
    model = load_model(checkpoints("falcon h1"), device=torch.device("cpu"), dtype=torch.bfloat16)
    joined = model.parameters.layers[0].qkv
    assert isinstance(joined, JoinedLinear)
    scaled, keys = joined.parts[0], slice(64, 96)  # behind four heads of queries
    assert isinstance(scaled, ScaledLinear)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    exact = scaled.linear(x)[:, keys].double() * (_FALCON["attention_in_multiplier"] * _FALCON["key_multiplier"])
    slope = (scaled(x)[:, keys].double() * exact).sum() / exact.square().sum()
    assert abs(float(slope) - 1) < 1e-3, "outputs are rounded to bfloat16, but all of them alike only by their factor"


@pytest.mark.parametrize("name", ATTENDING)
def test_a_hybrid_whose_layers_all_attend_has_no_states(name: str, checkpoints: Any) -> None:
    model, pool = load(checkpoints(name))
    assert model.config.recurrent is None
    prompt, [pages] = tokens(40, seed=3), page_tables(40)
    found = [forward(model, pool, [row])[0] for row in rows_of(prompt, pages, [30, 1, 9])]
    assert_close(torch.cat(found), expected(name, prompt))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        # Without a list all layers are recurrent, as in transformers.
        ({"attn_layer_indices": None}, "layer_types: a model without a layer of attention is not supported"),
        ({"attn_layer_indices": [1.5]}, "attn_layer_indices must list layers"),
        ({"time_step_limit": [0.1, 0.01]}, "time_step_limit must be two numbers, the lower one first"),
        ({"mamba_d_head": 7}, "mamba_d_head must be"),
        ({"architectures": ["FalconH1ForCausalLM"], "attn_layer_indices": [1]}, "attn_layer_indices: for FalconH1For"),
        (
            {"architectures": ["FalconH1ForCausalLM"], "attn_layer_indices": None, "ssm_multipliers": [1.0]},
            "ssm_multipliers must list 5 numbers",
        ),
        ({"architectures": ["JambaForCausalLM"], "attn_layer_offset": 7}, "attn_layer_offset: a model without a layer"),
        (
            {
                "architectures": ["JambaForCausalLM"],
                "attn_layer_offset": 1,
                "attn_layer_period": 2,
                "expert_layer_offset": 2,
            },
            "expert_layer_offset must be at most 1",
        ),
        ({"architectures": ["Lfm2ForCausalLM"], "attn_layer_indices": None}, "layer_types must name one of"),
    ],
)
def test_what_no_recurrent_layer_computes_is_refused(
    fields: dict[str, Any], message: str, checkpoints: Any, tmp_path: Path
) -> None:
    raw = json.loads((checkpoints("bamba") / "config.json").read_text())
    raw.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps({**raw, "layers_block_type": None, **fields}))
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


def test_attention_without_its_gate_is_refused(checkpoints: Any, tmp_path: Path) -> None:
    raw = json.loads((checkpoints("qwen3.5") / "config.json").read_text())
    for value in (True, False):
        (tmp_path / "config.json").write_text(json.dumps(raw | {"attn_output_gate": value}))
        if value:
            assert read_config(tmp_path).output_gate
            continue
        with pytest.raises(CheckpointError, match="attn_output_gate: for Qwen3_5ForCausalLM False is not supported"):
            read_config(tmp_path)
