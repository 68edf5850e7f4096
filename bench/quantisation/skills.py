"""Right answers of the shipped model with quantised layers, case by case beside the dense model's.

The cases are those of `examples/demo_model/evaluate.py`,
held out from training, and every kind of weights gets the same ones: what counts is how many *change*, which few
hundred answers show much more finely than two shares of right ones taken apart would.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ramiform.bench.in_process import play
from ramiform.examples.demo_model import evaluate
from ramiform.examples.demo_model.corpus.mix import SKILLS, cases, cases_of
from ramiform.runtime.core.main import LoadedCore
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams

SEED = 31
Answers = dict[str, list[bool]]  # by skill: whether each case is right
Rows = list[tuple[str, list[str]]]  # a cell for each kind


def held_out_tokens(num_documents: int) -> list[int]:
    """Return the tokens of documents that the model was not trained on."""
    encode = evaluate.AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode
    documents = itertools.islice(cases(SEED, held_out=True, wide=True), num_documents)
    return [token for case in documents for token in encode(case.document, add_special_tokens=False)]


class Greedy(evaluate.Greedy):
    """The evaluation's generator, with our engine and scheduler in the place of transformers."""

    def __init__(self, core: LoadedCore) -> None:
        self.core = core
        self.tokenizer = evaluate.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
        self.ends = self.tokenizer.convert_tokens_to_ids([evaluate.EOS, evaluate.END])
        self.newline = self.tokenizer.encode("\n", add_special_tokens=False)[0]

    def __call__(self, prompts: list[str], one_line: bool, max_tokens: int = 160) -> list[str]:
        ends = (*self.ends, self.newline) if one_line else tuple(self.ends)
        sampling = SamplingParams(
            max_new_tokens=max_tokens, temperature=0.0, ignore_eos=True, seed=0, stop_token_ids=ends
        )
        prompt_ids = [self.tokenizer.encode(prompt, add_special_tokens=True) for prompt in prompts]
        requests = [Generate(rid=str(index), tokens=ids, sampling=sampling) for index, ids in enumerate(prompt_ids)]
        outputs, _ = play(self.core.engine, self.core.scheduler, requests)
        return [
            self.tokenizer.decode(
                list(itertools.takewhile(lambda i: i not in ends, found.ids)), skip_special_tokens=True
            )
            for found in outputs.values()
        ]


def answers(core: LoadedCore, num_cases: int) -> Answers:
    generate = Greedy(core)
    found = {}
    for skill in SKILLS:
        judge = evaluate.right_traces if skill == "react" else evaluate.right_answers
        found[skill] = judge(generate, cases_of(skill, SEED, num_cases))
    return found


@dataclass(frozen=True)
class Change:
    """Difference between the dense model's answers and another's, over the same cases."""

    lost: int  # right there, wrong here
    won: int
    cases: int

    @property
    def points(self) -> float:
        return 100 * (self.won - self.lost) / self.cases

    @property
    def margin(self) -> float:
        """Half the 95 % interval of `points`, in points: McNemar's, with the normal approximation."""
        share = (self.won - self.lost) / self.cases
        return 196 * math.sqrt(max(0.0, (self.won + self.lost) / self.cases - share**2) / self.cases)


def change(dense: list[bool], other: list[bool]) -> Change:
    pairs = list(zip(dense, other, strict=True))
    return Change(lost=pairs.count((True, False)), won=pairs.count((False, True)), cases=len(pairs))


def skill_rows(by_kind: dict[str, Answers], baseline: str) -> Rows:
    """A row per skill and one of all: the baseline's share of right answers, and what changes for the others."""

    def cells(of: dict[str, list[bool]]) -> list[str]:
        dense = of[baseline]
        shown = []
        for kind, right in of.items():
            if kind == baseline:
                shown.append(f"{100 * sum(right) / len(right):.2f} %")
            else:
                found = change(dense, right)
                shown.append(f"{found.points:+.2f} ± {found.margin:.2f} (-{found.lost} +{found.won})")
        return shown

    every = {kind: list(itertools.chain(*found.values())) for kind, found in by_kind.items()}
    rows = [("right, all skills", cells(every))]
    for skill in by_kind[baseline]:
        rows.append((f"- {skill}", cells({kind: found[skill] for kind, found in by_kind.items()})))
    return rows
