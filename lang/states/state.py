"""The state of a program, `s`, and the branches of its forks. Appending never waits; reading waits for its value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError, did_you_mean
from ..expressions.attempts import OnInvalid, with_derived_seed
from ..expressions.expr import Expr
from ..expressions.lowering import Defaults
from ..expressions.symbols import known
from ..operations.operation_log import OperationLog, StateTie
from ..operations.source_location import program_location
from ..operations.state_handle import StateHandle
from ..tools.declaration import AnyTool
from ..tools.tool_set import OnError
from .appendable_state import AppendableState
from .variables import GatheredVariable, Variable

if TYPE_CHECKING:
    from ..tools.call_format import CallFormat
    from .agent_options import Agent, AgentResult


class ForkGroup:
    """The branches of a fork: `group[i]` is one, `group += x` appends to all, `join` brings results to the source.

    A branch that is neither read nor joined is aborted once it is garbage-collected, and its errors are ignored.
    """

    def __init__(self, source: ProgramState, branches: Sequence[ProgramState]) -> None:
        self._source = source
        self._branches = list(branches)
        self._inherited = [branch._reader.snapshot() for branch in branches]

    def __len__(self) -> int:
        return len(self._branches)

    def __getitem__(self, index: int) -> ProgramState:
        return self._branches[index]

    def __setitem__(self, index: int, value: ProgramState) -> None:
        # `group[i] += x` appends to the branch and then assigns it to its own place.
        if value is not self._branches[index]:
            raise RequestError("a branch cannot be replaced; append to it with group[i] += ...", param="index")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._branches)

    def __iadd__(self, other: Expr | str | Sequence[Expr | str] | Callable[[int], Expr | str]) -> ForkGroup:
        """Append a string or expression to every branch, or each branch's own from a sequence or function of its index.

        Raises RequestError for other values, and for a sequence of another length than the group.
        """
        own: list[Any]
        if isinstance(other, Expr | str):
            own = [other] * len(self)
        elif callable(other):
            own = [other(index) for index in range(len(self))]
        elif isinstance(other, list | tuple):
            own = list(other)
        else:
            raise RequestError(f"cannot append {other!r} to a group of branches")
        if len(own) != len(self):
            raise RequestError(f"{len(own)} expressions for {len(self)} branches")
        for branch, expr in zip(self._branches, own, strict=True):
            branch += expr
        return self

    def _repr_html_(self) -> str:
        """Show the branches so far side by side in a notebook. Never waits and never raises."""
        from ..tracing.notebook import group_html

        return group_html([branch._handle for branch in self._branches])

    def join(self, mode: Literal["gather_variable", "concate_and_append"] = "gather_variable") -> None:
        """Bring the branches' results into the source state, without waiting.

        "gather_variable": each variable that the branches added becomes, in the source, the list of its values in the
        branches' order. "concate_and_append": the text that each branch appended is appended to the source, in order.
        """
        match mode:
            case "gather_variable":
                for name, variables in self._added().items():
                    self._source._reader.define(name, GatheredVariable(tuple(variables)))
                log = self._source._log  # told for plans and traces, since gathering variables sends no operation
                numbers = tuple(one._handle.number for one in self._branches)
                log.ties.append(StateTie(len(log.operations), numbers, program_location()))
            case "concate_and_append":
                self._source._concatenate(self._branches)
            case _:
                raise RequestError(
                    f"mode must be 'gather_variable' or 'concate_and_append', got {mode!r}"
                    f"{did_you_mean(mode, ('gather_variable', 'concate_and_append'))}",
                    param="mode",
                )

    def _added(self) -> dict[str, list[Variable]]:
        """Return the branches' new variables by name; a variable of an earlier join is new if it was set again."""
        added: dict[str, list[Variable]] = {}
        for branch, inherited in zip(self._branches, self._inherited, strict=True):
            for name, variable in branch._reader.snapshot().items():
                before = inherited.get(name)
                if before is None or (isinstance(before, GatheredVariable) and before is not variable):
                    added.setdefault(name, []).append(variable)
        return added


class CopyBlock(AbstractContextManager["ProgramState"]):
    """Context manager of `s.copy()`: a branch, joined at the end of the block. It says so where it is used as one."""

    def __init__(self, source: ProgramState) -> None:
        self._source = source

    def __enter__(self) -> ProgramState:
        self._group = self._source.fork(1)
        return self._group[0]

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._group.join()

    def __iadd__(self, other: object) -> NoReturn:
        raise self._refusal()

    def __getitem__(self, name: str) -> NoReturn:
        raise self._refusal()

    def _refusal(self) -> RequestError:
        return RequestError(
            "s.copy() is a block: write `with s.copy() as c: c += ...`; a branch without one is s.fork(1)[0]",
            param="copy",
        )


@dataclass(frozen=True)
class StateMark:
    """A point of a state to which `rollback` returns: its text, variables and open message."""

    log: OperationLog
    operation: int
    variables: dict[str, Variable]
    open_role: str | None


