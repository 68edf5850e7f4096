"""Sampled tokens a step of draft sources on a trained model, by kind of text: counts, which a busy machine may give.

    python -P bench/speculation/trained.py MODEL.gguf [--sources off,ngram,suffix,draft] [--draft-model SMALLER]

Chat, edits of code, JSON under a schema and forced tool calls, greedy, over `/v1/chat/completions`. Every schema and
tool is asked for the first time in the first round, and again with other texts in the second. A source has a runtime of
its own, and they answer each round in turn. Sampled tokens are output tokens without those that a grammar forced; a
step is a pass of the model, one that computes a prompt and gives its first token included.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import product
from typing import Annotated, Any

import httpx
import typer

import ramiform
from ramiform.bench.harness import report, table

PEOPLE = [("Ada Brook", 36, "Lisbon"), ("Tom Field", 52, "Oslo"), ("Nina Hall", 9, "Madrid"), ("Otis Lake", 61, "Rome")]
QUESTIONS = [
    "Explain in three sentences why the sky is blue.",
    "Give me four tips for learning a language.",
    "What is the difference between a list and a tuple in Python?",
    "Write a short letter that thanks a colleague for help.",
]
CODE = """def {name}_total(prices, tax_rate):
    result = 0
    for price in prices:
        if price < 0:
            raise ValueError("a price is negative")
        result = result + price * (1 + tax_rate)
    return round(result, 2)


def {name}_average(prices):
    if not prices:
        return 0
    return sum(prices) / len(prices)
"""
EDITS = ["rename the variable result to total", "rename prices to amounts", "add type hints", "add a docstring to both"]


def strict_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT, _COUNT = {"type": "string"}, {"type": "integer"}
SCHEMAS = [
    strict_object(name=_TEXT, age=_COUNT, city=_TEXT, profession=_TEXT),
    strict_object(
        person=strict_object(full_name=_TEXT, years=_COUNT), hobbies={"type": "array", "items": _TEXT, "maxItems": 4}
    ),
    strict_object(title=_TEXT, summary=_TEXT, language={"enum": ["English", "French", "Spanish"]}),
    strict_object(id=_COUNT, home_town=_TEXT, is_adult={"type": "boolean"}, short_biography=_TEXT),
]
TOOLS = [
    ("create_customer", strict_object(name=_TEXT, age=_COUNT, city=_TEXT)),
    ("book_table", strict_object(guest=_TEXT, town=_TEXT, number_of_guests=_COUNT, note=_TEXT)),
    ("send_message", strict_object(recipient=_TEXT, subject=_TEXT, body=_TEXT)),
    ("add_reminder", strict_object(title=_TEXT, place=_TEXT, people={"type": "array", "items": _TEXT, "maxItems": 3})),
]


def bodies(kind: str, number: int) -> Iterator[dict[str, Any]]:
    """Return the four requests of a kind in round `number`, whose texts differ from round to round. Raises KeyError for
    an unknown kind."""
    for index in range(4):
        name, age, town = PEOPLE[(index + number) % 4]
        story = f"{name} is {age + number} years old, lives in {town}, works as a baker and likes to swim and to read."
        more: dict[str, Any] = {}
        match kind:
            case "chat":
                text = QUESTIONS[index] + (" Be brief." if number else "")
            case "code edit":
                code = CODE.format(name=name.split()[0].lower())
                text = f"```python\n{code}```\nPlease {EDITS[index]}, and answer with the whole code."
            case "JSON":
                text = f"Describe the person as JSON. {story}"
                schema = {"name": "answer", "strict": True, "schema": SCHEMAS[index]}
                more = {"response_format": {"type": "json_schema", "json_schema": schema}}
            case "tool":
                tool, parameters = TOOLS[index]
                text = f"{story} Call {tool} for this person."
                function = {"name": tool, "description": tool.replace("_", " "), "parameters": parameters}
                more = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
            case _:
                raise KeyError(kind)
        yield {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 160, **more}


@dataclass(frozen=True)
class Counts:
    """Growth of a server's counters over a round, the seconds it took, and its answers."""

    num_steps: int
    num_output_tokens: int
    num_forced_tokens: int
    num_guessed_tokens: int
    num_accepted_tokens: int
    seconds: float
    answers: list[str]

    @property
    def num_sampled(self) -> int:
        return self.num_output_tokens - self.num_forced_tokens


def play(client: httpx.Client, kind: str, number: int, batch: int) -> Counts:
    """Send a round's requests, `batch` at a time."""
    before = client.get("/get_server_info").json()

    def send(body: dict[str, Any]) -> str:
        answer = client.post("/v1/chat/completions", json={"model": before["name"], **body})
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or []]
        return json.dumps([message["content"], calls])  # without the calls' ids, which are drawn

    began = time.perf_counter()
    with ThreadPoolExecutor(batch) as pool:
        answers = list(pool.map(send, bodies(kind, number)))
    seconds, after = time.perf_counter() - began, client.get("/get_server_info").json()
    grown = {field.name: after[field.name] - before[field.name] for field in fields(Counts) if field.name in after}
    return Counts(**grown, seconds=seconds, answers=answers)


def main(
    model: str,
    sources: Annotated[str, typer.Option(help="With commas; suffix:always is not adaptive.")] = "off,ngram,suffix",
    draft_model: Annotated[str | None, typer.Option(help="Of the source draft.")] = None,
    head: Annotated[str | None, typer.Option(help="Folder of the source eagle.")] = None,
    kinds: Annotated[str, typer.Option(help="With commas.")] = "chat,code edit,JSON,tool",
    rounds: int = 2,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 1,
    steps: Annotated[int, typer.Option(help="--speculative-num-steps")] = 7,
) -> None:
    """Print a table: for each kind, round and source, sampled tokens a step, how many guesses were right, and the speed
    over that of the first source, which answered the same just before."""
    rows = []
    with ExitStack() as stack:
        clients = {}
        for name in sources.split(","):
            source, _, always = name.partition(":")
            chosen: dict[str, Any] = {"speculative": source}
            if source != "off":
                chosen |= {"speculative_num_steps": steps, "speculative_adaptive": not always}
            if source in ("draft", "eagle"):
                chosen["speculative_draft_model"] = {"draft": draft_model, "eagle": head}[source]
            runtime = stack.enter_context(ramiform.Runtime(model, port=0, **chosen))
            clients[name] = stack.enter_context(httpx.Client(base_url=str(runtime.url), timeout=900))
        for kind, number in product(kinds.split(","), range(rounds)):
            played = {name: play(client, kind, number, batch) for name, client in clients.items()}
            first = next(iter(played.values()))
            for name, counts in played.items():
                same = sum(map(str.__eq__, counts.answers, first.answers))
                row = {
                    "text": kind,
                    "round": number + 1,
                    "source": name,
                    "steps": counts.num_steps,
                    "forced": counts.num_forced_tokens,
                    "sampled a step": counts.num_sampled / counts.num_steps,
                    "right": f"{counts.num_accepted_tokens} of {counts.num_guessed_tokens}",
                    "equal answers": f"{same} of {len(first.answers)}",
                    "speed": counts.num_sampled / counts.seconds / (first.num_sampled / first.seconds),
                }
                rows.append(row)
                print(table(rows[-1:]).splitlines()[-1], flush=True)
        for name, client in clients.items():
            for state in client.get("/get_server_info").json().get("speculation", []):
                print(name, state, flush=True)
    report("Draft sources on a trained model", table(rows))


if __name__ == "__main__":
    typer.run(main)
