"""Breakdown of the time of masks: cached masks, computed states, walks and garbage collection.

The tables are for all masks, and for the slowest in a hundred and in a thousand.

    python -P bench/grammar/causes.py FOLDER [--tokenizer FILE] [--sample 200]

CPU time of this thread. Taking the time of each state made costs some, so the sums are a little more than the masks of
`bench/grammar/compare.py`, which says how long these take.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import typer

from ramiform.bench.grammar.cases import load_cases
from ramiform.bench.grammar.tokens import find_tokenizer, load_tokens
from ramiform.bench.harness import TEKKEN, CasesFolder, Sample, TokenizerFile, table
from ramiform.constrained import CompiledGrammar, GrammarError, JsonSchema, Vocabulary, compile_constraint
from ramiform.constrained.automaton.automaton import Automaton
from ramiform.constrained.automaton.masks import TokenWalker

clock = time.thread_time_ns


class Mask(msgspec.Struct):
    """Microseconds of one mask: in total, for each state that was computed, and in garbage collection."""

    whole: float = 0.0
    made: list[tuple[str, float]] = []
    garbage: float = 0.0
    is_remembered: bool = True

    @property
    def walked(self) -> float:
        """Time of the walk and of the calls around it."""
        return self.whole - sum(took for _, took in self.made)


class Recorder:
    """Measures the parts of masks by wrapping the functions that compute them."""

    def __init__(self) -> None:
        self.now = Mask()
        self._depth, self._began = 0, 0
        fill, follow, compute = Automaton.fill, Automaton.follow, TokenWalker.compute
        timed_fill, timed_follow = self._timed(fill), self._timed(follow)

        def noted_compute(walker: TokenWalker, *arguments: Any) -> Any:
            self.now.is_remembered = False
            return compute(walker, *arguments)

        replaced: Any = Automaton
        replaced.fill, replaced.follow = timed_fill, timed_follow
        walkers: Any = TokenWalker
        walkers.compute = noted_compute
        gc.callbacks.append(self._collect)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(automaton: Automaton, number: int, *arguments: Any) -> Any:
            self._depth += 1
            first = clock()
            try:
                return function(automaton, number, *arguments)
            finally:
                self._depth -= 1
                if self._depth == 0:  # nested states count for the outer one
                    value = automaton._values[number]
                    name = f"{type(value).__name__} {getattr(value, 'phase', '')}".strip()
                    self.now.made.append((name, (clock() - first) / 1000))

        return timed

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = clock()
        else:
            self.now.garbage += (clock() - self._began) / 1000


def main(folder: CasesFolder, tokenizer: TokenizerFile = TEKKEN, sample: Sample = None) -> None:
    tokens = load_tokens(find_tokenizer(tokenizer))
    vocabulary = Vocabulary.from_tokens(tokens.data, [tokens.eos])
    recorder, masks, out = Recorder(), list[Mask](), np.zeros(vocabulary.num_words, np.int32)
    gc.collect()
    gc.freeze()

    def follow(grammar: CompiledGrammar, text: str) -> None:
        matcher = grammar.matcher()
        for token in tokens.encode(text):
            mask = recorder.now = Mask(made=[])
            first = clock()
            matcher.mask(out)
            mask.whole = (clock() - first) / 1000
            masks.append(mask)
            if not matcher.accept(token):
                return

    for case in load_cases(folder, sample=sample):
        try:
            grammar = compile_constraint(JsonSchema(case.schema), vocabulary, whitespace="any")
            grammar.matcher().mask(out)
        except GrammarError:
            continue
        for instance in case.instances:
            follow(grammar, instance.text("any"))
    times = np.array([mask.whole for mask in masks])
    slowest = {"all": 0.0, "slowest 1 %": np.percentile(times, 99), "0.1 %": np.percentile(times, 99.9)}
    for title, least in slowest.items():
        print(_shares(title, [mask for mask in masks if mask.whole >= least]))


def _shares(title: str, masks: list[Mask]) -> str:
    """Format the table of a set of masks."""
    whole = sum(mask.whole for mask in masks)
    rows: dict[str, list[float]] = defaultdict(list)
    for mask in masks:
        if mask.is_remembered:
            rows["*remembered*"].append(mask.whole)
            continue
        rows["*walk*"].append(mask.walked)
        for name, took in mask.made:
            rows[name].append(took)
        if mask.garbage:
            rows["*garbage, in any of these*"].append(mask.garbage)
    shown = [
        {
            "part": name,
            "share %": 100 * sum(took) / whole,
            "number": len(took),
            "us on average": sum(took) / len(took),
            "p50": float(np.percentile(took, 50)),
            "p99": float(np.percentile(took, 99)),
        }
        for name, took in sorted(rows.items(), key=lambda row: -sum(row[1]))
    ]
    return f"\n{title}: {len(masks)} masks, {whole / len(masks):.1f} us on average\n\n{table(shown)}"


if __name__ == "__main__":
    typer.run(main)
