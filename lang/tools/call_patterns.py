"""Predicts an agent's next tool calls from earlier runs: which calls followed which, and where arguments came from."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

MIN_SEEN = 2  # times that a call must have followed before it is predicted
MAX_LINKS = 1024  # pairs of tools
MAX_ARGUMENTS = 64  # of the calls of a pair
MAX_SOURCES = 64  # of one argument
MAX_CALLS = 8  # of a turn that are looked at
MAX_PREDICTED = 4  # calls of a turn
MAX_LEAVES = 256  # of a result
MAX_READ_RESULT = 1 << 16  # characters of a result that is looked at
MAX_CONSTANT = 1 << 10  # characters of an argument that is always the same


class CallRecord(NamedTuple):
    """A call and what it returned, as JSON values. The name "" stands for the prompt."""

    name: str
    arguments: dict[str, Any]
    result: str  # as the model was told it


PROMPT = CallRecord("", {}, "")


class _Source(NamedTuple):
    """Origin of an argument's value: a place in the earlier call's result or arguments, or a constant."""

    kind: Literal["result", "argument", "constant"]
    place: str  # a JSON path; of a constant its JSON text


@dataclass
class _Link:
    """Counts the calls of one tool that came after calls of another, and where their arguments stood."""

    num_seen: int = 0
    sources: dict[str, Counter[_Source]] = field(default_factory=dict)  # by argument

    def learn(self, arguments: dict[str, Any], before: CallRecord) -> None:
        self.num_seen += 1
        known = _values(before)
        for name, value in arguments.items():
            if name not in self.sources and len(self.sources) >= MAX_ARGUMENTS:
                continue
            counts = self.sources.setdefault(name, Counter())
            for source in _sources(value, known):
                if source in counts or len(counts) < MAX_SOURCES:
                    counts[source] += 1

    def predict(self, before: CallRecord) -> dict[str, Any] | None:
        """Return the arguments, each from where it came most often; None if one came from nowhere that is known."""
        known = dict(_values(before))
        arguments: dict[str, Any] = {}
        for name, counts in self.sources.items():
            found = [
                (count, source) for source, count in counts.items() if source.kind == "constant" or source in known
            ]
            if 2 * max((count for count, _ in found), default=0) > self.num_seen:
                _, source = max(found, key=lambda one: one[0])
                arguments[name] = json.loads(source.place if source.kind == "constant" else known[source])
            elif 2 * counts.total() > self.num_seen:
                return None
        return arguments


class CallPatterns:
    """Patterns of a set of tools, learned from the agents of this process. Safe to use from several threads.

    A call is predicted if it followed more often than not, at least MIN_SEEN times. Its arguments are those values that
    more than half of the time stood at the same place of the call before it, or were the same.
    """

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], _Link] = {}
        self._num_seen: Counter[str] = Counter()  # calls by tool, before whatever followed
        self._lock = threading.Lock()

    def learn(self, before: Sequence[CallRecord], after: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Note that a turn made the calls `after`, each a name and arguments, once it knew what `before` returned."""
        with self._lock:
            for earlier in before[:MAX_CALLS]:
                self._num_seen[earlier.name] += 1
                for name, arguments in after[:MAX_CALLS]:
                    pair = earlier.name, name
                    if pair in self._links or len(self._links) < MAX_LINKS:
                        self._links.setdefault(pair, _Link()).learn(arguments, earlier)

    def predict(self, before: Sequence[CallRecord]) -> list[tuple[str, dict[str, Any]]]:
        """Return the likely calls, names and arguments, of a turn that knows what the calls `before` returned."""
        predicted: list[tuple[str, dict[str, Any]]] = []
        with self._lock:
            for earlier in before[:MAX_CALLS]:
                for (first, name), link in self._links.items():
                    if first != earlier.name or link.num_seen < MIN_SEEN:
                        continue
                    if 2 * link.num_seen <= self._num_seen[first] or len(predicted) == MAX_PREDICTED:
                        continue
                    arguments = link.predict(earlier)
                    if arguments is not None and (name, arguments) not in predicted:
                        predicted.append((name, arguments))
        return predicted


def _values(call: CallRecord) -> list[tuple[_Source, str]]:
    """Return the values of a call with their places: those of the result first."""
    found: list[tuple[_Source, str]] = []
    if len(call.result) <= MAX_READ_RESULT:
        try:
            result = json.loads(call.result)
        except (ValueError, RecursionError):
            result = call.result
        found += [(_Source("result", path), text) for path, text in _leaves(result)]
    return found + [(_Source("argument", path), text) for path, text in _leaves(call.arguments)]


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and JSON text of the numbers and texts in a JSON value, breadth first."""
    waiting: list[tuple[str, Any]] = [("", value)]
    for num, (path, one) in enumerate(waiting):
        if num >= MAX_LEAVES:
            return
        match one:
            case dict():
                waiting += [(f"{path}.{json.dumps(name)}", each) for name, each in one.items()][:MAX_LEAVES]
            case list():
                waiting += [(f"{path}[{index}]", each) for index, each in enumerate(one[:MAX_LEAVES])]
            case bool() | None:
                pass
            case _:
                yield path, json.dumps(one)


def _sources(value: Any, known: Sequence[tuple[_Source, str]]) -> list[_Source]:
    text = json.dumps(value, sort_keys=True)
    constant = [_Source("constant", text)] if len(text) <= MAX_CONSTANT else []
    return [source for source, each in known if each == text] + constant
