"""Guesses from the sequence itself: what followed the last few tokens when they came before (Saxena 2023, prompt lookup
decoding). Pure; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tree import DraftTree

MIN_MATCH, MAX_MATCH = 2, 5  # tokens that are looked up
LEVEL_LOGPROB = {2: -0.9, 3: -0.5, 4: -0.3, 5: -0.15}  # log p of one more guess, by how many tokens matched


class NgramIndex:
    """Where each run of tokens of one sequence has come, the latest times. Memory: four entries a token."""

    def __init__(self, max_places: int = 4) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}  # run -> where it ended, the latest first
        self._max_places = max_places
        self._num_indexed = 0

    def propose(self, tokens: Sequence[int], *, steps: int, top_k: int, num_tokens: int) -> DraftTree | None:
        """What may follow `tokens`, which only grow from call to call: a tree of at most `top_k` continuations of the
        longest run that came before, `steps` tokens each, `num_tokens` in all; None when there was no such run."""
        self._index(tokens)
        for length in range(min(MAX_MATCH, len(tokens) - 1), MIN_MATCH - 1, -1):
            places = self._places.get(tuple(tokens[len(tokens) - length :]))
            if places is not None:
                continuations = [tokens[place : place + steps] for place in places[:top_k]]
                return _merge(continuations, LEVEL_LOGPROB[length]).best(num_tokens)
        return None

    def _index(self, tokens: Sequence[int]) -> None:
        """Up to the last token but one: what ends there has a continuation."""
        for end in range(max(self._num_indexed, MIN_MATCH - 1) + 1, len(tokens)):
            for length in range(MIN_MATCH, min(MAX_MATCH, end) + 1):
                places = self._places.setdefault(tuple(tokens[end - length : end]), [])
                places.insert(0, end)
                del places[self._max_places :]
            self._num_indexed = end


def _merge(continuations: Sequence[Sequence[int]], sure: float) -> DraftTree:
    """A trie. The latest continuation is the likeliest, and each guess less likely than the one before it."""
    nodes: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    for rank, continuation in enumerate(continuations):
        parent = -1
        for depth, token in enumerate(continuation, 1):
            if (parent, token) not in nodes:
                nodes[parent, token] = len(tokens)
                tokens.append(token)
                # A side branch is a second choice once, where it leaves the others.
                scores.append((scores[parent] if parent >= 0 else 0.0) + sure - (1.5 * rank if depth == 1 else 0.0))
                parents.append(parent)
            parent = nodes[parent, token]
    return DraftTree(tokens, parents, scores)
