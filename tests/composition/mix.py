"""A random mix of clients' requests, of every kind, and what each of them received.

Cases share prefixes of all lengths, so that errors of the cache would show.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import pytest

import ramiform
from ramiform import assistant, gen, select, system, user

# What depends on who else was there, and must not matter to anybody.
CIRCUMSTANCES = frozenset(
    {
        "id",
        "cached_tokens",
        "e2e_latency",
        "num_retractions",
        "queue_time",
        "prefill_time",
        "decode_time",
        "grammar_time",
        "retracted_time",
        "transfer_time",
        "spec_verify_ct",
        "spec_accept_length",
        "spec_accept_histogram",
        "spec_draft_token_num",
        "spec_accept_token_num",
    }
)
WORDS = "the capital of France is a river in spring and Ada lives near seven spiders under blue lamps".split()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "legs": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
# At most one choice, and nothing forced before it: then the text cannot depend on which ids the forced text is made of.
FORCED: list[dict[str, Any]] = [
    {"regex": r" The river in spring lies under the blue lamps, near seven spiders\."},
    {"regex": r"(Yes, that is what they say in the capital|No, they say something else in spring)\."},
    {"json_schema": json.dumps({"const": "Ada keeps a spider, and\na fox."})},
    {"regex": r" The river in spring lies under the blue lamps, near seven spiders\.", "stop": ["er the bl", "zz"]},
    {"regex": r"(maybe|perhaps)( The river in spring lies under the blue lamps){4}", "frequency_penalty": 0.5},
]
TOLERANCE = 1e-4  # of log-probabilities
PATIENCE = 120.0  # seconds until a runtime that should have nothing to do is taken for stuck


class Target:
    """A runtime as its clients see it. Use as a context manager."""

    def __init__(self, runtime: ramiform.Runtime) -> None:
        assert runtime.url is not None
        self.runtime = runtime
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = httpx.Client(base_url=runtime.url, timeout=150, limits=limits)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.close()

    def generate(self, ids: Sequence[int], **params: Any) -> Any:
        body = {"input_ids": list(ids), "sampling_params": {"temperature": 0.0, **params}}
        return _checked(self.http.post("/generate", json=body)).json()

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = _checked(self.http.post("/tokenize", json={"prompt": text})).json()["tokens"]
        return tokens

    def flush(self) -> None:
        _checked(self.http.post("/flush_cache"))

    def idle_stats(self) -> dict[str, Any]:
        """Once nothing runs and nothing waits. Raises AssertionError when that does not come."""
        deadline = time.monotonic() + PATIENCE
        while True:
            stats: dict[str, Any] = _checked(self.http.get("/get_server_info")).json()
            if stats["num_running"] == stats["num_waiting"] == 0:
                return stats
            assert time.monotonic() < deadline, f"still busy: {stats}"


@dataclass(frozen=True)
class Outcome:
    """Everything a client received; log-probabilities are apart, since they are compared within a tolerance."""

    exact: Any
    logprobs: list[float]

    @classmethod
    def of(cls, answer: Any) -> Outcome:
        logprobs: list[float] = []
        return cls(_split(answer, logprobs), logprobs)


class Case(Protocol):
    """Something that a client does, and what came of it."""

    def run(self, target: Target) -> Outcome: ...


@dataclass(frozen=True)
class Request:
    """A request over HTTP, read to its end."""

    body: dict[str, Any]

    def run(self, target: Target) -> Outcome:
        return Outcome.of(_checked(target.http.post("/generate", json=self.body)).json())


@dataclass(frozen=True)
class Forced:
    """A request for one of FORCED. Its text is what must be the same, with and without jump-forward; not its ids, and
    not which of the tokens that end an output the model took."""

    body: dict[str, Any]

    def run(self, target: Target) -> Outcome:
        answer = _checked(target.http.post("/generate", json=self.body)).json()
        parts = answer if isinstance(answer, list) else [answer]
        ends = [part["meta_info"]["finish_reason"] for part in parts]
        stops = [end["matched"] if isinstance(end.get("matched"), str) else None for end in ends]
        texts = [part["text"] for part in parts]
        return Outcome([texts, [end["type"] for end in ends], stops], [])


@dataclass(frozen=True)
class Program:
    """A program; all its variables and how they came about, and its text."""

    function: ramiform.Program
    arguments: dict[str, Any]
    variables: tuple[str, ...]

    def run(self, target: Target) -> Outcome:
        state = self.function.run(**self.arguments, backend=target.runtime)
        return Outcome.of([state.text(), [[state[name], state.get_meta_info(name)] for name in self.variables]])


@dataclass(frozen=True)
class Cut:
    """A streamed request that does not end by itself: after `after` events the client aborts it, or just leaves."""

    body: dict[str, Any]
    after: int
    leaves: bool

    @property
    def whole(self) -> Request:
        return Request({key: value for key, value in self.body.items() if key not in ("rid", "stream")})

    def run(self, target: Target) -> Outcome:
        """The last event seen, as pairs of an id and its log-probability."""
        event: dict[str, Any] = {"output_ids": [], "meta_info": {"output_token_logprobs": []}}
        num_events = 0
        with target.http.stream("POST", "/generate", json=self.body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    num_events += 1
                if num_events == self.after and self.leaves:
                    break
                if num_events == self.after:
                    _checked(target.http.post("/abort_request", json={"rid": self.body["rid"]}))
        logprobs = [entry[0] for entry in event["meta_info"]["output_token_logprobs"]]
        return Outcome(event["output_ids"], logprobs)


@dataclass(frozen=True)
class Closed:
    """A program that is closed after the first `after` pieces of a variable's text."""

    function: ramiform.Program
    arguments: dict[str, Any]
    variable: str
    after: int

    @property
    def whole(self) -> Program:
        return Program(self.function, self.arguments, (self.variable,))

    def run(self, target: Target) -> Outcome:
        state = self.function.run(**self.arguments, backend=target.runtime, stream=True)
        pieces: list[str] = []
        for piece in state.text_iter(self.variable):
            pieces.append(piece)
            if len(pieces) == self.after:
                break
        state.close()
        return Outcome("".join(pieces), [])


