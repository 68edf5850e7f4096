"""Memory and speed of one grammar over very many outputs.

    python -P bench/grammar_soak.py [--outputs 100000] [--name 2core-cpu_202611]

An object of twenty optional members, each with a pattern of its own, in any order: every output brings states that no
output before it had. Outputs are random walks over a small vocabulary, each token drawn from the mask. Nothing may
fail, and no mask may be empty. Prints Markdown: a row every --every outputs.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ramiform.bench.harness import table, write
from ramiform.constrained import CompiledGrammar, JsonSchema, Vocabulary, compile_constraint

RESULTS = Path(__file__).parent / "results"
NAMES = [f"member_{number}" for number in range(20)]
SCHEMA = {
    "type": "object",
    "properties": {
        name: {"type": "string", "pattern": f"^[a-h]{{{1 + number % 3},{4 + number % 5}}}[x-z]$"}
        for number, name in enumerate(NAMES)
    },
    "additionalProperties": False,
}
PIECES = ['{"member_', '","member_', '":"', '"}', *(str(number) for number in range(20))]
TOKENS = [*(bytes([byte]) for byte in range(32, 127)), *(piece.encode() for piece in PIECES)]
END = len(TOKENS)
MIN_MEMBERS = 8  # before an output may end


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def walk(grammar: CompiledGrammar, rng: random.Random, out: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[bytes, int]:
    """Write one output; return it with the number of its tokens."""
    matcher, text, num_tokens = grammar.matcher(), b"", 0
    while True:
        matcher.mask(out)
        tokens = np.flatnonzero(np.unpackbits(out.view(np.uint8), bitorder="little")).tolist()
        assert tokens, f"no token may follow {text!r}"
        going_on = [token for token in tokens if token == END or b"}" not in TOKENS[token]]
        ends_late = text.count(b":") < MIN_MEMBERS and going_on
        # Long tokens are preferred, as a model would.
        token = max(rng.sample(going_on if ends_late else tokens, 1) + rng.sample(tokens, 1), key=lambda t: _length(t))
        if ends_late and token not in going_on:
            token = rng.choice(going_on)
        assert matcher.accept(token)
        num_tokens += 1
        if token == END:
            return text, num_tokens
        text += TOKENS[token]


def _length(token: int) -> int:
    return 0 if token == END else len(TOKENS[token])


def main(
    outputs: Annotated[int, typer.Option(help="number of outputs")] = 100_000,
    every: Annotated[int, typer.Option(help="outputs from one row to the next")] = 5_000,
    name: Annotated[str | None, typer.Option(help="write bench/results/grammar_soak_NAME.md")] = None,
) -> None:
    vocabulary = Vocabulary.from_tokens([*TOKENS, None], [END])
    grammar = compile_constraint(JsonSchema(SCHEMA), vocabulary)
    out, rng, rows = np.zeros(vocabulary.num_words, np.int32), random.Random(18), []
    num_members = num_tokens = 0
    began = time.perf_counter()
    for number in range(1, outputs + 1):
        text, length = walk(grammar, rng, out)
        members = json.loads(text)
        assert members.keys() <= set(NAMES)
        num_members += len(members)
        num_tokens += length
        if number % every == 0:
            seconds, began = time.perf_counter() - began, time.perf_counter()
            rows.append(
                {
                    "outputs": number,
                    "RSS MiB": resident_mib(),
                    "estimate MiB": grammar.num_bytes / 2**20,
                    "states now": grammar.generation.automaton.tables.num_states,
                    "renewals": grammar.num_renewals,
                    "members each": num_members / every,
                    "us a token": seconds / num_tokens * 1e6,
                }
            )
            num_members = num_tokens = 0
            print(rows[-1], flush=True)
    text = f"`python -P bench/grammar_soak.py --outputs {outputs}`\n\n{table(rows)}"
    write(text, None if name is None else RESULTS / f"grammar_soak_{name}.md")


if __name__ == "__main__":
    typer.run(main)
