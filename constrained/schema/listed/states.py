"""States that read one of several given values: by its members or items, never by a product of goals.

A state holds the values that are still possible. Values that agree on all that has come and may follow share states,
so the work is linear in the size of the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ...automaton.actions import QUOTE
from ...automaton.automaton import Automaton, ControlState, Frame, TransitionRow
from ...automaton.literals import literal_states, without_text
from ...budget import cached_property
from ..interface import ONE_SPACE, SchemaCompiler
from ..strings.string_parts import spellings
from ..value_states import SPACES, WORDS
from .numbers import given_numbers
from .values import GivenValue

COMMA, COLON = 0x2C, 0x3A
_OPEN, _CLOSE = {"object": 0x7B, "array": 0x5B}, {"object": 0x7D, "array": 0x5D}
FEW_NAMES = 16  # of which the states are made anew when some have come
Phase = Literal["open", "after", "comma"]


@dataclass(frozen=True)
class ListedStyle:
    """How given values are written. `in_order`: members in the order of the value. `digits`: integers in digits only.

    Compared by the compiler's identity and the options.
    """

    compiler: SchemaCompiler
    in_order: bool
    digits: bool

    @property
    def spaces(self) -> int:
        """The spaces that may come after a comma or colon, as in `ValueStart`."""
        return self.compiler.spaces


class ValueChoice:
    """Given values, each with the result code with which it ends. One object for equal choices of a style."""

    def __init__(self, style: ListedStyle, values: tuple[tuple[GivenValue, int], ...]) -> None:
        self.style, self.values = style, values

    def contexts(self) -> list[ListedContext]:
        """Return the contexts of the objects and arrays."""
        kinds = [(kind, self.of_kind(kind)) for kind in _OPEN]
        return [listed_context(kind, value_choice(self.style, values)) for kind, values in kinds if values]

    def of_kind(self, kind: str) -> tuple[tuple[GivenValue, int], ...]:
        """Return the values of one type."""
        return tuple(pair for pair in self.values if pair[0].kind == kind)


def value_choice(style: ListedStyle, values: tuple[tuple[GivenValue, int], ...]) -> ValueChoice:
    """Return the choice of these values with their result codes."""
    key = ("value choice", style, values)
    cache = style.compiler.cache
    if key not in cache:
        cache[key] = ValueChoice(style, values)
    return cache[key]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ListedStart:
    """State before a value that is one of `choice`, with `spaces` as in `ValueStart`."""

    choice: ValueChoice
    spaces: int = 0

    def expand(self, automaton: Automaton) -> TransitionRow:
        choice, edges = self.choice, dict[int, int]()
        if self.spaces == ONE_SPACE:
            return TransitionRow({0x20: automaton.goto(ListedStart(choice))})
        for kind, word in WORDS.items():
            for _, code in choice.of_kind(kind):
                edges[word[0]] = automaton.goto(_texts(automaton, [(word[1:], code)]))
        texts = [(text, code) for value, code in choice.of_kind("string") for text in spellings(value.content)]
        if texts:
            edges[QUOTE] = automaton.goto(_texts(automaton, sorted(texts)))
        for kind, byte in _OPEN.items():
            structures = choice.of_kind(kind)
            if structures:
                edges[byte] = automaton.goto(listed_start(kind, value_choice(choice.style, structures)))
        codes = {value.content: code for value, code in choice.of_kind("number")}
        rest = given_numbers(automaton, codes, choice.style.digits, choice.style.compiler.number_digits) if codes else 0
        if self.spaces == 2:
            edges |= dict.fromkeys(SPACES, automaton.goto(self))
        elif self.spaces == 1:
            edges[0x20] = automaton.goto(ListedStart(choice))
        return TransitionRow(edges, rest=rest)


def _name_texts(automaton: Automaton, names: tuple[str, ...]) -> int:
    """Return the number of the state before one of these names, which ends with its index."""
    return _texts(automaton, sorted((text, code) for code, name in enumerate(names) for text in spellings(name)))


def _texts(automaton: Automaton, texts: list[tuple[bytes, int]]) -> int:
    """Return the number of the state before one of these texts, which ends with its code."""
    key = ("texts of given values", tuple(texts))
    if key not in automaton.memory:
        automaton.memory[key] = literal_states(automaton.tables, [(text, automaton.pop(code)) for text, code in texts])
    return automaton.memory[key]  # type: ignore[no-any-return]


class ListedContext:
    """Objects, or arrays, of which one is read. `first` are all of them, before anything has come."""

    def __init__(self, kind: str, choice: ValueChoice) -> None:
        self.kind, self.style = kind, choice.style
        self.values = [value for value, _ in choice.values]
        self.codes = [code for _, code in choice.values]
        self.by_index = kind == "array" or choice.style.in_order
        self.names: dict[str, int] = {}
        self.members: list[dict[str, GivenValue]] = []
        if kind == "object":
            self.members = [dict(value.content) for value in self.values]
            for members in self.members:
                for name in members:
                    self.names.setdefault(name, len(self.names))
        self._sets: dict[tuple[int, ...], ValueSet] = {}
        self.first = self.value_set(tuple(range(len(self.values))))

    def value_set(self, numbers: tuple[int, ...]) -> ValueSet:
        """Return the set of values with these numbers."""
        found = self._sets.get(numbers)
        if found is None:
            found = self._sets[numbers] = ValueSet(self, numbers)
        return found


def listed_context(kind: str, choice: ValueChoice) -> ListedContext:
    """Return the context of the objects, or arrays, of a choice."""
    key = ("listed context", kind, choice)
    cache = choice.style.compiler.cache
    if key not in cache:
        cache[key] = ListedContext(kind, choice)
    return cache[key]  # type: ignore[no-any-return]


def listed_start(kind: str, choice: ValueChoice) -> ListedState:
    """Return the state after the opening bracket of one of the objects, or arrays, of a choice."""
    return ListedState(listed_context(kind, choice).first)


class ValueSet:
    """Values that are still possible, by their numbers in the context. A context makes one object for equal sets."""

    def __init__(self, context: ListedContext, numbers: tuple[int, ...]) -> None:
        self.context, self.numbers = context, numbers
        self._choices: dict[Any, tuple[ValueChoice, tuple[ValueSet, ...]]] = {}
        self._names_at: dict[int, tuple[str, ...]] = {}

    @cached_property
    def shortest(self) -> int:
        """The number of the value with the fewest members or items."""
        return min(self.numbers, key=lambda number: len(self.context.values[number].content))

    def closing_code(self, count: int) -> int | None:
        """Return the result code if a value ends after so many members or items, which are all in it."""
        # Different values that agree in these have others, too.
        number = self.shortest
        return self.context.codes[number] if len(self.context.values[number].content) == count else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of members in the values."""
        members = self.context.members
        if len(self.numbers) == 1:
            return tuple(members[self.numbers[0]])
        return tuple(dict.fromkeys(name for number in self.numbers for name in members[number]))

    def names_at(self, index: int) -> tuple[str, ...]:
        """Return the names of the members at an index."""
        found = self._names_at.get(index)
        if found is None:
            contents = [self.context.values[number].content for number in self.numbers]
            names = dict.fromkeys(content[index][0] for content in contents if len(content) > index)
            found = self._names_at[index] = tuple(names)
        return found

    def places(self) -> list[tuple[str | None, int]]:
        """Return the names or indices of the members or items that some value has."""
        longest = max(len(self.context.values[number].content) for number in self.numbers)
        if self.context.kind == "array":
            return [(None, index) for index in range(longest)]
        if self.context.by_index:
            return [(name, index) for index in range(longest) for name in self.names_at(index)]
        return [(name, 0) for name in self.names]

    def choice(self, name: str | None, index: int) -> tuple[ValueChoice, tuple[ValueSet, ...]]:
        """Return the choice of the values under a name or at an index, and the values that go on after each code."""
        key = index if name is None else (name, index) if self.context.by_index else name
        found = self._choices.get(key)
        if found is None:
            groups: dict[GivenValue, list[int]] = {}
            for number, value in self._inner_values(name, index):
                groups.setdefault(value, []).append(number)
            choice = value_choice(self.context.style, tuple((value, code) for code, value in enumerate(groups)))
            targets = tuple(self.context.value_set(tuple(numbers)) for numbers in groups.values())
            found = self._choices[key] = choice, targets
        return found

    def _inner_values(self, name: str | None, index: int) -> Iterator[tuple[int, GivenValue]]:
        context = self.context
        if name is not None and not context.by_index:
            for number in self.numbers:
                value = context.members[number].get(name)
                if value is not None:
                    yield number, value
            return
        for number in self.numbers:
            content = context.values[number].content
            if len(content) > index:
                if name is None:
                    yield number, content[index]
                elif content[index][0] == name:
                    yield number, content[index][1]


