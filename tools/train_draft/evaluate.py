"""Accepted length of a draft source: tokens per pass of the target in greedy decoding.

The target's answers are known beforehand, so its passes need not be run. The source follows along with the target's
states, and verification would accept the longest path of a draft tree that agrees with the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...runtime.engine.draft_source import DraftRow, DraftSource, DraftStep
from ...runtime.engine.kv_pool import PAGE_SIZE
from ...runtime.scheduler.drafts.tree import DraftTree
from ...runtime.scheduler.plan import DraftSpec
from .data import TrainingText
from .target import Target

_BATCH_SIZE = 16  # texts


@dataclass(frozen=True)
class AcceptedLength:
    """Tokens and verification passes counted. The first token of an answer is not counted; the prompt's pass gives
    it."""

    num_tokens: int
    num_passes: int

    @property
    def tau(self) -> float:
        """Return tokens per pass; 1 without drafts. NaN without a pass."""
        return self.num_tokens / self.num_passes if self.num_passes else math.nan


@dataclass
class _Sequence:
    """A text that is being followed."""

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
    make_source: Callable[[int], DraftSource], target: Target, texts: Sequence[TrainingText], want: DraftSpec
) -> dict[str, AcceptedLength]:
    """Measure a draft source, which is made for a number of pages, on each group of `texts`.

    Their learnt part must be the target's greedy answer, and the target must capture what the source reads. Texts that
    leave nothing to guess, with less than two tokens of an answer or without a prompt, are left out.
    """
    found: dict[str, AcceptedLength] = {}
    for start in range(0, len(texts), _BATCH_SIZE):
        for sequence in _run(make_source, target, texts[start : start + _BATCH_SIZE], want):
            before = found.get(sequence.text.group, AcceptedLength(0, 0))
            found[sequence.text.group] = AcceptedLength(
                before.num_tokens + sequence.accepted, before.num_passes + sequence.passes
            )
    return found


def overall_accepted_length(by_group: dict[str, AcceptedLength]) -> AcceptedLength:
    """Add up the groups."""
    groups = by_group.values()
    return AcceptedLength(sum(group.num_tokens for group in groups), sum(group.num_passes for group in groups))


def _run(
    make_source: Callable[[int], DraftSource], target: Target, texts: Sequence[TrainingText], want: DraftSpec
) -> list[_Sequence]:
    texts = [text for text in texts if len(text.ids) - text.num_prompt > 1 and text.num_prompt]
    if not texts:
        return []
    captured_BTC, _ = target.states([text.ids for text in texts])
    sequences, num_pages = [], 0
    for text, states in zip(texts, captured_BTC, strict=True):
        end = num_pages + -(-len(text.ids) // PAGE_SIZE)
        sequences.append(_Sequence(text, states.to(target.model.dtype), list(range(num_pages, end)), 0))
        num_pages = end
    source = make_source(num_pages)
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
            ahead[id(sequence)] = num_right + 1  # the known token, and the accepted drafts
            sequence.accepted += min(num_right + 1, len(rest))
            sequence.passes += 1
    return sequences


def _agreement(tree: DraftTree, answer: Sequence[int]) -> int:
    """Return the length of the longest path of the tree that agrees with `answer`."""
    node, count = -1, 0
    while count < len(answer):
        children = (
            child for child, parent in enumerate(tree.parents) if parent == node and tree.tokens[child] == answer[count]
        )
        child = next(children, None)
        if child is None:
            break
        node, count = child, count + 1
    return count
