"""States of the byte automaton for structural tags: free text, constant strings, and contents up to their end.

Free text is a matcher of all triggers at once (Aho and Corasick 1975): every byte may come, but one that completes a
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
    """Texts, none of which begins another, and what follows each."""

    options: tuple[tuple[bytes, ControlState], ...]
    accepts: bool = False  # whether the text may end before them


@dataclass(frozen=True)
class LiteralState:
    """Within one of the words."""

    words: LiteralChoice
    done: bytes = b""

    def expand(self, automaton: Automaton) -> TransitionRow:
        edges: dict[int, int] = {}
        for text, then in self.words.options:
            if text.startswith(self.done):
                now = text[: len(self.done) + 1]
                edges[now[-1]] = automaton.goto(then if now == text else LiteralState(self.words, now))
        return TransitionRow(edges, accepts=self.words.accepts and not self.done)


@dataclass(frozen=True, eq=False)
class JsonValueState:
    """Before a JSON value."""

    start: ControlState
    then: ControlState

    def expand(self, automaton: Automaton) -> TransitionRow:
        push = automaton.push_before(self.start, self.then)
        return TransitionRow(dict.fromkeys(automaton.edges_of(automaton.number(self.start)), push))


@dataclass(frozen=True, eq=False)
class DfaContent:
    """What the automaton accepts, up to the first place where it does."""

    dfa: Dfa
    then: ControlState


@dataclass(frozen=True)
class DfaContentState:
    content: DfaContent
    state: int = START

    def expand(self, automaton: Automaton) -> TransitionRow:
        dfa = self.content.dfa
        following = dfa.table[self.state].tolist()
        actions = [0 if after == DEAD else automaton.goto(self._after(after)) for after in following]
        return TransitionRow({}, rest=class_row(automaton, actions, dfa.class_of))

    def _after(self, state: int) -> ControlState:
        return self.content.then if self.content.dfa.accepting[state] else DfaContentState(self.content, state)


@dataclass(frozen=True)
class GrammarContentState:
    """In a text of a grammar, up to the first place where it may end."""

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
    """The triggers and exclusions, and where each trigger leads; `tags` are filled in as they loop back here."""

    format: TriggeredTagsFormat
    tags: dict[bytes, tuple[tuple[bytes, ControlState], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FreeTextState:
    """Free text that ends in `partial`, the longest beginning of a trigger or exclusion that it ends in."""

    free: TriggerTable
    partial: bytes = b""
    had_tag: bool = False

    def expand(self, automaton: Automaton) -> TransitionRow:
        format = self.free.format
        watched = (*format.triggers, *format.excludes)
        letters = sorted({byte for text in watched for byte in text})
        class_of = np.zeros(256, np.uint8)
        class_of[letters] = np.arange(1, len(letters) + 1)
        actions = [automaton.goto(FreeTextState(self.free, b"", self.had_tag))]
        for byte in letters:
            text = self.partial + bytes([byte])
            if any(text.endswith(excluded) for excluded in format.excludes):
                actions.append(0)
            elif begun := [trigger for trigger in format.triggers if text.endswith(trigger)]:
                options = dict(option for trigger in begun for option in self.free.tags[trigger])
                actions.append(automaton.goto(literal_choice(tuple(options.items()), format.pointer)))
            else:
                longest = next(text[at:] for at in range(len(text) + 1) if _begins(watched, text[at:]))
                actions.append(automaton.goto(FreeTextState(self.free, longest, self.had_tag)))
        accepts = self.had_tag or not format.at_least_one
        return TransitionRow({}, rest=class_row(automaton, actions, class_of), accepts=accepts)


def _begins(texts: Iterable[bytes], beginning: bytes) -> bool:
    return any(text.startswith(beginning) for text in texts)


def literal_choice(
    options: tuple[tuple[bytes, ControlState], ...], pointer: str, accepts: bool = False
) -> ControlState:
    """Raises GrammarError when the first characters do not tell the options apart."""
    if len(options) == 1 and not options[0][0] and not accepts:
        return options[0][1]
    for number, (text, _) in enumerate(options):
        if any(other.startswith(text) for at, (other, _) in enumerate(options) if at != number) or not text:
            raise GrammarError(f"{text.decode()!r} begins more than one alternative", pointer=pointer)
    return LiteralState(LiteralChoice(options, accepts))


@dataclass(frozen=True, eq=False)
class TagLoop:
    separator: bytes
    options: dict[bytes, ControlState]


@dataclass(frozen=True)
class AfterTagState:
    """After a tag that others may follow."""

    loop: TagLoop

    def expand(self, automaton: Automaton) -> TransitionRow:
        following = tuple((self.loop.separator + begin, then) for begin, then in self.loop.options.items())
        return LiteralState(LiteralChoice(following, accepts=True)).expand(automaton)
