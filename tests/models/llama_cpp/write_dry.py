"""Writes what llama.cpp's DRY sampler subtracts: `python -P write_dry.py LIBRARY`, as `write.py` has it.

The vocabulary is that of `write_pre.py`, whose tokens hold and cut sequence breakers.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from judge import LlamaCpp
from write_pre import OUT, TEXTS, write_model

PRE = "llama-bpe"
BREAKERS = [
    ["\n", ":", '"', "*"],
    [],
    [" the", "x ** 2", "fox"],
    ["é", "東京", "—"],
    ["\n\n", "tag attr='v'", "ouble  sp", "dogs. It's o'clock"],
    ["aa", "a", "ab"],
]


def main(library: str) -> None:
    model = json.loads(OUT.read_text("utf-8"))
    judge, draw, asked = LlamaCpp(Path(library)), random.Random(1), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_model(path, PRE, model["tokens"], model["merges"])
        for number in range(180):
            asked.append(question(draw, judge, path, number))
        expected = judge.dry(path, asked)
    rows = [own | {"losses": sorted(losses.items())} for own, losses in zip(asked, expected, strict=True)]
    OUT.with_name("dry.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def question(draw: random.Random, judge: LlamaCpp, path: Path, number: int) -> dict[str, Any]:
    """Return tokens that repeat, and parameters."""
    if number % 3:
        [ids] = judge.tokenize(path, [" ".join(draw.choices(TEXTS[:2] + TEXTS[4:], k=2))])
        parts = [ids[at : at + draw.randint(2, 12)] for at in draw.choices(range(len(ids)), k=9)]
        tokens = [token for part in parts for token in part] + parts[draw.randrange(9)]
    else:
        letters, whole = judge.tokenize(path, ["abcx", "aab a"])
        tokens = draw.choices([*letters, *whole], k=draw.randrange(1, 60))
    return {
        "tokens": tokens,
        "dry_multiplier": draw.choice([0.5, 0.8, 3.0]),
        "dry_base": draw.choice([1.0, 1.75, 4.0]),
        "dry_allowed_length": draw.choice([0, 1, 2, 3]),
        "dry_penalty_last_n": draw.choice([-1, -1, 40, 9]),
        "dry_sequence_breakers": BREAKERS[number % len(BREAKERS)],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
