"""Agents: a model that answers in turns of text and tool calls, until it needs no tool."""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..backends.endpoints.native_tools import NO_CALL
from ..expressions.callbacks import MAX_FUNCTIONS
from ..expressions.expr import RUN_ARGUMENTS, Expr, GenExpr, RoleBeginExpr, RoleEndExpr
from ..expressions.lowering import Defaults
from ..expressions.primitives import gen, role
from ..operations.operation_log import OperationLog
from ..operations.state_handle import StateHandle
from ..tools.call_format import (
    CALL_FORMATS,
    CallFormat,
    InvalidCall,
    ReadTurn,
    Recognised,
    call_format,
    described,
    read_calls,
    structural_tag,
)
from ..tools.call_patterns import PROMPT, CallRecord
from ..tools.declaration import AnyTool
from ..tools.tool_set import (
    OnError,
    PreparedCall,
    ToolCallback,
    ToolOutcome,
    ToolSet,
    begin_call,
    refuse,
    tool_set,
    was_cut_off,
)
from ..types.result_types import ReasoningFormat, reasoning_format
from .early_calls import EarlyCall, EarlyCalls

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

MAX_TOKENS = 512  # of a turn, where neither the agent nor `run` says it
ANSWER = "Answer the question in a sentence, from the result of the tool."  # asked of a model that repeats a call
StoppedBy = Literal["answer", "until", "max_steps", "max_tokens", "invalid_call"]


class AgentState(Protocol):
    """The parts of a `ProgramState` that an agent works on."""

    _handle: StateHandle
    _log: OperationLog
    _defaults: Defaults

    def __contains__(self, name: str) -> bool: ...

    def _append(self, parts: Sequence[Expr]) -> None: ...


@dataclass(frozen=True)
class AgentCall:
    """A tool call of an agent. `error` is None if it succeeded; `text` is what the model was told."""

    step: int  # the turn, from 1
    name: str | None  # None: the text was no valid call
    arguments: dict[str, Any] | None
    result: Any
    text: str
    error: str | None
    seconds: float
    saved: float = 0.0  # seconds of these in which the model still wrote the turn
    recognised: Recognised = "marker"  # how the call was found in the model's text


@dataclass(frozen=True)
class AgentResult:
    """The end of an agent: the model's last words, its thoughts in each turn, and every call that it made.

    `hint` says what to try where the model called no tool at all.
    """

    answer: str
    steps: int
    calls: tuple[AgentCall, ...]
    stopped_by: StoppedBy
    reasoning: tuple[str, ...] = ()
    hint: str | None = None

    @property
    def finished(self) -> bool:
        """Return whether the model answered, or `until` was true; False where a limit ended the agent."""
        return self.stopped_by in ("answer", "until")


