"""N-gram drafts (Saxena 2023, prompt lookup decoding): the tokens that followed the last few tokens when they occurred
before."""

from __future__ import annotations

from collections.abc import Sequence

from .tree import DraftTree

MIN_MATCH, MAX_MATCH = 2, 5  # length of the n-grams
_LEVEL_LOGPROB = {2: -0.9, 3: -0.5, 4: -0.3, 5: -0.15}  # log-probability per draft token, by the length of the n-gram


class NgramIndex:
    """Index of the n-grams of one sequence, with their latest occurrences. Four entries per token."""

    def __init__(self, max_occurrences: int = 4) -> None:
        self._occurrences: dict[tuple[int, ...], list[int]] = {}  # n-gram -> its ends, the latest first
        self._max_occurrences = max_occurrences
        self._num_indexed = 0

    def propose(self, tokens: Sequence[int], *, steps: int, top_k: int, num_tokens: int) -> DraftTree | None:
        """Draft from the longest n-gram at the end of `tokens` that occurred before; None if there is none.

        The tree has at most `top_k` continuations of `steps` tokens, `num_tokens` in all. Between calls `tokens` may
        only grow.
        """
        self._index(tokens)
        for length in range(min(MAX_MATCH, len(tokens) - 1), MIN_MATCH - 1, -1):
            occurrences = self._occurrences.get(tuple(tokens[len(tokens) - length :]))
            if occurrences is not None:
                continuations = [tokens[end : end + steps] for end in occurrences[:top_k]]
                return _merge(continuations, _LEVEL_LOGPROB[length]).best(num_tokens)
        return None

    def _index(self, tokens: Sequence[int]) -> None:
        """Index up to the last token but one, after which there is a continuation."""
        for end in range(max(self._num_indexed, MIN_MATCH - 1) + 1, len(tokens)):
            for length in range(MIN_MATCH, min(MAX_MATCH, end) + 1):
                occurrences = self._occurrences.setdefault(tuple(tokens[end - length : end]), [])
                occurrences.insert(0, end)
                del occurrences[self._max_occurrences :]
            self._num_indexed = end


def _merge(continuations: Sequence[Sequence[int]], logprob: float) -> DraftTree:
    """Merge continuations, the latest first, into a trie with decreasing scores."""
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
                # A side branch is penalised once, where it leaves the others.
                scores.append((scores[parent] if parent >= 0 else 0.0) + logprob - (1.5 * rank if depth == 1 else 0.0))
                parents.append(parent)
            parent = nodes[parent, token]
    return DraftTree(tokens, parents, scores)