# The state of the program whose function the current code is part of.
_running: ContextVar[ProgramState | None] = ContextVar("ramiform_program", default=None)


def running_program() -> ProgramState | None:
    """Return the state of the innermost program whose function runs here; None outside of programs."""
    return _running.get()


class FunctionBody:
    """Context manager around a program's function: programs that it calls become parts of the state's run."""

    def __init__(self, state: ProgramState) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._token = _running.set(self._state)

    def __exit__(self, *error: object) -> None:
        try:
            _running.reset(self._token)
        except ValueError:  # a coroutine that was given up is closed in another context
            return


class CalledPart(NamedTuple):
    """How the state of a called program begins."""

    caller: ProgramState
    title: str
    place: str
    key: Callable[[], str]
    began: float  # by `time.perf_counter`
    budget: session.Budget | None = None
    deferred: bool = False

    def begin(self, state: ProgramState) -> None:
        """Open the state, unless it is. Raises RamiformError if the caller's run has ended."""
        log = self.caller._log
        with log.changed:
            if state._is_open:
                return
            execution = self.caller._handle.execution.called(
                self.title, key=self.key, budget=self.budget, deferred=self.deferred
            )
            execution.began = self.began
            state._take(StateHandle.open(execution), {})
            log.ties.append(StateTie(len(log.operations), (state._handle.number,), self.place, self.title))
            log.touch()


