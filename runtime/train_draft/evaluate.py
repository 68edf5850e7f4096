"""Accepted length: how many tokens a pass of the target gives when a head drafts for it, greedily decoded.

What the target says is known beforehand, so the passes need not be run: the head follows along with the target's
states, and a tree's longest path that agrees with what was said is what verification would have accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..engine.draft_source import DraftRow, DraftStep
from ..engine.kv_pool import PAGE_SIZE
from ..scheduler.plan import DraftSpec
from ..speculation.eagle.head import EagleHead
from ..speculation.eagle.source import EagleSource
from ..speculation.tree import DraftTree
from .data import TrainingText
from .target import Target

_AT_ONCE = 16  # texts


@dataclass(frozen=True)
class AcceptedLength:
    """`num_tokens` came of `num_passes` verifications; the first token of an answer, which the prompt's own pass gives,
    is not among them."""

    num_tokens: int
    num_passes: int

    @property
    def tau(self) -> float:
        """Tokens per pass; 1 without drafts."""
        return self.num_tokens / max(1, self.num_passes)


@dataclass
class _Sequence:
    text: TrainingText
    states: torch.Tensor  # [T, C]
    pages: list[int]
    done: int  # tokens whose KV the target would have
    accepted: int = 0
    passes: int = 0

    @property
    def finished(self) -> bool:
        return self.done >= len(self.text.ids) - 1


@torch.inference_mode()
def measure_accepted_length(
    head: EagleHead, target: Target, texts: Sequence[TrainingText], want: DraftSpec
) -> dict[str, AcceptedLength]:
    """Of each group of `texts`, whose learnt part must be what the target says greedily."""
    found: dict[str, AcceptedLength] = {}
    for start in range(0, len(texts), _AT_ONCE):
        for sequence in _run(head, target, texts[start : start + _AT_ONCE], want):
            before = found.get(sequence.text.group, AcceptedLength(0, 0))
            found[sequence.text.group] = AcceptedLength(
                before.num_tokens + sequence.accepted, before.num_passes + sequence.passes
            )
    return found


def overall_accepted_length(found: dict[str, AcceptedLength]) -> AcceptedLength:
    return AcceptedLength(sum(one.num_tokens for one in found.values()), sum(one.num_passes for one in found.values()))


def _run(head: EagleHead, target: Target, texts: Sequence[TrainingText], want: DraftSpec) -> list[_Sequence]:
    texts = [text for text in texts if len(text.ids) - text.num_prompt > 1 and text.num_prompt]
    if not texts:
        return []
    captured_BTC, _ = target.states([text.ids for text in texts])
    sequences, num_pages = [], 0
    for text, states in zip(texts, captured_BTC, strict=True):
        end = num_pages + -(-len(text.ids) // PAGE_SIZE)
        sequences.append(_Sequence(text, states.to(head.dtype), list(range(num_pages, end)), 0))
        num_pages = end
    source = EagleSource(head, num_pages)
    ahead = {id(sequence): sequence.text.num_prompt for sequence in sequences}  # tokens to follow in the next step
    while running := [sequence for sequence in sequences if not sequence.finished]:
        rows, states = [], []
        for sequence in running:
            first, ids = sequence.done, sequence.text.ids
            sequence.done = min(first + ahead[id(sequence)], len(ids) - 1)
            states.append(sequence.states[first : sequence.done])
            rows.append(DraftRow(ids[first : sequence.done], first, sequence.pages, ids[sequence.done], want))
        trees = source.follow(DraftStep(rows, torch.cat(states)))
        for sequence, tree in zip(running, trees, strict=True):
            rest = sequence.text.ids[sequence.done + 1 :]
            if not rest:
                continue
            num_right = 0 if tree is None else _agreement(tree, rest)
            ahead[id(sequence)] = num_right + 1  # the token that was known, and those that proved right
            sequence.accepted += min(num_right + 1, len(rest))
            sequence.passes += 1
    return sequences


def _agreement(tree: DraftTree, said: Sequence[int]) -> int:
    """How many nodes, one below the other, are what was said."""
    node, count = -1, 0
    while count < len(said):
        children = (
            child for child, parent in enumerate(tree.parents) if parent == node and tree.tokens[child] == said[count]
        )
        child = next(children, None)
        if child is None:
            break
        node, count = child, count + 1
    return count
