"""Runs requests on a scheduler and an engine in this process, and collects their outputs.

A request enters when another has ended, so that at most `at_once` grammars are held.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ramiform.runtime.engine import ForwardEngine
from ramiform.runtime.protocol.core import CoreReply, FromCore, Generate, RequestFailed
from ramiform.runtime.scheduler.scheduler import Scheduler

COMPILE_POLL = 0.001  # seconds between looks while all requests wait for their grammars


@dataclass
class Output:
    """Output of a request. `finish` is None if it failed, and `error` says why."""

    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None


@dataclass
class Cost:
    """Cost of a whole run. A forward computes one step of all running requests."""

    seconds: float = 0.0
    num_forwards: int = 0


def play(
    engine: ForwardEngine, scheduler: Scheduler, requests: Iterable[Generate], at_once: int | None = None
) -> tuple[dict[str, Output], Cost]:
    """Run the requests, at most `at_once` of them at a time (None: all). Returns the outputs by rid, and the cost."""
    outputs: dict[str, Output] = {}
    cost = Cost()
    waiting = iter(requests)
    num_live, exhausted = 0, False
    began = time.perf_counter()

    def take(answers: Iterable[FromCore]) -> None:
        nonlocal num_live
        for answer in answers:
            assert not isinstance(answer, CoreReply)
            num_live -= _add(outputs, answer)

    while num_live or not exhausted:
        while not exhausted and (at_once is None or num_live < at_once):
            request = next(waiting, None)
            if request is None:
                exhausted = True
                break
            outputs[request.rid] = Output()
            num_live += 1
            take(scheduler.handle(request, time.monotonic(), b""))
        plan = scheduler.plan(time.monotonic())
        take(scheduler.answers())
        if plan is not None:
            cost.num_forwards += 1
            take(scheduler.commit(plan, engine.run(plan), time.monotonic()))
        elif num_live:
            time.sleep(COMPILE_POLL)
    cost.seconds = time.perf_counter() - began
    return outputs, cost


def _add(outputs: dict[str, Output], answer: Any) -> bool:
    """Add an answer to its output; return True if the request has ended."""
    output = outputs[answer.rid]
    if isinstance(answer, RequestFailed):
        output.error = answer.error.message
        return True
    output.ids += answer.ids
    if answer.finish is not None:
        output.finish = answer.finish.type
    return answer.finish is not None
