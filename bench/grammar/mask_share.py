"""Share of masks in the time of a step; one call for the whole batch compared with a call per row.

    python -P bench/grammar/mask_share.py [--repeat N] [--tokenizer FILE]

A step is one of the shipped model under a JSON schema, without jumps, masks included. Masks are those of outputs at
different places of the same object, over the shipped vocabulary and over that of FILE (default: 131k tokens). Medians
over steps; "first" is the mean of a grammar's first pass, when nothing is remembered. Prints Markdown.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import typer

from ramiform.bench.grammar.jump import PERSON, Bench, tasks
from ramiform.bench.grammar.tokens import find_tokenizer, load_tokens
from ramiform.bench.harness import TEKKEN, Repeat, TokenizerFile, report, table
from ramiform.constrained import JsonSchema, Matcher, Vocabulary, compile_constraint, fill_batch
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.scheduler.rows.sampling_inputs import token_mask
from ramiform.runtime.tokenizer import load_tokenizer

STRIDE = 7  # tokens between the places of a batch's rows
OBJECT = {
    "first_name": "Ada",
    "last_name": "Brown",
    "country_of_residence": "Portugal",
    "number_of_pets": 2,
    "subscribed_to_newsletter": True,
}


def places(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Matcher]:
    """Return a matcher before each of the tokens."""
    grammar = compile_constraint(JsonSchema(PERSON), vocabulary)
    matchers = []
    for place in range(len(ids)):
        matcher = grammar.matcher()
        assert all(matcher.accept(token) for token in ids[:place])
        matchers.append(matcher)
    return matchers


def steps(matchers: list[Matcher], batch: int) -> list[list[Matcher]]:
    return [
        [matchers[(place + STRIDE * row) % len(matchers)] for row in range(batch)] for place in range(len(matchers))
    ]


def row_by_row(rows: list[Matcher], vocab_size: int) -> float:
    began = time.perf_counter()
    for matcher in rows:
        token_mask(matcher, (), vocab_size)
    return time.perf_counter() - began


def at_once(rows: list[Matcher], out: np.ndarray[Any, np.dtype[np.int32]]) -> float:
    began = time.perf_counter()
    fill_batch(rows, out)
    return time.perf_counter() - began


def measure(vocabulary: Vocabulary, ids: Sequence[int], batch: int, repeat: int) -> tuple[float, float, float, float]:
    """Return the seconds of a step's masks: on the first pass row by row and at once, later row by row and at once."""
    size = len(vocabulary)
    out = np.zeros((batch, -(-size // 32)), np.int32)
    places(vocabulary, ids)  # what is the vocabulary's alone is made once
    first = statistics.mean(row_by_row(rows, size) for rows in steps(places(vocabulary, ids), batch))
    first_together = statistics.mean(at_once(rows, out) for rows in steps(places(vocabulary, ids), batch))
    matchers = steps(places(vocabulary, ids), batch)
    rows_by_row, all_at_once = [], []
    for _ in range(repeat + 1):
        rows_by_row += [row_by_row(rows, size) for rows in matchers]
        all_at_once += [at_once(rows, out) for rows in matchers]
    known = len(matchers)
    return first, first_together, statistics.median(rows_by_row[known:]), statistics.median(all_at_once[known:])


def main(repeat: Repeat = 20, tokenizer: TokenizerFile = TEKKEN) -> None:
    bench = Bench(None)
    text = json.dumps(OBJECT)
    shipped = load_tokenizer(SHIPPED_MODEL)
    large = load_tokens(find_tokenizer(tokenizer))
    vocabularies = {
        "shipped": (
            Vocabulary.from_tokens(shipped.token_bytes, shipped.eos_ids),
            shipped.encode(text, parse_special=False, continues=True),
        ),
        large.name: (Vocabulary.from_tokens(large.data, [large.eos]), large.encode(text)),
    }
    [person] = [task for task in tasks() if task.name.startswith("person")]
    rows: list[dict[str, Any]] = []
    for batch in (1, 8, 32, 64):
        bench.run(person, "any", False, batch)
        step = statistics.median(
            cost.seconds / cost.num_forwards for cost in (bench.run(person, "any", False, batch).cost for _ in range(5))
        )
        for name, (vocabulary, ids) in vocabularies.items():
            first, first_together, later, together = measure(vocabulary, ids, batch, repeat)
            rows.append(
                {
                    "vocabulary": f"{name}, {len(vocabulary):,}",
                    "batch": batch,
                    "step us": step * 1e6,
                    "masks us, first": first * 1e6,
                    "fill_batch us, first": first_together * 1e6,
                    "masks us": later * 1e6,
                    "% of a step": 100 * later / step,
                    "fill_batch us": together * 1e6,
                    "of it saved %": 100 * (1 - together / later),
                }
            )
    report("Masks in a step", table(rows))


if __name__ == "__main__":
    typer.run(main)
