"""Medusa heads as draft source (Cai et al. 2024): head i guesses the token i + 2 places after a hidden state.

The heads read the target's final hidden state of the last kept token, so the source keeps nothing between steps. Their
guesses are independent of one another: a tree is the likeliest combinations of them.

Legend: B rows that want a tree, T kept tokens of the step, E hidden size, V vocabulary, K guesses of a head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

import torch
import torch.nn.functional as F

from ..engine.draft_source import DraftStep
from ..models.config import ModelConfig
from ..models.config_fields import read_json_object
from ..models.decoder import Decoder
from ..models.errors import CheckpointError
from ..models.linear import DenseLinear, Linear
from ..models.packed_linear import pack_linear, use_loops
from ..scheduler.drafts.tree import DraftTree
from ..scheduler.plan import DraftSpec, PageCopy, Row
from .eagle.load import read_tensors
from .eagle.tree_growth import draft_temperature

FILES = ("medusa_lm_head.safetensors", "model.safetensors", "medusa_lm_head.pt")
MAX_HEADS, MAX_BLOCKS = 32, 8
_COUNTS = {"heads": ("medusa_num_heads", "num_heads"), "blocks": ("medusa_num_layers", "num_hidden_layers")}
# Two spellings are published: `0.1.linear.weight`, of head 0 and block 1, whose last number is the logits' layer, and
# `blocks.0.layers.1.weight` with `lm_heads.0.weight`.
_NUMBERED = re.compile(r"^(?:medusa_heads?\.)?(\d+)\.(\d+)\.(?:linear\.)?(weight|bias)$")
_BLOCK = re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)$")
_LOGITS = re.compile(r"^lm_heads\.(\d+)\.(weight)$")


@dataclass(frozen=True)
class MedusaHead:
    """A head: residual blocks `x + silu(W x + b)`, then the layer of the logits."""

    blocks: list[Linear]
    logits: Linear

    def __call__(self, hidden_BE: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [B, V]."""
        for block in self.blocks:
            hidden_BE = hidden_BE + F.silu(block(hidden_BE))
        return self.logits(hidden_BE).float()


class MedusaSource:
    """Draft source of Medusa heads. See `DraftSource`."""

    caught_up = 0.0  # nothing is lacked

    def __init__(self, heads: Sequence[MedusaHead], target: ModelConfig) -> None:
        self._heads = heads
        self.captures = (target.num_layers,)  # the final hidden state

    def use_loops(self) -> None:
        for head in self._heads:
            use_loops([*head.blocks, head.logits])

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do nothing: no memory follows the target's pages."""

    def skip(self, rows: Sequence[Row]) -> None:
        """Do nothing: only the last token's state is read."""

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        assert step.features_TE is not None
        trees: list[DraftTree | None] = [None] * len(step.rows)
        wants: dict[int, DraftSpec] = {}
        last: list[int] = []  # of the rows that want a tree: index of the last kept token
        end = 0
        for index, row in enumerate(step.rows):
            end += len(row.kept)
            if row.want is not None and row.next_token is not None and row.kept:
                wants[index] = row.want
                last.append(end - 1)
        if not wants:
            return trees
        hidden_BE = step.features_TE[torch.tensor(last, device=step.features_TE.device)]
        temperatures = [[draft_temperature(want.temperature)] for want in wants.values()]
        temperature_B1 = torch.tensor(temperatures, device=hidden_BE.device)
        most = max(want.top_k for want in wants.values())
        depth = min(len(self._heads), max(want.steps for want in wants.values()))
        guesses = []  # of each head: logprobs and tokens [B][K]
        for head in self._heads[:depth]:
            logprobs_BV = (head(hidden_BE) / temperature_B1).log_softmax(dim=-1)
            top_BK, ids_BK = logprobs_BV.topk(min(most, logprobs_BV.shape[1]), dim=-1)
            guesses.append((top_BK.tolist(), ids_BK.tolist()))
        for place, (index, want) in enumerate(wants.items()):
            levels = [
                list(zip(top[place][: want.top_k], ids[place][: want.top_k], strict=True))
                for top, ids in guesses[: want.steps]
            ]
            trees[index] = likeliest_tree(levels, want.num_tokens)
        return trees


