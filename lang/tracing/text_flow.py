"""Divides the text of states by origin: the program's own, generated, cached, forced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...runtime.programs.records.events import Event, TracedState

Origin = Literal["program", "cached", "generated", "forced", "template", "tool", "joined", "failed"]


@dataclass
class TextPiece:
    """A text of one origin. `event` is the operation that appended it; None: several did."""

    origin: Origin
    text: str
    event: Event | None = None

    @property
    def is_image(self) -> bool:
        return self.event is not None and self.event.image is not None


@dataclass
class BranchPiece:
    """A fork, with the text flows of its branches."""

    event: Event
    branches: list[TextFlow]


@dataclass
class TextFlow:
    """The pieces of a state's text in order.

    `num_tokens` is the number of tokens up to the last generation, after which there are `num_before` characters of the
    ancestors and the pieces from `pending` on. How many tokens of these were cached, the next generation tells.
    """

    pieces: list[TextPiece | BranchPiece] = field(default_factory=list)
    num_tokens: int = 0
    num_before: int = 0
    pending: int = 0

    def branch(self) -> TextFlow:
        """Return the flow of a fork at this point."""
        waiting = sum(len(piece.text) for piece in self.pieces[self.pending :] if isinstance(piece, TextPiece))
        return TextFlow(num_tokens=self.num_tokens, num_before=self.num_before + waiting)

    def add(self, event: Event, partial: str = "") -> None:
        """Append what an operation appended; `partial` is the streamed text of one that is not answered."""
        text = partial if event.text is None else event.text
        if event.error is not None:
            self.pieces.append(TextPiece("failed", event.error, event))
        elif event.kind == "gen":
            self._add_generated(event, text)
        elif text and event.kind != "decide":
            self.pieces.append(TextPiece(_ORIGINS.get(event.kind, "program"), text, event))

    def _add_generated(self, event: Event, text: str) -> None:
        tokens = event.tokens
        forced = tokens is not None and tokens.completion > 0 and tokens.forced == tokens.completion
        if tokens is not None and event.samples is None:  # of several samples each had a prompt of its own
            self._mark_cached(tokens.prompt - self.num_tokens, tokens.cached - self.num_tokens)
            self.num_tokens = tokens.prompt + tokens.completion
            self.num_before = 0
            self.pending = len(self.pieces) + 1
        self.pieces.append(TextPiece("forced" if forced else "generated", text, event))

    def _mark_cached(self, num_new: int, num_cached: int) -> None:
        """Mark the text whose tokens were cached, `num_cached` of `num_new`, by the share of its characters."""
        if num_new <= 0 or num_cached <= 0:
            return
        waiting, self.pieces[self.pending :] = self.pieces[self.pending :], []
        length = self.num_before + sum(len(piece.text) for piece in waiting if isinstance(piece, TextPiece))
        left = round(length * min(1.0, num_cached / num_new)) - self.num_before
        for piece in waiting:
            if isinstance(piece, TextPiece) and piece.origin in ("program", "template") and not piece.is_image:
                cached, rest = piece.text[: max(0, left)], piece.text[max(0, left) :]
                self.pieces += [TextPiece("cached", cached, piece.event)] if cached else []
                self.pieces += [TextPiece(piece.origin, rest, piece.event)] if rest else []
            else:
                self.pieces.append(piece)
            left -= len(piece.text) if isinstance(piece, TextPiece) else 0


_ORIGINS: Mapping[str, Origin] = {"role": "template", "ask": "tool", "select": "generated", "join": "joined"}


def flow_of(
    inherited: Iterator[Event], states: Mapping[int, TracedState], number: int, partial: Mapping[int, str], depth: int
) -> TextFlow:
    """Return the text of a state and of its branches, `depth` levels of them, after the events of its ancestors.

    `partial` are the streamed texts of operations that are not answered, by state.
    """
    flow = TextFlow()
    for event in inherited:
        flow.add(event)
    _grow(flow, states, number, partial, depth)
    return flow


def _grow(
    flow: TextFlow, states: Mapping[int, TracedState], number: int, partial: Mapping[int, str], depth: int
) -> None:
    streamed = partial.get(number, "")
    for event in states[number].events:
        is_next = event.text is None and event.kind not in ("gather", "call")
        flow.add(event, streamed if is_next else "")
        streamed = "" if is_next else streamed
        if event.kind == "fork":
            branches = []
            for child in event.states if depth else ():
                if child in states and states[child].parent == number:
                    branches.append(flow.branch())
                    _grow(branches[-1], states, child, partial, depth - 1)
            flow.pieces.append(BranchPiece(event, branches))
