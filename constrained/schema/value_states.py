"""The states of a JSON value's text: its first byte says which type it is, then that type's states go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..automaton.automaton import Automaton, TransitionRow
from ..automaton.literals import literal_states
from .formula import Formula
from .goals import SchemaCompiler
from .number_states import number_start
from .string_states import QUOTE, string_start

SPACES = b" \n\t\r"
MAX_RESULTS = 64  # different truths of what is tracked of one value
_WORDS = {"null": b"null", "true": b"true", "false": b"false"}


class ResultCodes:
    """Numbers for the truths of some formulas: what a value's states tell those below them on the stack."""

    def __init__(self, num_tracked: int) -> None:
        self.size: int = min(2**num_tracked, MAX_RESULTS)
        self.truths: list[tuple[bool, ...]] = []
        self._numbers: dict[tuple[bool, ...], int] = {}

    def __call__(self, truths: tuple[bool, ...]) -> int:
        """-1 when there are too many: then the value is refused."""
        number = self._numbers.get(truths)
        if number is None:
            if len(self.truths) == self.size:
                return -1
            number = self._numbers[truths] = len(self.truths)
            self.truths.append(truths)
        return number


def result_codes(world: SchemaCompiler, tracked: tuple[Formula, ...]) -> ResultCodes:
    key = ("results", tracked)
    found = world.memory.get(key)
    if found is None:
        found = world.memory[key] = ResultCodes(len(tracked))
    assert isinstance(found, ResultCodes)
    return found


@dataclass(frozen=True)
class ValueStart:
    """Before a value that must satisfy a goal, and tells which of the tracked ones it satisfies. Before it comes at
    most `spaces` (2: any number of) spaces."""

    world: SchemaCompiler
    need: Formula
    tracked: tuple[Formula, ...] = ()
    spaces: int = 0

    def expand(self, automaton: Automaton) -> TransitionRow:
        world, result = self.world, result_codes(self.world, self.tracked)
        edges: dict[int, int] = {}
        for kind, word in _WORDS.items():
            need, *tracked = self._typed(kind)
            if need is True and (number := result(tuple(map(bool, tracked)))) >= 0:
                edges[word[0]] = automaton.goto(_word(automaton, word[1:], number))
        start = string_start(automaton, self._typed("string"), result)
        if start is not None:
            edges[QUOTE] = automaton.goto(start)
        for kind, byte in (("object", 0x7B), ("array", 0x5B)):
            formulas = self._typed(kind)
            if formulas[0] is not False:
                state = world.structure_start(kind, formulas, result)
                if state is not None:
                    edges[byte] = automaton.goto(state)
        number_state = number_start(automaton, self._typed("number"), result)
        if self.spaces == 2:
            edges |= dict.fromkeys(SPACES, automaton.goto(self))
        elif self.spaces == 1:
            edges[0x20] = automaton.goto(ValueStart(world, self.need, self.tracked))
        return TransitionRow(edges, rest=number_state or 0)

    def _typed(self, kind: str) -> tuple[Any, ...]:
        world = self.world
        need = world.typed(self.need, kind)
        if need is False or not self.tracked:
            return (need,)  # what is tracked of values that may not be is no matter
        return (need, *(world.typed(goal, kind) for goal in self.tracked))


def _word(automaton: Automaton, rest: bytes, result: int) -> int:
    key = ("word", rest, result)
    if key not in automaton.memory:
        automaton.memory[key] = literal_states(automaton.tables, [(rest, automaton.pop(result))])
    return automaton.memory[key]  # type: ignore[no-any-return]
