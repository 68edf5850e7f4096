"""A decoder with LoRA adapters. Judge: transformers with the adapters merged into its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import LlamaConfig, MixtralConfig, Qwen3Config

from ramiform.kernels import for_device
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.scheduler.plan import Row

from .architectures import SIZES, checkpoint_maker
from .lora_files import merged, write_adapter

MODELS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama, tied": lambda: LlamaConfig(**SIZES | {"tie_word_embeddings": True}),
    "llama with biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, head_dim=20),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=24),
}
MIXTRAL = {"mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2)}

CPU = torch.device("cpu")
TOKENS = [(7 * index + 3) % 203 for index in range(40)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(MODELS | MIXTRAL, tmp_path_factory.mktemp)


def logits(model: Decoder, adapters: list[int]) -> torch.Tensor:
    """Return the logits of all TOKENS with each of the adapters, of one prompt in two chunks and three single tokens,
    in steps that all adapters share."""
    pool = KvPool(KvMemory(model.config, 3 * len(adapters), device=CPU, dtype=model.dtype))
    found, first = [], 0
    for count in (20, 17, 1, 1, 1):
        rows = [
            Row(
                rid="",
                tokens=TOKENS[first : first + count],
                first_position=first,
                pages=[3 * index, 3 * index + 1, 3 * index + 2],
                adapter=adapter,
            )
            for index, adapter in enumerate(adapters)
        ]
        with torch.inference_mode():
            inputs = decoder_inputs(rows, model, np.arange(count * len(rows)), pool.layers[0])
            found.append(model.logits(model.hidden(inputs, pool.layers)).view(len(rows), count, -1))
        first += count
    return torch.cat(found, dim=1)


def of_judge(path: Path) -> torch.Tensor:
    judge = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return judge(torch.tensor([TOKENS])).logits[0]


@pytest.mark.slow
@pytest.mark.parametrize("ops", ["compiled", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_four_adapters_and_the_base_in_one_step_equal_merged_weights(
    name: str, ops: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    base = checkpoint(name)
    folders = [
        write_adapter(tmp_path / "1", base, seed=1),
        write_adapter(tmp_path / "2", base, seed=2, rank=3, targets=["q_proj", "v_proj"], use_rslora=True),
        write_adapter(
            tmp_path / "3", base, seed=3, rank_pattern={"k_proj": 9, "1.mlp.down_proj": 2}, alpha_pattern={"o_proj": 3}
        ),
        write_adapter(tmp_path / "4", base, seed=4, targets=["up_proj"], target_modules=r".*\.mlp\.up_proj"),
    ]
    model = load_model(
        base, device=CPU, dtype=torch.float32, ops=for_device(CPU, "reference") if ops == "reference" else None
    )
    for number, folder in enumerate(folders, start=1):
        model.lora.add(number, read_adapter(folder, model.whole_config, max_rank=16))
    got = logits(model, [2, 0, 1, 4, 3, 1])
    wanted = [of_judge(base), *(of_judge(merged(tmp_path / f"m{f.name}", base, f)) for f in folders)]
    for adapter, found in zip([2, 0, 1, 4, 3, 1], got, strict=True):
        torch.testing.assert_close(found, wanted[adapter], atol=1e-4, rtol=1e-4)
    assert (wanted[1] - wanted[0]).abs().max() > 0.1


def test_adapters_of_attention_beside_a_mixture_of_experts(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    base = checkpoint("mixtral")
    folder = write_adapter(tmp_path / "1", base, seed=1, targets=["q_proj", "v_proj", "o_proj"])
    model = load_model(base, device=CPU, dtype=torch.float32)
    assert model._compiled is not None
    model.lora.add(1, read_adapter(folder, model.whole_config, max_rank=16))
    plain, adapted = logits(model, [0, 1])
    torch.testing.assert_close(plain, of_judge(base), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(adapted, of_judge(merged(tmp_path / "merged", base, folder)), atol=1e-4, rtol=1e-4)


def test_loops_of_bfloat16_compute_what_plain_torch_does(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    base = checkpoint("qwen3")
    adapter = write_adapter(tmp_path / "1", base, seed=5, rank=8)
    found = []
    for ops in (None, for_device(CPU, "reference")):
        model = load_model(base, device=CPU, dtype=torch.bfloat16, ops=ops)
        model.lora.add(1, read_adapter(adapter, model.whole_config, max_rank=8))
        found.append(logits(model, [0, 1, 1]))
    compiled, plain = found
    assert (compiled - plain).abs().mean() < 0.02
    assert (compiled[1] - compiled[0]).abs().mean() > 0.2
    assert torch.equal(compiled[1], compiled[2])
