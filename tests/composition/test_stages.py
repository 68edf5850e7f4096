"""A model whose layers are spread over stages computes what it computes alone, whatever its architecture and however a
step is cut into micro-batches; and a stage reads its own layers of the checkpoint, nothing else. Stages are threads."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from ramiform.kernels import for_device
from ramiform.runtime.engine import KvMemory, KvPool
from ramiform.runtime.engine.kv_ranges import measure
from ramiform.runtime.engine.paths import stages
from ramiform.runtime.engine.paths.stages import hidden_and_features, micro_batches
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SINGLE_RANK, Group
from ramiform.runtime.models.parallel.stage import Stage, layer_counts, stage_of
from ramiform.runtime.models.parameters import allocate_parameters, checkpoint_destinations
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.plan import Row

from .architectures import SIZES as BASE
from .architectures import checkpoint_maker
from .threads import groups, on_each

SIZES = BASE | {"num_hidden_layers": 5}
EXPERTS: dict[str, Any] = SIZES | {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "llama with biases, tied": lambda: LlamaConfig(
        **SIZES | {"tie_word_embeddings": True}, attention_bias=True, mlp_bias=True
    ),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=21),
    "qwen2, windows from layer 2 on": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=17, max_window_layers=2
    ),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=24),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen2 moe": lambda: Qwen2MoeConfig(**EXPERTS, shared_expert_intermediate_size=32, mlp_only_layers=[3]),
    "qwen3 moe": lambda: Qwen3MoeConfig(**EXPERTS, head_dim=16, mlp_only_layers=[0]),
    "llama, dynamic rotation": lambda: LlamaConfig(
        **SIZES | {"max_position_embeddings": 32}, rope_scaling={"rope_type": "dynamic", "factor": 4.0}
    ),
}
TOKENS = random.Random(1).choices(range(203), k=60)
CAPTURES = (0, 2, 5)
TOLERANCE = 1e-4
CPU = torch.device("cpu")

every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(MODELS, tmp_path_factory.mktemp)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a few tokens are worth a micro-batch."""
    monkeypatch.setattr(stages, "MIN_MICRO_BATCH_TOKENS", {"cpu": 1})


def logits(path: Path, group: Group = SINGLE_RANK, captures: tuple[int, ...] = (), **options: Any) -> torch.Tensor:
    """Logits of some tokens of two sequences, computed as chunks of a prompt and tokens after it, and all captured
    states; on the first stage."""
    ops = for_device(CPU, deterministic=True) if group.shard.ordered else None
    model = load_model(path, device=CPU, dtype=torch.float32, ops=ops, group=group, **options)
    pool = KvPool(KvMemory(model.config, 8, device=CPU, dtype=model.dtype))
    found = []
    first = 0
    for count in (30, 25, 1, 1, 1, 1, 1):
        tokens = TOKENS[first : first + count]
        rows = [
            Row(rid="a", tokens=tokens, first_position=first, pages=[5, 0, 7, 2]),
            Row(rid="b", tokens=[token ^ 1 for token in tokens], first_position=first, pages=[1, 4, 3, 6]),
        ]
        first += count
        wanted = np.array([2 * count - 1, *range(0, count, 7), count - 1])  # in no order, as a plan wants them
        with torch.inference_mode():
            hidden, features = hidden_and_features(rows, wanted, model, pool.layers, group, captures)
            if group.stage.has_ends:
                found += [model.logits(hidden), *([] if features is None else [features])]
    return torch.cat([part.flatten() for part in found]) if found else torch.empty(0)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("size", "stages"), [(2, 2), (1, 5)])