def likeliest_tree(levels: Sequence[Sequence[tuple[float, int]]], num_tokens: int) -> DraftTree:
    """Return the tree of the `num_tokens` likeliest paths, of independent guesses (log-probability, token) by depth.

    The guesses of a level are in falling order.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    open_nodes: list[tuple[float, int, int, int]] = []  # score negated, parent, depth, which guess

    def offer(parent: int, depth: int, guess: int) -> None:
        if depth < len(levels) and guess < len(levels[depth]):
            before = scores[parent] if parent >= 0 else 0.0
            heappush(open_nodes, (-(before + min(0.0, levels[depth][guess][0])), parent, depth, guess))

    offer(-1, 0, 0)
    while open_nodes and len(tokens) < num_tokens:
        score, parent, depth, guess = heappop(open_nodes)
        tokens.append(levels[depth][guess][1])
        parents.append(parent)
        scores.append(-score)
        offer(len(tokens) - 1, depth + 1, 0)
        offer(parent, depth, guess + 1)
    return DraftTree(tokens, parents, scores)


def is_medusa(folder: Path) -> bool:
    """Return True if the folder holds Medusa heads, by its config.json."""
    config = read_json_object(folder / "config.json")
    return "medusa_num_heads" in config or config.get("model_type") == "medusa"


def medusa_bytes(folder: Path) -> int:
    """Return the bytes of the heads' file."""
    return _file(folder).stat().st_size


def load_medusa(folder: Path, target: Decoder) -> list[MedusaHead]:
    """Load the heads in a folder, in the target's dtype and on its device.

    Raises CheckpointError, naming file and field or tensor, when they cannot be read or were not made for `target`.
    """
    num_heads, num_blocks = _counts(folder)
    file = _file(folder)
    tensors = read_tensors(file)
    E, V = target.config.hidden_size, target.config.vocab_size
    parts: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        head, block, part = _place(file, name, num_blocks)
        shape = {"weight": (V, E) if block == num_blocks else (E, E), "bias": (E,)}[part]
        if head >= num_heads or block > num_blocks or (block == num_blocks and part == "bias"):
            raise CheckpointError(
                file, f"the tensor {name} is unexpected in {num_heads} heads of {num_blocks} blocks each"
            )
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise CheckpointError(
                file, f"the tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, the model asks for {shape}"
            )
        parts.setdefault((head, block), {})[part] = tensor.to(target.device, target.dtype)

    def linear(head: int, block: int) -> Linear:
        found = parts.get((head, block), {})
        if "weight" not in found:
            missing = f"head {head}: the weight of " + ("its logits" if block == num_blocks else f"block {block}")
            raise CheckpointError(file, f"{missing} is missing")
        return pack_linear(DenseLinear(found["weight"], found.get("bias")))

    return [
        MedusaHead([linear(head, block) for block in range(num_blocks)], linear(head, num_blocks))
        for head in range(num_heads)
    ]


def _counts(folder: Path) -> tuple[int, int]:
    """Read the number of heads, and of the blocks of each."""
    config = read_json_object(folder / "config.json")
    counts = []
    for what, most in (("heads", MAX_HEADS), ("blocks", MAX_BLOCKS)):
        name = next((name for name in _COUNTS[what] if name in config), _COUNTS[what][0])
        value = config.get(name, 1 if what == "blocks" else None)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise CheckpointError(folder / "config.json", f"{name} must be from 1 to {most}, got {value!r}")
        counts.append(value)
    if config.get("truncated_vocab_size") not in (None, config.get("vocab_size")):
        raise CheckpointError(folder / "config.json", "truncated_vocab_size: heads of a part of the tokens")
    return counts[0], counts[1]


def _file(folder: Path) -> Path:
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(folder, f"holds none of {', '.join(FILES)}: no Medusa heads")
    return file


def _place(file: Path, name: str, num_blocks: int) -> tuple[int, int, str]:
    """Return the head and the block of a tensor, and its part; the logits' layer follows the last block."""
    if found := _NUMBERED.match(name) or _BLOCK.match(name):
        return int(found[1]), int(found[2]), found[3]
    if found := _LOGITS.match(name):
        return int(found[1]), num_blocks, found[2]
    raise CheckpointError(file, f"the tensor {name} is in no Medusa head")
