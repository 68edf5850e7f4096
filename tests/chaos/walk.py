"""Values of a chaos walk: the lives of a server, and how a seed makes them. Nothing here starts or sends anything.

A walk is a series of lives. A life is a server's flags and the steps it goes through; a step is requests and a fault
that strikes while they run. The last step of a life may be one that the server cannot survive.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any, Literal

import msgspec

from ramiform.tests.composition.mix import SCHEMA, WORDS, Request, make_mix
from ramiform.tests.frontend.harness import shipped_tokenizer

ProcessKind = Literal["main", "core", "frontend", "rank", "template"]
FaultKind = Literal["none", "kill", "stop", "clock", "memory", "disk", "burst"]
Conduct = Literal[
    "reads", "streams", "slow", "leaves", "aborts", "resets", "half open", "half head", "half body", "garbage"
]

PAGES = 96, 256, 1024  # of 16 tokens: the smallest hold a few requests, so that others wait and are retracted
NUM_BODIES = 48  # distinct requests of all walks, so that the plain server answers each of them once
LONG = 90  # tokens of the requests that still run when a fault strikes
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
CHAOTIC: list[Conduct] = ["leaves", "aborts", "resets", "half open", "half head", "half body", "garbage"]


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a server, and of its surroundings: where its log goes, and whether its clock may jump."""

    kv_dtype: str = "auto"
    deterministic: bool = False
    eviction: str = "program"
    order: str = "program"
    speculative: str = "off"
    frontends: int = 1
    tp: int = 1
    host_kv_memory: float = 0.0
    prefill_budget: int = 1024
    num_pages: int = 1024
    max_running: int = 64
    prefix_cache: bool = True
    overlap: str = "off"
    keys: bool = False
    cache_scope: str = "auto"
    log: Literal["file", "full", "closed"] = "file"  # full: a full disk; closed: a pipe whose reader has left
    log_plans: bool = False
    clock: bool = False
    descriptors: int | None = None  # limit of open files, of which connections get what programs and files do not need

    @property
    def judge(self) -> Flags | None:
        """Flags of the plain server whose tokens are expected; None where rounding of keys and values depends on who
        else is computed."""
        if self.kv_dtype != "auto" and not self.deterministic:
            return None
        return Flags(kv_dtype=self.kv_dtype, deterministic=self.deterministic, prefix_cache=False)

    def options(self, plans: str) -> list[str]:
        """Options of `ramiform serve`. `plans`: path of the plan log."""
        named = {
            "--kv-dtype": self.kv_dtype,
            "--eviction": self.eviction,
            "--order": self.order,
            "--speculative": self.speculative,
            "--frontends": self.frontends,
            "--tp": self.tp,
            "--host-kv-memory": self.host_kv_memory,
            "--prefill-budget": self.prefill_budget,
            "--num-pages": self.num_pages,
            "--max-running": self.max_running,
            "--overlap": self.overlap,
            "--grammar-memory": 0.02,
            "--cache-scope": self.cache_scope,
            "--log-level": "info",
        }
        options = [str(part) for pair in named.items() for part in pair]
        options += ["--deterministic"] * self.deterministic + ["--no-prefix-cache"] * (not self.prefix_cache)
        options += ["--api-key", "one,two"] * self.keys
        options += ["--log-plans", plans] * self.log_plans
        return [*options, "--trust-request-chat-template", "--wait-for-loops"]

    @property
    def kinds(self) -> list[ProcessKind]:
        """Kinds of its processes."""
        more: list[ProcessKind] = ["frontend"] * (self.frontends > 1) + ["rank"] * (self.tp > 1)  # type: ignore[assignment]
        return ["main", "core", *more]


class Ask(msgspec.Struct, frozen=True):
    """A request of a client: what it asks, and how the client conducts itself. `delay`: seconds after the others."""

    route: str  # or "program"
    body: dict[str, Any]
    conduct: Conduct = "reads"
    delay: float = 0.0


class Fault(msgspec.Struct, frozen=True):
    """A fault and its target. `amount`: seconds (stop, clock), MiB left (memory), connections (burst)."""

    kind: FaultKind = "none"
    target: ProcessKind = "core"
    after: float = 0.0  # seconds since the requests began
    amount: float = 0.0

    @property
    def is_fatal(self) -> bool:
        return self.kind == "kill" and self.target != "template"


class Step(msgspec.Struct, frozen=True):
    asks: list[Ask]
    fault: Fault = Fault()


class Life(msgspec.Struct, frozen=True):
    flags: Flags
    steps: list[Step]
    drains: bool = True  # ended by SIGTERM, else by SIGINT