@dataclass(frozen=True)
class ListedState:
    """State after an opening bracket ("open"), after a member or item ("after"), or after a comma ("comma").

    `seen` are the names that have come, as bits, and `count` is the number of members or items.
    """

    values: ValueSet
    seen: int = 0
    count: int = 0
    phase: Phase = "open"
    spaces: int = 0

    def expand(self, automaton: Automaton) -> TransitionRow:
        context = self.values.context
        spaces, edges = context.style.spaces, dict[int, int]()
        if self.spaces == ONE_SPACE:
            return TransitionRow({0x20: automaton.goto(ListedState(self.values, self.seen, self.count, "comma"))})
        if self.phase != "comma" and (code := self.values.closing_code(self.count)) is not None:
            edges[_CLOSE[context.kind]] = automaton.pop(code)
        if context.kind == "array":
            edges |= self._item_edges(automaton)
        elif names := self._names():
            if self.phase == "after":
                edges[COMMA] = automaton.goto(ListedState(self.values, self.seen, self.count, "comma", spaces))
            else:
                start, then = self._name_start(automaton, names)
                edges[QUOTE] = automaton.push(start, then)
        if self.spaces == 1:
            edges[0x20] = automaton.goto(ListedState(self.values, self.seen, self.count, "comma"))
        return TransitionRow(edges, rest=automaton.stay_on(SPACES) if spaces == 2 else 0)

    def _name_start(self, automaton: Automaton, names: tuple[str, ...]) -> tuple[int, ControlState | Frame]:
        """Return the number of the state before a name, and what waits for its end."""
        if len(names) == 1:
            return _name_texts(automaton, names), ListedMember(self, names[0])
        if self.seen and len(names) > FEW_NAMES:
            # Most of the states that read the names are shared with those before the last member.
            return self._names_left(automaton), ListedNameFrame(self, self.values.names)
        return _name_texts(automaton, names), ListedNameFrame(self, names)

    def _names_left(self, automaton: Automaton) -> int:
        """Return the number of the state before the names of the values that have not come, with codes of all names."""
        values, seen = self.values, self.seen
        names, bits = values.names, values.context.names
        key = ("names left", values, seen)
        known = automaton.memory
        if key not in known:
            come = [name for name in names if seen >> bits[name] & 1]
            before = ((name, known.get(("names left", values, seen ^ 1 << bits[name]))) for name in come)
            last, start = next(((name, found) for name, found in before if found is not None), (None, None))
            if start is None:
                start, last = _name_texts(automaton, names), None
            for name in come if last is None else [last]:
                for text in spellings(name):
                    start = without_text(automaton.tables, start, text)
                    assert start is not None, "a value that has not ended has other names"
            known[key] = start
        return known[key]  # type: ignore[no-any-return]

    def _names(self) -> tuple[str, ...]:
        """Return the names that may come next."""
        values, bits = self.values, self.values.context.names
        if values.context.by_index:
            return values.names_at(self.count)
        return tuple(name for name in values.names if not self.seen >> bits[name] & 1) if self.seen else values.names

    def _item_edges(self, automaton: Automaton) -> dict[int, int]:
        choice, targets = self.values.choice(None, self.count)
        if not targets:
            return {}
        then = _after(choice, [ListedState(values, 0, self.count + 1, "after") for values in targets])
        if self.phase == "after":
            return {COMMA: automaton.push(ListedStart(choice, choice.style.spaces), then)}
        start = ListedStart(choice)
        return dict.fromkeys(automaton.edges_of(automaton.number(start)), automaton.push_before(start, then))