@dataclass(frozen=True)
class Expected:
    """Cases and the outcomes that they have alone."""

    cases: list[Case]
    outcomes: list[Outcome]

    def check(self, outcomes: Sequence[Outcome], *, jumps: bool = True) -> None:
        """`jumps`: whether the outcomes come with jump-forward, as the expected ones do."""
        for case, outcome, whole in zip(self.cases, outcomes, self.outcomes, strict=True):
            match case:
                case _ if not jumps and depends_on_jumps(case):
                    assert outcome.exact
                case Cut():
                    num = len(outcome.exact)
                    assert outcome.exact == whole.exact["output_ids"][:num], case
                    assert outcome.logprobs == pytest.approx(whole.logprobs[:num], abs=TOLERANCE), case
                case Closed():
                    _, [[text, _]] = whole.exact
                    assert outcome.exact
                    assert text.startswith(outcome.exact), case
                case _:
                    assert outcome.exact == whole.exact, case
                    assert outcome.logprobs == pytest.approx(whole.logprobs, abs=TOLERANCE), case


@ramiform.function
def branches(s: ramiform.ProgramState, text: str, width: int, seed: int, concatenated: bool) -> None:
    s += text
    forks = s.fork(width)
    for index, fork in enumerate(forks):
        fork += f" Item {index}:" + gen(
            "item", max_tokens=6, temperature=[0.0, 1.0][index % 2], seed=seed + index, return_logprob=True
        )
    forks.join("concate_and_append" if concatenated else "gather_variable")
    s += " So" + gen("so", max_tokens=5, temperature=0, return_logprob=True)


@ramiform.function
def conversation(s: ramiform.ProgramState, text: str, turns: int, seed: int) -> None:
    s += system(text)
    for turn in range(turns):
        s += user(f"Tell me {WORDS[(seed + turn) % len(WORDS)]}.")
        s += assistant(
            gen(
                f"turn{turn}",
                max_tokens=8,
                temperature=0.8,
                seed=seed,
                return_logprob=True,
                top_logprobs_num=2,
            )
        )


