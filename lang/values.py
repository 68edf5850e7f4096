"""What a variable holds: a value already, or where it will come from. Reading one waits for that operation only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..runtime.protocol import session
from ..runtime.protocol.errors import ErrorInfo, RequestError
from .dtypes import ResultType
from .log import Log
from .lowering import Binding
from .meta import meta_of_choice, meta_of_sequence
from .place import blame
from .recorder import Recorder


class Value(Protocol):
    def get(self) -> Any:
        """Wait for the value. Raises what kept it from coming."""
        ...

    def meta(self) -> Any:
        """How it was generated: a dict, a list of such, or None."""
        ...

    def spans(self) -> Sequence[tuple[Log, int, int]]:
        """Whose operations, from which to before which, make up its text; none when it is not text of a state."""
        ...


@dataclass(frozen=True, slots=True)
class Given:
    """Set by the program."""

    value: Any

    def get(self) -> Any:
        return self.value

    def meta(self) -> None:
        return None

    def spans(self) -> Sequence[tuple[Log, int, int]]:
        return ()


@dataclass(slots=True)
class Generated:
    """What a Gen will have generated: one value, or a list for n > 1. Parsed once, by whoever reads it first."""

    recorder: Recorder  # held, so that the runtime keeps the state
    operation: int
    name: str
    result: ResultType
    place: str
    num_samples: int
    _values: list[Any] | None = field(default=None, init=False)

    def get(self) -> Any:
        if self._values is None:
            self._values = [self._parse(sequence) for sequence in self._sequences()]
        return self._values if self.num_samples > 1 else self._values[0]

    def meta(self) -> Any:
        metas = [meta_of_sequence(sequence) for sequence in self._sequences()]
        return metas if self.num_samples > 1 else metas[0]

    def spans(self) -> Sequence[tuple[Log, int, int]]:
        return ((self.recorder.log, self.operation, self.operation + 1),)

    def _sequences(self) -> list[session.Sequence]:
        sequences = self.recorder.log.wait_for(self.operation).sequences
        assert sequences is not None
        return sequences

    def _parse(self, sequence: session.Sequence) -> Any:
        try:
            return self.result.parse(sequence.text)
        except (ValueError, KeyError) as error:
            cut = ", cut off at max_tokens," if sequence.finish.type == "length" else ""
            message = f"the text {sequence.text!r}{cut} is not of type {self.result.name}: {error}"
            info = ErrorInfo.of(RequestError(message, param=self.name, code="invalid_result"))
            raise blame(info, self.place, f"gen {self.name!r}").to_exception() from error


@dataclass(frozen=True, slots=True)
class Selected:
    recorder: Recorder
    operation: int

    def get(self) -> str:
        return self._choice().text

    def meta(self) -> dict[str, Any]:
        return meta_of_choice(self._choice())

    def spans(self) -> Sequence[tuple[Log, int, int]]:
        return ((self.recorder.log, self.operation, self.operation + 1),)

    def _choice(self) -> session.Choice:
        choice = self.recorder.log.wait_for(self.operation).choice
        assert choice is not None
        return choice


@dataclass(frozen=True, slots=True)
class Scope:
    """The text that was appended inside a `with s.var_scope(name)`."""

    recorder: Recorder
    first: int
    end: int

    def get(self) -> str:
        return "".join(self.recorder.log.wait_for(index).text for index in range(self.first, self.end))

    def meta(self) -> None:
        return None

    def spans(self) -> Sequence[tuple[Log, int, int]]:
        return ((self.recorder.log, self.first, self.end),)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The branches' values of one name, in the branches' order."""

    values: tuple[Value, ...]

    def get(self) -> list[Any]:
        return [value.get() for value in self.values]

    def meta(self) -> list[Any]:
        return [value.meta() for value in self.values]

    def spans(self) -> Sequence[tuple[Log, int, int]]:
        return ()


def value_of(binding: Binding, recorder: Recorder, first: int, place: str) -> Generated | Selected:
    """The variable that a binding makes, of operations recorded as `first` and on."""
    operation = first + binding.index
    if binding.result is None:
        return Selected(recorder, operation)
    return Generated(recorder, operation, binding.name, binding.result, place, binding.num_samples)
