"""Speculation against plain decoding, in one run: tokens of a pass of the model, and tokens a second.

    python -P bench/speculation.py [MODEL] [--sources off,ngram,eagle] [--draft-model PATH] [--batches 1,4,16]

Three kinds of text on the model that ships: free text, JSON under a schema, ReAct steps. One runtime for each source;
the rounds go through them in turn, so that whatever else the machine does meets all alike. A ratio is the median,
over rounds, of a source's tokens a second over plain decoding's in the same round.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import httpx
import typer

import ramify
from ramify.bench.report import table

NAMES = ["Ada Brook", "Tom Field", "Nina Alder", "Otis Lake", "Ruth Stone", "Karl Moor", "Lena Hill", "Igor Reed"]
TOWNS = ["Lisbon", "Oslo", "Rome", "Paris", "Vienna", "Madrid", "Athens", "Dublin"]
COUNTRIES = ["France", "Japan", "Spain", "Italy", "Norway", "Kenya", "Peru", "Greece"]
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
REACT = (
    "Answer the question in steps. Use lookup[name] to look something up, calculate(expression) for arithmetic "
    "and finish[answer] to end.\n\nQuestion: What is the capital of {0}?\n"
    "Thought 1: I need to look up {0}.\nAction 1: lookup[{0}]\n"
    "Observation 1: {0} is a country. Its capital is {1}, and many people live there.\n"
)


@dataclass(frozen=True)
class Round:
    """One round of one source: output tokens, passes of the model, seconds."""

    num_tokens: int
    num_passes: int
    seconds: float

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds


def bodies(kind: str, temperature: float, size: int) -> Iterator[dict[str, Any]]:
    """`size` requests of a kind, each with a seed of its own."""
    for index in range(size):
        name, town, country = NAMES[index % 8], TOWNS[index // 2 % 8], COUNTRIES[index * 3 % 8]
        params: dict[str, Any] = {"temperature": temperature, "sampling_seed": index, "max_new_tokens": 64}
        match kind:
            case "free":
                text = f"Question: What is the capital of {country}?\nAnswer:"
                params["ignore_eos"] = True
            case "json":
                text = f"Text: {name} is {20 + index} years old and lives in {town}.\nJSON:"
                params["json_schema"] = json.dumps(RECORD)
            case _:
                text = REACT.format(country, town)
                params["ignore_eos"] = True
        yield {"text": text, "sampling_params": params}


def play(client: httpx.Client, requests: list[dict[str, Any]], batch: int) -> Round:
    """All requests, `batch` at a time."""

    def send(body: dict[str, Any]) -> dict[str, Any]:
        answer = client.post("/generate", json=body)
        answer.raise_for_status()
        meta: dict[str, Any] = answer.json()["meta_info"]
        return meta

    began = time.perf_counter()
    with ThreadPoolExecutor(batch) as pool:
        metas = list(pool.map(send, requests))
    seconds = time.perf_counter() - began
    return Round(
        sum(meta["completion_tokens"] for meta in metas), sum(meta["spec_verify_ct"] for meta in metas), seconds
    )


def main(
    model: Annotated[str | None, typer.Argument(help="A checkpoint; default: the model that ships.")] = None,
    sources: Annotated[str, typer.Option(help="Who guesses, with commas; off is the baseline.")] = "off,ngram",
    draft_model: Annotated[str | None, typer.Option(help="For the source draft.")] = None,
    batches: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,4,16",
    kinds: Annotated[str, typer.Option(help="Of text, with commas.")] = "free,json,react",
    rounds: Annotated[int, typer.Option(help="Of each cell, after one to warm up.")] = 5,
    size: Annotated[int, typer.Option(help="Requests in a round, at least.")] = 8,
    steps: Annotated[int, typer.Option(help="--speculative-num-steps")] = 5,
    tokens: Annotated[int, typer.Option(help="--speculative-num-draft-tokens")] = 8,
    adaptive: Annotated[bool, typer.Option(help="--speculative-adaptive")] = True,
) -> None:
    """Print a table: for every kind, temperature and batch, tau and the ratio of tokens a second."""
    names = sources.split(",")
    with ExitStack() as stack:
        clients = {}
        for name in names:
            settings: dict[str, Any] = {"speculative": name}
            if name != "off":
                settings |= {
                    "speculative_num_steps": steps,
                    "speculative_num_draft_tokens": tokens,
                    "speculative_adaptive": adaptive,
                }
            if name == "draft":
                settings["speculative_draft_model"] = draft_model
            runtime = stack.enter_context(ramify.Runtime(model, port=0, **settings))
            assert runtime.url is not None
            clients[name] = stack.enter_context(httpx.Client(base_url=runtime.url, timeout=600))
        rows = []
        for kind, temperature, batch in product(kinds.split(","), (0.0, 1.0), map(int, batches.split(","))):
            requests = list(bodies(kind, temperature, max(size, 2 * batch)))
            played: dict[str, list[Round]] = {name: [] for name in names}
            for _ in range(rounds + 1):
                for name in names:
                    played[name].append(play(clients[name], requests, batch))
            row: dict[str, Any] = {"text": kind, "T": f"{temperature:g}", "batch": batch}
            row["plain tok/s"] = statistics.median(r.speed for r in played["off"][1:])
            for name in names[1:]:
                own = played[name][1:]
                row[f"{name} tau"] = sum(r.num_tokens for r in own) / sum(r.num_passes for r in own)
                ratios = [r.speed / plain.speed for r, plain in zip(own, played["off"][1:], strict=True)]
                row[f"{name} speed"] = statistics.median(ratios)
            rows.append(row)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print()
    print(table(rows))


if __name__ == "__main__":
    typer.run(main)
