"""Quality of integer products on a CPU: what rows rounded to int8 cost, apart from the rounding of the weights.

The compiled loops multiply int8 and int4 weights by rows that are rounded to int8, with a scale per group of inputs.
The reference has the same weights, read back from the loops, and rows of floats: its perplexity and answers come from
this runtime in float32, its logits from transformers in float64. transformers also computes what other groups, and one
scale for a whole row, would give.

    python -P bench/quantisation/rows.py [--cases N] [--documents N] [--only int8] [--out FILE]

Everything is measured twice: for the model that ships, and with some inputs of its layers made 128 times larger and
their weights as many times smaller, which leaves exact products as they are.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import typer
from safetensors.torch import load_file, save_file

from ramiform.bench.harness import Cases, Documents, Only, Out, matrix, report
from ramiform.bench.quantisation import formats, skills
from ramiform.bench.quantisation.weights import Kind, core_of
from ramiform.runtime.engine import KvMemory, KvPool
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.kv_pool import PAGE_SIZE
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.linear import Linear
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.mlp import DenseMlp
from ramiform.runtime.models.norm import RmsNorm
from ramiform.runtime.scheduler.plan import Row
from ramiform.tools.quantize.perplexity import perplexity

Tensors = dict[str, torch.Tensor]
FACTOR = 128.0  # of larger inputs: a power of two, so that floats stay exact
INPUTS_PER_OUTLIER = 256
WINDOW, WINDOWS = 512, 8  # tokens of a text whose logits are compared, and texts
GROUPS = {"groups of 32": 32, "groups of 64": 64, "groups of 128": 128, "whole rows": None}
FORMATS: dict[str, Callable[[Path, Path], Kind]] = {
    "int8": lambda model, _: Kind(model, "float32", "int8"),
    "int4": lambda model, _: Kind(model, "float32", "int4"),
}
for name in ("W8A8", "AWQ", "GPTQ", "Q8_0", "Q4_0"):
    FORMATS[name] = lambda model, out, make=formats.FORMATS[name]: Kind(make(model, out), "float32")  # type: ignore[misc]


def with_large_inputs(model: Path, out: Path) -> Path:
    """Write the Llama checkpoint `model` in float32 with inputs of all layers made larger, a few chosen at random."""
    shutil.copytree(model, out)
    config = transformers.AutoConfig.from_pretrained(model)
    tensors = {name: tensor.float() for name, tensor in load_file(model / "model.safetensors").items()}
    generator = torch.Generator().manual_seed(1)

    def move(sources: list[torch.Tensor], weights: list[torch.Tensor], repeats: int = 1, block: int = 1) -> None:
        """Enlarge rows of `sources`. Each makes `repeats` inputs of `weights`: neighbouring blocks have equal ones."""
        size = len(sources[0])
        for row in torch.randperm(size, generator=generator)[: max(1, size // INPUTS_PER_OUTLIER)].tolist():
            first = row // block * block * repeats + row % block
            for source in sources:
                source[row] *= FACTOR
            for weight in weights:
                weight[:, first : first + block * (repeats - 1) + 1 : block] /= FACTOR

    for index in range(config.num_hidden_layers):

        def of(name: str, index: int = index) -> torch.Tensor:
            return tensors[f"model.layers.{index}.{name}.weight"]

        move([of("input_layernorm")], [of(f"self_attn.{name}_proj") for name in "qkv"])
        heads = config.num_attention_heads // config.num_key_value_heads
        move([of("self_attn.v_proj")], [of("self_attn.o_proj")], heads, config.head_dim)
        move([of("post_attention_layernorm")], [of("mlp.gate_proj"), of("mlp.up_proj")])
        move([of("mlp.up_proj")], [of("mlp.down_proj")])
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def dense_copy(kind: Kind, model: Path, out: Path) -> Path:
    """Write a float32 checkpoint of the weights that a kind's layers multiply by; `model` has its configuration.

    Products with unit rows give the weights: these rows are rounded without loss.
    """
    shutil.copytree(model, out)
    loaded = load_model(kind.path, device=torch.device("cpu"), dtype=torch.float32, quantize=kind.quantize)
    config, tensors = loaded.config, Tensors()

    def put(prefix: str, linear: Linear, inputs: int, sizes: dict[str, int]) -> None:
        weights = torch.split(linear(torch.eye(inputs)).t(), list(sizes.values()))
        tensors.update({f"{prefix}.{name}.weight": part for name, part in zip(sizes, weights, strict=True)})

    E, I, H = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim  # noqa: E741
    K = config.num_kv_heads * config.head_dim
    for index, layer in enumerate(loaded.parameters.layers):
        prefix, mlp = f"model.layers.{index}", layer.mlp
        assert isinstance(mlp, DenseMlp)
        put(f"{prefix}.self_attn", layer.qkv, E, {"q_proj": H, "k_proj": K, "v_proj": K})
        put(f"{prefix}.self_attn", layer.o, H, {"o_proj": E})
        put(f"{prefix}.mlp", mlp.gate_up, E, {"gate_proj": I, "up_proj": I})
        put(f"{prefix}.mlp", mlp.down, I, {"down_proj": E})
        for name, norm in (
            ("input_layernorm", layer.norms.attention_in),
            ("post_attention_layernorm", layer.norms.mlp_in),
        ):
            assert isinstance(norm, RmsNorm)
            tensors[f"{prefix}.{name}.weight"] = norm.weight_E
    assert isinstance(loaded.parameters.norm, RmsNorm)
    tensors["model.norm.weight"] = loaded.parameters.norm.weight_E
    tensors["model.embed_tokens.weight"] = loaded.parameters.dense_embedding()
    kept = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    return out


def runtime_logits(kind: Kind, texts: list[list[int]]) -> torch.Tensor:
    """Compute the logits of all tokens by this runtime."""
    model = load_model(kind.path, device=torch.device("cpu"), dtype=torch.float32, quantize=kind.quantize)
    pages = list(range(-(-WINDOW // PAGE_SIZE)))
    pool = KvPool(KvMemory(model.config, len(pages), device=model.device, dtype=model.dtype))
    found = []
    for text in texts:
        row = Row(rid="text", tokens=text, first_position=0, pages=pages)
        with torch.inference_mode():
            inputs = decoder_inputs([row], model, np.arange(len(text)), pool.layers[0])
            found.append(model.logits(model.hidden(inputs, pool.layers)))
    return torch.cat(found)


def exact_logits(model: transformers.PreTrainedModel, texts: list[list[int]]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([text])).logits[0] for text in texts])


@contextmanager
def rounded_rows(model: transformers.PreTrainedModel, group: int | None) -> Iterator[None]:
    """Round the inputs of the layers' products to int8 with a scale per group of inputs; None: per row."""

    def rounded(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[torch.Tensor]:
        [x] = arguments
        groups = x.unflatten(-1, (-1, group or x.shape[-1]))
        scale = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
        return (((groups / scale).round() * scale).flatten(-2).to(x.dtype),)

    layers = [module for module in model.model.layers.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(rounded) for layer in layers]
    yield
    for hook in hooks:
        hook.remove()


def perplexity_of(logits_TV: torch.Tensor, texts: list[list[int]]) -> float:
    targets = torch.cat([torch.tensor([*text[1:], -100]) for text in texts])
    return float(torch.nn.functional.cross_entropy(logits_TV.double(), targets).exp())


def errors(found: torch.Tensor, exact: torch.Tensor) -> str:
    difference = (found.double() - exact).abs()
    return f"{difference.mean():.2g}, {difference.max():.2g}"


def measure(kind: Kind, model: Path, folder: Path, texts: list[list[int]], num_cases: int) -> dict[str, str]:
    """Compare a kind with the same weights and rows of floats; `model` has its configuration."""
    dense = dense_copy(kind, model, folder)
    judge = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float64)
    exact = exact_logits(judge, texts[:WINDOWS])
    tokens = list(itertools.chain(*texts))
    own, floats = core_of(kind), core_of(Kind(dense, "float32"))
    plain, rounded = (perplexity(core.engine, tokens, WINDOW) for core in (floats, own))
    cells = {
        "perplexity, rows of floats": f"{plain:.4f}",
        "perplexity, rows of int8": f"{rounded:.4f} ({100 * (rounded / plain - 1):+.2f} %)",
        "error of logits": errors(runtime_logits(kind, texts[:WINDOWS]), exact),
    }
    few = perplexity_of(exact, texts[:WINDOWS])
    for name, group in GROUPS.items():
        with rounded_rows(judge, group):
            found = exact_logits(judge, texts[:WINDOWS])
        change = perplexity_of(found, texts[:WINDOWS]) / few - 1
        cells[f"- computed, {name}"] = f"{errors(found, exact)} ({100 * change:+.2f} %)"
    cells["error of logits, rows of floats"] = errors(runtime_logits(Kind(dense, "float32"), texts[:WINDOWS]), exact)
    if num_cases:
        answers = {name: skills.answers(core, num_cases) for name, core in (("floats", floats), ("own", own))}
        for title, (share, moved) in skills.skill_rows(answers, "floats"):
            cells[title] = f"{share}, {moved}"
    return cells


def main(
    num_cases: Cases = 100,
    num_documents: Documents = 300,
    only: Only = "",
    out: Out = None,
) -> None:
    tokens = skills.held_out_tokens(num_documents)
    texts = [tokens[start : start + WINDOW] for start in range(0, len(tokens), WINDOW)]
    tables = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models = {
            "The model that ships": SHIPPED_MODEL,
            "With larger inputs": with_large_inputs(SHIPPED_MODEL, folder / "large"),
        }
        for number, (title, model) in enumerate(models.items()):
            found: dict[str, dict[str, str]] = {}
            for name, make in FORMATS.items():
                if only in name:
                    kind = make(model, folder / f"{number} {name}")
                    found[name] = measure(kind, model, folder / f"{number} {name} dense", texts, num_cases)
            rows: skills.Rows = [(row, [cells[row] for cells in found.values()]) for row in next(iter(found.values()))]
            tables.append(f"## {title}\n\n{matrix(found, rows)}")
            print(tables[-1], flush=True)
    report("Rows rounded to int8", *tables, out=out)


if __name__ == "__main__":
    typer.run(main)