@ramiform.function
def thoughts(s: ramiform.ProgramState, text: str, seed: int) -> None:
    """Forks of forks; the branch that is selected goes on, the others are dropped."""
    s += text
    for depth in range(2):
        forks = s.fork(3)
        for index, fork in enumerate(forks):
            fork += f" Thought {depth}{index}:" + gen("thought", max_tokens=5, temperature=1.0, seed=seed + index)
            fork += ". Good:" + select("good", choices=[" yes", " no", " maybe"])
        verdicts = [fork["good"] for fork in forks]
        forks.join()
        s += f" {verdicts.count(' yes')} of 3." + gen(
            f"best{depth}",
            regex=r" [a-z]{2,5}",
            temperature=1.0,
            seed=seed,
            max_tokens=6,
            return_logprob=True,
        )


@ramiform.function
def samples(s: ramiform.ProgramState, text: str, seed: int) -> None:
    s += text + gen("samples", n=3, max_tokens=7, temperature=1.0, seed=seed, stop=["e ", "."], return_logprob=True)
    s += " Then" + gen("then", max_tokens=4, temperature=0, return_logprob=True, logprob_start_len=3)


@ramiform.function
def story(s: ramiform.ProgramState, text: str, seed: int) -> None:
    s += text + gen("story", max_tokens=30, temperature=0.7, seed=seed, ignore_eos=True)


def make_mix(size: int, tokens_of: Callable[[str], list[int]], seed: int = 0) -> list[Case]:
    """`size` cases. Prompts of up to about 150 tokens, outputs of up to 30."""
    draw = random.Random(seed)
    trunks = [" ".join(draw.choices(WORDS, k=k)) for k in (60, 30, 10)]
    return [_case(draw, index, trunks, tokens_of) for index in range(size)]


def make_writers(size: int, tokens_of: Callable[[str], list[int]], seed: int = 1) -> list[Case]:
    """Short prompts, long outputs of every kind: memory that many of them share must run out while they write."""
    draw = random.Random(seed)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.95},
        {"temperature": 0.0, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
        {"temperature": 1.0, "regex": r"([a-z]{2,7} ){30,40}"},
    ]
    cases: list[Case] = []
    for index in range(size):
        ids = tokens_of(" ".join(draw.choices(WORDS, k=draw.randint(3, 30))))
        params = {"max_new_tokens": 80, "ignore_eos": True, "sampling_seed": index} | kinds[index % len(kinds)]
        cases.append(Request({"input_ids": ids, "sampling_params": params, "return_logprob": True}))
    return cases


def depends_on_jumps(case: Case) -> bool:
    """True if choices come after forced text: the model then sees the tokenizer's ids, or others that it has chosen."""
    return isinstance(case, Request) and "json_schema" in case.body["sampling_params"]


def run_alone(cases: Sequence[Case], targets: Sequence[Target]) -> list[Outcome]:
    """Each case's own outcome, or that of the whole of which it is a part, with nobody else on its runtime."""
    outcomes: list[Outcome] = [Outcome(None, [])] * len(cases)

    def play(part: int) -> None:
        for index in range(part, len(cases), len(targets)):
            case = cases[index]
            outcomes[index] = (case.whole if isinstance(case, Cut | Closed) else case).run(targets[part])

    with ThreadPoolExecutor(len(targets)) as pool:
        list(pool.map(play, range(len(targets))))
    return outcomes


def run_together(cases: Sequence[Case], target: Target) -> list[Outcome]:
    """All cases at once."""
    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(lambda case: case.run(target), cases))


