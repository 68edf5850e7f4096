"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the model proposes its own n-grams.

Beside the tokens to verify, a step computes a window of guesses: W columns, the tokens after the text, and up to N - 1
levels, each what the model said after the one before (a Jacobi iteration). A column read down its levels, with what
the model says after the last one, is an n-gram; a pool keeps them by their first token. Those that begin with the
text's last token are verified.

Both parts are one tree of draft tokens: level 0 is a chain, and the further levels of a column hang below its token
there. So what is right of it is accepted too, and no step computes anything but a tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .tree import DraftTree

MAX_LEVELS = 4  # of the window; n-grams are one token longer
MAX_NGRAMS = 8192  # in a pool
_LEVEL_LOGPROB = -0.6  # of each token of an n-gram, roughly
RANK_LOGPROB = -0.4  # of each n-gram that was seen later
WINDOW_LOGPROB = -12.0  # of the window's tokens, which are rarely right


class Lookahead:
    """Window and pool of one sequence."""

    def __init__(self, tokens: Sequence[int], *, steps: int, num_tokens: int) -> None:
        """`tokens` is the prompt. A tree is at most `steps` deep behind a column, and has at most `num_tokens` nodes:
        half of them are the window."""
        self._num_levels = min(steps, MAX_LEVELS)
        self._width = max(1, num_tokens // (2 * self._num_levels))
        self._levels = [_last(tokens, self._width)]
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}  # first token -> what followed it, the newest last
        self._num_pooled = 0
        self._num_read = 0  # tokens of the text whose n-grams are in the pool

    def propose(self, tokens: Sequence[int], *, top_k: int, num_tokens: int) -> DraftTree:
        """Return the tree for the text `tokens`: at most `top_k` n-grams of the pool, then the window."""
        self._read(tokens)
        tree = _Trie()
        ngrams = list(self._pool.get(tokens[-1], ()))[: -1 - top_k : -1]
        for rank, ngram in enumerate(ngrams):
            tree.insert(ngram, RANK_LOGPROB * rank, _LEVEL_LOGPROB)
        for path in self._paths():
            tree.insert(path, WINDOW_LOGPROB, _LEVEL_LOGPROB)
        return DraftTree(tree.tokens, tree.parents, tree.scores).best(num_tokens)

    def observe(
        self, tokens: Sequence[int], num_new: int, draft: Sequence[int], parents: Sequence[int], after: Sequence[int]
    ) -> None:
        """Advance the window by what the model said after each node of a verified tree, `after` (negative: nothing).

        `draft` and `parents` are the tree; `num_new` tokens of the text are new.
        """
        nodes = dict(zip(zip(parents, draft, strict=True), range(len(draft)), strict=True))
        said: list[int] = []
        for path in self._paths():
            node: int | None = -1
            for token in path:
                node = None if node is None else nodes.get((node, token))
            if node is None or after[node] < 0:
                said.append(_last(tokens, 1)[0])  # it was not computed: start again from some token of the text
                continue
            said.append(after[node])
            column = len(said) - 1
            if len(self._levels) == self._num_levels:
                self._add((*(level[column] for level in self._levels), after[node]))
        self._levels.append(said)
        num_gone = num_new
        if len(self._levels) > self._num_levels:
            del self._levels[0]
            num_gone -= 1  # the next level begins one place later
        fresh = _last(tokens, self._width)
        self._levels = [[*level, *fresh][min(num_gone, self._width) :][: self._width] for level in self._levels]

    def _paths(self) -> Iterator[list[int]]:
        """Yield for each column the tokens from the text's end to its last level."""
        for column in range(self._width):
            yield self._levels[0][: column + 1] + [level[column] for level in self._levels[1:]]

    def _read(self, tokens: Sequence[int]) -> None:
        """Add the n-grams of the text that are new."""
        size = self._num_levels + 1
        for end in range(max(size, self._num_read + 1, len(tokens) - MAX_NGRAMS), len(tokens) + 1):
            self._add(tuple(tokens[end - size : end]))
        self._num_read = len(tokens)

    def _add(self, ngram: tuple[int, ...]) -> None:
        first, rest = ngram[0], ngram[1:]
        known = self._pool.setdefault(first, {})
        if rest in known:
            del known[rest]
            self._num_pooled -= 1
        known[rest] = None
        self._num_pooled += 1
        while self._num_pooled > MAX_NGRAMS:  # the token that came first loses its oldest
            oldest = next(iter(self._pool))
            self._num_pooled -= len(self._pool.pop(oldest))


class _Trie:
    """Paths of tokens, merged."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def insert(self, path: Sequence[int], first_score: float, each_score: float) -> None:
        parent, score = -1, first_score
        for token in path:
            score += each_score
            if (parent, token) not in self._nodes:
                self._nodes[parent, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
                self.scores.append(score)
            parent = self._nodes[parent, token]
            score = min(score, self.scores[parent])


def _last(tokens: Sequence[int], count: int) -> list[int]:
    """Return the last `count` tokens, again from the last one if there are not so many."""
    return [tokens[-1 - place % len(tokens)] for place in range(count)][::-1]
