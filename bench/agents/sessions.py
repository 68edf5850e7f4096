"""Recorded agent sessions through the scheduler and the prefix cache, without a model.

    python -P bench/agents/sessions.py FILE --pool 0.7 [--host-pool 0.2] [--policy lru ...] [--out FILE]

FILE holds sessions as a JSON list, optionally packed with xz. A session is a list of requests: [start s, idle s before
it, service s, input blocks of 64 tokens, blocks shared with the request before, kind of stop, output tokens]. It holds
no text, so a block is one made-up token here, and a page of the cache is one block.

Sessions start evenly spaced, in an order drawn from the seed, so that `--live` of them are alive on average. Requests
arrive at their recorded times, or when the session's request before them has ended (an open loop). `--pool` is the
device's share of the live working set: the 78th percentile, over requests, of what the contexts of all live sessions
hold. `--host-pool` is the share of a host tier besides. Steps cost what they do in bench/scheduling/simulation.py, with
blocks for tokens, so that the server keeps up and recomputation shows apart from load; `--slow` scales that.

`--hints` is what the server is told: `none`, only requests; `headers`, also each request's session, as HTTP clients
name it; `closed`, also the session's end, as `/close_session` tells it; `program`, the same as a program of the
language tells it. After each turn the server knows what it waits for, as it has parsed its calls. `clairvoyant` knows
the trace: it evicts first what no request will use, then what is used last (Belady's MIN over prefixes). To see what
a forecast lacks, `returns` knows only when sessions come back, `tails` is `program` that knows how much of each prompt
is used again, and `within 2` to `within 16` know waits only up to that factor.

`--disk-pool` is the share of a disk tier besides, which has what was computed, in segments of a 32nd of it, and gives a
request what memory has not. Reading takes no time here. Of its segments the one used last least recently goes first
(`lru`, as runtime/disk/store.py does), the one whose sessions are least likely to return by the forecast of memory
(`forecast`), or the one that the trace uses last (`clairvoyant`): `--disk-eviction`. With `--read-ahead`, sessions that
wait are read back after each turn, the likeliest to return first, into pages that nobody will use.

`--admission` lets turns wait whose contexts would push out those of sessions that come back within `--horizon`
seconds, by the forecast or by the trace, for `--longest-delay` seconds at most (session_admission.py). Waits count as
job time.

`--ablate` plays `lru`, `program`, and `program` without one of its parts at a time, then the six workloads of
bench/scheduling/workloads.py with `lru`, `program` and `program` without its order, in a quarter of the memory that
they use.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, product
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from ramiform.bench.agents.recorded_sessions import BLOCK, Session, Turn, live_working_set, load, schedule
from ramiform.bench.agents.session_admission import AdmissionRule, AdmissionSettings, ProgramAdmission
from ramiform.bench.agents.session_disk import Disk, disk_values
from ramiform.bench.harness import Out, percentile, report, table
from ramiform.bench.scheduling.simulation import AMPLE, STEP_SECONDS, TOKEN_SECONDS, VirtualCore, quarter_of, simulate
from ramiform.bench.scheduling.simulation import VOCABULARY as TOKENS
from ramiform.bench.scheduling.workloads import make_workloads
from ramiform.radix.cache import PrefixCache
from ramiform.radix.eviction.strategies import EvictionStrategy
from ramiform.radix.reuse_forecast import ReuseForecast
from ramiform.radix.tree import TreeNode
from ramiform.runtime.protocol.config import CoreConfig, EvictionName, OrderName
from ramiform.runtime.protocol.core import (
    ClientSession,
    EndStates,
    FromCore,
    Generate,
    RequestFailed,
    SoftPin,
    Tokens,
    TurnEnded,
)
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, RowResult
from ramiform.runtime.scheduler.scheduler import VocabularyInfo

Hints = Literal["none", "headers", "closed", "program"]

COPY_SECONDS = TOKEN_SECONDS / 4  # of a block's keys and values from one tier to the other
OUTPUTS = 1 << 20  # made-up output blocks have ids from here on; half as many follow
VOCABULARY = VocabularyInfo(2 * OUTPUTS, [b" word"] * (2 * OUTPUTS), frozenset())
CHUNK = 512  # blocks
POLICIES = ["lru", "lfu", "program", "clairvoyant"]
POOLS = [0.7]
DISK_RULES = ["lru"]
NO_ADMISSION = AdmissionSettings()
ADMISSIONS = ["none"]
DELAYS, HORIZONS = [30.0], [60.0]
LOOK_SECONDS = 1.0  # between two looks at turns that wait for admission


@dataclass(frozen=True)
class Part:
    """A part of `program`: what a run is like without it."""

    hints: Hints = "program"
    order: OrderName = "program"
    by_kind: bool = True
    by_owner: bool = True


PARTS = {  # by what is left out
    "ends of programs": Part(hints="headers"),
    "names of programs": Part(hints="none"),
    "kinds of waits": Part(by_kind=False),
    "a program's own history": Part(by_owner=False),
    "the order": Part(order="fcfs"),
}


@dataclass(frozen=True)
class Knowledge:
    """Facts of the trace that eviction knows: when sessions return, up to a factor, and what they use of prompts."""

    returns_within: float | None = None  # None: by the forecast
    tails: bool = False


KNOWLEDGE = {  # by policy
    "clairvoyant": Knowledge(1.0, tails=True),
    "returns": Knowledge(1.0),
    "tails": Knowledge(tails=True),
    **{f"within {factor}": Knowledge(factor, tails=True) for factor in (2, 4, 8, 16)},
}


@dataclass
class Outcome:
    """Results of a policy on a trace. Counts are of blocks."""

    num_reusable: int = 0
    num_recomputed: int = 0  # of the reusable ones
    num_turns: int = 0  # with something to reuse
    num_whole: int = 0  # of these, how many found all of it
    ttfts: list[float] = field(default_factory=list)
    job_times: list[float] = field(default_factory=list)  # seconds that a session waited for the server, in all
    num_demoted: int = 0
    num_promoted: int = 0
    num_fetched: int = 0  # from the disk, when a request asked for them
    num_ahead: int = 0  # from the disk, before
    num_delayed: int = 0  # turns that admission has let wait
    longest_delay: float = 0.0

    @property
    def recomputed(self) -> float:
        return self.num_recomputed / self.num_reusable

    def figures(self) -> dict[str, float]:
        return {
            "recomputed %": 100 * self.recomputed,
            "whole hits %": 100 * self.num_whole / self.num_turns,
            "TTFT p50 ms": 1e3 * percentile(self.ttfts, 50),
            "p95": 1e3 * percentile(self.ttfts, 95),
            "job time mean s": statistics.mean(self.job_times),
            "job p50": percentile(self.job_times, 50),
            "job p95": percentile(self.job_times, 95),
        }


class Replay(VirtualCore):
    """Plays sessions on one scheduler, in virtual time."""

    def __init__(
        self,
        sessions: Sequence[Session],
        config: CoreConfig,
        cache: PrefixCache,
        *,
        hints: Hints,
        knows: Knowledge | None,
        slow: float,
        disk: Disk | None = None,
        reads_ahead: bool = False,
        admission: ProgramAdmission | None = None,
    ) -> None:
        super().__init__(config, cache, VOCABULARY)
        self._by_header = hints in ("headers", "closed") and knows is None
        self._hints, self._knows, self._slow = hints, knows, slow
        self._disk, self._admission = disk, admission
        self._resting: dict[str, Session] | None = {} if reads_ahead else None  # sessions that wait
        self._looks_again = False  # for turns that admission let wait
        self._fresh = count(1)
        self._asked: dict[str, tuple[Session, Turn, float]] = {}
        self._answered: set[str] = set()
        self.outcome = Outcome()
        for session in sessions:
            self._at(session.start, session)

    def run(self) -> Outcome:
        """Play everything. Raises AssertionError when a request never ends."""
        self.play()
        assert not self._asked, "requests without an answer"
        self.outcome.num_demoted = self.cache.stats.num_demoted_pages
        self.outcome.num_promoted = self.cache.stats.num_promoted_pages
        if self._admission is not None:
            self.outcome.num_delayed = self._admission.num_delayed
            self.outcome.longest_delay = self._admission.longest_delay
        return self.outcome

    def seconds_of(self, plan: ForwardPlan) -> float:
        return self._slow * step_seconds(plan)

    def result_of(self, plan: ForwardPlan) -> ForwardResult:
        return make_believe(plan)

    def _at(self, when: float, session: Session) -> None:
        self.time.at(when, lambda: self._ask(session))

    def _ask(self, session: Session) -> None:
        number, turn = session.next_turn, session.turns[session.next_turn]
        session.next_turn += 1
        shared = session.blocks[: turn.num_shared]
        session.blocks = shared + [next(self._fresh) for _ in range(turn.num_blocks - len(shared))]
        asked = self.time.now
        if self._admission is None:
            self._start(session, number, asked)
            return
        self._admission.ask(session, asked, lambda: self._start(session, number, asked))
        if self._admission and not self._looks_again:
            self._look_again()

    def _look_again(self) -> None:
        """Start what admission let wait, and look again in a while if some are left."""
        assert self._admission is not None
        self._admission.start_those_that_fit(self.time.now)
        self._looks_again = len(self._admission) > 0
        if self._looks_again:
            self.time.after(LOOK_SECONDS, self._look_again)

    def _start(self, session: Session, number: int, asked: float) -> None:
        turn = session.turns[number]
        if self._disk is not None:
            self._fetch(session)
        rid = f"{session.name}, {number}"
        self._asked[rid] = session, turn, asked
        reused = session.turns[session.next_turn].num_shared if session.next_turn < len(session.turns) else 0
        self.send(
            Generate(
                rid=rid,
                tokens=session.blocks,
                sampling=SamplingParams(max_new_tokens=turn.num_output, ignore_eos=True, seed=number),
                program=session.name if self._hints == "program" or self._knows else None,
                soft_pins=[SoftPin(0, reused if self._knows is not None and self._knows.tails else None)],
                session=ClientSession(session.name) if self._by_header else None,
            )
        )

    def _fetch(self, session: Session) -> None:
        """Cache what the disk has of a prompt and memory has not."""
        if self._resting is not None:
            self._resting.pop(session.name, None)
        self.outcome.num_fetched += self._read(session, self.cache.num_pages)

    def _read(self, session: Session, most: int, owner: Hashable = None) -> int:
        """Cache up to `most` blocks of a session that the disk has and memory has not. Returns how many."""
        assert self._disk is not None
        blocks = session.blocks[:-1]
        cached = self.cache.match(blocks)
        until = min(cached + most, self._disk.first_missing(blocks, cached))
        if until <= cached or not (lease := self.cache.acquire(blocks, num_tokens=until, limit=until, counted=False)):
            return 0
        self.cache.commit(lease, blocks[:until])
        if owner is not None:
            self.cache.set_soft_pin(lease, owner, until, 0)
        self.cache.release(lease, blocks[:until])
        return until - cached

    def _read_ahead(self) -> None:
        """Read sessions that wait, the likeliest to return first, into pages that are free or that nobody will use."""
        assert self._resting is not None
        forecast = self.cache.forecast
        forecast.now = self.time.now
        room = self.cache.num_free + sum(len(node.pages) for node in self.cache.tree.nodes() if _is_left_over(node))
        waits = {name: forecast.wait((f"/{name}", 0)) for name in self._resting}
        for name in sorted(waits, key=lambda each: -forecast.rate(waits[each].group, waits[each].since)):
            if room <= 0:
                return
            num_read = self._read(self._resting[name], room, (f"/{name}", 0))
            self.outcome.num_ahead += num_read
            room -= num_read

    def take(self, messages: Sequence[FromCore]) -> None:
        for message in messages:
            assert not isinstance(message, RequestFailed), message
            if not isinstance(message, Tokens):
                continue
            session, turn, asked = self._asked[message.rid]
            if message.rid not in self._answered:
                self._answered.add(message.rid)
                self._note_start(turn, message.num_cached, self.time.now - asked)
            if message.finish is not None:
                del self._asked[message.rid]
                session.waited += self.time.now - asked
                session.answered = self.time.now
                if self._admission is not None:
                    self._admission.note_answered(session)
                if self._disk is not None:
                    self._disk.use(session, session.blocks, self.time.now)
                if turn.stop:  # else the answer was cut, of which the frontend says nothing
                    self.send(TurnEnded(message.rid, turn.stop if turn.stop == "tool_use" else "user"))
                self._go_on(session, turn)
                if self._resting is not None:
                    if session.next_turn < len(session.turns):
                        self._resting[session.name] = session
                    self._read_ahead()

    def _note_start(self, turn: Turn, num_cached: int, ttft: float) -> None:
        outcome = self.outcome
        outcome.ttfts.append(ttft)
        if turn.num_shared:
            # The last block is computed in any case.
            num_reusable = min(turn.num_shared, turn.num_blocks - 1)
            outcome.num_reusable += num_reusable
            outcome.num_recomputed += max(0, num_reusable - num_cached)
            outcome.num_turns += 1
            outcome.num_whole += num_cached >= num_reusable

    def _go_on(self, session: Session, turn: Turn) -> None:
        if session.next_turn < len(session.turns):
            self._at(max(self.time.now, session.next_use), session)
            return
        self.outcome.job_times.append(session.waited)
        if self._admission is not None:
            self._admission.end(session)
        if self._hints in ("program", "closed") or self._knows:
            self.send(EndStates(session.name, is_session=self._by_header))


def _is_left_over(node: TreeNode) -> bool:
    return not (node.ref_count or node.soft_pins or node.children)


def step_seconds(plan: ForwardPlan) -> float:
    """Return the time of a step. A sampled block is 64 steps of one token; a computed one costs what a token does in
    bench/scheduling/simulation.py."""
    num_steps = BLOCK if any(row.sample is not None and len(row.tokens) == 1 for row in plan.rows) else 1
    return num_steps * STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens + COPY_SECONDS * len(plan.copies)


def make_believe(plan: ForwardPlan) -> ForwardResult:
    return ForwardResult(
        step=plan.step,
        rows=[
            RowResult(tokens=[] if row.sample is None else [OUTPUTS + row.sample.draw % OUTPUTS]) for row in plan.rows
        ],
    )


def evict_last_used(sessions: Sequence[Session], within: float) -> EvictionStrategy:
    """Return the strategy that evicts what is used last, where waits are known up to a factor."""
    by_owner = {f"/{session.name}": session for session in sessions}

    def key(node: TreeNode) -> tuple[float, ...]:
        if not node.soft_pins:
            return (0.0, 0.0)
        return (1.0, -min(by_owner[owner].next_use_within(within) for owner, _ in node.soft_pins))  # type: ignore[misc]

    return EvictionStrategy(key, respects_soft_pins=True)


def replay(
    recorded: Sequence[list[Turn]],
    policy: str,
    *,
    pool: float,
    host_pool: float,
    live: int,
    hints: Hints,
    seed: int,
    slow: float,
    without: Part | None = None,
    disk: tuple[float, str] = (0.0, "lru"),
    reads_ahead: bool = False,
    admission: AdmissionSettings = NO_ADMISSION,
) -> Outcome:
    """Play the sessions under one policy: an eviction strategy, or one of KNOWLEDGE. `without` a part of `program`, its
    hints take the place of `hints`. `disk` is the disk's share and how it evicts."""
    part = Part(hints, "fcfs" if policy == "lru" else "program") if without is None else without
    sessions = schedule(recorded, live, seed)
    num_blocks = live_working_set(sessions)
    knows = KNOWLEDGE.get(policy)
    within = None if knows is None else knows.returns_within
    config = CoreConfig(prefill_budget=CHUNK, max_running=256, order=part.order)
    cache = PrefixCache(
        round(pool * num_blocks),
        1,
        num_host_pages=round(host_pool * num_blocks),
        strategy=("program" if knows else policy) if within is None else evict_last_used(sessions, within),
        forecast=ReuseForecast(by_kind=part.by_kind, by_owner=part.by_owner),
    )
    disk_pool, rule = disk
    tier = Disk(round(disk_pool * num_blocks), disk_values(cache)[rule]) if disk_pool else None
    gate = None if admission.rule == "none" else ProgramAdmission(cache, admission)
    return Replay(
        sessions,
        config,
        cache,
        hints=part.hints,
        knows=knows,
        slow=slow,
        disk=tier,
        reads_ahead=reads_ahead,
        admission=gate,
    ).run()


