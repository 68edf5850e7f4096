"""Walk through chaos: `make chaos SECONDS=3600 SEED=1`. A finding is printed with the life that shows it.

`LIFE=PATH` (`--life`) replays a life from its JSON, also one that was shortened by hand; `--minimise` shortens it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import msgspec

from ramiform.tests.chaos.clients import PATIENCE, Outcome, ask_server
from ramiform.tests.chaos.server import CAN_MOVE_CLOCK, ChaosServer, Finding, resident_bytes, serving, strike
from ramiform.tests.chaos.walk import Ask, Fault, Flags, Life, Step, allowed, bodies, key_of, make_life


@dataclass
class Figures:
    """Counts of a walk's steps, requests and faults."""

    lives: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    conducts: Counter[str] = field(default_factory=Counter)
    compared: int = 0  # answers, whole or in part, that were compared with the plain server's
    tokens: int = 0  # of them, where the answer has ids
    memory: list[str] = field(default_factory=list)  # of long lives: first and last, MiB by kind

    def __str__(self) -> str:
        rows = [f"lives {self.lives}, steps {self.steps}, answers compared {self.compared} ({self.tokens} ids)"]
        for name, counts in (("faults", self.faults), ("clients", self.conducts), ("told", self.outcomes)):
            rows.append(f"{name}: " + ", ".join(f"{key} {num}" for key, num in sorted(counts.items())))
        return "\n".join([*rows, *self.memory])


class Judge:
    """Answers of plain servers: each request alone, without cache and guesses, one frontend, one rank."""

    def __init__(self) -> None:
        self._answers: dict[tuple[Flags, str], Outcome] = {}

    def learn(self, flags: Flags, asks: Sequence[Ask]) -> None:
        """Ask what it does not know yet."""
        new = {key_of(ask): ask for ask in asks if (flags, key_of(ask)) not in self._answers}
        if not new:
            return
        with serving(flags) as server:
            for key, ask in new.items():
                plain = msgspec.structs.replace(ask, conduct="reads", delay=0.0)
                self._answers[flags, key] = answer = ask_server(server.at, plain, Event())
                assert answer.kind == "answer", (plain, answer)

    def check(self, flags: Flags, ask: Ask, outcome: Outcome) -> None:
        """Raise Finding unless the outcome is the plain server's answer, or its beginning."""
        expected = self._answers[flags, key_of(ask)].value
        if outcome.kind == "answer":
            same = outcome.value == expected
        else:
            same = all(
                whole["text"].startswith(part["text"].rstrip("\N{REPLACEMENT CHARACTER}"))
                for whole, part in zip(expected, outcome.value, strict=False)
            )
        if not same:
            raise Finding(f"another answer: {outcome.value} instead of {expected} to {ask}")


def live(life: Life, judge: Judge, figures: Figures) -> None:
    """Go through a life. Raises Finding."""
    asks = [ask for step in life.steps for ask in step.asks]
    if (plain := life.flags.judge) is not None:
        judge.learn(plain, asks)
    with serving(life.flags) as server:
        for ask in _first_of_each(bodies()):
            outcome = ask_server(server.at, allowed(ask, life.flags), Event())
            if outcome.kind != "answer":
                raise Finding(f"{outcome} to {ask}")
        server.rest()
        figures.lives += 1
        for number, step in enumerate(life.steps):
            try:
                has_ended = _go(server, step, judge, figures)
            except Finding as finding:
                raise Finding(f"step {number} of {len(life.steps)}, {step.fault}: {finding}") from None
            if has_ended:
                return
        if len(life.steps) > 20:
            first, last = server.baseline.memory, {pid: resident_bytes(pid) for pid in server.baseline.memory}
            sizes = ", ".join(f"{server.pids[pid]} {first[pid] >> 20} to {last[pid] >> 20}" for pid in first)
            figures.memory.append(f"memory over {len(life.steps)} steps, MiB: {sizes}")
        server.process.send_signal(signal.SIGTERM if life.drains else signal.SIGINT)
        server.check_end({0}, may_log=False)


def _first_of_each(asks: Sequence[Ask]) -> Iterator[Ask]:
    """One request of each kind: what a process makes when it is first needed is there afterwards."""
    yield from {(ask.route, ask.body.get("name"), *sorted(ask.body)): ask for ask in asks}.values()


