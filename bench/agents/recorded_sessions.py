"""Recorded agent sessions: their turns, when they start, and how much memory they hold together."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramiform.bench.harness import percentile

BLOCK = 64  # tokens


@dataclass(frozen=True)
class Turn:
    """One request of a session. Blocks count 64 tokens."""

    after: float  # seconds from the session's start
    num_blocks: int
    num_shared: int  # with the request before
    stop: str
    num_output: int  # blocks


@dataclass
class Session:
    """A session's turns and when it starts; then what has become of it."""

    name: str
    turns: list[Turn]
    start: float
    blocks: list[int] = field(default_factory=list)  # of the last prompt
    next_turn: int = 0
    waited: float = 0.0  # for answers, in seconds
    answered: float = 0.0  # time of the last answer

    @property
    def next_use(self) -> float:
        """Time of the next turn."""
        return self.start + self.turns[self.next_turn].after if self.next_turn < len(self.turns) else float("inf")

    def next_use_within(self, factor: float) -> float:
        """Return a time of the next turn of which the wait is known up to a factor, drawn for each turn."""
        if factor == 1.0:
            return self.next_use
        exponent = random.Random(f"{self.name}, {self.next_turn}").uniform(-1.0, 1.0)
        return self.answered + max(0.0, self.next_use - self.answered) * float(factor**exponent)


def load(path: Path) -> list[list[Turn]]:
    """Read recorded sessions."""
    data = path.read_bytes()
    sessions = json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
    return [
        [
            Turn(start - turns[0][0], num_blocks, shared, stop, max(1, round(output / BLOCK)))
            for start, _, _, num_blocks, shared, stop, output in turns
        ]
        for turns in sessions
    ]


def schedule(recorded: Sequence[list[Turn]], live: int, seed: int) -> list[Session]:
    """Give each session its start, so that `live` of them are alive on average."""
    order = list(recorded)
    random.Random(seed).shuffle(order)
    spacing = sum(turns[-1].after for turns in order) / len(order) / live
    return [Session(f"session {i}", turns, i * spacing) for i, turns in enumerate(order)]


def live_working_set(sessions: Sequence[Session]) -> int:
    """Return the 78th percentile, over requests, of the blocks in the contexts of all live sessions."""
    changes: list[tuple[float, int, int]] = []  # time, blocks more, and 1 if a request arrives
    for session in sessions:
        held = 0
        for turn in session.turns:
            changes.append((session.start + turn.after, turn.num_blocks - held, 1))
            held = turn.num_blocks
        changes.append((session.start + session.turns[-1].after, -held, 0))
    total, totals = 0, []
    for _, change, is_request in sorted(changes):
        total += change
        if is_request:
            totals.append(total)
    return round(percentile(totals, 78))
