"""States of the byte automaton for structural tags: free text, constant strings, and contents up to their end.

Free text is matched for all triggers at once (Aho and Corasick 1975). Every byte is allowed, and one that completes a
trigger leads into the tags that begin with it. A tag ends where its end string first completes a content.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ..automaton.automaton import Automaton, ControlState, TransitionRow, class_row
from ..errors import GrammarError
from ..grammar.states import GrammarState
from ..regex.dfa import DEAD, START, Dfa
from .spec import TriggeredTagsFormat


@dataclass(frozen=True, eq=False)
class LiteralChoice:
    """Choice of texts, none of which is a prefix of another, with the states after them.

    `accepts`: the output may end before them.
    """

    options: tuple[tuple[bytes, ControlState], ...]
    accepts: bool = False


@dataclass(frozen=True)
class LiteralState:
    """State inside a choice of texts, after the prefix `done`."""

    choice: LiteralChoice
    done: bytes = b""

    def expand(self, automaton: Automaton) -> TransitionRow:
        edges: dict[int, int] = {}
        for text, then in self.choice.options:
            if text.startswith(self.done):
                now = text[: len(self.done) + 1]
                edges[now[-1]] = automaton.goto(then if now == text else LiteralState(self.choice, now))
        return TransitionRow(edges, accepts=self.choice.accepts and not self.done)


@dataclass(frozen=True, eq=False)
class JsonValueState:
    """State before a JSON value that begins as `start` does."""

    start: ControlState
    then: ControlState

    def expand(self, automaton: Automaton) -> TransitionRow:
        push = automaton.push_before(self.start, self.then)
        return TransitionRow(dict.fromkeys(automaton.edges_of(automaton.number(self.start)), push))


@dataclass(frozen=True)
class DfaContentState:
    """State inside a content that an automaton describes, up to the first place where it accepts."""

    dfa: Dfa
    then: ControlState
    state: int = START

    def expand(self, automaton: Automaton) -> TransitionRow:
        following = self.dfa.table[self.state].tolist()
        actions = [0 if after == DEAD else automaton.goto(self._after(after)) for after in following]
        return TransitionRow({}, rest=class_row(automaton, actions, self.dfa.class_of))

    def _after(self, state: int) -> ControlState:
        return self.then if self.dfa.accepting[state] else DfaContentState(self.dfa, self.then, state)


@dataclass(frozen=True)
class GrammarContentState:
    """State inside a content that a grammar describes, up to the first place where it may end."""

    inner: GrammarState
    then: ControlState

    def expand(self, automaton: Automaton) -> TransitionRow:
        class_of, following = self.inner.following()
        actions = []
        for after in following:
            is_dead = not after.readings and not after.accepts
            state = self.then if after.accepts else GrammarContentState(after, self.then)
            actions.append(0 if is_dead else automaton.goto(state))
        return TransitionRow({}, rest=class_row(automaton, actions, class_of))


@dataclass(frozen=True, eq=False)
class TriggerTable:
    """Triggers with the tags after each: the rest of the opening string, and the state after it.

    `tags` are filled in after construction, because tags lead back to free text.
    """

    format: TriggeredTagsFormat
    tags: dict[bytes, tuple[tuple[bytes, ControlState], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FreeTextState:
    """State in free text that ends in `partial`, the longest prefix of a trigger or exclusion that it ends in."""

    table: TriggerTable
    partial: bytes = b""
    had_tag: bool = False

    def expand(self, automaton: Automaton) -> TransitionRow:
        format = self.table.format
        watched = (*format.triggers, *format.excludes)
        letters = sorted({byte for text in watched for byte in text})
        class_of = np.zeros(256, np.uint8)
        class_of[letters] = np.arange(1, len(letters) + 1)
        actions = [automaton.goto(FreeTextState(self.table, b"", self.had_tag))]
        for byte in letters:
            text = self.partial + bytes([byte])
            if any(text.endswith(excluded) for excluded in format.excludes):
                actions.append(0)
            elif begun := [trigger for trigger in format.triggers if text.endswith(trigger)]:
                options = dict(option for trigger in begun for option in self.table.tags[trigger])
                actions.append(automaton.goto(literal_choice(tuple(options.items()), format.pointer)))
            else:
                longest = next(text[at:] for at in range(len(text) + 1) if _is_prefix(text[at:], watched))
                actions.append(automaton.goto(FreeTextState(self.table, longest, self.had_tag)))
        accepts = self.had_tag or not format.at_least_one
        return TransitionRow({}, rest=class_row(automaton, actions, class_of), accepts=accepts)


def _is_prefix(prefix: bytes, texts: Iterable[bytes]) -> bool:
    return any(text.startswith(prefix) for text in texts)


def literal_choice(
    options: tuple[tuple[bytes, ControlState], ...], pointer: str, accepts: bool = False
) -> ControlState:
    """Return the state before a choice of texts. Raises GrammarError if one of them is a prefix of another."""
    if len(options) == 1 and not options[0][0] and not accepts:
        return options[0][1]
    for number, (text, _) in enumerate(options):
        if any(other.startswith(text) for at, (other, _) in enumerate(options) if at != number) or not text:
            raise GrammarError(f"{text.decode()!r} is a prefix of more than one alternative", pointer=pointer)
    return LiteralState(LiteralChoice(options, accepts))


@dataclass(frozen=True, eq=False)
class TagLoop:
    """Tags that may repeat, by their opening strings."""

    separator: bytes
    options: dict[bytes, ControlState]


@dataclass(frozen=True)
class AfterTagState:
    """State after a tag that others may follow."""

    loop: TagLoop

    def expand(self, automaton: Automaton) -> TransitionRow:
        following = tuple((self.loop.separator + begin, then) for begin, then in self.loop.options.items())
        return LiteralState(LiteralChoice(following, accepts=True)).expand(automaton)