@dataclass(frozen=True)
class AgentOptions:
    """The options of `s.agent`, in its order. Raises RequestError for an invalid one."""

    given_tools: Sequence[AnyTool]
    prompt: Expr | str | None
    max_steps: int
    until: Callable[[Any], Any] | None
    on_error: OnError
    given_format: str | CallFormat
    result_role: str
    constrained: bool
    tool_choice: str
    call_retries: int
    max_repeats: int | None
    given_reasoning: str | None
    sampling: dict[str, Any]  # by the names of `run`

    def __post_init__(self) -> None:
        for one in self.tools.tools.values():
            if one.function is None:
                raise RequestError(
                    f"the tool {one.name} has no function, so an agent cannot go on after its call: declare it with "
                    "ramiform.tool(definition, handler)",
                    param="tools",
                )
        role, errors = self.result_role, self.on_error
        if type(self.max_steps) is not int or self.max_steps < 1:
            raise RequestError(f"max_steps must be a positive integer, got {self.max_steps!r}", param="max_steps")
        if self.until is not None and not callable(self.until):
            raise RequestError(f"until must be a function of the state, got {self.until!r}", param="until")
        if not (isinstance(role, str) and role):
            raise RequestError(f"result_role must be a role such as 'tool', got {role!r}", param="result_role")
        if not isinstance(self.constrained, bool):
            raise RequestError(f"constrained must be True or False, got {self.constrained!r}", param="constrained")
        if errors not in ("text", "raise"):
            raise RequestError(f"tool_errors must be 'text' or 'raise', got {errors!r}", param="tool_errors")
        if self.tool_choice not in ("auto", "required", *self.tools.tools):
            raise RequestError(
                f"tool_choice must be 'auto', 'required' or a tool's name ({', '.join(self.tools.tools)}), got "
                f"{self.tool_choice!r}",
                param="tool_choice",
            )
        if self.tool_choice != "auto" and not self.constrained:
            raise RequestError(
                f"tool_choice={self.tool_choice!r} constrains the first turn: leave constrained=False out",
                param="tool_choice",
            )
        if type(self.call_retries) is not int or self.call_retries < 0:
            raise RequestError(
                f"call_retries must be an integer of 0 or more, got {self.call_retries!r}", param="call_retries"
            )
        if self.max_repeats is not None and (type(self.max_repeats) is not int or self.max_repeats < 1):
            raise RequestError(
                f"max_repeats must be a positive integer or None, got {self.max_repeats!r}", param="max_repeats"
            )
        for name in self.sampling:
            if name not in RUN_ARGUMENTS or name == "n":
                raise RequestError(f"an agent takes gen's sampling arguments but n, and no {name}", param=name)
        assert self.form  # raises for a format that is none
        assert self.reasoning is None or self.reasoning.end  # the same

    @functools.cached_property
    def tools(self) -> ToolSet:
        return tool_set(self.given_tools)

    @functools.cached_property
    def form(self) -> CallFormat:
        return call_format(self.given_format)

    @functools.cached_property
    def reasoning(self) -> ReasoningFormat | None:
        return None if self.given_reasoning is None else reasoning_format(self.given_reasoning, "reasoning")

    def read(self, text: str, *, is_forced: bool) -> tuple[str, ReadTurn]:
        """Return the thoughts at the beginning of a turn's text, and the rest as text and calls."""
        form, thought = self.reasoning, ""
        # A mark further on is text, such as an argument.
        if form is not None and not is_forced and (form.begins_inside or text.lstrip().startswith(form.start)):
            thought, text = form.split(text)
        turn = read_calls(text, self.tools, self.form)
        return thought, turn._replace(recognised="constrained") if is_forced else turn

    def hint(self) -> str:
        """Return what to try where the model called no tool."""
        tried = [] if self.form == CALL_FORMATS["json"] else ['call_format="json", if it writes calls as plain JSON']
        if self.tool_choice == "auto":
            tried.append('tool_choice="required", which makes the first turn a call')
        return f"the model called no tool; where it should have, try {', or '.join(tried)}"

    @property
    def has_early_tools(self) -> bool:
        """Return whether calls may begin before their turn ends."""
        return any(one.pure for one in self.tools.tools.values())


def run_agent(state: AgentState, options: AgentOptions) -> AgentResult:
    """Run an agent on the state, blocking."""
    agent = _run(state, options, _BlockingCalls(state))
    try:
        agent.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a blocking agent has nothing to await")


async def run_agent_async(state: AgentState, options: AgentOptions) -> AgentResult:
    """Run an agent on the state in an event loop."""
    return await _run(state, options, _AsyncCalls(state))


class _Waiting(Protocol):
    """How an agent waits: blocking, so that nothing is ever suspended, or in the event loop `loop`."""

    loop: AbstractEventLoop | None

    async def answer(self, op: int) -> session.Done:
        """Wait for the answer of an operation. Raises the state's error."""
        ...

    async def make(self, calls: Sequence[_MadeCall]) -> None:
        """Make the calls at the same time, and supply each one's result as soon as it is there."""
        ...

    async def settle(self, cancelled: Sequence[Future[Any]]) -> None:
        """Wait until cancelled calls have cleaned up."""
        ...

    async def is_true(self, condition: Callable[[Any], Any]) -> bool: ...


