"""A model divided among ranks computes what it computes alone, whatever its architecture; and a rank reads its own part
of the checkpoint, nothing else. Ranks are threads here."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
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
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SINGLE_RANK, Group
from ramiform.runtime.models.stored import weights
from ramiform.runtime.scheduler.plan import Row

from .architectures import SIZES, checkpoint_maker
from .threads import groups, on_each

EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama, 4 kv heads": lambda: LlamaConfig(**SIZES | {"num_key_value_heads": 4}),
    "llama, 1 kv head, tied": lambda: LlamaConfig(**SIZES | {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama with biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, head_dim=20),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=21),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=24),
    "mixtral": lambda: MixtralConfig(**SIZES | {"num_key_value_heads": 4}, num_local_experts=5, num_experts_per_tok=2),
    "qwen2 moe": lambda: Qwen2MoeConfig(
        **SIZES | {"num_key_value_heads": 4},
        **EXPERTS,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[0],
        sliding_window=None,
    ),
    "qwen3 moe": lambda: Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=24, norm_topk_prob=True),
}
TOKENS = random.Random(1).choices(range(203), k=60)
TOLERANCE = 1e-4

every_model = pytest.mark.parametrize("name", MODELS)
every_size = pytest.mark.parametrize("size", [2, 4])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(MODELS, tmp_path_factory.mktemp)


def logits(path: Path, group: Group = SINGLE_RANK, **options: Any) -> torch.Tensor:
    """Logits of all TOKENS, computed as a prompt of two chunks and five tokens after it."""
    device = torch.device("cpu")
    ops = for_device(device, deterministic=True) if group.shard.ordered else None
    model = load_model(path, device=device, dtype=torch.float32, ops=ops, group=group, **options)
    pool = KvPool(KvMemory(model.config, 8, device=model.device, dtype=model.dtype))
    pages = [5, 0, 7, 2]
    found = []
    first = 0
    for count in (30, 25, 1, 1, 1, 1, 1):
        row = Row(rid="", tokens=TOKENS[first : first + count], first_position=first, pages=pages)
        first += count
        with torch.inference_mode():
            found.append(
                model.logits(model.hidden(decoder_inputs([row], model, np.arange(count), pool.layers[0]), pool.layers))
            )
    return torch.cat(found)


@pytest.mark.slow
@every_size
@every_model
def test_ranks_compute_what_one_does(checkpoint: Callable[[str], Path], name: str, size: int) -> None:
    path = checkpoint(name)
    whole = logits(path)
    for mine in on_each(groups(path, size), lambda group: logits(path, group)):
        torch.testing.assert_close(mine, whole, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.exhaustive
@every_model
def test_in_order_any_number_of_ranks_computes_the_same_bits(checkpoint: Callable[[str], Path], name: str) -> None:
    path = checkpoint(name)
    [alone] = on_each(groups(path, 1, ordered=True), lambda group: logits(path, group))
    torch.testing.assert_close(alone, logits(path), atol=TOLERANCE, rtol=TOLERANCE)
    for size in (2, 4):
        for mine in on_each(groups(path, size, ordered=True), lambda group: logits(path, group)):
            assert torch.equal(mine, alone)


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_in_order_quantised_models_compute_the_same_bits_too(checkpoint: Callable[[str], Path], quantize: str) -> None:
    path = checkpoint("qwen2")
    found = [
        on_each(groups(path, size, ordered=True), lambda group: logits(path, group, quantize=quantize))
        for size in (1, 2, 4)
    ]
    assert all(torch.equal(mine, found[0][0]) for ranks in found for mine in ranks)


class Counted:
    """An open checkpoint that counts the numbers that are read of it."""

    def __init__(self, tensors: Any, read: list[int]) -> None:
        self._tensors = tensors
        self._read = read

    def __enter__(self) -> Counted:
        self._tensors = self._tensors.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._tensors.__exit__(*exception)

    def keys(self) -> Any:
        return self._tensors.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._tensors.get_tensor(name)
        self._read.append(tensor.numel())
        return tensor

    def get_slice(self, name: str) -> CountedSlice:
        return CountedSlice(self._tensors.get_slice(name), self._read)


class CountedSlice:
    def __init__(self, stored: Any, read: list[int]) -> None:
        self._stored = stored
        self._read = read

    def get_shape(self) -> Any:
        return self._stored.get_shape()

    def __getitem__(self, part: tuple[slice, ...]) -> torch.Tensor:
        tensor: torch.Tensor = self._stored[part]
        self._read.append(tensor.numel())
        return tensor


@every_size
@pytest.mark.parametrize("name", ["llama, 4 kv heads", "mixtral", "qwen2 moe"])
def test_a_rank_reads_its_part_of_the_checkpoint_only(
    checkpoint: Callable[[str], Path], name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint(name)
    sizes = {name: tensor.numel() for name, tensor in load_file(path / "model.safetensors").items()}
    read: list[int] = []
    real = weights.safe_open
    monkeypatch.setattr(weights, "safe_open", lambda *args, **options: Counted(real(*args, **options), read))

    def load(group: Group) -> int:
        read.clear()
        load_model(path, device=torch.device("cpu"), dtype=torch.float32, group=group)
        return sum(read)

    whole = load(SINGLE_RANK)
    assert whole == sum(sizes.values())
    everywhere = sum(size for name, size in sizes.items() if re.search(r"norm|\.(shared_expert_)?gate\.weight", name))
    parts = [load(group) for group in groups(path, size)]
    assert sum(parts) - size * everywhere == whole - everywhere
    assert max(parts) < 1.2 * whole / size
