"""Medusa heads: their files in each published spelling, and the trees of their guesses."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.scheduler.plan import DraftSpec
from ramiform.runtime.speculation.medusa import MedusaSource, is_medusa, likeliest_tree, load_medusa

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def target() -> Decoder:
    return load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def tensors(target: Decoder) -> Tensors:
    """Three heads of two blocks, as the training code of Medusa names them."""
    generator = torch.Generator().manual_seed(1)
    E, V = target.config.hidden_size, target.config.vocab_size
    found: Tensors = {}
    for head, block in itertools.product(range(3), range(2)):
        found[f"{head}.{block}.linear.weight"] = torch.randn(E, E, generator=generator) / E**0.5
        found[f"{head}.{block}.linear.bias"] = torch.randn(E, generator=generator)
        found[f"{head}.2.weight"] = torch.randn(V, E, generator=generator)
    return found


CONFIG = {"medusa_num_heads": 3, "medusa_num_layers": 2}


def write(folder: Path, tensors: Tensors, config: dict[str, Any], name: str = "medusa_lm_head.safetensors") -> Path:
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    if name.endswith(".pt"):
        torch.save(tensors, folder / name)
    else:
        save_file(tensors, folder / name)
    return folder


def as_vllm_names_them(tensors: Tensors) -> Tensors:
    renamed = {}
    for name, tensor in tensors.items():
        head, block, *rest = name.split(".")
        renamed[f"lm_heads.{head}.weight" if block == "2" else f"blocks.{head}.layers.{block}.{rest[-1]}"] = tensor
    return renamed


def follow(source: MedusaSource, hidden_TE: torch.Tensor, want: DraftSpec) -> Any:
    rows = [
        DraftRow(kept=[5, 6], first_position=0, pages=[0], next_token=7, want=None),
        DraftRow(kept=[5, 6, 7], first_position=4, pages=[1], next_token=8, want=want),
        DraftRow(kept=[9], first_position=0, pages=[2], next_token=None, want=None),
    ]
    return source.follow(DraftStep(rows, hidden_TE))


def test_the_guesses_are_those_of_the_heads_for_the_last_kept_token(
    tmp_path: Path, target: Decoder, tensors: Tensors
) -> None:
    heads = load_medusa(write(tmp_path, tensors, CONFIG), target)
    hidden_TE = torch.randn(6, target.config.hidden_size)
    expected = []
    for head in range(3):
        x_E = hidden_TE[4]
        for block in range(2):
            weight, bias = (tensors[f"{head}.{block}.linear.{part}"] for part in ("weight", "bias"))
            x_E = x_E + torch.nn.functional.silu(weight @ x_E + bias)
        logprobs_V = (tensors[f"{head}.2.weight"] @ x_E / 0.7).log_softmax(-1)
        expected.append((int(logprobs_V.argmax()), float(logprobs_V.max())))
    source = MedusaSource(heads, target.config)
    first, tree, last = follow(source, hidden_TE, DraftSpec(steps=7, top_k=1, num_tokens=7, temperature=0.7))
    assert (first, last) == (None, None)
    assert (tree.tokens, tree.parents) == ([token for token, _ in expected], [-1, 0, 1])
    sums = list(itertools.accumulate(logprob for _, logprob in expected))
    assert tree.scores == pytest.approx(sums, abs=1e-3)


@pytest.mark.parametrize("spelling", ["prefixed", "vllm", "pt"])
def test_each_published_spelling_gives_the_same_heads(
    tmp_path: Path, target: Decoder, tensors: Tensors, spelling: str
) -> None:
    hidden_TE = torch.randn(6, target.config.hidden_size)
    want = DraftSpec(steps=3, top_k=3, num_tokens=9, temperature=1.0)
    trees = []
    for kind in ("plain", spelling):
        folder = tmp_path / kind
        folder.mkdir()
        match kind:
            case "prefixed":
                write(folder, {f"medusa_head.{name}": tensor for name, tensor in tensors.items()}, CONFIG)
            case "vllm":
                config = {"model_type": "medusa", "num_heads": 3, "num_hidden_layers": 2}
                write(folder, as_vllm_names_them(tensors), config, "model.safetensors")
            case "pt":
                write(folder, tensors, CONFIG, "medusa_lm_head.pt")
            case _:
                write(folder, tensors, CONFIG)
        assert is_medusa(folder)
        trees.append(follow(MedusaSource(load_medusa(folder, target), target.config), hidden_TE, want)[1])
    assert trees[0] == trees[1]
    assert len(trees[0]) == 9


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        ({"0.2.weight": None}, {}, "head 0: the weight of its logits is missing"),
        ({"1.0.linear.weight": None}, {}, "head 1: the weight of block 0 is missing"),
        ({"1.1.linear.bias": torch.zeros(3)}, {}, r"1.1.linear.bias is torch.float32 \(3,\)"),
        ({"3.0.linear.weight": torch.zeros(1, 1)}, {}, "3.0.linear.weight is unexpected"),
        ({"norm.weight": torch.zeros(1)}, {}, "norm.weight is in no Medusa head"),
        ({}, {"medusa_num_heads": "3"}, "medusa_num_heads must be from 1 to 32, got '3'"),
        ({}, {"medusa_num_layers": 10**9}, "medusa_num_layers must be from 1 to 8"),
        ({}, {"vocab_size": 9, "truncated_vocab_size": 8}, "truncated_vocab_size"),
    ],
)
def test_heads_of_another_shape_are_refused_by_name(
    tmp_path: Path, target: Decoder, tensors: Tensors, change: dict[str, Any], config: dict[str, Any], named: str
) -> None:
    changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
    with pytest.raises(CheckpointError, match=named):
        load_medusa(write(tmp_path, changed, CONFIG | config), target)


def test_a_tree_holds_the_likeliest_paths_of_independent_guesses() -> None:
    draw = torch.Generator().manual_seed(3)
    for num_tokens in (1, 4, 9, 30):
        levels = [
            sorted(((float(-torch.rand(1, generator=draw) * 3), 10 * depth + i) for i in range(3)), reverse=True)
            for depth in range(3)
        ]
        tree = likeliest_tree(levels, num_tokens)
        paths = [path for depth in (1, 2, 3) for path in itertools.product(*levels[:depth])]
        best = sorted((math.fsum(score for score, _ in path) for path in paths), reverse=True)[:num_tokens]
        assert tree.scores == pytest.approx(best)
        found = {tuple(tree.path(node)) for node in range(len(tree))}
        assert len(found) == len(tree) == min(num_tokens, len(paths))
        assert found <= {tuple(token for _, token in path) for path in paths}
