"""The whole engine on the Triton kernels: on a CUDA device, or, without one, in Triton's interpreter. Judge: the same
engine on plain torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ramiform.kernels import KernelsName
from ramiform.kernels.triton import experts
from ramiform.runtime.engine import build_engine
from ramiform.runtime.engine.kv_ranges import KvRanges, write_ranges
from ramiform.runtime.protocol.config import CoreConfig, KvDtypeName
from ramiform.runtime.scheduler.plan import DraftNode, ForwardPlan, Penalties, Row, RowResult, Sample, Score

pytestmark = pytest.mark.exhaustive

VOCAB = 150
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
MODELS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, head_dim=16)),
    "window": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SHAPE, head_dim=16, sliding_window=24)
    ),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SHAPE, head_dim=16, num_local_experts=3)
    ),
    "qwen2 moe": lambda: transformers.Qwen2MoeForCausalLM(
        transformers.Qwen2MoeConfig(
            **SHAPE,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            shared_expert_intermediate_size=32,
            sliding_window=None,
        )
    ),
    "qk-norm": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE, head_dim=24)),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(3)
    paths = {}
    for name, make in MODELS.items():
        paths[name] = tmp_path_factory.mktemp(name)
        make().save_pretrained(paths[name])
    return paths


class Pair:
    """An engine on Triton and its judge, given the same plans."""

    def __init__(self, path: Path, **settings: Any) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        common = {"dtype": "float32", "num_pages": 40} | settings
        self.ours, self.judge = (
            build_engine(CoreConfig(device=on, kernels=kernels, **common), path)
            for on, kernels in ((device, "triton"), ("cpu", "reference"))
        )
        self._step = 0

    def run(self, rows: list[Row], *, tolerance: float = 1e-4) -> list[RowResult]:
        self._step += 1
        plan = ForwardPlan(step=self._step, copies=[], rows=rows)
        ours, judge = self.ours.run(plan).rows, self.judge.run(plan).rows
        for mine, wanted in zip(ours, judge, strict=True):
            assert mine.tokens == wanted.tokens
            for found, meant in zip([*mine.logprobs, *mine.scores], [*wanted.logprobs, *wanted.scores], strict=True):
                assert found.id == meant.id
                assert found.logprob == pytest.approx(meant.logprob, abs=tolerance)
                assert [p for _, p in found.top] == pytest.approx([p for _, p in meant.top], abs=tolerance)
                assert found.of == pytest.approx(meant.of, abs=tolerance)
        return judge


DRAW = random.Random(5)


def tokens(num: int, seed: int = 0) -> list[int]:
    return random.Random(f"{num} {seed}").choices(range(VOCAB), k=num)


def greedy(**also: Any) -> Sample:
    return Sample(**({"temperature": 0.0, "top_k": None, "top_p": 1.0, "draw": 0} | also))


def pages(index: int) -> list[int]:
    """Return ten pages of the sequence, shuffled."""
    own = list(range(10 * index, 10 * index + 10))
    random.Random(index).shuffle(own)
    return own


def row(index: int, ids: list[int], first: int, sample: Sample | None = None, **also: Any) -> Row:
    return Row(rid=str(index), tokens=ids, first_position=first, pages=pages(index), sample=sample, **also)


LISTED = greedy(num_top_logprobs=3, logprobs_of=(4, 7))


@pytest.mark.parametrize("model", [name for name in MODELS if name != "mixtral"])  # its graphs: test_step_graphs.py
def test_chunks_decode_rows_and_trees_in_one_step(model: str, checkpoints: dict[str, Path]) -> None:
    pair = Pair(checkpoints[model])
    [first, _] = pair.run([row(0, tokens(37), 0, LISTED), row(1, tokens(20, 1), 0)])
    second = tokens(15, 2)
    scored = Score(first=3, targets=second[4:9], num_top=2, of=(1,))
    [first, second_result, _] = pair.run(
        [
            row(0, first.tokens, 37, LISTED),
            row(1, second, 20, LISTED, score=scored),
            row(2, tokens(5, 3), 0),  # few tokens, and no tree
        ]
    )
    parents = [-1, -1, 0, 1, 3, 2, -1]
    nodes = [DraftNode(draw=n) for n in range(len(parents))]
    draft_tokens = [3, 8, 10, 11, 12, 13, 14]
    pair.run(
        [
            row(0, [*first.tokens, *draft_tokens], 38, LISTED, parents=parents, nodes=nodes),
            row(1, second_result.tokens, 35, LISTED),
            row(2, tokens(3, 4), 5, LISTED, pool_from=None),
        ]
    )


@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_the_op_set_computes_the_experts_of_a_mixture(
    kernels: KernelsName, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on = "cuda" if torch.cuda.is_available() and kernels == "triton" else "cpu"
    config = CoreConfig(device=on, dtype="float32", num_pages=40, kernels=kernels)
    engine = build_engine(config, checkpoints["mixtral"])
    launched: list[int] = []
    real = experts.grouped_matmul
    monkeypatch.setattr(
        experts, "grouped_matmul", lambda x, *args, **also: launched.append(len(x)) or real(x, *args, **also)
    )
    engine.run(ForwardPlan(step=0, copies=[], rows=[row(0, tokens(9), 0, greedy())]))
    assert launched == ([9, 18, 1, 2] if kernels == "triton" else [])  # of the last layer one token is wanted


@pytest.mark.parametrize("num_nodes", [30, 70])
def test_trees_that_outgrow_masks_or_windows(num_nodes: int, checkpoints: dict[str, Path]) -> None:
    pair = Pair(checkpoints["window"])
    draw = random.Random(num_nodes)
    parents = [draw.randrange(-1, n) for n in range(num_nodes)]
    ids = [*tokens(40), *draw.sample(range(VOCAB), num_nodes)]
    nodes = [DraftNode(draw=n) for n in range(num_nodes)]
    pair.run([row(0, ids, 0, LISTED, parents=parents, nodes=nodes), row(1, tokens(9), 0, LISTED)])


def test_an_accepted_path_of_draft_tokens_keeps_its_kv(checkpoints: dict[str, Path]) -> None:
    judge = Pair(checkpoints["llama"])
    prompt = tokens(21)
    answer: list[int] = []
    for step in range(4):
        [result] = judge.run([row(0, prompt if step == 0 else answer[-1:], 0 if step == 0 else 20 + step, greedy())])
        answer += result.tokens
    pair = Pair(checkpoints["llama"])
    pair.run([row(0, prompt, 0, greedy())])
    wrong = (answer[1] + 1) % VOCAB
    draft_tokens, parents = [wrong, answer[1], wrong, answer[2]], [-1, -1, 1, 1]
    nodes = [DraftNode(draw=0)] * 4
    [result] = pair.run([row(0, [answer[0], *draft_tokens], 21, LISTED, parents=parents, nodes=nodes)])
    assert result.tokens == answer[1:4]
    [after] = pair.run([row(0, answer[3:4], 24, LISTED)])
    assert after.tokens


def test_masks_penalties_biases_and_draws(checkpoints: dict[str, Path]) -> None:
    pair = Pair(checkpoints["llama"])
    draw = random.Random(1)
    allowed = np.zeros(-(-VOCAB // 32) * 32, dtype=np.uint8)
    allowed[[5, 40, 41, 97, 149]] = 1
    mask = np.packbits(allowed, bitorder="little").tobytes()
    penalties = Penalties(frequency=0.4, presence=0.2, repetition=1.3, prompt=tokens(6), output=[9, 9, 40])
    settings = [
        greedy(),
        greedy(temperature=0.8),
        greedy(temperature=1.2, top_k=7),
        greedy(temperature=1.2, top_p=0.6),
        greedy(temperature=1.5, top_k=30, top_p=0.9, min_p=0.01),
        greedy(temperature=1.0, penalties=penalties),
        greedy(temperature=0.9, logit_bias={3: 4.0, 5: -100.0}),
    ]
    masks = [mask, mask, None, None, mask, None, mask]
    rows = []
    for index, (sample, own) in enumerate(zip(settings, masks, strict=True)):
        sample = Sample(**{name: getattr(sample, name) for name in sample.__struct_fields__} | {
            "draw": draw.getrandbits(62), "num_top_logprobs": 2})  # fmt: skip
        rows.append(Row(rid=str(index), tokens=tokens(6), first_position=0, pages=[index], sample=sample, mask=own))
    results = pair.run(rows)
    assert all(allowed[result.token or 0] for result, own in zip(results, masks, strict=True) if own is not None)


# Kernels of scaled codes are judged by tests/kernels/triton/test_scaled_codes.py: a model takes them minutes.
@pytest.mark.parametrize(("kv_dtype", "is_static"), [("fp16", False), ("int8", True)], ids=str)
def test_keys_and_values_of_another_dtype(
    kv_dtype: KvDtypeName, is_static: bool, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"kv_dtype": kv_dtype}
    if is_static:
        scales = settings["kv_scales"] = str(tmp_path / "scales.json")
        write_ranges(KvRanges(torch.full((2, 2), 4.0), torch.full((2, 2), 2.0), 1), Path(scales))
    pair = Pair(checkpoints["llama"], **settings)
    [first] = pair.run([row(0, tokens(18), 0, LISTED)], tolerance=0.02)
    pair.run([row(0, first.tokens, 18, LISTED)], tolerance=0.02)