async def _run(state: AgentState, options: AgentOptions, waiting: _Waiting) -> AgentResult:
    _begin(state, options)
    early = EarlyCalls(options.tools, options.form, waiting.loop)
    try:
        return await _take_turns(state, options, waiting, early)
    finally:
        await waiting.settle(early.end_turn())
        early.close()


async def _take_turns(state: AgentState, options: AgentOptions, waiting: _Waiting, early: EarlyCalls) -> AgentResult:
    choices = {options.tool_choice, "auto", "none"}
    turns = {choice: _turn(state, options, choice) for choice in choices}
    speculates = _speculates(state, options)
    made: list[AgentCall] = []
    reasoning: list[str] = []
    before = [PROMPT]
    answer = ""
    num_invalid = 0  # turns with an invalid call, one after the other
    num_repeats = 0  # turns that made the calls of the turn before, and got the same results

    def result(stopped_by: StoppedBy) -> AgentResult:
        hint = None if made else options.hint()
        return AgentResult(answer, len(reasoning), tuple(made), stopped_by, tuple(reasoning), hint)

    for step in range(1, options.max_steps + 1):
        for name, arguments in options.tools.patterns.predict(before) if speculates else ():
            if options.tools.tools[name].speculate:
                early.begin_predicted(name, arguments)
        is_forced = options.tool_choice != "auto" and all(call.name is None for call in made)
        is_stuck = options.constrained and options.max_repeats is not None and num_repeats >= options.max_repeats
        turn = turns[options.tool_choice if is_forced else "none" if is_stuck else "auto"]
        if is_stuck:
            state._append(role("user", ANSWER).parts)
        turn = replace(turn, name=_turn_name(state))
        state._append([RoleBeginExpr("assistant"), turn, RoleEndExpr("assistant")])
        op = len(state._log.operations) - 2
        if turn.streamed:
            early.watch(state._log, op)
        done = await waiting.answer(op)
        thought, (answer, found, recognised) = options.read(done.text, is_forced=is_forced)
        reasoning.append(thought)
        prepared = [call for call in found if isinstance(call, PreparedCall)]
        if speculates:
            options.tools.patterns.learn(before, [(call.tool.name, json.loads(call.key)) for call in prepared])
        if not found:
            return result("max_tokens" if was_cut_off(done) else "answer")
        calls = _append_results(state, options, found, recognised, done, early)
        cancelled = early.end_turn()
        try:
            await waiting.make(calls)
            await waiting.settle(cancelled)
        finally:
            for call in calls:
                call.give_up()
        earlier = before
        before = [call.to_record(one) for call, one in zip(calls, found, strict=True) if isinstance(one, PreparedCall)]
        num_repeats = num_repeats + 1 if before and before == earlier else 0
        made += [call.to_result(step) for call in calls]
        for call in calls:
            if call.raises:
                try:
                    await waiting.answer(call.op)
                except RamiformError as error:  # with the program's line
                    raise error from call.outcome.cause
        if options.until is not None and await waiting.is_true(options.until):
            return result("until")
        num_invalid = num_invalid + 1 if len(prepared) < len(found) else 0
        if num_invalid > options.call_retries:
            return result("invalid_call")
    return result("max_steps")


@dataclass(frozen=True)
class AgentCallback(ToolCallback):
    """Callback that makes a call of an agent, or ends it if it runs already; its text is that of the Ask `op`."""

    call: PreparedCall
    op: int
    early: EarlyCall | None
    turn_ended: float  # by `time.perf_counter`

    def __call__(self, done: session.Done) -> Any:
        pending: Awaitable[None] | None
        if self.early is None:
            pending = begin_call(self.call, self.outcome)
        else:
            pending = self.early.finish(self.call, self.outcome, self.turn_ended)
        return self._text() if pending is None else self._after(pending)


