"""Speculation against plain decoding, in one run: tokens of a pass of the model, and tokens a second.

    python -P bench/speculation/sources.py [MODEL] [--sources off,suffix,lookahead,eagle,medusa] [--medusa HEADS]

The skills of the model that ships: extraction, JSON under a schema, tool calls, ReAct steps, chat, free text; and texts
of agents, which repeat themselves: ReAct loops, records one after the other, edits of code. The defaults take about
five minutes. Each round has texts of its own, so that earlier outputs are like later ones and not the same; with
`--no-fresh` all rounds are equal. One runtime for each source; the rounds go through them in turn, so that whatever
else the machine does meets all alike. A ratio is the median, over rounds, of a source's tokens a second over plain
decoding's in the same round.

`--random HIDDENxLAYERS` makes a random bfloat16 checkpoint of Qwen2's shape instead (896x24 is that of 0.5B), whose
greedy text repeats itself: what n-grams are worth to a larger model.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import typer

import ramiform
from ramiform.bench.harness import Batches, Model, interleaved, median_ratio, numbers, report, table
from ramiform.bench.random_models import qwen2_shaped

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
    "and finish[answer] to end.\n\nQuestion: What is the capital of {country}?\n"
    "Thought 1: I need to look up {country}.\nAction 1: lookup[{country}]\n"
    "Observation 1: {country} is a country. Its capital is {town}, and many people live there.\n"
)
TOOLS = (
    '<|system|>\nTools:\n{{"name": "get_weather", "description": "Weather of a city", "parameters": '
    '{{"city": "string"}}}}<|end|>\n<|user|>\nWhat is the weather in {town}?<|end|>\n<|assistant|>\n'
)
CHAT = "<|user|>\nWhat is the capital of {country}?<|end|>\n<|assistant|>\n"
EXTRACT = "Text: {name} is {age} years old and lives in {town}.\nJSON:"
FREE = "Question: What is the capital of {country}?\nAnswer:"
# Agents repeat themselves: steps in one form, records in one shape, code with a change.
LOOP = REACT + (
    "Thought 2: I have found the capital of {country}.\nAction 2: finish[{town}]\n\n"
    "Question: What is the capital of {other}?\nThought 1: I need to look up {other}.\nAction 1: lookup[{other}]\n"
    "Observation 1: {other} is a country. Its capital is {town}, and many people live there.\n"
)
RECORDS = (
    'Text: {name} is {age} years old and lives in {town}.\nJSON: {{"name": "{name}", "age": {age}, "city": "{town}"}}\n'
    "Text: {friend} is {older} years old and lives in {town}.\n"
    'JSON: {{"name": "{friend}", "age": {older}, "city": "{town}"}}\n'
    "Text: {name} is {older} years old and lives in {town}.\nJSON:"
)
EDIT = (
    "def total(prices):\n    result = 0\n    for price in prices:\n        result = result + price\n"
    "    return result\n\n"
    "def count_{country}(prices):\n    result = 0\n    for price in prices:\n        result = result + 1\n"
    "    return result\n\ndef largest_{country}(prices):\n"
)
# By kind: the prompt, the schema of the answer, whether it goes on to the limit.
KINDS: dict[str, tuple[Callable[[dict[str, Any]], str], dict[str, Any] | None, bool]] = {
    "extraction": (lambda words: EXTRACT.format(**words), None, False),
    "json": (lambda words: EXTRACT.format(**words), RECORD, False),
    "tools": (lambda words: TOOLS.format(**words), None, False),
    "react": (lambda words: REACT.format(**words), None, True),
    "chat": (lambda words: CHAT.format(**words), None, False),
    "free": (lambda words: FREE.format(**words), None, True),
    "loop": (lambda words: LOOP.format(**words), None, True),
    "records": (lambda words: RECORDS.format(**words), None, False),
    "edit": (lambda words: EDIT.format(**words), None, True),
}


@dataclass(frozen=True)
class Round:
    """One round of one source: output tokens, passes of the model, seconds."""

    num_tokens: int
    num_passes: int
    seconds: float

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds


def bodies(kind: str, temperature: float, size: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """`size` requests of a kind, each with a seed of its own, from number `first` on. Raises KeyError for an unknown
    kind."""
    prompt, schema, endless = KINDS[kind]
    for index in range(first, first + size):
        words = {
            "name": NAMES[index % 8],
            "age": 20 + index,
            "town": TOWNS[index // 2 % 8],
            "country": COUNTRIES[index * 3 % 8],
            "other": COUNTRIES[(index * 3 + 1) % 8],
            "friend": NAMES[(index + 3) % 8],
            "older": 31 + index,
        }
        params: dict[str, Any] = {"temperature": temperature, "sampling_seed": index, "max_new_tokens": 64}
        if schema is not None:
            params["json_schema"] = json.dumps(schema)
        if endless:
            params["ignore_eos"] = True
        yield {"text": prompt(words), "sampling_params": params}


@dataclass(frozen=True)
class Cell:
    """Figures of one source over all rounds, against plain decoding in the same rounds."""

    tau: float
    ratio: float  # of tokens a second


def compare(own: Sequence[Round], plain: Sequence[Round]) -> Cell:
    """Compare the rounds of a source with plain decoding. Raises ValueError if they do not pair up."""
    tau = sum(r.num_tokens for r in own) / sum(r.num_passes for r in own)
    return Cell(tau, median_ratio((r.speed for r in own), (r.speed for r in plain)))


def play(client: httpx.Client, rounds: Sequence[list[dict[str, Any]]], batch: int, number: int) -> Round:
    """Send all requests of a round, `batch` at a time."""

    def send(body: dict[str, Any]) -> dict[str, Any]:
        answer = client.post("/generate", json=body)
        answer.raise_for_status()
        meta: dict[str, Any] = answer.json()["meta_info"]
        return meta

    began = time.perf_counter()
    with ThreadPoolExecutor(batch) as pool:
        metas = list(pool.map(send, rounds[number]))
    seconds = time.perf_counter() - began
    return Round(
        sum(meta["completion_tokens"] for meta in metas), sum(meta["spec_verify_ct"] for meta in metas), seconds
    )


def main(
    model: Model = None,
    sources: Annotated[
        str, typer.Option(help="Who guesses, with commas; off is the baseline.")
    ] = "off,ngram,suffix,eagle",
    draft_model: Annotated[str | None, typer.Option(help="For the source draft.")] = None,
    medusa: Annotated[str | None, typer.Option(help="Folder of heads for the source medusa.")] = None,
    exit_layer: Annotated[int | None, typer.Option(help="--speculative-exit-layer, for early-exit.")] = None,
    batches: Batches = "1,4,16",
    kinds: Annotated[str, typer.Option(help="Of text, with commas.")] = "extraction,json,react,chat,loop,records,edit",
    rounds: Annotated[int, typer.Option(help="Of each cell, after one to warm up.")] = 3,
    size: Annotated[int, typer.Option(help="Requests in a round, at least.")] = 8,
    steps: Annotated[int, typer.Option(help="--speculative-num-steps")] = 7,
    tokens: Annotated[int, typer.Option(help="--speculative-num-draft-tokens")] = 8,
    top_k: Annotated[int | None, typer.Option(help="--speculative-eagle-topk")] = None,
    random: Annotated[str | None, typer.Option(help="HIDDENxLAYERS of a random checkpoint to make and serve.")] = None,
    lookahead: Annotated[str, typer.Option(help="Steps and draft tokens of the source lookahead.")] = "3,25",
    adaptive: Annotated[bool, typer.Option(help="--speculative-adaptive")] = True,
    fresh: Annotated[bool, typer.Option(help="New texts in each round; else outputs repeat exactly.")] = True,
) -> None:
    """Print a table: for every kind, temperature and batch, tau and the ratio of tokens a second."""
    names = sources.split(",")
    with ExitStack() as stack:
        if random is not None:
            model = stack.enter_context(TemporaryDirectory())
            hidden, num_layers = map(int, random.split("x"))
            qwen2_shaped(
                Path(model),
                2048,
                hidden_size=hidden,
                intermediate_size=hidden * 38 // 7,  # as in Qwen2-0.5B: 4864 for 896
                num_hidden_layers=num_layers,
                num_attention_heads=hidden // 64,
            )
        clients = {}
        for name in names:
            num_steps, num_tokens = numbers(lookahead) if name == "lookahead" else (steps, tokens)
            settings: dict[str, Any] = {
                "num_steps": num_steps,
                "num_draft_tokens": num_tokens,
                "eagle_topk": top_k,
                "adaptive": adaptive,
                "draft_model": {"draft": draft_model, "medusa": medusa}.get(name),
                "exit_layer": exit_layer if name == "early-exit" else None,
            }
            chosen = {
                f"speculative_{key}": value for key, value in settings.items() if name != "off" and value is not None
            }
            runtime = stack.enter_context(ramiform.Runtime(model, port=0, speculative=name, **chosen))
            clients[name] = stack.enter_context(httpx.Client(base_url=str(runtime.url), timeout=600))
        rows = []
        for kind, temperature, batch in product(kinds.split(","), (0.0, 1.0), numbers(batches)):
            count = max(size, 2 * batch)
            requests = [
                list(bodies(kind, temperature, count, number * count if fresh else 0)) for number in range(rounds + 1)
            ]
            played = interleaved(
                rounds,
                {name: partial(play, client, requests, batch) for name, client in clients.items()},
            )
            row: dict[str, Any] = {"text": kind, "T": f"{temperature:g}", "batch": batch}
            row["plain tok/s"] = statistics.median(r.speed for r in played["off"])
            for name in names[1:]:
                cell = compare(played[name], played["off"])
                row[f"{name} tau"], row[f"{name} speed"] = cell.tau, cell.ratio
            rows.append(row)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    report("Speculation against plain decoding", table(rows))


if __name__ == "__main__":
    typer.run(main)
