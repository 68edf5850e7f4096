"""Writes prompts and answers of the generated corpus, for `ramiform train-draft`.

    python examples/demo_model/draft_data.py --count 110000 --out train.jsonl
    python examples/demo_model/draft_data.py --count 400 --held-out --seed 91 --out held_out.jsonl

One JSON object a line: {"prompt", "completion", "set"}, the set being the skill. Of the training cases those are kept
whose answers are long enough to be worth drafting, and some of the others.

`--running N` adds N lines {"text", "set"} of whole documents one after the other, which is what the model says when
nothing ends its answer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from ramiform.examples.demo_model.corpus.case import BOS, EOS, Case
from ramiform.examples.demo_model.corpus.mix import SKILLS, WEAK_SHARES, cases, cases_of

RUNNING = 1500


def chosen(count: int, seed: int, held_out: bool) -> Iterator[Case]:
    """Select cases: training cases in the shares of the model's last stage, or held-out cases of every skill alike.

    Held-out cases leave out long texts, which the model itself cannot do.
    """
    if not held_out:
        draw = random.Random(seed)
        return (case for case in itertools.islice(cases(seed, WEAK_SHARES, wide=True), count) if useful(case, draw))
    skills = [skill for skill in SKILLS if skill != "long"]
    return itertools.chain.from_iterable(cases_of(skill, seed, count // len(skills)) for skill in skills)


def running(count: int, seed: int) -> Iterator[str]:
    """Return training documents packed as for the model's own training, about `RUNNING` characters at a time."""
    documents = (case.document for case in cases(seed, WEAK_SHARES, wide=True))
    for _ in range(count):
        text = ""
        while len(text) < RUNNING:
            text += next(documents)
        yield text


def useful(case: Case, draw: random.Random) -> bool:
    prompt, answer = len(case.prompt), len(case.answer)
    return (answer >= 50 and answer >= 0.22 * prompt) or (prompt < 500 and draw.random() < 0.12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=110000, help="cases drawn")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--held-out", action="store_true", help="names, numbers and wordings that training never saw")
    parser.add_argument("--running", type=int, default=0, help="texts of several documents")
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") as out:
        for case in chosen(options.count, options.seed, options.held_out):
            line = {"prompt": BOS + case.prompt, "completion": case.answer + case.stop + EOS, "set": case.skill}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
        for text in running(options.running, options.seed + 1):
            out.write(json.dumps({"text": text, "set": "running"}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
