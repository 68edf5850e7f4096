"""A draft head on the Triton kernels: on a CUDA device, or, without one, in Triton's interpreter. Judge: the same head
on plain torch, given the same steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from ramiform.kernels import for_device
from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.scheduler.plan import DraftSpec
from ramiform.runtime.speculation.eagle import EagleSource, load_head
from ramiform.runtime.speculation.eagle.save import save_head
from ramiform.runtime.speculation.eagle.target_probe import probe
from ramiform.tools.train_draft.config import head_config
from ramiform.tools.train_draft.initial_head import initial_head

pytestmark = pytest.mark.exhaustive

SHAPE = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
CUDA = torch.cuda.is_available()


def load(path: Path, *, triton: bool) -> Decoder:
    device = torch.device("cuda" if triton and CUDA else "cpu")
    ops = for_device(device, "triton" if triton else "reference")
    return load_model(path, device=device, dtype=torch.float32, ops=ops)


@pytest.mark.parametrize("top_k", [1, 3], ids=["chains", "trees"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.inference_mode()
def test_trees_are_those_of_plain_torch(kind: str, top_k: int, tmp_path: Path) -> None:
    torch.manual_seed(2)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).save_pretrained(tmp_path)
    targets = [load(tmp_path, triton=triton) for triton in (True, False)]
    ids = torch.arange(0, 90, 2) if kind == "eagle3" else None
    config = head_config(kind, targets[1].config, 90 if ids is None else len(ids), probe(targets[1]))
    save_head(initial_head(config, targets[1], ids, 4), targets[1].config, tmp_path / "head", torch.float32)
    sources = [EagleSource(load_head(tmp_path / "head", target), 12) for target in targets]

    draw, wants = torch.Generator().manual_seed(3), [DraftSpec(3, top_k, 6, 0.0), DraftSpec(2, top_k, 4, 1.0)]
    done = [0, 0]
    for counts in ([21, 5], [1, 18], [4, 2]):
        rows = []
        for index, count in enumerate(counts):
            tokens = torch.randint(0, 90, (count + 1,), generator=draw).tolist()
            pages = list(range(6 * index, 6 * index + 6))
            rows.append(DraftRow(tokens[:count], done[index], pages, tokens[count], wants[index]))
            done[index] += count
        states = torch.randn(sum(counts), 32 * len(sources[0].captures), generator=draw)
        ours, judges = (
            source.follow(DraftStep(rows, states.to(target.device)))
            for source, target in zip(sources, targets, strict=True)
        )
        for mine, judge in zip(ours, judges, strict=True):
            assert mine is not None
            assert judge is not None
            assert (mine.tokens, mine.parents) == (judge.tokens, judge.parents)
            assert mine.scores == pytest.approx(judge.scores, abs=1e-4)
