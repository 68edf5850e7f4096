"""Writes what llama.cpp's samplers leave of random logits: `python -P write_samplers.py LIBRARY`, as `write.py` has it.

The samplers come in llama-server's order. XTC draws by its own generator, so its share of 1,000 seeds is written.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from judge import LlamaCpp

OUT = Path(__file__).parent / "data/samplers.json"
NUM_SEEDS = 1_000


def main(library: str) -> None:
    judge, draw = LlamaCpp(Path(library)), random.Random(1)
    rows = [row(judge, draw, number) for number in range(160)]
    OUT.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def row(judge: LlamaCpp, draw: random.Random, number: int) -> dict[str, Any]:
    """Return logits, parameters, the probabilities with XTC's action and without it, and how often it acted."""
    logits = [round(draw.gauss(0, draw.choice([1, 2.5])), 3) for _ in range(draw.randint(2, 24))]
    asked: dict[str, Any] = {"temperature": 1.0}
    if number % 2:
        asked["typical_p"] = draw.choice([0.1, 0.5, 0.9, 0.95])
    if number % 3 == 0:
        asked |= {"xtc_probability": draw.choice([0.2, 0.7, 1.0]), "xtc_threshold": draw.choice([0.02, 0.1, 0.3, 0.6])}
    if number % 5 == 0:
        asked |= {"temperature": draw.choice([0.3, 1.0, 2.0]), "dynatemp_range": draw.choice([0.2, 0.9])}
        asked["dynatemp_exponent"] = draw.choice([0.5, 1.0, 2.0])
    if number % 4 == 1:
        asked |= draw.choice([{"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 12, "min_p": 0.05}])
    found: dict[str, Any] = {"logits": logits, "asked": asked}
    found["expected"] = judge.drawn_from(logits, chain(asked, 0.0, 0))
    if "xtc_probability" in asked:
        found["expected_with_xtc"] = judge.drawn_from(logits, chain(asked, 1.0, 0))
        every = [judge.drawn_from(logits, chain(asked, asked["xtc_probability"], seed)) for seed in range(NUM_SEEDS)]
        found["share"] = sum(each == found["expected_with_xtc"] for each in every) / NUM_SEEDS
    return found


def chain(asked: dict[str, Any], xtc_probability: float, seed: int) -> list[tuple[str, list[float]]]:
    """Return the samplers of llama-server that act, in its order."""
    asked = {"dynatemp_range": 0.0, "dynatemp_exponent": 1.0} | asked
    steps: list[tuple[str, list[float]]] = []
    if "top_k" in asked:
        steps.append(("top_k", [asked["top_k"]]))
    if "typical_p" in asked:
        steps.append(("typical", [asked["typical_p"], 0]))
    if "top_p" in asked:
        steps.append(("top_p", [asked["top_p"], 0]))
    if "min_p" in asked:
        steps.append(("min_p", [asked["min_p"], 0]))
    if "xtc_threshold" in asked:
        steps.append(("xtc", [xtc_probability, asked["xtc_threshold"], 0, seed]))
    return [*steps, ("temp_ext", [asked["temperature"], asked["dynatemp_range"], asked["dynatemp_exponent"]])]


if __name__ == "__main__":
    main(*sys.argv[1:])
