"""The kinds of variables: assigned values, and values that come with the answer to an operation of the state.

Reading a variable waits for its own operation only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.decisions import DecisionAnswer
from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..expressions.attempts import CheckedAttempts
from ..expressions.lowering import Binding
from ..operations.meta_info import meta_of_choice, meta_of_sequence
from ..operations.operation_log import OperationLog
from ..operations.source_location import with_location
from ..operations.state_handle import StateHandle
from ..tools.tool_set import ToolOutcome
from ..types.questions import with_values
from ..types.result_types import ResultType, is_cut


class Variable:
    """Base of a state's variables."""

    __slots__ = ()

    def get(self) -> Any:
        """Wait for the value. Raises the error of its operation."""
        raise NotImplementedError

    def meta(self) -> Any:
        """Return the meta info of its generation: a dict, a list of dicts, or None; waits for it."""
        return None

    def spans(self) -> Sequence[tuple[OperationLog, int, int]]:
        """Return the operations that make up its text: log, first and end index. Nothing for other values."""
        return ()

    def needs(self) -> Sequence[tuple[OperationLog, int]]:
        """Return what must be answered before it can be read without waiting: log and end index of operations."""
        return [(log, end) for log, _, end in self.spans()]

    def source(self) -> tuple[OperationLog, int, ResultType] | None:
        """Return the operation whose text the value is read out of, and how; None where it comes as a whole."""
        return None


@dataclass(slots=True)
class AssignedVariable(Variable):
    """A value set by the program."""

    value: Any

    def get(self) -> Any:
        return self.value


@dataclass(slots=True)
class OperationVariable(Variable):
    """Base of variables that come with the answer to one operation, whose text is theirs."""

    handle: StateHandle  # held so that the runtime keeps the state
    operation: int

    def spans(self) -> Sequence[tuple[OperationLog, int, int]]:
        return ((self.handle.log, self.operation, self.operation + 1),)

    def _done(self) -> session.Done:
        return self.handle.log.wait_for(self.operation)


@dataclass(slots=True)
class GeneratedVariable(OperationVariable):
    """The result of a Gen: one value, or a list of values for n > 1. Parsed once, at the first read."""

    name: str
    result: ResultType
    location: str
    num_samples: int
    attempts: CheckedAttempts | None = None
    _values: list[Any] | None = field(default=None, init=False)
    _raised: bool = field(default=False, init=False)  # whether the program got the error of a text not of the type

    def get(self) -> Any:
        if self._values is None:
            self._values = [self._parse(sequence) for sequence in self._sequences()]
        return self._values if self.num_samples > 1 else self._values[0]

    def source(self) -> tuple[OperationLog, int, ResultType] | None:
        return None if self.num_samples > 1 else (self.handle.log, self.operation, self.result)

    def meta(self) -> Any:
        metas = [meta_of_sequence(sequence) for sequence in self._sequences()]
        if self.attempts is not None:
            metas[0]["attempts"] = list(self.attempts.attempts)
        return metas if self.num_samples > 1 else metas[0]

    def _sequences(self) -> list[session.Sequence]:
        sequences = self._done().sequences
        assert sequences is not None
        return sequences

    def _parse(self, sequence: session.Sequence) -> Any:
        try:
            return self.result.value(sequence.text, is_cut=is_cut(sequence.finish, self.result))
        except (ValueError, KeyError) as error:
            cut = ", cut off at max_tokens," if sequence.finish.type == "length" else ""
            if isinstance(sequence.finish.matched, str) and self.result.check_cut is not None:
                cut = f", cut off at the stop {sequence.finish.matched!r},"
            message = f"the text {sequence.text!r}{cut} is not of type {self.result.name}: {error}"
            info = ErrorInfo.of(RequestError(message, param=self.name, code="invalid_result"))
            exception = with_location(info, self.location, f"gen {self.name!r}").to_exception()
            exception.is_repeated, self._raised = self._raised, True
            raise exception from error


@dataclass(slots=True)
class CapturedVariable(GeneratedVariable):
    """A part of a Gen's text, known once the whole is."""

    def spans(self) -> Sequence[tuple[OperationLog, int, int]]:
        return ()

    def needs(self) -> Sequence[tuple[OperationLog, int]]:
        return ((self.handle.log, self.operation + 1),)


