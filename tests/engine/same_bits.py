"""One request computed in several ways, whose log-probabilities are compared bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ramiform.runtime.engine import ForwardEngine
from ramiform.runtime.scheduler.plan import DraftNode, ForwardPlan, Row, RowResult, Sample

SAMPLE = Sample(temperature=0.7, top_k=50, top_p=0.95, draw=11, num_top_logprobs=20)
PROMPT = random.Random(1).choices(range(150), k=45)
ANSWER = random.Random(2).choices(range(150), k=2)  # tokens put in as the answer instead of the sampled ones
PAGES = [3, 1, 4, 0, 5, 9, 2, 6]


class OtherRows:
    """Other rows of a step, of sizes that differ from step to step."""

    def __init__(self, seed: int, *, most: int = 5, longest: int = 41) -> None:
        self._draw, self._most = random.Random(seed), most
        self._lengths = [1, 1, 3, 20, longest]

    def rows(self) -> Iterator[Row]:
        for index in range(self._draw.randint(1, self._most)):
            ids = self._draw.choices(range(150), k=self._draw.choice(self._lengths))
            pages = list(range(10 + 3 * index, 13 + 3 * index))
            yield Row(rid=f"other {index}", tokens=ids, first_position=0, pages=pages, sample=SAMPLE)


def results_of(engine: ForwardEngine, chunks: list[int], other_rows: OtherRows | None = None) -> list[RowResult]:
    """Return the results after the prompt, which is cut into `chunks` and a rest, and after each token of the
    answer."""
    pieces, start = [], 0
    for size in [*chunks, len(PROMPT) - sum(chunks), *([1] * len(ANSWER))]:
        pieces.append((start, size))
        start += size
    ids = PROMPT + ANSWER
    results = []
    for step, (first, size) in enumerate(pieces):
        sample = SAMPLE if first + size >= len(PROMPT) else None
        mine = Row(rid="mine", tokens=ids[first : first + size], first_position=first, pages=PAGES, sample=sample)
        others = [] if other_rows is None else list(other_rows.rows())
        rows = [*others[:2], mine, *others[2:]]
        result = engine.run(ForwardPlan(step=step, copies=[], rows=rows)).rows[rows.index(mine)]
        if sample is not None:
            results.append(result)
    return results


def check_same_bits(engine: ForwardEngine, *, briefly: bool = False) -> None:
    """Compare the ways of computing the request; `briefly` runs one of each kind, with few and short other rows."""
    alone = results_of(engine, [])
    assert len(alone) == 1 + len(ANSWER)
    other_rows = OtherRows(1, most=2, longest=9) if briefly else OtherRows(1)
    assert results_of(engine, [7, 21], other_rows) == alone
    assert results_of(engine, [44])[:1] == alone[:1]  # as on a warm cache: only the last token is computed
    if briefly:
        return
    assert results_of(engine, [3, 16, 24]) == alone
    assert results_of(engine, [32, 1], OtherRows(2)) == alone
    assert _with_draft_tokens(engine) == alone


def _with_draft_tokens(engine: ForwardEngine) -> list[RowResult]:
    """Return the results with each token of the answer as a draft token among wrong ones, in a step of its own."""
    results = results_of(engine, [30])[:1]
    for index, token in enumerate(ANSWER):
        ids = (PROMPT + ANSWER)[: len(PROMPT) + index]
        wrong = (token + 1) % 150
        row = Row(
            rid="mine",
            tokens=[ids[-1], wrong, token, wrong],
            first_position=len(ids) - 1,
            pages=PAGES,
            sample=SAMPLE,
            parents=[-1, -1, 1],
            nodes=[DraftNode(draw=SAMPLE.draw)] * 3,
        )
        [root] = engine.run(ForwardPlan(step=0, copies=[], rows=[row])).rows
        assert root.logprobs[0] == results[-1].logprobs[0]
        after = Row(rid="mine", tokens=[token], first_position=len(ids), pages=PAGES, sample=SAMPLE)
        results += engine.run(ForwardPlan(step=0, copies=[], rows=[after])).rows
    return results
