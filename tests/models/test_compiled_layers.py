"""Small steps through compiled layers. Judge: the same checkpoint on plain torch ops, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from ramiform.kernels import for_device
from ramiform.kernels.cpu import thread_pool
from ramiform.kernels.cpu.attention.plan import AttentionPlan
from ramiform.kernels.cpu.compiled import Ints
from ramiform.kernels.cpu.products import packed_matrix
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
from ramiform.runtime.models import compiled_layers
from ramiform.runtime.models.compiled_layers import CompiledLayers
from ramiform.runtime.models.config import ModelConfig
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.scheduler.plan import DraftNode, Row

CPU = torch.device("cpu")
PAGES = [[3, 1], [0], [5, 2, 4]]
PROMPTS = [
    Row(rid="", tokens=list(range(7, 7 + length)), first_position=0, pages=pages)
    for length, pages in zip((20, 9, 33), PAGES, strict=True)
]
NODE = DraftNode(draw=0)
STEPS = {
    "one": [Row(rid="", tokens=[50], first_position=20, pages=PAGES[0])],
    "three": [Row(rid="", tokens=[50], first_position=len(p.tokens), pages=p.pages) for p in PROMPTS],
    "chain": [Row(rid="", tokens=[60, 61, 62, 63, 64], first_position=20, pages=PAGES[0])],
    "tree and others": [
        Row(
            rid="",
            tokens=[70, 71, 72, 73, 74, 75],
            first_position=33,
            pages=PAGES[2],
            parents=[-1, 0, 0, -1],
            nodes=[NODE] * 4,
        ),
        Row(rid="", tokens=[80, 81, 82], first_position=9, pages=PAGES[1]),
    ],
}


def zeroed_memory(model: Decoder, num_pages: int) -> KvMemory:
    """Return memory of keys and values in the model's dtype, all 0."""
    memory = KvMemory(model.config, num_pages, device=CPU, dtype=model.dtype)
    memory.k_LSKD.zero_()
    memory.v_LSKD.zero_()
    return memory