@dataclass(slots=True)
class SelectedVariable(OperationVariable):
    """The choice that the runtime selected, or the value that it stands for."""

    values: Mapping[str, Any] | None

    def get(self) -> Any:
        return self._value(self._choice().text)

    def probabilities(self) -> dict[Any, float]:
        """Return the probability of each choice by its score: those of the draw, at temperature 0 those at 1."""
        operation, scores = self.handle.log.operations[self.operation], self._choice().scores
        assert isinstance(operation, session.Select)
        if len(scores) != len(operation.choices):
            raise RequestError("this backend tells no scores of choices", param="name")
        best, temperature = max(scores), operation.temperature or 1.0
        weights = [math.exp((score - best) / temperature) for score in scores]
        total = sum(weights)
        return {self._value(text): one / total for text, one in zip(operation.choices, weights, strict=True)}

    def _value(self, text: str) -> Any:
        return text if self.values is None else self.values[text]

    def meta(self) -> dict[str, Any]:
        return meta_of_choice(self._choice())

    def _choice(self) -> session.Choice:
        choice = self._done().choice
        assert choice is not None
        return choice


@dataclass(slots=True)
class CustomSelectedVariable(SelectedVariable):
    """The choice that the user's own choices method selected; the scores are those of the operation before."""

    decision: dict[str, Any]

    def get(self) -> Any:
        return self._value(self.handle.log.wait_for(self.operation + 1).text)

    def probabilities(self) -> dict[Any, float]:
        raise RequestError("a choices method of one's own decides without probabilities", param="name")

    def meta(self) -> dict[str, Any]:
        self.get()
        return meta_of_choice(self._choice()) | self.decision

    def spans(self) -> Sequence[tuple[OperationLog, int, int]]:
        return ((self.handle.log, self.operation + 1, self.operation + 2),)


@dataclass(slots=True)
class ToolVariable(OperationVariable):
    """The value that a tool returned. Its text is the call."""

    outcome: ToolOutcome

    def get(self) -> Any:
        self.handle.log.wait_for(self.operation + 1)
        return self.outcome.result

    def meta(self) -> dict[str, Any]:
        self.get()
        sequences = self._done().sequences
        assert sequences is not None
        return meta_of_sequence(sequences[0]) | {"tool_call": self.outcome.meta()}

    def needs(self) -> Sequence[tuple[OperationLog, int]]:
        return ((self.handle.log, self.operation + 2),)


@dataclass(slots=True)
class DecisionVariable(OperationVariable):
    """The answer to one of the questions of a Decide."""

    index: int
    values: Mapping[str | bool, Any] | None = None  # what the choices stand for

    def get(self) -> DecisionAnswer:
        return decision_of(self._done(), self.index, self.values)

    def meta(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self.get())

    def spans(self) -> Sequence[tuple[OperationLog, int, int]]:
        return ()

    def needs(self) -> Sequence[tuple[OperationLog, int]]:
        return ((self.handle.log, self.operation + 1),)


@dataclass(slots=True)
class ScopeVariable(Variable):
    """The text appended inside `with s.var_scope(name)`."""

    handle: StateHandle
    first: int
    end: int

    def get(self) -> str:
        log = self.handle.log
        return "".join(log.wait_for(index).text for index in log.visible(self.first, self.end))

    def spans(self) -> Sequence[tuple[OperationLog, int, int]]:
        return ((self.handle.log, self.first, self.end),)


@dataclass(slots=True)
class GatheredVariable(Variable):
    """The values of one name in the branches of a fork, in the branches' order."""

    values: tuple[Variable, ...]

    def get(self) -> list[Any]:
        """Wait for all values. Raises the first branch's error, which then stands for those of all."""
        values: list[Any] = []
        failure: RamiformError | None = None
        for value in self.values:
            try:
                values.append(value.get())
            except RamiformError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return values

    def meta(self) -> list[Any]:
        return [value.meta() for value in self.values]

    def needs(self) -> Sequence[tuple[OperationLog, int]]:
        return [need for value in self.values for need in value.needs()]


def decision_of(done: session.Done, index: int, values: Mapping[str | bool, Any] | None) -> DecisionAnswer:
    """Return the answer to one of the questions of a Decide; `values` are what its choices stand for."""
    assert done.answers is not None
    answer = done.answers[index]
    return answer if values is None else with_values(answer, values)


def variable_of(binding: Binding, handle: StateHandle, first: int, location: str) -> Variable:
    """Return the variable of a binding, whose operations begin at index `first` of the state's log."""
    operation = first + binding.index
    if binding.outcome is not None:
        return ToolVariable(handle, operation, binding.outcome)
    if binding.meta is not None:
        return CustomSelectedVariable(handle, operation, binding.values, binding.meta)
    if binding.result is None:
        return SelectedVariable(handle, operation, binding.values)
    kind = CapturedVariable if binding.captured else GeneratedVariable
    return kind(handle, operation, binding.name, binding.result, location, binding.num_samples, binding.attempts)