@dataclass
class _MadeCall:
    """A call of a turn, and the Ask that its result answers."""

    state: AgentState
    op: int
    call: Callable[[], Any] | None  # None: the text was no call, and the outcome is complete
    outcome: ToolOutcome
    on_error: OnError
    is_supplied: bool = False

    @property
    def raises(self) -> bool:
        return self.outcome.error is not None and self.on_error == "raise"

    def begin(self) -> Any:
        """Call the function; return None, or an awaitable that ends the call."""
        if self.call is None:
            return None
        try:
            pending = self.call()
        except RequestError:
            if self.outcome.error is None:  # not the tool's
                raise
            return None
        return self._end(pending) if inspect.isawaitable(pending) else None

    async def _end(self, pending: Any) -> None:
        try:
            await pending
        except RequestError:
            if self.outcome.error is None:
                raise

    def supply(self) -> None:
        """Append the result to the state."""
        if self.outcome.saved:
            self.state._log.saved[self.op] = self.outcome.saved
        error = ErrorInfo.of(self.outcome.to_error()) if self.raises else None
        self._supply("" if error is not None else self.outcome.text, error)

    def give_up(self) -> None:
        """Fail the state if the call has no result, because the program was interrupted."""
        if not self.is_supplied:
            stopped = RequestError(f"the tool {self.outcome.name or ''} was interrupted", code="tool_failed")
            self._supply("", ErrorInfo.of(stopped))

    def to_result(self, step: int) -> AgentCall:
        return AgentCall(step, *(getattr(self.outcome, field.name) for field in fields(AgentCall)[1:]))

    def to_record(self, call: PreparedCall) -> CallRecord:
        return CallRecord(call.tool.name, json.loads(call.key), self.outcome.text)

    def _supply(self, text: str, error: ErrorInfo | None) -> None:
        self.is_supplied = True
        handle = self.state._handle
        handle.execution.supply(session.Supply(state=handle.number, op=self.op, text=text, error=error))


class _BlockingCalls:
    """Waits by blocking, and makes calls in threads."""

    loop: AbstractEventLoop | None = None

    def __init__(self, state: AgentState) -> None:
        self._state = state

    async def answer(self, op: int) -> session.Done:
        return self._state._log.wait_for(op)

    async def make(self, calls: Sequence[_MadeCall]) -> None:
        # Threads of their own: in a shared pool, agents that tools run would wait for one another.
        pool = ThreadPoolExecutor(min(len(calls), MAX_FUNCTIONS), thread_name_prefix="ramiform-tool")
        try:
            running = [pool.submit(contextvars.copy_context().run, _make, call) for call in calls]
            for one in running:
                one.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def settle(self, cancelled: Sequence[Future[Any]]) -> None:
        wait(cancelled)

    async def is_true(self, condition: Callable[[Any], Any]) -> bool:
        answer = condition(self._state)
        if inspect.iscoroutine(answer):
            answer.close()
            raise RequestError("an async until needs `await s.agent_async(...)`", param="until")
        return bool(answer)


class _AsyncCalls:
    """Waits in an event loop; functions that are not async run in threads, since they may block."""

    def __init__(self, state: AgentState) -> None:
        import asyncio

        self.loop: AbstractEventLoop | None = asyncio.get_running_loop()
        self._state = state

    async def answer(self, op: int) -> session.Done:
        await self._state._log.wait_answered_async(op + 1)
        return self._state._log.wait_for(op)

    async def make(self, calls: Sequence[_MadeCall]) -> None:
        import asyncio

        pool = ThreadPoolExecutor(min(len(calls), MAX_FUNCTIONS), thread_name_prefix="ramiform-tool")

        async def make(call: _MadeCall) -> None:
            loop = asyncio.get_running_loop()
            pending = await loop.run_in_executor(pool, contextvars.copy_context().run, call.begin)
            if pending is not None:
                await pending
            call.supply()

        try:
            await asyncio.gather(*map(make, calls))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def settle(self, cancelled: Sequence[Future[Any]]) -> None:
        import asyncio

        await asyncio.gather(*map(asyncio.wrap_future, cancelled), return_exceptions=True)

    async def is_true(self, condition: Callable[[Any], Any]) -> bool:
        answer = condition(self._state)
        return bool(await answer if inspect.isawaitable(answer) else answer)


