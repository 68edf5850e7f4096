"""Batches of training texts as a function of (seed, step), so that a resumed run sees the same data.

Legend: B texts, T tokens of the longest.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...runtime.protocol.errors import RequestError
from .data import TrainingText


@dataclass(frozen=True)
class TrainingBatch:
    """Texts padded to one length with their own last token. A token's weight in the loss is 0 in prompts and
    padding."""

    texts: list[list[int]]
    ids_BT: torch.Tensor
    weights_BT: torch.Tensor


class TrainingBatches:
    """Batches of texts of like length, in random order; each text once per round."""

    def __init__(self, texts: Sequence[TrainingText], *, tokens_per_step: int, max_length: int, seed: int) -> None:
        """Raises RequestError when no text has a token to draft."""
        self._texts = [_cut(text, max_length) for text in texts]
        self._texts = [text for text in self._texts if len(text.ids) >= 3 and text.num_prompt < len(text.ids)]
        if not self._texts:
            raise RequestError(_nothing_to_learn(texts, max_length), param="data")
        self._tokens_per_step, self._seed = tokens_per_step, seed
        self._round, self._plan = -1, self._shuffled(-1)

    @property
    def per_round(self) -> int:
        return len(self._plan)

    def __getitem__(self, step: int) -> TrainingBatch:
        # The number of batches of a round depends on lengths only, not on their order.
        number, place = divmod(step, self.per_round)
        if number != self._round:
            self._round, self._plan = number, self._shuffled(number)
        return collate([self._texts[index] for index in self._plan[place]])

    def _shuffled(self, number: int) -> list[list[int]]:
        """Return the batches of a round, as indices of texts.

        Texts are cut into batches in order of length, so every round has the same number of batches. Texts of equal
        length are shuffled first, so batches differ between rounds.
        """
        draw = random.Random(f"{self._seed} {number}")
        order = list(range(len(self._texts)))
        draw.shuffle(order)
        order.sort(key=lambda index: len(self._texts[index].ids))
        plan: list[list[int]] = [[]]
        for index in order:
            if plan[-1] and (len(plan[-1]) + 1) * len(self._texts[index].ids) > self._tokens_per_step:
                plan.append([])
            plan[-1].append(index)
        draw.shuffle(plan)
        return plan


def _nothing_to_learn(texts: Sequence[TrainingText], max_length: int) -> str:
    if any(text.num_prompt < len(text.ids) for text in texts):
        return f"no text has an answer within its first {max_length} tokens, and three tokens: raise --max-length"
    return "no text has an answer to learn: give completions, last messages of the assistant, or --generate N"


def collate(texts: Sequence[TrainingText]) -> TrainingBatch:
    """Pad the texts to one length."""
    length = max(len(text.ids) for text in texts)
    ids = [text.ids + [text.ids[-1]] * (length - len(text.ids)) for text in texts]
    weights = [
        [0.0] * text.num_prompt + [1.0] * (len(text.ids) - text.num_prompt) + [0.0] * (length - len(text.ids))
        for text in texts
    ]
    return TrainingBatch([text.ids for text in texts], torch.tensor(ids), torch.tensor(weights))


def _cut(text: TrainingText, max_length: int) -> TrainingText:
    return TrainingText(text.ids[:max_length], min(text.num_prompt, max_length), text.group)