def states(model: Decoder, step: list[Row], captures: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Compute hidden states, captured states, and all keys and values, after the prompts and one step."""
    memory = zeroed_memory(model, 8)
    kv = KvPool(memory).layers
    with torch.inference_mode():
        for row in PROMPTS:
            model.hidden(decoder_inputs([row], model, np.arange(len(row.tokens)), kv[0]), kv)
        wanted = np.arange(sum(len(row.tokens) for row in step))[::-1][:3].copy()
        hidden, captured = model.hidden_and_features(decoder_inputs(step, model, wanted, kv[0]), kv, captures)
    assert captured is not None
    return hidden.double(), captured.double(), memory.k_LSKD.double(), memory.v_LSKD.double()


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "name",
    [
        "llama3",
        "llama with biases",
        "mistral, window",
        "qwen2, windows",
        "qwen3",
        "qwen2 moe",
        "qwen3 moe, some layers dense",
    ],
)
def test_a_small_step_equals_plain_ops(
    name: str, step: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []
    supports = CompiledLayers.supports
    monkeypatch.setattr(CompiledLayers, "supports", lambda *args: served.append(supports(*args)) or served[-1])
    ours = load_model(checkpoint(name), device=CPU, dtype=torch.float32)
    slow = load_model(checkpoint(name), device=CPU, dtype=torch.float64, ops=for_device(CPU, "reference"))
    captures = (0, 2, 3)
    for got, want in zip(states(ours, STEPS[step], captures), states(slow, STEPS[step], captures), strict=True):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
    assert served[-1], "the step did not go where it was meant to"


@pytest.mark.parametrize("wanted", [[8], [3, 2], [8, 4, 4]], ids=str)
@pytest.mark.parametrize("name", ["llama3", "qwen2, windows", "qwen3 moe, some layers dense"])
def test_a_last_layer_of_wanted_tokens_alone_has_the_bits_of_all(
    name: str, wanted: list[int], checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(checkpoint(name), device=CPU, dtype=torch.float32)
    plans: list[Ints] = []
    array_of = AttentionPlan.array_of
    monkeypatch.setattr(AttentionPlan, "array_of", lambda *args: plans.append(array_of(*args)) or plans[-1])
    found = []
    for tokens in (np.arange(9), np.array(wanted)):
        memory = zeroed_memory(model, 8)
        kv = KvPool(memory).layers
        with torch.inference_mode():
            for row in PROMPTS:
                model.hidden(decoder_inputs([row], model, np.arange(len(row.tokens)), kv[0]), kv)
            hidden = model.hidden(decoder_inputs(STEPS["tree and others"], model, tokens, kv[0]), kv)
        found.append((hidden, memory.k_LSKD, memory.v_LSKD))
    (all_TE, *all_kv), (wanted_OE, *wanted_kv) = found
    assert torch.equal(wanted_OE, all_TE[wanted])
    assert all(map(torch.equal, wanted_kv, all_kv))
    assert len(plans) == 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["llama3", "mistral, window", "qwen2 moe"])
def test_threads_do_not_change_a_bit_of_a_step(
    name: str, step: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(checkpoint(name), device=CPU, dtype=torch.float32)
    alone = states(model, STEPS[step], (0, 2, 3))
    shared: list[int] = []
    run_tasks = thread_pool.run_tasks
    monkeypatch.setattr(compiled_layers, "run_tasks", lambda tasks: shared.append(len(tasks)) or run_tasks(tasks))
    monkeypatch.setattr(compiled_layers, "_MIN_SHARED_WORK", 1)
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(3)
    try:
        together = states(model, STEPS[step], (0, 2, 3))
    finally:
        thread_pool.set_num_threads(before)
    for got, want in zip(together, alone, strict=True):
        assert torch.equal(got, want)
    assert shared[-1] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama3", "qwen2 moe"])
def test_rows_of_a_long_prompt_that_threads_divide_have_the_bits_of_one_thread(
    name: str, dtype: torch.dtype, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_layers, "_MIN_SHARED_WORK", 1)
    model = load_model(checkpoint(name), device=CPU, dtype=dtype)
    prompt = Row(rid="", tokens=[7 + 13 * t % 90 for t in range(300)], first_position=0, pages=list(range(19)))
    before = thread_pool.num_threads()
    found = []
    for num_threads in (1, 2):
        thread_pool.set_num_threads(num_threads)
        memory = zeroed_memory(model, 19)
        kv = KvPool(memory).layers
        try:
            with torch.inference_mode():
                hidden = model.hidden(decoder_inputs([prompt], model, np.arange(300), kv[0]), kv)
        finally:
            thread_pool.set_num_threads(before)
        found.append((hidden, memory.k_LSKD, memory.v_LSKD))
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("step", ["three", "tree and others"])
@pytest.mark.parametrize("name", ["mistral, window", "qwen2 moe"])
def test_a_thread_that_comes_when_all_is_done_changes_nothing(
    name: str, step: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes through all layers while the memory that threads share holds numbers of the last one."""
    model = load_model(checkpoint(name), device=CPU, dtype=torch.float32)
    memory = zeroed_memory(model, 8)
    kv = KvPool(memory).layers
    inputs = decoder_inputs(STEPS[step], model, np.array([1]), kv[0])
    late: list[int] = []

    def one_after_the_other(tasks: list[Callable[[], object]]) -> None:
        for task in tasks:
            task()
        late.append(len(tasks) - 1)

    with torch.inference_mode():
        alone = model.hidden(inputs, kv)
        monkeypatch.setattr(compiled_layers, "_MIN_SHARED_WORK", 1)
        monkeypatch.setattr(compiled_layers, "num_threads", lambda: 3)
        monkeypatch.setattr(compiled_layers, "run_tasks", one_after_the_other)
        assert torch.equal(model.hidden(inputs, kv), alone)
    assert late == [2]


def test_blocks_that_the_loop_does_not_compute_use_the_ops(checkpoint: Callable[[str], Path]) -> None:
    stacked = load_model(checkpoint("mixtral"), device=CPU, dtype=torch.float32, ops=for_device(CPU, "reference"))
    assert CompiledLayers.of(stacked.parameters, stacked.config) is None
    for name in ("llama3", "qwen3", "mixtral"):
        model = load_model(checkpoint(name), device=CPU, dtype=torch.float32)
        assert CompiledLayers.of(model.parameters, model.config) is not None


def test_a_config_with_a_new_field_or_value_is_left_to_the_ops(checkpoint: Callable[[str], Path]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class NewConfig(ModelConfig):
        twist: float = 0.0

    model = load_model(checkpoint("llama3"), device=CPU, dtype=torch.float32)
    for changes, is_taken in (({}, True), ({"twist": 0.5}, False), ({"qk_norm": "layer norm per head"}, False)):
        config = NewConfig(**vars(model.config) | changes)
        assert (CompiledLayers.of(model.parameters, config) is not None) == is_taken, changes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama3", "mistral, window", "qwen3", "qwen2 moe"])
def test_logits_computed_with_the_layers_have_the_bits_of_the_head_alone(
    name: str, dtype: torch.dtype, checkpoint: Callable[[str], Path]
) -> None:
    model = load_model(checkpoint(name), device=CPU, dtype=dtype)
    memory = zeroed_memory(model, 8)
    kv = KvPool(memory).layers
    assert dtype != torch.float32 or model.compiled_head is not None
    with torch.inference_mode():
        for step in ([PROMPTS[0]], PROMPTS, *STEPS.values()):
            last = np.cumsum([len(row.tokens) for row in step]) - 1
            for wanted in (last, np.arange(last[-1] + 1)):
                alone = model.logits(model.hidden(decoder_inputs(step, model, wanted, kv[0]), kv))
                together = model.logits_of_step(decoder_inputs(step, model, wanted, kv[0]), kv)
                assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mixtral", "qwen2 moe"])
def test_a_row_through_experts_has_the_same_bits_in_any_batch(
    name: str, dtype: torch.dtype, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_matrix, "usable", lambda: False)  # tiles of many rows add in another order
    model = load_model(checkpoint(name), device=CPU, dtype=dtype)
    memory = zeroed_memory(model, 80)
    kv = KvPool(memory).layers
    rows = [
        Row(rid="", tokens=list(range(start, start + count)), first_position=0, pages=[2 * start, 2 * start + 1])
        for start, count in zip(range(40), [1, 1, 5, 1, 17] + [1] * 35, strict=True)
    ]

    def logits(*step: Row) -> torch.Tensor:
        wanted = np.arange(sum(len(row.tokens) for row in step))
        return model.logits_of_step(decoder_inputs(list(step), model, wanted, kv[0]), kv)

    with torch.inference_mode():
        alone = torch.cat([logits(row) for row in rows])
        for size in (2, 3, 9, 40):
            parts = [logits(*rows[start : start + size]) for start in range(0, 40, size)]
            assert torch.equal(torch.cat(parts), alone)
