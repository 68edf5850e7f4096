"""Agents: a model that answers in turns of text and tool calls, until it needs no tool."""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..backends.endpoints.native_tools import NO_CALL
from ..expressions.callbacks import MAX_FUNCTIONS
from ..expressions.expr import RUN_ARGUMENTS, Expr, GenExpr, RoleBeginExpr, RoleEndExpr, parts_of
from ..expressions.lowering import Defaults
from ..expressions.messages import role
from ..expressions.primitives import gen
from ..operations.operation_log import OperationLog
from ..operations.state_handle import StateHandle
from ..tools.call_format import (
    InvalidCall,
    Recognised,
    described,
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
    was_cut_off,
)
from ..types.descriptions import result_text
from ..types.result_types import of_schema
from .agent_options import Agent, AgentCall, AgentOptions, AgentResult, StoppedBy
from .early_calls import EarlyCall, EarlyCalls

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

MAX_TOKENS = 512  # of a turn, where neither the agent nor `run` says it
ANSWER = "Answer the question in a sentence, from the result of the tool."  # asked of a model that repeats a call
TYPED = "Now give the answer as data."  # asked for an answer of a type
MAX_RETRIES = 2  # of an answer of a type, unless the agent says otherwise


class AgentState(Protocol):
    """The parts of a `ProgramState` that an agent works on."""

    _handle: StateHandle
    _log: OperationLog
    _defaults: Defaults

    def __contains__(self, name: str) -> bool: ...

    def _append(self, parts: Sequence[Expr]) -> None: ...


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


@dataclass
class _Progress:
    """Collects the calls, the reasoning and the answer of the turns so far."""

    made: list[AgentCall] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)  # of each turn
    answer: str = ""


async def _run(state: AgentState, options: AgentOptions, waiting: _Waiting) -> AgentResult:
    _begin(state, options)
    progress = _Progress()
    while True:
        early = EarlyCalls(options.tools, options.form, waiting.loop)
        try:
            ended = await _take_turns(state, options, waiting, early, progress)
        finally:
            await waiting.settle(early.end_turn())
            early.close()
        if not isinstance(ended, Agent):
            break
        options = options.taken_over(ended)
    agent = options.given_tools.name if isinstance(options.given_tools, Agent) else None
    hint = None if progress.made or not options.tools.tools else options.hint()
    thoughts = tuple(progress.reasoning)
    result = AgentResult(progress.answer, len(thoughts), tuple(progress.made), ended, thoughts, hint=hint, agent=agent)
    if options.schema is None or not result.finished:
        return result
    return replace(result, value=await _typed_answer(state, options, waiting))


async def _typed_answer(state: AgentState, options: AgentOptions, waiting: _Waiting) -> Any:
    """Ask for the answer as a value of the type, again with what was wrong if it is not valid."""
    kind = options.schema
    state._append(role("user", f"{TYPED} {result_text(kind)}".rstrip()).parts)
    retries = MAX_RETRIES if options.retries is None else options.retries
    told = ("tell" if retries else "raise") if options.on_invalid is None else options.on_invalid
    answer = gen(**_sampling(state, options), schema=kind, check=options.check, retries=retries, on_invalid=told)
    state._append([RoleBeginExpr("assistant"), *parts_of(answer), RoleEndExpr("assistant")])
    done = await waiting.answer(len(state._log.operations) - 2)
    return of_schema(kind).parse(done.text)