@every_model
def test_stages_compute_what_one_does(checkpoint: Callable[[str], Path], name: str, size: int, stages: int) -> None:
    path = checkpoint(name)
    for captures in ((), CAPTURES):
        whole = logits(path, captures=captures)
        found = on_each(groups(path, size, stages=stages), lambda group, c=captures: logits(path, group, c))
        for mine in found[:size]:
            torch.testing.assert_close(mine, whole, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("name", ["llama with biases, tied", "qwen2, windows from layer 2 on", "qwen3"])
def test_in_order_any_number_of_stages_computes_the_same_bits(checkpoint: Callable[[str], Path], name: str) -> None:
    path = checkpoint(name)
    alone, *others = (
        on_each(groups(path, size, stages=stages, ordered=True), lambda group: logits(path, group, CAPTURES))[0]
        for size, stages in ((1, 1), (1, 2), (2, 3), (4, 2))
    )
    assert all(torch.equal(mine, alone) for mine in others)


def test_ranges_of_keys_and_values_are_those_of_the_stages_layers(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("llama")

    def ranges(group: Group) -> torch.Tensor:
        model = load_model(path, device=CPU, dtype=torch.float32, group=group)
        return measure(model, [TOKENS], group).k_LK

    stages = on_each(groups(path, 1, stages=3), ranges)
    torch.testing.assert_close(torch.cat(stages), ranges(SINGLE_RANK))


def test_every_tensor_of_a_checkpoint_is_of_one_stage(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("qwen3")
    config = read_config(path)
    names = [
        set(
            checkpoint_destinations(
                allocate_parameters(config, device="meta", dtype=torch.float32, group=group), config, group
            )
        )
        for group in groups(path, 1, stages=3)
    ]
    assert sum(map(len, names)) == len(set().union(*names))
    assert set().union(*names) == set(transformers.AutoModelForCausalLM.from_pretrained(path).state_dict())
    for index, own in enumerate(names):
        stage = Stage(index, 3)
        assert all(stage.is_foreign(name, config) for other in names if other is not own for name in other)
        assert not any(stage.is_foreign(name, config) for name in own)
        assert stage.has_ends or stage.is_foreign("strange.weight", config)
        assert not stage.is_foreign("model.layers.5.strange", config), "layers that no stage has are nobody's"


@pytest.mark.slow
@pytest.mark.parametrize("size", range(1, 6))
@every_model
def test_no_other_place_for_the_first_boundary_makes_the_largest_stage_smaller(
    checkpoint: Callable[[str], Path], name: str, size: int
) -> None:
    """By the bytes of the tensors that the stages hold."""
    path = checkpoint(name)
    config = read_config(path)
    counts = layer_counts(config, size)
    assert sum(counts) == 5
    assert min(counts) >= 1
    assert max(counts[1:], default=0) - min(counts[1:], default=0) <= 1
    if config.experts is not None or size == 1:
        return  # layers differ
    tensors = transformers.AutoModelForCausalLM.from_pretrained(path).state_dict()
    if config.tied_embeddings:
        del tensors["lm_head.weight"]
    large = {tensor: value.numel() for tensor, value in tensors.items() if value.dim() == 2}
    layer = sum(numel for tensor, numel in large.items() if tensor.startswith("model.layers.0."))
    ends = sum(numel for tensor, numel in large.items() if not tensor.startswith("model.layers."))

    def most(first: int) -> int:
        return max(ends + first * layer, -(-(5 - first) // (size - 1)) * layer)

    assert most(counts[0]) == min(most(first) for first in range(1, 7 - size))


def test_more_stages_than_layers_are_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(RequestError, match="pp 6 does not fit the model: it has 5 layers") as caught:
        stage_of(read_config(checkpoint("llama")), index=0, size=6)
    assert caught.value.param == "pp"


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_micro_batches_are_the_step_in_order(data: st.DataObject) -> None:
    """Judged by putting them together again."""
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    trees = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    most, least = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 30))
    rows = [
        Row(
            rid=str(index),
            tokens=list(range(1000 * index, 1000 * index + length)),
            first_position=7 * index,
            pages=[index],
            parents=[-1] * (length - 1) if tree else None,
        )
        for index, (length, tree) in enumerate(zip(lengths, trees, strict=True))
    ]
    T = sum(lengths)
    wanted = np.array(data.draw(st.lists(st.integers(0, T - 1), unique=True)), dtype=np.int64)
    batches = micro_batches(rows, wanted, most, least=least)
    assert 1 <= len(batches) <= most
    assert len(batches) == 1 or len(batches) * least <= T
    whole = [(row.rid, row.first_position + place) for row in rows for place in range(len(row.tokens))]
    parts = [
        [(row.rid, row.first_position + place) for row in batch.rows for place in range(len(row.tokens))]
        for batch in batches
    ]
    assert [token for part in parts for token in part] == whole
    tokens = [token for batch in batches for row in batch.rows for token in row.tokens]
    assert tokens == [token for row in rows for token in row.tokens]
    if any(trees):
        assert sum(len(batch.rows) for batch in batches) == len(rows)
    found = {}
    for batch, part in zip(batches, parts, strict=True):
        found |= {int(place): part[index] for place, index in zip(batch.places, batch.wanted.tolist(), strict=True)}
    assert found == {place: whole[index] for place, index in enumerate(wanted.tolist())}
