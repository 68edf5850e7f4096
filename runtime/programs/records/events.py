"""Values of a recorded run: its states, their operations with texts, tokens and times.

Times are seconds since the program was called, as the client measured them, or since it was opened, as the server did.
`timings` and `seconds` are the runtime's measurements of a generation, from its submission to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ...protocol.core import Timings

ABANDONED = "the program ended with "  # in errors of operations that were given up because the program failed

StepKind = Literal[
    "text", "role", "gen", "select", "ask", "decide", "fork", "join", "gather", "call", "mark", "rollback"
]


class TokenCounts(msgspec.Struct, frozen=True):
    """Token counts of an operation, all samples and choices together.

    `cached` of the `prompt` ones were cached. `forced` of the `completion` ones were appended without a forward pass of
    their own, because the constraint left no choice. `accepted` of them were drafts: `guessed` were verified.
    """

    prompt: int
    cached: int
    completion: int
    forced: int = 0
    guessed: int = 0
    accepted: int = 0


class ShownImage(msgspec.Struct, frozen=True):
    """An image of a record: the start of a SHA-256, and a data URL of a small view of it, if there is one."""

    digest: str
    url: str | None = None


class ProgramWait(msgspec.Struct, frozen=True):
    """A time in which the program waited for a value, and the line that read it."""

    start: float
    end: float
    place: str  # file:line of the program; "": the line of the operation after it


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a state. `states` are those that it forks or joins, or of a called program, by number."""

    kind: StepKind
    label: str
    place: str  # file:line of the program
    name: str | None = None  # name of the variable that it makes
    states: tuple[int, ...] = ()
    text: str | None = None  # the text that it appended; None: it has not been answered
    samples: list[str] | None = None  # with n > 1
    tokens: TokenCounts | None = None
    seconds: float | None = None
    timings: Timings | None = None  # of the slowest sample
    finish: str | None = None
    start: float = 0.0  # when it was recorded and the operation before it was answered
    first_text: float | None = None  # of a streamed one, about where prefill ends and decode begins
    end: float | None = None
    error: str | None = None
    saved: float = 0.0  # seconds that a tool ran before it, while the model still wrote the call's turn
    cut: bool = False  # texts of it were longer and are cut
    image: ShownImage | None = None  # that it appended; its size is in the label
    waits: tuple[ProgramWait, ...] = ()  # of the program, between the operation before it and this one


class TracedState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a traced run, from `begin` on. A branch begins with its fork, the program's own state at 0.

    `ended`: it was closed then, perhaps with operations that are not answered.
    """

    number: int
    parent: int | None
    events: list[Event]
    begin: float = 0.0
    ended: float | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A traced run. `body_began` and `body_ended` are the times of the function itself."""

    title: str
    began_at: float  # seconds since the epoch
    states: list[TracedState]  # the program's own first
    body_began: float = 0.0
    body_ended: float | None = None  # None: it still runs, or raised
    last_waits: tuple[ProgramWait, ...] = ()  # of the program, after the last operation of its own state

    @property
    def events(self) -> list[Event]:
        """Return the events of all states."""
        return [event for state in self.states for event in state.events]

    @property
    def seconds(self) -> float:
        """Return the time of the last answer."""
        return max((event.end or 0.0 for event in self.events), default=0.0)

    @property
    def tokens(self) -> TokenCounts:
        """Return the token counts of all generations together."""
        return total_of([event.tokens for event in self.events if event.tokens is not None])

    @property
    def saved(self) -> float:
        """Return the seconds that tools ran while the model still wrote the turns that call them."""
        return sum(event.saved for event in self.events)

    @property
    def variables(self) -> dict[str, list[str]]:
        """Return the generated texts by variable, in the order of the states."""
        found: dict[str, list[str]] = {}
        for event in self.events:
            if event.name is not None and event.text is not None:
                found.setdefault(event.name, []).extend(event.samples or [event.text])
        return found


def total_of(parts: Sequence[TokenCounts]) -> TokenCounts:
    """Return the sum of token counts."""
    return TokenCounts(
        sum(part.prompt for part in parts),
        sum(part.cached for part in parts),
        sum(part.completion for part in parts),
        sum(part.forced for part in parts),
        sum(part.guessed for part in parts),
        sum(part.accepted for part in parts),
    )
