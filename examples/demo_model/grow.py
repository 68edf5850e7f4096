"""Growing the shipped model: deeper layers and wider MLPs that compute the same function, then further training.

    python examples/demo_model/grow.py --out build/model30m --layers 24 --mlp 1344 --steps 300

This is far cheaper than training as large a model from scratch; its knowledge is that of the small model. It serves to
measure what depends on a model's size, such as speculation.

Each old layer is followed by copies of it whose two output projections are zero, so that they add nothing (Wu et al.
2024, LLaMA Pro, section 3.2). An MLP's new neurons have random inputs and zero outputs (Chen et al. 2016, Net2Net).
Both change from the first training step on.

The draft head grows in the same way, into OUT/first_head: for `ramiform train-draft OUT --init OUT/first_head`.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from ramiform.examples.demo_model.corpus.mix import WEAK_SHARES
from ramiform.examples.demo_model.model import fresh
from ramiform.examples.demo_model.train import Recipe, Stage, run, training_options

SHIPPED = Path(__file__).parents[2] / "runtime" / "shipped_model"


@torch.no_grad()
def grown(model: LlamaForCausalLM, num_layers: int, intermediate_size: int, seed: int) -> LlamaForCausalLM:
    """Return a model of the same function with `num_layers` layers, a multiple of the old number, and wider MLPs.

    Raises ValueError when the shape is smaller or does not divide.
    """
    old = model.config
    copies, rest = divmod(num_layers, old.num_hidden_layers)
    if rest or not copies or intermediate_size < old.intermediate_size:
        raise ValueError(
            f"{num_layers} layers of {intermediate_size} do not grow from {old.num_hidden_layers} of "
            f"{old.intermediate_size}: the layers must be a multiple, the MLPs no narrower"
        )
    settings = copy.deepcopy(old)
    settings.num_hidden_layers, settings.intermediate_size = num_layers, intermediate_size
    if getattr(settings, "layer_types", None) is not None:
        settings.layer_types = [kind for kind in settings.layer_types for _ in range(copies)]
    larger = fresh(settings, seed).to(model.dtype)
    larger.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    larger.model.norm.load_state_dict(model.model.norm.state_dict())
    for index, layer in enumerate(larger.model.layers):
        known = model.model.layers[index // copies]
        for name, tensor in layer.named_parameters():
            _put(tensor, known.get_parameter(name), unread=name == "mlp.down_proj.weight")
        if index % copies:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return larger


def _put(tensor: torch.Tensor, known: torch.Tensor, *, unread: bool) -> None:
    """Copy `known` into the corner of a larger tensor, whose rest stays random, or is zero where it is `unread`."""
    if unread:
        tensor.zero_()
    tensor[tuple(slice(size) for size in known.shape)] = known


def grow_head(head: Path, out: Path, intermediate_size: int, seed: int) -> None:
    """Write a draft head of the same function with a wider MLP. It has no target yet, so it carries no probe of one."""
    draw = torch.Generator().manual_seed(seed)
    tensors = load_file(head / "model.safetensors")
    for name, known in tensors.items():
        if ".mlp." in name:
            unread = "down_proj" in name
            rows, columns = known.shape
            shape = (rows, intermediate_size) if unread else (intermediate_size, columns)
            wide = torch.randn(shape, generator=draw) * columns**-0.5
            _put(wide, known.float(), unread=unread)
            tensors[name] = wide.to(known.dtype).contiguous()
    settings = json.loads((head / "config.json").read_text()) | {"intermediate_size": intermediate_size}
    settings.pop("target_probe", None)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n")


def recipe(num_steps: int, tokens_per_step: int) -> Recipe:
    """Return the last stage of the small model's training, with a warm-up to a rate at which new parts learn fast and
    old ones change little."""
    return Recipe(
        stages=(Stage(num_steps, WEAK_SHARES, row=512, prompt_weight=0.2, lr=0.03, wide=True),),
        tokens_per_step=tokens_per_step,
        matrix_lr=6e-4,
        other_lr=3e-4,
        warmup=20,
        seed=11,
    )


def main() -> None:
    parser = training_options(__doc__)
    parser.add_argument("--model", type=Path, default=SHIPPED, help="what to grow; default: the model that ships")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--mlp", type=int, default=1344, help="neurons of a layer's MLP")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    options: argparse.Namespace = parser.parse_args()

    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    for file in options.model.glob("tokenizer*"):
        shutil.copy(file, options.out)
    if (options.model / "draft").is_dir():
        grow_head(options.model / "draft", options.out / "first_head", options.mlp, seed=0)
    small = LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    plan = recipe(options.steps, options.tokens_per_step)
    large = grown(small, options.layers, options.mlp, plan.seed)
    print(f"{small.num_parameters() / 1e6:.1f} -> {large.num_parameters() / 1e6:.1f} million parameters")
    run(plan, Tokenizer.from_file(str(options.model / "tokenizer.json")), options, large)


if __name__ == "__main__":
    main()