def _go(server: ChaosServer, step: Step, judge: Judge, figures: Figures) -> bool:
    """Take a step. Return True if the server has ended by it, as it may."""
    fault = step.fault
    if fault.kind == "clock" and not CAN_MOVE_CLOCK:
        fault = Fault()
    server.processes()
    over = Event()
    pool = ThreadPoolExecutor(len(step.asks))
    try:
        asked = [pool.submit(ask_server, server.at, ask, over) for ask in step.asks]
        time.sleep(fault.after)
        undo = strike(server, fault)
        server.processes()
        deadline = time.monotonic() + PATIENCE
        try:
            outcomes = []
            for ask, future in zip(step.asks, asked, strict=True):
                if ask.conduct in ("reads", "streams", "slow", "leaves", "aborts"):
                    outcomes.append((ask, _result(server, ask, future, deadline)))
        finally:
            over.set()
            undo()
        for ask, future in zip(step.asks, asked, strict=True):
            if ask.conduct not in ("reads", "streams", "slow", "leaves", "aborts"):
                outcomes.append((ask, _result(server, ask, future, deadline)))
    finally:
        over.set()
        pool.shutdown(wait=False)
    figures.steps += 1
    figures.faults[fault.kind if fault.kind in ("none", "burst", "clock") else f"{fault.kind} {fault.target}"] += 1
    for ask, outcome in outcomes:
        figures.conducts["program" if ask.route == "program" else ask.conduct] += 1
        figures.outcomes[outcome.kind] += 1
    may_fail = fault.is_fatal or fault.kind == "memory"
    may_fail |= fault.kind == "burst" and server.flags.descriptors is not None  # 503: too many connections
    for ask, outcome in outcomes:
        _check(server, ask, outcome, fault, may_fail=may_fail)
        if outcome.kind in ("answer", "part") and server.flags.judge is not None:
            judge.check(server.flags.judge, ask, outcome)
            figures.compared += 1
            figures.tokens += outcome.num_tokens
    if fault.is_fatal:
        server.check_end({-9} if fault.target == "main" else {1}, may_log=True)
        return True
    if fault.kind == "memory" and _is_ending(server):
        server.check_end({1, -6, -9, -11}, may_log=True)
        figures.faults[f"of these ended: memory {fault.target}"] += 1
        return True
    server.check_at_rest()
    return False


def _is_ending(server: ChaosServer) -> bool:
    """True if a process has died of the lack of memory: then all of them must end."""
    assert server.baseline is not None
    time.sleep(0.5)
    return not set(server.baseline.descriptors) <= set(server.processes())


def _result(server: ChaosServer, ask: Ask, future: object, deadline: float) -> Outcome:
    try:
        return future.result(max(1.0, deadline - time.monotonic()))  # type: ignore[attr-defined, no-any-return]
    except NotDone:
        raise Finding(f"a client was told nothing for {PATIENCE:g} s: {ask}; {server._state()}") from None
    except AssertionError as error:
        raise Finding(str(error)) from None


def _check(server: ChaosServer, ask: Ask, outcome: Outcome, fault: Fault, *, may_fail: bool) -> None:
    """Raise Finding if the client should have been told something else."""
    if outcome.kind in ("answer", "part", "hostile"):
        return
    if not may_fail:
        raise Finding(f"{outcome} to {ask}")
    # Clients of a killed frontend cannot be told; those of a living one are.
    if outcome.kind == "cut" and fault.target in ("core", "rank") and fault.kind == "kill":
        raise Finding(f"a client was told nothing: {outcome} to {ask}")


def minimise(life: Life, is_bad: object) -> Life:
    """Shorten a life as long as it stays bad: steps, then requests of steps."""
    assert callable(is_bad)
    for index in reversed(range(len(life.steps))):
        shorter = msgspec.structs.replace(life, steps=life.steps[:index] + life.steps[index + 1 :])
        if shorter.steps and is_bad(shorter):
            life = shorter
    for index, step in enumerate(life.steps):
        for ask in reversed(step.asks):
            asks = [other for other in life.steps[index].asks if other is not ask]
            steps = [*life.steps[:index], Step(asks, step.fault), *life.steps[index + 1 :]]
            shorter = msgspec.structs.replace(life, steps=steps)
            if asks and is_bad(shorter):
                life = shorter
    return life


def walk(seed: int, seconds: float, first: int = 0) -> tuple[Figures, list[str]]:
    """Go through lives until the time is over. Returns figures, and the findings as texts."""
    figures, findings, judge = Figures(), [], Judge()
    deadline = time.monotonic() + seconds
    index = first
    while time.monotonic() < deadline:
        life = make_life(seed, index)
        began = time.monotonic()
        try:
            live(life, judge, figures)
        except Finding as finding:
            path = Path(f"build/chaos-{seed}-{index}.json")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(life)))
            findings.append(f"FOUND at life {index} of seed {seed}: {finding}\nreplay: make chaos LIFE={path}")
            print(findings[-1], flush=True)
        print(
            f"{time.strftime('%X')} life {index}: {len(life.steps)} steps, {time.monotonic() - began:.0f} s", flush=True
        )
        index += 1
        if index % 3 == 0:
            print(f"--- {time.strftime('%X')} life {index}, {len(findings)} findings\n{figures}", flush=True)
    return figures, findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--first", type=int, default=0, help="number of the first life")
    parser.add_argument("--life", type=Path, help="replay this life")
    parser.add_argument("--minimise", action="store_true", help="shorten the life of --life as far as it stays bad")
    options = parser.parse_args()
    if options.life is not None:
        sys.exit(_replay(msgspec.json.decode(options.life.read_bytes(), type=Life), options))
    print(f"seed {options.seed}", flush=True)
    figures, findings = walk(options.seed, options.seconds, options.first)
    print(f"{figures}\nfindings: {len(findings)}")
    sys.exit(bool(findings))


def _replay(life: Life, options: argparse.Namespace) -> int:
    judge = Judge()

    def is_bad(candidate: Life) -> bool:
        try:
            live(candidate, judge, Figures())
        except Finding as finding:
            print(f"FOUND with {len(candidate.steps)} steps: {finding}", flush=True)
            return True
        return False

    bad = is_bad(life)
    if bad and options.minimise:
        options.life.write_bytes(msgspec.json.format(msgspec.json.encode(minimise(life, is_bad))))
    return bad


if __name__ == "__main__":
    main()
