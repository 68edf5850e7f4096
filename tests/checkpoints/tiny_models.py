"""Small models that quantisers of other projects are run on, and what they leave behind as test data.

Runs in the tools' own environments: it imports neither pytest nor ramiform.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, PreTrainedTokenizerFast, Qwen3MoeConfig

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 2}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES | {"intermediate_size": 256}),
    "two layers": lambda: LlamaConfig(**SIZES | {"num_hidden_layers": 2}),
    "mixtral": lambda: MixtralConfig(**SIZES | EXPERTS),
    "qwen3 moe": lambda: Qwen3MoeConfig(
        **SIZES, num_experts=2, num_experts_per_tok=2, moe_intermediate_size=128, norm_topk_prob=True
    ),
    # Matrices of whole blocks of 128 x 128.
    "qwen3 moe, blocks": lambda: Qwen3MoeConfig(
        **SIZES | {"num_key_value_heads": 4},
        num_experts=2,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        norm_topk_prob=True,
    ),
    "mixtral, blocks": lambda: MixtralConfig(**SIZES | EXPERTS | {"num_key_value_heads": 4}),
}


def tiny_model(kind: str = "llama", dtype: torch.dtype = torch.bfloat16) -> Any:
    """Make a model of few weights other than 0 and few values, so that its files compress, with scales of their own by
    row and group."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                levels = torch.tensor([0.0] * 36 + [1.0, -1.0, 0.4, -0.3])
                by_row = 0.03 * (1 + torch.arange(parameter.shape[-2]) % 5)[:, None]
                by_group = 1 + (torch.arange(parameter.shape[-1]) // 32) % 3
                parameter.copy_(levels[torch.randint(len(levels), parameter.shape)] * by_row * by_group)
    return model.eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of the words w0, w1, ..."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(SIZES["vocab_size"])}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w1", bos_token="w0")


def samples(count: int = 8, length: int = 48) -> list[dict[str, torch.Tensor]]:
    """Return token ids to calibrate with."""
    torch.manual_seed(6)
    ids = [torch.randint(2, SIZES["vocab_size"], (1, length)) for _ in range(count)]
    return [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids]


def checksums(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight's products with fixed numbers: a judge of a few bytes."""
    return weight.detach().float() @ torch.arange(weight.shape[1]).float().cos()


def keep(name: str, folder: Path, weights: Mapping[str, torch.Tensor], out: Path, **notes: Any) -> None:
    """Write the checkpoint in `folder` and the judge of it, the tool's own `weights` by module, to `out`/`name`.zip."""
    judge = {module: checksums(weight).contiguous() for module, weight in weights.items()}
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out / f"{name}.zip", "w", zipfile.ZIP_LZMA) as archive:
        for file in sorted(folder.rglob("*")):
            if (
                file.name in ("config.json", "quantize_config.json", "hf_quant_config.json")
                or file.suffix == ".safetensors"
            ):
                archive.write(file, file.relative_to(folder).as_posix())
        with tempfile.TemporaryDirectory() as scratch:
            save_file(judge, Path(scratch) / "judge")
            archive.write(Path(scratch) / "judge", "judge.safetensors")
        archive.writestr("notes.json", json.dumps(notes))
    print(f"{name}: {(out / f'{name}.zip').stat().st_size:,} bytes", flush=True)


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}