@dataclass(frozen=True)
class ListedMember:
    """State between a name and its colon."""

    state: ListedState
    name: str

    def expand(self, automaton: Automaton) -> TransitionRow:
        state, context = self.state, self.state.values.context
        choice, targets = state.values.choice(self.name, state.count)
        seen = state.seen if context.by_index else state.seen | 1 << context.names[self.name]
        then = _after(choice, [ListedState(values, seen, state.count + 1, "after") for values in targets])
        edges = {COLON: automaton.push(ListedStart(choice, choice.style.spaces), then)}
        return TransitionRow(edges, rest=automaton.stay_on(SPACES) if choice.style.spaces == 2 else 0)


@dataclass(frozen=True)
class ListedNameFrame(Frame):
    """Stack frame below a name that is one of several."""

    state: ListedState
    names: tuple[str, ...]

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return len(self.names)

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        return ListedMember(self.state, self.names[result])


@dataclass(frozen=True, eq=False)
class ListedValueFrame(Frame):
    """Stack frame below a value of a choice, with the state after each of its codes."""

    states: list[ListedState]

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return len(self.states)

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        return self.states[result]


def _after(choice: ValueChoice, states: list[ListedState]) -> ControlState | Frame:
    """Return what waits on the stack for the end of a value: a frame, unless only one state can follow."""
    return states[0] if len(states) == 1 else ListedValueFrame(states)