def _case(draw: random.Random, index: int, trunks: list[str], tokens_of: Callable[[str], list[int]]) -> Case:
    text = draw.choice(trunks) + " " + " ".join(draw.choices(WORDS, k=draw.choice([0, 1, 5, 20])))
    match index % 20:
        case 0:
            concatenated = index % 40 == 0
            arguments = {"text": text, "width": 3, "seed": index, "concatenated": concatenated}
            return Program(branches, arguments, ("so",) if concatenated else ("item", "so"))
        case 5:
            return Program(conversation, {"text": text, "turns": 3, "seed": index}, ("turn0", "turn1", "turn2"))
        case 10:
            return Program(thoughts, {"text": text, "seed": index}, ("thought", "good", "best0", "best1"))
        case 15:
            return Program(samples, {"text": text, "seed": index}, ("samples", "then"))
        case 2 | 12 | 17:
            return _forced(draw, index, text, tokens_of)
        case 3:
            return Closed(story, {"text": text, "seed": index}, "story", after=draw.choice([1, 2, 9]))
        case 8 | 13 | 18:
            body = _body(draw, index, text, tokens_of)
            # Free of stops and constraints, so that there is something to cut.
            body["sampling_params"] = {"max_new_tokens": 30, "ignore_eos": True, "sampling_seed": index}
            body |= {"stream": True, "rid": f"cut {index}", "return_logprob": True, "logprob_start_len": -1}
            return Cut(body, after=draw.choice([1, 1, 4, 12]), leaves=draw.random() < 0.5)
    return Request(_body(draw, index, text, tokens_of))


def _forced(draw: random.Random, index: int, text: str, tokens_of: Callable[[str], list[int]]) -> Case:
    params = {"max_new_tokens": 150, "temperature": draw.choice([0.0, 1.0]), "sampling_seed": index}
    params |= {"n": draw.choice([1, 1, 2])} | draw.choice(FORCED)
    ids = tokens_of(text)
    return Forced({"input_ids": ids[: draw.randint(1, len(ids))], "sampling_params": params})


def _body(draw: random.Random, index: int, text: str, tokens_of: Callable[[str], list[int]]) -> dict[str, Any]:
    params: dict[str, Any] = {"max_new_tokens": draw.choice([1, 4, 8, 20]), "temperature": 0.0}
    if draw.random() < 0.5:
        params |= {"temperature": draw.choice([0.7, 1.2]), "sampling_seed": draw.randrange(3)}
        further = {"typical_p": 0.9, "xtc_probability": 0.3, "dynatemp_range": 0.4}
        params |= draw.choice([{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.02, "top_n_sigma": 0.7} | further])
    match draw.randrange(9):
        case 0:
            params |= {"stop": ["e", " the"]}
        case 1:
            params |= {"regex": r"[a-z]{3,12}( [0-9]+)?"}
        case 2:
            params |= {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 20}
        case 3:
            params |= {"frequency_penalty": 0.6, "repetition_penalty": 1.2}
            params |= draw.choice([{}, {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_penalty_last_n": 40}])
        case 4:
            params |= {"n": draw.choice([2, 3]), "max_new_tokens": 6, "ignore_eos": True}
        case 5:
            params |= {"min_new_tokens": 3, "max_new_tokens": 9, "presence_penalty": 0.4, "stop": "in"}
        case 6:
            params |= {"stop_regex": draw.choice(["[aeiou]r", ["s +[a-z]", "t.?e"]]), "stop": ["on", "  "]}
        case 7:
            params |= {"bad_words": ["the", ", and", "s"], "ignore_eos": True}
            if draw.random() < 0.3:
                params |= {"allowed_token_ids": sorted(set(tokens_of(text)))}
    ids = tokens_of(text)
    ids = ids[: draw.choice([len(ids), draw.randint(1, len(ids))])]  # ends anywhere in a page
    body: dict[str, Any] = {"input_ids": ids, "sampling_params": params, "priority": draw.choice([0, 0, -1000, 1, -1])}
    if draw.random() < 0.15:
        body["extra_key"] = draw.choice(["mine", "yours"])
    if draw.random() < 0.5:
        start = draw.choice([-1, 0, len(ids) // 2, len(ids) - 1])
        body |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": draw.choice([0, 0, 3])}
        if draw.random() < 0.3:
            params["max_new_tokens"] = params["min_new_tokens"] = 0
    return body


def _split(value: Any, logprobs: list[float]) -> Any:
    match value:
        case float():
            logprobs.append(value)
            return None
        case dict():
            return {key: _split(item, logprobs) for key, item in value.items() if key not in CIRCUMSTANCES}
        case list() | tuple():
            return [_split(item, logprobs) for item in value]
    return value


def _checked(response: httpx.Response) -> httpx.Response:
    assert response.status_code == 200, response.text
    return response