class ProgramState(AppendableState):
    """A growing text with variables, held by the runtime as tokens.

    `s += x` appends a string or an expression, `s["v"]` reads a variable. A failed operation raises RamiformError,
    with the program's line, where something that depends on it is read or appended. Earlier answers stay readable.
    """

    _opening: CalledPart | None = None  # how it begins, of a called program and a fresh state

    def __init__(
        self,
        handle: StateHandle | None,
        *,
        defaults: Defaults,
        stream: bool = False,
        variables: dict[str, Variable] | None = None,
        open_role: str | None = None,
    ) -> None:
        """Without a handle it is of a called program, and begins as `_opening` says where one is used."""
        super().__init__(defaults=defaults, stream=stream, open_role=open_role)
        self._inherited = {} if variables is None else dict(variables)
        if handle is not None:
            self._take(handle, {} if variables is None else variables)
        self._num_called = count()  # programs that its function has called, and fresh states

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Begin the state of a called program where its handle, log or reader is first used."""
            # Not by `__dict__`: an object whose dict was asked for reads its attributes slower from then on.
            if name not in ("_handle", "_log", "_reader") or self._opening is None or self._is_open:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self._begin()
            return getattr(self, name)

    def _begin(self) -> None:
        """Open the state in the runtime, unless it is. Raises RamiformError if the caller's run has ended."""
        if self._opening is not None and not self._is_open:
            self._opening.begin(self)

    # Agents

    def agent(
        self,
        tools: Sequence[AnyTool] | Agent,
        prompt: Expr | str | None = None,
        *,
        max_steps: int = 10,
        until: Callable[[ProgramState], Any] | str | None = None,
        tool_errors: OnError = "text",
        call_format: str | CallFormat = "hermes",
        result_role: str = "tool",
        constrained: bool = True,
        tool_choice: str = "auto",
        call_retries: int = 2,
        max_repeats: int | None = 2,
        reasoning: str | None = "qwen3",
        schema: Any = None,
        check: Callable[[Any], Any] | None = None,
        retries: int | None = None,
        on_invalid: OnInvalid | None = None,
        **sampling: Any,
    ) -> AgentResult:
        """Let the model answer in turns of text and tool calls, until it answers without a call; wait for the end.

        `prompt` is a user's message, appended first. The calls of a turn run at the same time. Their results are
        appended in order, as messages of `result_role`. `until(s)` is asked after each turn with calls. The result's
        `finished` is False where `max_steps` turns or `max_tokens` ended it. Without `constrained` nothing holds the
        model to valid calls. An invalid call is answered with the reason; after `call_retries` further turns in a row
        that have one too, the agent ends. `tool_choice` "required", or a tool's name, makes turns calls until one is
        made. Once the calls of a turn came again `max_repeats` times, with the same results, a user's message asks
        for an answer in words. `reasoning` names the marks of thoughts, as `separate_reasoning` does.

        `tools` may be an `Agent`, which has instructions and may hand over to others. `until` may be a tool's name: the
        agent ends once it was called. With `schema` a finished agent is asked for its answer as a value of this type,
        the result's `value`; it is checked by `check`, and asked for again `retries` times (default 2) with what was
        wrong. Raises RequestError for invalid options, and for an answer that stays invalid.
        """
        given = tuple(locals().values())[1:]  # all arguments, which are the fields of AgentOptions in this order
        from .agent import run_agent
        from .agent_options import AgentOptions

        return run_agent(self, AgentOptions(*given))

    async def agent_async(
        self,
        tools: Sequence[AnyTool] | Agent,
        prompt: Expr | str | None = None,
        *,
        max_steps: int = 10,
        until: Callable[[ProgramState], Any] | str | None = None,
        tool_errors: OnError = "text",
        call_format: str | CallFormat = "hermes",
        result_role: str = "tool",
        constrained: bool = True,
        tool_choice: str = "auto",
        call_retries: int = 2,
        max_repeats: int | None = 2,
        reasoning: str | None = "qwen3",
        schema: Any = None,
        check: Callable[[Any], Any] | None = None,
        retries: int | None = None,
        on_invalid: OnInvalid | None = None,
        **sampling: Any,
    ) -> AgentResult:
        """Do as `agent` does, in an event loop. `until` may be async."""
        given = tuple(locals().values())[1:]
        from .agent import run_agent_async
        from .agent_options import AgentOptions

        return await run_agent_async(self, AgentOptions(*given))

    # Branching

    def fork(self, size: int = 1) -> ForkGroup:
        """Return `size` states that begin with this one's text and variables, and run at the same time.

        Of several, each draws by a seed of its own, derived from that of the run. A `gen` with a seed keeps it.
        """
        if not isinstance(known(size), int) or size < 1:
            raise RequestError(f"fork needs a positive number of branches, got {size!r}", param="size")
        with self._log.changed:
            children = [
                ProgramState(
                    handle,
                    defaults=self._defaults if size == 1 else with_derived_seed(self._defaults, index),
                    stream=self._stream,
                    variables=self._reader.snapshot(),
                    open_role=self._open_role,
                )
                for index, handle in enumerate(self._handle.fork(size))
            ]
            for child in children:
                child._ended_role = self._ended_role
        return ForkGroup(self, children)

    def fresh(self) -> ProgramState:
        """Return an empty state of the same run, with its backend, budgets and sampling arguments; without waiting.

        It runs beside this one. As a branch, it is aborted once it is garbage-collected.
        """
        opening = CalledPart(self, "fresh", program_location(), lambda: "fresh", time.perf_counter())
        made = self._open_part(opening, next(self._num_called), {})
        made._handle.execution.loop = self._handle.execution.loop
        return made

    def copy(self) -> CopyBlock:
        """Fork one branch, `with s.copy() as c`, and join it at the end of the block."""
        return CopyBlock(self)

    def adopt(self, branch: ProgramState) -> None:
        """Append the text that a branch of this state has appended, and take its new variables; without waiting.

        Raises RequestError for a state that is no branch of this one.
        """
        if branch._handle.parent is not self._handle:
            raise RequestError("only a branch that this state has forked can be adopted", param="branch")
        with self._log.changed:
            self._concatenate([branch])
            for name, variable in branch._reader.snapshot().items():
                if branch._inherited.get(name) is not variable:
                    self._reader.define(name, variable)

    # Going back

    def mark(self) -> StateMark:
        """Return a mark of this point, to which `rollback` returns; without waiting."""
        with self._log.changed:
            operation = self._handle.append([session.Mark()])
            return StateMark(self._log, operation, self._reader.snapshot(), self._open_role)

    def rollback(self, mark: StateMark) -> None:
        """Return to the text, variables and open message at the mark, without waiting.

        What has been appended since is aborted unless it is done, or branches need it. The error of a failed operation
        since then is removed. The mark can be used again; later ones cannot. Raises RequestError for a mark of another
        state, and for one that a rollback has removed.
        """
        if not isinstance(mark, StateMark):
            raise RequestError(f"rollback takes what s.mark() returned, got {mark!r}", param="mark")
        with self._log.changed:
            if mark.log is not self._log:
                raise RequestError("a state can return to marks of its own, not of another state", param="mark")
            if self._log.is_removed(mark.operation):
                place = self._log.locations[mark.operation]
                raise RequestError(f"the mark made at {place} has been removed by a rollback", param="mark")
            self._handle.roll_back(mark.operation)
            self._open_role, self._ended_role = mark.open_role, None
            self._reader.restore(mark.variables)

    # Used by the other modules of the language

    def _open_part(
        self, opening: CalledPart, number: int, defaults: Defaults, *, is_lazy: bool = False
    ) -> ProgramState:
        """Open the state of a program that this one's function calls, as its call `number`.

        `is_lazy`: where nobody is told of the run's states it begins at its first use, as a part of the innermost state
        that has begun.
        """
        inherited: Mapping[str, Any] = with_derived_seed(self._defaults, number)
        if "num_api_spec_tokens" in inherited:  # the caller's own
            inherited = {name: value for name, value in inherited.items() if name != "num_api_spec_tokens"}
        made = ProgramState(None, defaults={**inherited, **defaults} if defaults else inherited, stream=self._stream)
        caller = self._opened_caller if is_lazy else self
        begins_later = is_lazy and caller._handle.execution.is_plain
        made._opening = opening = opening._replace(caller=caller) if begins_later else opening
        if not begins_later:
            opening.begin(made)
        return made

    @property
    def _opened_caller(self) -> ProgramState:
        """Return the innermost state around the running code that has begun."""
        return self if self._opening is None or self._is_open else self._opening.caller
