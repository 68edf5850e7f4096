"""Appending to a state: texts, expressions, chat messages, and questions about its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Self

from ...runtime.protocol import session
from ..expressions.callbacks import ask_when_answered, check_attempts
from ..expressions.decide import questions_of
from ..expressions.expr import Expr, RoleBeginExpr, RoleEndExpr, messages_of, parts_of
from ..expressions.format_marks import refuse_marks
from ..expressions.lowering import Defaults, checked_lora, lower
from ..expressions.messages import role
from ..expressions.primitives import gen
from ..operations.state_handle import StateHandle
from ..tools.declaration import AnyTool
from ..tools.tool_set import OnError, ToolCallback, ToolSet, tool_set
from .readable_state import ReadableState
from .variables import AssignedVariable, DecisionVariable, ScopeVariable, decision_of, variable_of


class AppendableState(ReadableState):
    """Base of ProgramState: what can be appended to a state, without waiting."""

    def __init__(self, *, defaults: Defaults, stream: bool, open_role: str | None) -> None:
        super().__init__()
        self._defaults = defaults
        self._stream = stream
        self._open_role = open_role
        self._concatenated: list[StateHandle] = []  # joined states, held until they are appended
        self._ended_role: str | None = None  # role of the chat message that has ended just now

    def __iadd__(self, other: Expr | str | Sequence[Mapping[str, Any]]) -> Self:
        parts = messages_of(other) if isinstance(other, list | tuple) else parts_of(other)  # type: ignore[arg-type]
        self._append(parts)
        return self

    def system(
        self, expr: Expr | str | None = None, *, tools: Iterable[AnyTool] | None = None
    ) -> AbstractContextManager[None]:
        """Append a system message: `s.system(x)`, or `with s.system(): ...` for one in parts.

        As the first message of a chat it may offer `tools`.
        """
        return self._message("system", expr, tools)

    def user(
        self, expr: Expr | str | None = None, *, tools: Iterable[AnyTool] | None = None
    ) -> AbstractContextManager[None]:
        """Append a user message, as `system` does."""
        return self._message("user", expr, tools)

    def assistant(self, expr: Expr | str | None = None) -> AbstractContextManager[None]:
        """Append an assistant message, as `system` does."""
        return self._message("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Make the text appended inside the block the variable `name`."""
        first = len(self._log.operations)
        yield
        self._reader.define(name, ScopeVariable(self._handle, first, len(self._log.operations)))

    def tool(
        self, name: str | None = None, tools: Sequence[AnyTool] = (), *, errors: OnError = "text", **options: Any
    ) -> None:
        """Append `gen(name, tools=tools)`: the model calls one of the functions; its result is the variable."""
        self._append(parts_of(gen(name, tools=tools, tool_errors=errors, **options)))

    def decide(self, **questions: Any) -> None:
        """Ask questions about the state's text and append nothing.

        `s.decide(urgent="Is it urgent?", team=pick(...), anger=rate(...))` makes each name a variable, whose value is
        the answer with its probabilities. A type stands for a pick of its values: `team=Team` with an Enum, a Literal
        or bool, whose question is in `Annotated[Team, "Which team?"]` or its docstring. Answers depend neither on each
        other nor on their order. The run's `lora` answers them. Raises RequestError naming an invalid question.
        """
        asked = questions_of(questions)
        with self._log.changed:
            operation = self._handle.append(
                [session.Decide(tuple(question for question, _ in asked), checked_lora(self._defaults.get("lora")))],
                {0: ", ".join(questions)},
            )
            for index, (name, (_, values)) in enumerate(zip(questions, asked, strict=True)):
                self._reader.define(name, DecisionVariable(self._handle, operation, index, values))
            self._log.values[operation] = tuple(
                (name, partial(decision_of, index=index, values=values))
                for index, (name, (_, values)) in enumerate(zip(questions, asked, strict=True))
            )
        if self._handle.execution.hooks:
            self._handle.execution.observe(self._handle.segments(), operation)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable to a value of the program's own. Raises RequestError for a string with an expression in it."""
        refuse_marks(name, value, depth=0)
        self._reader.define(name, AssignedVariable(value))

    def _concatenate(self, children: Sequence[AppendableState]) -> None:
        handles = [child._handle for child in children]
        self._concatenated += handles
        self._ended_role = None  # what comes next stands after the branches' text
        self._handle.concatenate(handles)

    def _append(self, parts: Sequence[Expr]) -> None:
        if not parts:
            return
        with self._log.changed:
            lowered = lower(parts, self._defaults, self._stream, self._open_role, self._ended_role)
            self._ended_role = lowered.ended_role
            names: dict[int, str] = {}
            for one in lowered.bindings:
                beside = f"{names[one.index]}, " if one.captured and one.index in names else ""
                names[one.index] = beside + one.name
            first = self._handle.append(lowered.operations, names)
            self._open_role = lowered.open_role
            for index, attempts in lowered.checks:
                *older, (own, _) = self._handle.segments()
                attempts.before = [*older, (own, first + index)]
                execution = self._handle.execution
                check_attempts(execution, self._handle.number, self._log, first + index, attempts)
            for binding in lowered.bindings:
                place = self._log.locations[first]
                self._reader.define(binding.name, variable_of(binding, self._handle, first, place))
                operation, reading = first + binding.answered_by, (binding.name, binding.value_of)
                self._log.values[operation] = (*self._log.values.get(operation, ()), reading)
            for index, callback in lowered.callbacks:
                if isinstance(callback, ToolCallback):
                    self._log.labels[first + index + 1] = callback.outcome.label
                    self._log.outcomes[first + index + 1] = callback.outcome
        if self._handle.execution.hooks:
            self._handle.execution.observe(self._handle.segments(), first)
        for index, callback in lowered.callbacks:
            handle = self._handle
            ask_when_answered(handle.execution, handle.number, self._log, first + index, callback)

    def _message(
        self, name: str, expr: Expr | str | None, tools: Iterable[AnyTool] | None = None
    ) -> AbstractContextManager[None]:
        if expr is None:
            return self._open_message(name, None if tools is None else tool_set(tools))
        self._append(role(name, expr, tools=tools).parts)
        return nullcontext()

    @contextmanager
    def _open_message(self, name: str, tools: ToolSet | None) -> Iterator[None]:
        self._append([RoleBeginExpr(name, tools)])
        yield
        self._append([RoleEndExpr(name)])
