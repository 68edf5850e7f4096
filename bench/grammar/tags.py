"""Time to compile structural tags that each have a schema of their own.

    python -P bench/grammar/tags.py [--repeat 5] [--out FILE]

Plain schemas are worked out where a text reaches them; beside them are the same with `minProperties`, which are checked
for texts at once, as all were. Seconds of the processor, over a vocabulary of bytes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import typer

from ramiform.bench.harness import Out, Repeat, report, table
from ramiform.constrained import StructuralTag, Vocabulary, compile_constraint

NUMBERS = (1000, 2000, 5000)


def tags(number: int, **keywords: Any) -> StructuralTag:
    """Return tags whose schemas name other members each."""
    structures = [
        {
            "begin": f"<f={index}>",
            "schema": {
                "type": "object",
                "properties": {f"a{index}": {"type": "integer"}, "b": {"type": "string"}},
                "required": [f"a{index}"],
                **keywords,
            },
            "end": "</f>",
        }
        for index in range(number)
    ]
    return StructuralTag({"structures": structures, "triggers": ["<f="]})


def seconds(tag: StructuralTag, vocabulary: Vocabulary) -> float:
    begin = time.process_time()
    compile_constraint(tag, vocabulary)
    return time.process_time() - begin


def main(repeat: Repeat = 5, out: Out = None) -> None:
    vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])
    seconds(tags(10), vocabulary)  # what the first of a process prepares
    rows = []
    for number in NUMBERS:
        ways = (tags(number), tags(number, minProperties=1))
        rounds = [[seconds(way, vocabulary) for way in ways] for _ in range(repeat)]
        later, at_once = (statistics.median(column) for column in zip(*rounds, strict=True))
        rows.append({"tags": number, "where reached, s": later, "at once, s": at_once, "ratio": later / at_once})
    report("Structural tags with a schema each", table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