def _make(call: _MadeCall) -> None:
    if (pending := call.begin()) is not None:
        import asyncio

        asyncio.run(pending)
    call.supply()


def _begin(state: AgentState, options: AgentOptions) -> None:
    """Offer the tools that the chat does not offer yet, and append the prompt."""
    first = _first_message(state)
    if first is None:
        if options.prompt is None:
            raise RequestError("the chat has no message yet: give the agent a prompt", param="prompt")
        state._append(role("user", options.prompt, tools=options.tools.tools.values()).parts)
        return
    known = set() if first.tools is None else {one["function"]["name"] for one in json.loads(first.tools.schemas)}
    if further := [one for name, one in options.tools.tools.items() if name not in known]:
        state._append(role("system", described(ToolSet(further), options.form)).parts)
    if options.prompt is not None:
        state._append(role("user", options.prompt).parts)


def _first_message(state: AgentState) -> session.RoleBegin | None:
    for log, end in state._handle.segments():
        for operation in log.operations[:end]:
            if isinstance(operation, session.RoleBegin):
                return operation
    return None


def _turn_name(state: AgentState) -> str:
    """Return the name of the state's next turn, which is a variable: `turn_1`, `turn_2`, ..."""
    return next(name for number in itertools.count(1) if (name := f"turn_{number}") not in state)


def _turn(state: AgentState, options: AgentOptions, choice: str) -> GenExpr:
    """Return the gen of a turn: text in which every call that is begun is valid, or by `choice` calls alone or none."""
    sampling = {RUN_ARGUMENTS[name]: value for name, value in options.sampling.items()} | {"n": 1}
    if sampling.get("max_tokens") is None and state._defaults.get("max_tokens") is None:
        sampling["max_tokens"] = MAX_TOKENS
    if choice == "none":
        sampling["regex"] = NO_CALL
    turn = gen(**sampling)
    assert isinstance(turn, GenExpr)
    if choice == "none":
        return turn
    tag = structural_tag(options.tools, options.form, choice) if options.constrained else None
    return replace(turn, structural_tag=tag, streamed=options.has_early_tools)


def _speculates(state: AgentState, options: AgentOptions) -> bool:
    """Return whether calls are predicted: not with a checkpoint, which may hold the results of what is called next."""
    is_asked = any(one.speculate for one in options.tools.tools.values())
    return is_asked and not state._handle.execution.has_checkpoint


def _append_results(
    state: AgentState,
    options: AgentOptions,
    found: Sequence[PreparedCall | InvalidCall],
    recognised: Recognised,
    done: session.Done,
    early: EarlyCalls,
) -> list[_MadeCall]:
    """Append a message for the result of each call, which is still to come."""
    calls = []
    handle = state._handle
    turn_ended = state._log.answered_at[done.op]
    for index, call in enumerate(found):
        outcome = ToolOutcome(recognised=recognised)
        make: Callable[[], Any] | None = None
        operations: list[session.Operation] = [session.RoleBegin(options.result_role), session.Ask(), session.RoleEnd()]
        if isinstance(call, InvalidCall):
            refuse(outcome, call.text, call.reason, cut_off=was_cut_off(done) and index == len(found) - 1)
        else:
            outcome.name, outcome.arguments = call.tool.name, call.arguments
        with state._log.changed:
            op = handle.append(operations) + 1
            state._log.labels[op] = outcome.label
            state._log.outcomes[op] = outcome
        if isinstance(call, PreparedCall):
            taken = early.take(call)
            callback = AgentCallback(
                options.tools, options.on_error, "{result}", outcome, call, op, early=taken, turn_ended=turn_ended
            )
            make = functools.partial(handle.execution.kept_callback(handle.number, callback), done)
        calls.append(_MadeCall(state, op, make, outcome, options.on_error))
    return calls