@cache
def bodies() -> list[Ask]:
    """All requests of all walks, as clients that read."""
    tokenizer = shipped_tokenizer()
    mix = make_mix(400, lambda text: tokenizer.encode(text, parse_special=False, continues=True), seed=24)
    asks = [Ask("/generate", case.body) for case in mix if isinstance(case, Request)][: NUM_BODIES // 2]
    draw = random.Random(24)
    while len(asks) < NUM_BODIES:
        asks.append(_body(draw, " ".join(draw.choices(WORDS, k=draw.choice([3, 12, 60]))), len(asks)))
    return asks


def _body(draw: random.Random, text: str, index: int) -> Ask:
    seeded: dict[str, Any] = draw.choice([{"temperature": 0}, {"temperature": 0.8, "seed": index, "top_p": 0.9}])
    chat = {"model": "ramiform-demo", "messages": [{"role": "user", "content": text}], "max_tokens": 24} | seeded
    completion = {"model": "ramiform-demo", "prompt": text, "max_tokens": 24} | seeded
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    match index % 8:
        case 0:
            return Ask("/v1/chat/completions", chat | {"response_format": schema, "max_tokens": 60})
        case 1:
            return Ask("/v1/chat/completions", chat | {"n": 2, "logprobs": True, "top_logprobs": 2})
        case 2:
            return Ask("/v1/chat/completions", chat | {"chat_template": TEMPLATE})
        case 3:
            return Ask("/v1/completions", completion | {"stop": ["e ", "."], "logprobs": 1})
        case 4:
            return Ask("/v1/completions", completion | {"regex": r"( [a-z]{2,7}){3}\."})
        case 5:
            return Ask("program", {"name": "branches", "text": text, "width": 3, "seed": index, "concatenated": False})
        case 6:
            return Ask("program", {"name": "thoughts", "text": text, "seed": index})
    sampling = {"max_new_tokens": LONG, "ignore_eos": True, "temperature": 1.0, "sampling_seed": index}
    return Ask("/generate", {"text": text, "sampling_params": sampling})


def make_life(seed: int, index: int) -> Life:
    """Return life `index` of the walk of `seed`."""
    draw = random.Random(f"{seed} {index}")
    flags = _flags(draw)
    num_steps = 30 if index % 10 == 9 else draw.randint(2, 7)
    steps = [Step(_asks(draw, flags), _fault(draw, flags)) for _ in range(num_steps)]
    if draw.random() < 0.5:
        target = draw.choice(flags.kinds)
        steps.append(Step(_asks(draw, flags), Fault("kill", target, after=draw.choice([0.0, 0.2, 0.6]))))
    return Life(flags, steps, drains=draw.random() < 0.5)


def _flags(draw: random.Random) -> Flags:
    tp = draw.choice([1, 1, 1, 2])
    deterministic = draw.random() < 0.4
    return Flags(
        kv_dtype=draw.choice(["auto", "auto", "bf16", "int8", "fp8"]) if deterministic else "auto",
        deterministic=deterministic,
        eviction=draw.choice(["lru", "lfu", "priority", "program"]),
        order=draw.choice(["fcfs", "lpm", "dfs", "program"]),
        speculative=draw.choice(["off", "off", "ngram", "suffix", "eagle", "lookahead"]),
        frontends=draw.choice([1, 1, 2]),
        tp=tp,
        host_kv_memory=draw.choice([0.0, 0.0, 0.01]),
        prefill_budget=draw.choice([48, 256, 1024]),
        num_pages=draw.choice(PAGES),
        max_running=draw.choice([3, 64]),
        prefix_cache=draw.random() < 0.9,
        overlap=draw.choice(["off", "on"]) if tp == 1 else "off",
        keys=draw.random() < 0.3,
        cache_scope=draw.choice(["auto", "shared"]),
        log=draw.choice(["file", "file", "full", "closed"]),
        log_plans=draw.random() < 0.3,
        clock=draw.random() < 0.5,
        descriptors=draw.choice([None, None, 128, 256]),
    )


def _asks(draw: random.Random, flags: Flags) -> list[Ask]:
    asks = []
    for ask in draw.choices(bodies(), k=draw.randint(2, 8)):
        conduct: Conduct = draw.choice(["reads", "reads", "streams", "slow", draw.choice(CHAOTIC)])
        if ask.route == "program" and conduct != "leaves":
            conduct = "reads"
        if conduct in ("leaves", "aborts", "slow") and ask.route != "program":
            ask = next(one for one in draw.sample(bodies(), NUM_BODIES) if _is_long(one))
        asks.append(msgspec.structs.replace(allowed(ask, flags), conduct=conduct, delay=draw.choice([0.0, 0.0, 0.3])))
    return asks


def allowed(ask: Ask, flags: Flags) -> Ask:
    """Return the request as its key may send it: with several keys, only an admin's may precede the others."""
    if flags.keys and ask.body.get("priority", 0) > 0:
        return msgspec.structs.replace(ask, body=ask.body | {"priority": 0})
    return ask


def _is_long(ask: Ask) -> bool:
    return bool(ask.body.get("sampling_params", {}).get("max_new_tokens") == LONG)


def _fault(draw: random.Random, flags: Flags) -> Fault:
    after = draw.choice([0.0, 0.1, 0.5])
    match draw.choice(["none", "kill", "stop", "stop", "clock", "memory", "disk", "burst"]):
        case "kill":
            return Fault("kill", "template", after)
        case "stop":
            return Fault("stop", draw.choice([*flags.kinds, "template"]), after, draw.choice([0.2, 1.5, 4.0]))
        case "clock" if flags.clock:
            return Fault("clock", "main", after, draw.choice([-86400, -3600, -30, 30, 3600, 86400 * 400]))
        case "memory":
            return Fault("memory", draw.choice(flags.kinds), after, draw.choice([0, 4, 32]))
        case "disk":
            return Fault("disk", draw.choice(flags.kinds), after)
        case "burst":
            return Fault("burst", "main", after, draw.choice([20, 200]))
    return Fault()


def key_of(ask: Ask) -> str:
    """The request as a key of the table of expected answers, whoever asks and however."""
    return json.dumps([ask.route, ask.body], sort_keys=True)
