"""Savings of jump-forward: constrained outputs with and without it, interleaved, on one engine.

    python -P bench/grammar/jump.py [MODEL] [--repeat N] [--out FILE]

Greedy, one thread. Texts may differ between the two: what is forced comes in the tokenizer's ids, where the model may
have written the same text in others, and what it chooses next depends on them. So times are compared by the output's
characters. Objects are written in any order, as the runtime compiles them, and in the schema's, by the bench's own
compiling: no request can ask for that. Prints Markdown.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import typer

from ramiform.bench.harness import Batches, Model, Out, Repeat, interleaved, median_ratio, numbers, report, table
from ramiform.bench.in_process import Cost, Output, play
from ramiform.constrained import (
    Choices,
    GrammarSource,
    JsonSchema,
    PropertyOrder,
    Regex,
    Vocabulary,
    compile_constraint,
)
from ramiform.runtime.core.main import load_core
from ramiform.runtime.engine import ForwardEngine
from ramiform.runtime.models.checkpoint import find_checkpoint
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import FlushCache, Generate
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams
from ramiform.runtime.scheduler.jump_forward import Retokeniser
from ramiform.runtime.scheduler.scheduler import CacheSizes, Scheduler, SchedulerCalls, VocabularyInfo, make_cache
from ramiform.runtime.tokenizer import load_tokenizer

PROMPT = "Question: What do we know about Ada Brown, number {}, who lives in Paris and keeps two spiders?\nAnswer: "
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "last_name": {"type": "string", "maxLength": 12},
        "country_of_residence": {"enum": ["France", "Germany", "Portugal", "Switzerland"]},
        "number_of_pets": {"type": "integer", "minimum": 0, "maximum": 9},
        "subscribed_to_newsletter": {"type": "boolean"},
    },
    "required": ["first_name", "last_name", "country_of_residence", "number_of_pets", "subscribed_to_newsletter"],
    "additionalProperties": False,
}
PETS = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {"kind": {"enum": ["spider", "bird", "cat"]}, "number_of_legs": {"enum": [2, 4, 8]}},
        "required": ["kind", "number_of_legs"],
        "additionalProperties": False,
    },
}
NOTE = {"type": "object", "properties": {"note": {"type": "string", "maxLength": 80}}, "required": ["note"]}
SCAFFOLD = (
    r"Name: [A-Z][a-z]{2,8}\nCountry of residence: (France|Germany|Portugal)\nNumber of pets: [0-9]\n"
    r"Subscribed to the newsletter: (yes|no)\n"
)
ANSWERS = [
    "Yes, that is what most people in the city say.",
    "No, there is nothing in the records about this.",
    "It depends on whom you ask and on the time of the year.",
]


@dataclass(frozen=True)
class Task:
    """A constraint, as a request has it and as grammars are made of it."""

    name: str
    constraint: Constraint
    source: GrammarSource
    orders: tuple[PropertyOrder, ...] = ("any",)


def tasks() -> list[Task]:
    schemas = {"person, 5 properties": PERSON, "array of 3 objects": PETS, "one string": NOTE}
    return [
        *(
            Task(name, Constraint("json_schema", json.dumps(schema)), JsonSchema(schema), ("any", "schema"))
            for name, schema in schemas.items()
        ),
        Task("regex with literals", Constraint("regex", SCAFFOLD), Regex(SCAFFOLD)),
        Task("three long choices", Constraint("choices", json.dumps(ANSWERS)), Choices(ANSWERS)),
    ]


class Compiled:
    """Grammars compiled beforehand, in an order of properties."""

    def __init__(self, vocabulary: Vocabulary, order: PropertyOrder) -> None:
        self._grammars = {
            task.constraint: compile_constraint(task.source, vocabulary, order=order)
            for task in tasks()
            if order in task.orders
        }

    def get(self, constraint: Constraint) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._grammars[constraint])
        return future

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Do nothing: the grammars are kept."""


@dataclass(frozen=True)
class Figures:
    """Figures of one run. Without jumps a request takes one forward per token."""

    num_tokens: int
    num_forced: int
    num_characters: int
    cost: Cost
    texts: list[bytes]

    @property
    def per_character(self) -> float:
        return self.cost.seconds / self.num_characters


