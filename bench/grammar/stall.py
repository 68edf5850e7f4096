"""Delays of running streams while expensive constraints are compiled and followed in the same process.

    python -P bench/grammar/stall.py [--seconds 8] [--rounds 3] [--out FILE]

Four streams on the model that ships, their steps taken as the core takes them. Beside them are 40 requests with
constraints, submitted at once: plain ones that are known already, or 40 hostile schemas that no request had before; or
none; in turn. Measured is the wall's time from one token of a stream to its next, and the time to the first token of
requests with a plain schema that is new, submitted one after the other behind the 40.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any

import numpy as np
import typer

from ramiform.bench.harness import Out, report, table
from ramiform.runtime.core.main import SWITCH_INTERVAL, load_core, start_collections
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Abort, FromCore, Generate, RequestFailed, Tokens
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams

NUM_STREAMS, NUM_CONSTRAINED = 4, 40
NEW_INTERVAL = 0.25  # seconds from the answer to one new plain schema to the next


def hostile(number: int) -> Constraint:
    """Return one of ever new constraints, of eight kinds."""
    kind, variant = number % 8, number // 8
    match kind:
        case 0:
            return _schema({"enum": [{"name": f"n{n}_{variant}", "value": n} for n in range(1000)]})
        case 1:
            return _schema({"anyOf": [_tool(n, f"a{n}_{variant}") for n in range(1000)]})
        case 2:
            return Constraint("regex", f"(a|b)*a(a|b){{18}}{variant}")
        case 3:
            conditions = [_condition(n, f"x{n}_{variant}") for n in range(49)]
            return _schema({"type": "object", "properties": {"a": {"type": "string"}}, "allOf": conditions})
        case 4:
            nested: dict[str, Any] = {"type": "integer"}
            for _ in range(100):
                nested = _object({f"p{variant}": nested, "q": {"type": "string"}}, [f"p{variant}"])
            return _schema(nested)
        case 5:
            items = {"enum": list(range(variant, variant + 30))}
            return _schema({"type": "array", "items": items, "uniqueItems": True, "minItems": 20})
        case 6:
            patterns = [{"type": "string", "pattern": f"^{n}_{variant}[a-z]*$"} for n in range(300)]
            return _schema({"anyOf": [_object({"k": pattern}, ["k"]) for pattern in patterns]})
        case _:
            members = {f"^[a-{chr(101 + n)}]{{{n + 1},}}{variant}": {"type": "integer", "minimum": n} for n in range(8)}
            return _schema({"type": "object", "patternProperties": members})


def plain(number: int) -> Constraint:
    """Return one of ever new small schemas whose outputs are long."""
    words = {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 100}
    return _schema(_object({f"a{number}": {"type": "integer"}, "words": words}, ["words"]))


def _schema(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema), "any", "schema")


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _tool(number: int, name: str) -> dict[str, Any]:
    return _object({"kind": {"const": number}, name: {"type": "integer"}}, ["kind"])


def _condition(number: int, value: str) -> dict[str, Any]:
    condition = {"properties": {"a": {"const": value}}, "required": ["a"]}
    return {"if": condition, "then": {"required": [f"b{number}"]}}


@dataclass
class Found:
    """Milliseconds between the tokens of a stream, and to the first token of a new plain schema; constrained requests
    that ended, and that failed."""

    gaps: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)  # of each run
    p99: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    num_ended: int = 0
    num_failed: int = 0
    num_tokens: int = 0  # of constrained requests


class Core:
    """The parts of a core, driven as its main loop does."""

    def __init__(self) -> None:
        self._core = load_core(CoreConfig(num_pages=4096))
        self._numbers = count()
        self._live: dict[str, float] = {}  # when each request had its last token
        start_collections()
        self._new_plain = (plain(number) for number in count(1000))
        self._sent = self._answered = 0.0  # when the last new plain schema came, and was answered

    def run(self, constraints: Sequence[Constraint], seconds: float) -> Found:
        """Run the streams, and the constrained requests beside them, for so long."""
        found = Found()
        for constraint in constraints:
            self._add(
                "constrained", SamplingParams(max_new_tokens=1000, temperature=1.0, seed=1, constraint=constraint)
            )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while sum(rid.startswith("stream") for rid in self._live) < NUM_STREAMS:
                self._add("stream", SamplingParams(max_new_tokens=400, temperature=1.0, seed=1, ignore_eos=True))
            is_rested = time.monotonic() - self._answered > NEW_INTERVAL
            if is_rested and not any(rid.startswith("new") for rid in self._live):
                self._sent = time.monotonic()
                self._add(
                    "new",
                    SamplingParams(max_new_tokens=1, temperature=1.0, seed=1, constraint=next(self._new_plain)),
                )
            self._step(found)
        if any(rid.startswith("new") for rid in self._live):
            found.first.append((time.monotonic() - self._sent) * 1e3)  # or later
        for rid in list(self._live):
            self._core.scheduler.handle(Abort(rid), time.monotonic())
            del self._live[rid]
        while not self._core.scheduler.idle:
            self._step(Found())
        found.p50.append(float(np.percentile(found.gaps, 50)))
        found.p99.append(float(np.percentile(found.gaps, 99)))
        return found

    def close(self) -> None:
        """Begin no more compilations."""
        self._core.grammars.close()

    def _add(self, kind: str, sampling: SamplingParams) -> None:
        rid = f"{kind} {next(self._numbers)}"
        message = Generate(rid=rid, tokens=[5, 6, 7], sampling=sampling)
        assert not self._core.scheduler.handle(message, time.monotonic())
        self._live[rid] = 0.0

    def _step(self, found: Found) -> None:
        scheduler, engine = self._core.scheduler, self._core.engine
        plan = scheduler.plan(time.monotonic())
        answers = scheduler.answers()
        if plan is not None:
            answers += scheduler.commit(plan, engine.run(plan), time.monotonic())
        for answer in answers:
            self._take(answer, found)

    def _take(self, answer: FromCore, found: Found) -> None:
        assert isinstance(answer, Tokens | RequestFailed)
        now, is_stream = time.monotonic(), answer.rid.startswith("stream")
        if answer.rid not in self._live:
            return
        if answer.rid.startswith("new"):
            del self._live[answer.rid]
            found.first.append((now - self._sent) * 1e3)
            self._answered = now
            return
        if isinstance(answer, Tokens):
            if is_stream and self._live[answer.rid]:
                found.gaps.append((now - self._live[answer.rid]) * 1e3)
            found.num_tokens += 0 if is_stream else len(answer.ids)
        self._live[answer.rid] = now
        if isinstance(answer, RequestFailed) or answer.finish is not None:
            del self._live[answer.rid]
            found.num_ended += not is_stream
            found.num_failed += isinstance(answer, RequestFailed)


def main(
    seconds: Annotated[float, typer.Option(help="of each run")] = 8.0,
    rounds: Annotated[int, typer.Option(help="of the runs")] = 3,
    out: Out = None,
) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL)
    core, numbers = Core(), count()
    known = [plain(number % 5) for number in range(NUM_CONSTRAINED)]
    core.run(known, 3)
    constraints: dict[str, Callable[[], list[Constraint]]] = {
        "none": list,
        "plain": lambda: known,
        "hostile": lambda: [hostile(next(numbers)) for _ in known],
    }
    whole = {beside: Found() for beside in constraints}
    for _ in range(rounds):
        for beside, found in whole.items():
            one = core.run(constraints[beside](), seconds)
            for figure in ("gaps", "p50", "p99", "first", "num_ended", "num_failed", "num_tokens"):
                setattr(found, figure, getattr(found, figure) + getattr(one, figure))
    core.close()
    rows = [
        {
            "beside": beside,
            **{f"ITL p{percent} ms": float(np.percentile(found.gaps, percent)) for percent in (50, 90, 99)},
            "max": max(found.gaps),
            "p99 of each run": " ".join(f"{p99:.0f}" for p99 in found.p99),
            **{f"new plain p{percent} ms": float(np.percentile(found.first, percent)) for percent in (50, 99)},
            "their max": max(found.first),
            "stream tokens": len(found.gaps),
            "constrained tokens": found.num_tokens,
            "ended": found.num_ended,
            "of them failed": found.num_failed,
        }
        for beside, found in whole.items()
    ]
    ratios = [
        {
            "hostile, in parts of": beside,
            **{
                f"{figure} {name}": float(pick(np.divide(getattr(whole["hostile"], figure), getattr(found, figure))))
                for figure in ("p50", "p99")
                for name, pick in (("median", np.median), ("worst", np.max))
            },
        }
        for beside, found in whole.items()
        if beside != "hostile"
    ]
    report("Streams beside constraints", table(rows), "Ratios of runs in the same round:", table(ratios), out=out)


if __name__ == "__main__":
    typer.run(main)