def play_workloads(size: float, seed: int) -> list[dict[str, Any]]:
    """Return a row for each of the six workloads: hit rate and mean job time by policy and order."""
    settings: dict[str, tuple[EvictionName, OrderName]] = {
        "lru": ("lru", "fcfs"),
        "program": ("program", "program"),
        "without the order": ("program", "fcfs"),
    }
    rows = []
    for workload in make_workloads(range(TOKENS.vocab_size), size=size, seed=seed):
        num_pages = quarter_of(simulate(workload, CoreConfig(), AMPLE))
        row: dict[str, Any] = {"workload": workload.name}
        for name, (eviction, order) in settings.items():
            played = simulate(workload, CoreConfig(order=order, eviction=eviction), num_pages)
            row[f"{name}: hit %"] = 100 * played.run.num_hits / played.run.num_prompt_tokens
            row[f"{name}: job s"] = statistics.mean(played.job_times)
        rows.append(row)
    return rows


def main(
    file: Annotated[Path, typer.Argument(help="recorded sessions", exists=True, dir_okay=False)],
    pool: Annotated[list[float], typer.Option(help="the device's share of the live working set")] = POOLS,
    host_pool: Annotated[float, typer.Option(help="the host tier's share")] = 0.0,
    disk_pool: Annotated[float, typer.Option(help="the disk's share")] = 0.0,
    disk_eviction: Annotated[list[str], typer.Option(help="lru, forecast or clairvoyant")] = DISK_RULES,
    read_ahead: Annotated[bool, typer.Option(help="from the disk, into pages that nobody will use")] = False,
    admission: Annotated[list[str], typer.Option(help="which turns wait: none, forecast or clairvoyant")] = ADMISSIONS,
    longest_delay: Annotated[list[float], typer.Option(help="of a turn that admission lets wait, in seconds")] = DELAYS,
    horizon: Annotated[list[float], typer.Option(help="seconds in which who returns keeps its room")] = HORIZONS,
    live: Annotated[int, typer.Option(help="sessions alive at once, on average")] = 40,
    policy: Annotated[list[str], typer.Option(help="eviction strategies, or clairvoyant")] = POLICIES,
    hints: Annotated[Hints, typer.Option(help="what the server is told")] = "program",
    seed: Annotated[int, typer.Option(help="of the order of sessions")] = 1,
    slow: Annotated[float, typer.Option(help="scales the time of the server's steps")] = 1.0,
    ablate: Annotated[
        bool, typer.Option(help="leave out one part of `program` at a time; ends with the six workloads")
    ] = False,
    size: Annotated[float, typer.Option(help="scales the number of programs of the six workloads")] = 1.0,
    out: Out = None,
) -> None:
    recorded = load(file)
    rows: list[dict[str, Any]] = []
    runs: list[tuple[str, Part | None]] = [(name, None) for name in (["lru", "program"] if ablate else policy)]
    runs += [("program", part) for part in PARTS.values()] if ablate else []
    names = {part: f"without {name}" for name, part in PARTS.items()}
    gates = [NO_ADMISSION] if "none" in admission else []
    gates += [
        AdmissionSettings(cast(AdmissionRule, rule), longest, seconds)
        for rule, longest, seconds in product(admission, longest_delay, horizon)
        if rule != "none"
    ]
    for share in pool:
        for (name, part), rule, gate in product(runs, disk_eviction, gates):
            began = time.process_time()
            settings: dict[str, Any] = {
                "host_pool": host_pool,
                "live": live,
                "hints": hints,
                "seed": seed,
                "slow": slow,
                "reads_ahead": read_ahead,
                "admission": gate,
            }
            outcome = replay(
                recorded,
                name,
                pool=share,
                without=part,
                disk=(disk_pool, rule),
                **settings,
            )
            base = next((row for row in rows if row["pool"] == share), None)
            rows.append(
                {
                    "pool": share,
                    "policy": name if part is None else names[part],
                    **outcome.figures(),
                    "of the first": 1.0 if base is None else 100 * outcome.recomputed / base["recomputed %"],
                    "demoted": outcome.num_demoted,
                    "promoted": outcome.num_promoted,
                    **(
                        {"disk": rule, "from disk": outcome.num_fetched, "ahead": outcome.num_ahead}
                        if disk_pool
                        else {}
                    ),
                    **(asdict(gate) | {"delayed": outcome.num_delayed} if admission != ADMISSIONS else {}),
                    "bench s": time.process_time() - began,
                }
            )
    workloads = play_workloads(size, seed) if ablate else []
    report("Recorded sessions", *(table(part) for part in (rows, workloads) if part), out=out)


if __name__ == "__main__":
    typer.run(main)