class Bench:
    """One engine, and a scheduler for each order of properties, with and without jumps."""

    def __init__(self, model: str | None) -> None:
        self.config = CoreConfig(model=model, device="cpu", dtype="float32", num_pages=1024)
        core = load_core(self.config)
        torch.set_num_threads(1)
        self.info = core.info
        self._engine: ForwardEngine = core.engine
        self._tokenizer = load_tokenizer(find_checkpoint(model))
        data = (self._tokenizer.token_bytes + [None] * core.info.vocab_size)[: core.info.vocab_size]
        self._facts = VocabularyInfo(
            core.info.vocab_size, data, frozenset(self._tokenizer.eos_ids), forced_end=self._tokenizer.usual_end
        )
        vocabulary = Vocabulary.from_tokens(data, self._facts.eos_ids)
        orders: tuple[PropertyOrder, ...] = ("any", "schema")
        self._schedulers = {
            (order, jumps): self._scheduler(grammars, jumps)
            for order in orders
            for grammars in [Compiled(vocabulary, order)]
            for jumps in (False, True)
        }

    def run(self, task: Task, order: PropertyOrder, jumps: bool, batch: int) -> Figures:
        """Run the task, for `batch` prompts at once, on an empty cache."""
        scheduler = self._schedulers[order, jumps]
        scheduler.handle(FlushCache(0), time.monotonic(), b"")
        forced_before = scheduler.stats().num_forced_tokens
        sampling = SamplingParams(max_new_tokens=200, temperature=0.0, seed=0, constraint=task.constraint)
        requests = [
            Generate(rid=str(index), tokens=self._encode(PROMPT.format(index)), sampling=sampling)
            for index in range(batch)
        ]
        outputs, cost = play(self._engine, scheduler, requests, batch)
        texts = [self._text(output) for output in outputs.values()]
        return Figures(
            num_tokens=sum(len(output.ids) for output in outputs.values()),
            num_forced=scheduler.stats().num_forced_tokens - forced_before,
            num_characters=sum(map(len, texts)),
            cost=cost,
            texts=texts,
        )

    def _scheduler(self, grammars: Compiled, jumps: bool) -> Scheduler:
        return Scheduler(
            CoreConfig(jump_forward=jumps),
            cache=make_cache(self.config, CacheSizes(self.info.num_pages)),
            vocabulary=self._facts,
            grammars=grammars,
            context_length=self.info.context_length,
            calls=SchedulerCalls(
                Retokeniser(
                    self._facts.token_bytes,
                    lambda text: self._tokenizer.encode(text, parse_special=False, continues=True),
                )
            ),
        )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False, continues=False)

    def _text(self, output: Output) -> bytes:
        assert output.error is None, output.error
        ids = (token for token in output.ids if token not in self._facts.eos_ids)
        return b"".join(self._facts.token_bytes[token] or b"" for token in ids)


def compare(bench: Bench, task: Task, order: PropertyOrder, batch: int, repeat: int) -> dict[str, Any]:
    """A row of the table: medians of `repeat` interleaved runs after one that warms up."""
    runs = interleaved(
        repeat, {str(jumps): lambda _, jumps=jumps: bench.run(task, order, jumps, batch) for jumps in (False, True)}
    )
    off, on = runs["False"], runs["True"]
    return {
        "constraint": task.name,
        "order": order if len(task.orders) > 1 else "",
        "batch": batch,
        "tokens off": off[0].num_tokens,
        "tokens on": on[0].num_tokens,
        "forced %": 100 * on[0].num_forced / on[0].num_tokens,
        "forwards/token off": off[0].cost.num_forwards * batch / off[0].num_tokens,
        "forwards/token on": on[0].cost.num_forwards * batch / on[0].num_tokens,
        "time off / on": median_ratio((run.per_character for run in off), (run.per_character for run in on)),
        "same texts": sum(a == b for a, b in zip(off[0].texts, on[0].texts, strict=True)),
    }


def main(model: Model = None, repeat: Repeat = 7, batches: Batches = "1,8", out: Out = None) -> None:
    bench = Bench(model)
    rows = [
        compare(bench, task, order, batch, repeat)
        for batch in numbers(batches)
        for task in tasks()
        for order in task.orders
    ]
    said = f"{bench.info.name}, {bench.info.dtype}, one thread, medians of {repeat}."
    report("Jump-forward", said, table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