async def _take_turns(
    state: AgentState, options: AgentOptions, waiting: _Waiting, early: EarlyCalls, progress: _Progress
) -> StoppedBy | Agent:
    """Take turns until the agent ends, or another one takes over."""
    choices = {options.tool_choice, "auto", "none"}
    turns = {choice: _turn(state, options, choice) for choice in choices}
    speculates = _speculates(state, options)
    made = progress.made
    before = [PROMPT]
    num_invalid = 0  # turns with an invalid call, one after the other
    num_repeats = 0  # turns that made the calls of the turn before, and got the same results
    for step in range(len(progress.reasoning) + 1, options.max_steps + 1):
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
        thought, (progress.answer, found, recognised) = options.read(done.text, is_forced=is_forced)
        progress.reasoning.append(thought)
        prepared = [call for call in found if isinstance(call, PreparedCall)]
        if speculates:
            options.tools.patterns.learn(before, [(call.tool.name, json.loads(call.key)) for call in prepared])
        if not found:
            return "max_tokens" if was_cut_off(done) else "answer"
        calls = _append_results(state, options, found, recognised, done, early)
        await _make_calls(calls, waiting, early)
        earlier = before
        before = [call.to_record(one) for call, one in zip(calls, found, strict=True) if isinstance(one, PreparedCall)]
        num_repeats = num_repeats + 1 if before and before == earlier else 0
        results = [call.to_result(step) for call in calls]
        made += results
        await _raise_errors(calls, waiting)
        if await _is_over(options.until, results, waiting):
            return "until"
        if taken := [options.handovers[call.name] for call in results if call.name in options.handovers]:
            return taken[-1]
        num_invalid = num_invalid + 1 if len(prepared) < len(found) else 0
        if num_invalid > options.call_retries:
            return "invalid_call"
    return "max_steps"


async def _make_calls(calls: Sequence[_MadeCall], waiting: _Waiting, early: EarlyCalls) -> None:
    cancelled = early.end_turn()
    try:
        await waiting.make(calls)
        await waiting.settle(cancelled)
    finally:
        for call in calls:
            call.give_up()


async def _raise_errors(calls: Sequence[_MadeCall], waiting: _Waiting) -> None:
    for call in calls:
        if call.raises:
            try:
                await waiting.answer(call.op)
            except RamiformError as error:  # with the program's line
                raise error from call.outcome.cause


async def _is_over(until: Callable[[Any], Any] | str | None, results: Sequence[AgentCall], waiting: _Waiting) -> bool:
    """Return whether `until` holds: a condition, or that the tool of this name has been called without an error."""
    if isinstance(until, str):
        return any(call.name == until and call.error is None for call in results)
    return until is not None and await waiting.is_true(until)


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
    instructions = options.given_tools.instructions if isinstance(options.given_tools, Agent) else ""
    if first is None:
        if options.prompt is None:
            raise RequestError("the chat has no message yet: give the agent a prompt", param="prompt")
        tools: Sequence[AnyTool] | None = [*options.tools.tools.values()] or None
        if instructions:
            state._append(role("system", instructions, tools=tools).parts)
            tools = None
        state._append(role("user", options.prompt, tools=tools).parts)
        return
    known = set() if first.tools is None else {one["function"]["name"] for one in json.loads(first.tools.schemas)}
    further = [one for name, one in options.tools.tools.items() if name not in known]
    told = [instructions, described(ToolSet(further), options.form) if further else ""]
    if any(told):
        state._append(role("system", "\n\n".join(filter(None, told))).parts)
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
    sampling = _sampling(state, options)
    if choice == "none":
        sampling["regex"] = NO_CALL
    turn = gen(**sampling)
    assert isinstance(turn, GenExpr)
    if choice == "none":
        return turn
    is_tagged = options.constrained and options.tools.tools
    tag = structural_tag(options.tools, options.form, choice) if is_tagged else None
    return replace(turn, structural_tag=tag, streamed=options.has_early_tools)


def _sampling(state: AgentState, options: AgentOptions) -> dict[str, Any]:
    """Return the sampling arguments of the agent's gens."""
    sampling = {RUN_ARGUMENTS[name]: value for name, value in options.sampling.items()} | {"n": 1}
    if sampling.get("max_tokens") is None and state._defaults.get("max_tokens") is None:
        sampling["max_tokens"] = MAX_TOKENS
    return sampling


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
