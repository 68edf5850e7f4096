"""Requests of a load test: lengths, prompts and arrival times, all drawn from one seed."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...runtime.protocol.errors import RequestError, json_fault

# Short English words: one token each in most vocabularies. Servers report the true counts.
_WORDS = (
    "time way day man thing year life hand part child eye place work week case point home water room book night "
    "word number side kind head house friend month lot right study money story fact issue job game line end member "
    "law car city name team minute idea body back face level office door health art war history party result"
).split()
ANSWER_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "sure": {"type": "boolean"},
    },
    "required": ["name", "count", "sure"],
    "additionalProperties": False,
}
_ARGUMENTS = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2}


@dataclass(frozen=True)
class Length:
    """Distribution of a number of tokens, at least 1.

    `uniform` has the lowest and the highest value, `normal` mean and standard deviation, `lognormal` the median and the
    standard deviation of the logarithm.
    """

    kind: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, param: str) -> Length:
        """Read "128", "uniform:64,256", "normal:128,32" or "lognormal:128,0.5". Raises RequestError."""
        kind, colon, rest = text.partition(":")
        kind, rest = (kind, rest) if colon else ("fixed", kind)
        try:
            values = tuple(float(value) for value in rest.split(","))
        except ValueError:
            values = ()
        is_valid = len(values) == _ARGUMENTS.get(kind) and all(math.isfinite(v) and v >= 0 for v in values)
        if not is_valid or values[0] < 1 or (kind == "uniform" and values[1] < values[0]):
            raise RequestError(
                f"{param} is {text!r}; write 128, uniform:64,256, normal:128,32 or lognormal:128,0.5", param=param
            )
        return cls(kind, values)

    def draw(self, rng: random.Random) -> int:
        match self.kind, self.values:
            case "uniform", (lowest, highest):
                value = rng.uniform(lowest, highest)
            case "normal", (mean, deviation):
                value = rng.gauss(mean, deviation)
            case "lognormal", (median, sigma):
                value = median * math.exp(rng.gauss(0.0, sigma))
            case _:
                value = self.values[0]
        return max(1, round(value))


@dataclass(frozen=True)
class LoadRequest:
    """A request: its content, its maximum number of tokens, and whether the answer must fit ANSWER_SCHEMA."""

    messages: list[dict[str, Any]]
    max_tokens: int
    is_structured: bool = False

    def body(self, model: str, route: Literal["chat", "completions"], *, ignore_eos: bool) -> dict[str, Any]:
        """Return the JSON body of a streamed request with usage."""
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if route == "chat":
            body["messages"] = self.messages
        else:
            body["prompt"] = "\n".join(str(message["content"]) for message in self.messages)
        if ignore_eos and not self.is_structured:
            body["ignore_eos"] = True
        if self.is_structured:
            schema = {"name": "answer", "schema": ANSWER_SCHEMA, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


@dataclass(frozen=True)
class LoadWorkload:
    """Draws the requests of a round. `prefix_tokens` of each prompt are shared within one of `prefix_groups` groups."""

    num_requests: int
    prompt: Length
    output: Length
    prefix_tokens: int = 0
    prefix_groups: int = 1
    structured_share: float = 0.0
    prompts: tuple[LoadRequest, ...] = ()
    seed: int = 0

    def jobs(self, round_number: int) -> list[LoadRequest]:
        """Draw the requests of a round. Prompts of different rounds differ, so that no cache has them."""
        rng = random.Random(f"{self.seed}/{round_number}")
        return [self._job(rng, number) for number in range(self.num_requests)]

    def _job(self, rng: random.Random, number: int) -> LoadRequest:
        if self.prompts:
            return self.prompts[number % len(self.prompts)]
        parts = []
        if self.prefix_tokens:
            shared = random.Random(f"{self.seed}/prefix/{rng.randrange(self.prefix_groups)}")
            parts += shared.choices(_WORDS, k=self.prefix_tokens)
        parts += rng.choices(_WORDS, k=self.prompt.draw(rng))
        is_structured = rng.random() < self.structured_share
        return LoadRequest([{"role": "user", "content": " ".join(parts)}], self.output.draw(rng), is_structured)


def arrival_times(num: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Draw `num` times in seconds from the start; gaps are gamma distributed with mean 1 / `rate`.

    `burstiness` is the shape: 1 is a Poisson process, less comes in bursts, more is regular.
    """
    now, times = 0.0, []
    for _ in range(num):
        times.append(now)
        now += rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
    return times


def read_arrivals(path: Path) -> list[float]:
    """Read times in seconds, one a line, and let the first be 0. Raises RequestError."""
    try:
        times = sorted(float(line) for line in path.read_text("utf-8").split())
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} has no arrival times: {error}", param="--arrivals") from None
    if not times or not all(math.isfinite(each) for each in times):
        raise RequestError(f"{path} has no arrival times", param="--arrivals")
    return [each - times[0] for each in times]


def read_prompts(path: Path, default_tokens: Length, seed: int) -> tuple[LoadRequest, ...]:
    """Read prompts: lines of JSON with `prompt` or `messages` (and `max_tokens`), or ShareGPT's list.

    Raises RequestError naming the entry that is neither.
    """
    try:
        text = path.read_text("utf-8")
        if text.lstrip().startswith("["):
            entries = _parsed(text)
        else:
            entries = [_parsed(line, number) for number, line in enumerate(text.splitlines(), start=1)]
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {error}", param="--prompts") from None
    rng = random.Random(f"{seed}/prompts")
    jobs = []
    for number, entry in enumerate(entries):
        messages = _messages(entry)
        if not messages:
            raise RequestError(f"entry {number} of {path} has no prompt, messages or conversations", param="--prompts")
        asked = entry.get("max_tokens")
        jobs.append(LoadRequest(messages, asked if isinstance(asked, int) and asked > 0 else default_tokens.draw(rng)))
    if not jobs:
        raise RequestError(f"{path} has no prompts", param="--prompts")
    return tuple(jobs)


def _parsed(text: str, first_line: int = 1) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(json_fault(text, error, first_line=first_line)) from None


def _messages(entry: Any) -> list[dict[str, Any]]:
    match entry:
        case {"messages": [*messages]}:
            return messages
        case {"prompt": str(prompt)}:
            return [{"role": "user", "content": prompt}]
        case {"conversations": [{"value": str(first)}, *_]}:
            return [{"role": "user", "content": first}]
        case _:
            return []
