"""A channel to a runtime's route `/programs`: plays programs by requests that keep nothing on the server.

A thread collects messages. Each request tells what a program was answered before and asks for everything that can be
played now; requests have threads of their own.
"""

from __future__ import annotations

import functools
import math
import time
import uuid
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any

import msgspec

from ....runtime.programs.executor import OperationResult, PendingResult
from ....runtime.programs.running_program import CallLater, ProgramPart, RunningProgram
from ....runtime.programs.state_interpreter import ROLLED_BACK
from ....runtime.protocol import session, wire
from ....runtime.protocol.errors import ErrorInfo, RequestError, RuntimeFailed
from ..calls import ModelCalls, call_later
from ..http_client import HttpClient
from ..inbox import InboxChannel, InboxItem
from ..model import Method, ModelCall
from .program_history import ProgramHistory, ProgramRequest, StateHistory

PATH = "/programs"
MAX_REQUESTS = 256  # at once
SETTLE_SECONDS = 0.002  # operations that a program appends within this time of the first go into one request
MAX_WAIT_SECONDS = 0.02  # for a request that is due, while messages keep coming


class _Event(msgspec.Struct):
    """An event of the route's stream."""

    answers: list[session.Delta | session.Done | session.Failed | session.Lost]


class _Program:
    """A program: its history, its budget, and the requests that play it now. It may be a part of its `caller`."""

    def __init__(
        self,
        opened: session.Open,
        abort: Callable[[RunningProgram, ErrorInfo], None],
        call_later: CallLater,
        caller: _Program | None,
    ) -> None:
        told = {"title": opened.title, "traceparent": opened.traceparent}
        self.history = ProgramHistory(opened.program, {name: text for name, text in told.items() if text is not None})
        self.run = uuid.uuid4().hex  # by which the server's records know its requests
        self.budget: RunningProgram = (
            RunningProgram(opened.program, opened.budget, abort, call_later)
            if caller is None
            else ProgramPart(opened.program, opened.budget, abort, call_later, caller.budget)
        )
        self.complete = False  # nothing more will be appended
        self.requests: dict[ProgramRequest, PendingResult] = {}
        self.stopped: list[StateHistory] = []  # closed, or rolled back while they were played, since the last request


class HttpChannel(InboxChannel):
    """A `Channel` of the runtime that `http` reaches; `answer_call` answers calls that concern no state."""

    def __init__(
        self,
        http: HttpClient,
        answer_call: Callable[[Method, int], session.Reply],
        wants_notes: Callable[[], bool] = lambda: False,
    ) -> None:
        """`wants_notes` asks the server, once."""
        super().__init__("ramiform-http")
        self._http = http
        self._answer_call = answer_call
        self._ask_wants_notes = wants_notes
        self._calls = ModelCalls(MAX_REQUESTS, self.inbox.put)
        self._programs: dict[int, _Program] = {}
        self._program_of: dict[int, _Program] = {}  # by state
        self._due: dict[_Program, float] = {}  # when a request for what can be played is made
        self.start()

    # For every thread

    @functools.cached_property
    def wants_notes(self) -> bool:
        """Return whether the server keeps records of programs. Asks it at first."""
        return self._ask_wants_notes()

    def send(self, message: session.ToFrontend) -> None:
        wire.encode(message)  # raises for what cannot be sent, where the program writes it
        super().send(message)

    def call(self, method: Method) -> session.Reply:
        return self._answer_call(method, next(self._numbers))

    # On the channel's own thread

    def next_item(self) -> InboxItem | None:
        while True:
            timeout = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            try:
                item = self.inbox.get(timeout=timeout)
            except Empty:
                self._request_all_due()
                continue
            if self._due and min(self._due.values()) < time.monotonic() - MAX_WAIT_SECONDS:
                self._request_all_due()
            return item

    def end_programs(self) -> None:
        for program in list(self._programs.values()):
            self._end(program)

    def take(self, item: InboxItem) -> None:
        match item:
            case session.Play(messages=messages, complete=complete):
                for part in messages:
                    self.take(part)
                for part in messages:
                    if isinstance(part, session.Open) and (opened := self._programs.get(part.program)) is not None:
                        opened.complete = complete
                        self._hurry(opened)
            case session.Open(state=number, program=name):
                if name not in self._programs:
                    caller = None if item.caller is None else self._programs.get(item.caller)
                    self._programs[name] = _Program(item, self._lose, call_later(self.inbox.put), caller)
                self._programs[name].history.open(number)
                self._program_of[number] = self._programs[name]
            case session.Append():
                self._append(item)
            case session.Supply(state=number, op=op, text=text, error=error, label=label):
                if (known := self._program_of.get(number)) is not None:
                    state = known.history.states.get(number)
                    if state is not None and state.attempt is not None and op == state.num_answered:
                        self._take_verdict(known, state, state.attempt, item)
                    known.history.supply(number, op, text if error is None else error, label)
                    self._hurry(known)
            case session.Close(states=states, programs=programs):
                self._close(states, programs)
            case _:
                assert callable(item), f"not a message of a program: {item!r}"
                item()

    def _append(self, message: session.Append) -> None:
        program = self._program_of.get(message.state)
        if program is None:
            return  # it was lost or closed, which its listener knows
        program.complete = False
        state = program.history.states[message.state]
        first = len(state.operations)
        try:
            program.history.append(message.state, message.operations, message.notes)
        except RequestError as error:
            state.operations += message.operations[len(state.operations) - first :]
            self._fail(program, state, ErrorInfo.of(error))
        for child in program.history.states.keys() - self._program_of.keys():
            self._program_of[child] = program
        if state.failure is not None:
            self._deliver_failures(state, max(first, state.num_answered))
        elif (rollback := state.next_rollback) is not None and not state.is_needed(state.num_answered, rollback):
            program.stopped.append(state)
            self._fail(program, state, ROLLED_BACK)
        self._due.setdefault(program, time.monotonic() + SETTLE_SECONDS)

    def _take_verdict(
        self, program: _Program, state: StateHistory, attempt: session.Done, verdict: session.Supply
    ) -> None:
        """Accept the attempt of a checked Gen, generate again, or fail."""
        if verdict.error is not None:
            self._fail(program, state, verdict.error)
        elif verdict.retry is not None:
            state.attempt, state.retry = None, verdict.retry
        else:
            state.answer(attempt)
            self._tell(state, attempt)

    def _close(self, states: tuple[int, ...], programs: tuple[int, ...]) -> None:
        for name in programs:
            if (program := self._programs.get(name)) is not None:
                self._end(program)
        for number in states:
            closing = self._program_of.get(number)
            if closing is None:
                continue
            closing.history.close([number])
            if closing.history.is_over:
                self._end(closing)
            else:
                self._hurry(closing)
                closing.stopped.append(closing.history.states[number])

    def _end(self, program: _Program) -> None:
        """Forget a program and abort its requests; those that it has called end too."""
        for part in list(program.budget.parts):
            self._lose(part, ErrorInfo.of(RuntimeFailed("the program that called it has ended")))
        program.budget.end()
        self._programs.pop(program.history.number, None)
        self._due.pop(program, None)
        for number in program.history.states:
            self._program_of.pop(number, None)
        for pending in program.requests.values():
            pending.cancel()

    def _lose(self, budget: RunningProgram, error: ErrorInfo) -> None:
        """End a program whose budget is spent."""
        if (program := self._programs.get(budget.number)) is not None:
            self._lose_program(program, error)

    def _lose_program(self, program: _Program, error: ErrorInfo) -> None:
        self._end(program)
        self.lose(program.history.states, error)

    def _hurry(self, program: _Program) -> None:
        """Make the program's next request as soon as the inbox is empty."""
        self._due[program] = min(self._due.get(program, math.inf), time.monotonic())

    # Requests

    def _request_all_due(self) -> None:
        now = time.monotonic()
        for program in [program for program, due in self._due.items() if due <= now]:
            del self._due[program]
            self._stop_unneeded(program)
            while failures := program.history.new_failures():
                for state, error in failures:
                    self._fail(program, state, error)
            if (request := program.history.next_request()) is not None:
                self._start(program, request)

    def _stop_unneeded(self, program: _Program) -> None:
        """Abort the generations of states that were closed or rolled back: a whole request, or some of its states."""
        states, program.stopped = program.stopped, []
        for request, pending in list(program.requests.items()):
            stopped = [
                state
                for state in states
                if (end := request.ends.get(state)) is not None
                and (state.ended if state.num_answered < end else not state.closed)
            ]
            if stopped and not request.unanswered:
                del program.requests[request]
                pending.cancel()
                for state, end in request.ends.items():
                    if state.num_answered < end:
                        state.num_sent = state.num_answered
            elif stopped:
                body = {"rid": request.rid, "states": [state.number for state in stopped]}
                post = partial(self._http.post, f"{PATH}/close", body)
                # States that could not be stopped only cost time.
                self._calls.begin(post, lambda _: OperationResult("")).then(lambda result: None)

    def _start(self, program: _Program, request: ProgramRequest) -> None:
        tokens = program.budget.tokens_left
        if tokens == 0 and request.generates:
            program.budget.exhaust()
            return
        body: dict[str, Any] = {
            "messages": request.messages,
            "known": request.known,
            "complete": program.complete and request.is_last,
            "rid": request.rid,
        }
        if self.wants_notes:
            body["run"] = program.run
        if tokens:
            opened = next(message for message in request.messages if message["type"] == "open")
            opened["budget"] = {"tokens": tokens}

        def on_event(event: Any) -> None:
            self.inbox.put(partial(self._receive, program, request, event))

        def play(call: ModelCall) -> None:
            try:
                data = msgspec.json.encode(body)
                self._http.stream(PATH, data, call, on_event)
            except RequestError as error:
                raise self._explained(error) from None

        pending = self._calls.begin(play, lambda _: OperationResult(""))
        program.requests[request] = pending
        pending.then(partial(self._request_ended, program, request))

    def _explained(self, error: RequestError) -> RequestError:
        """Return the error, or why a server without the route answered so."""
        if error.code not in ("not_found", "http_404", "method_not_allowed", "http_405"):
            return error
        try:
            version = self._http.get("/version")["version"]
        except Exception:
            found = "what answers there is no such server"
        else:
            found = f"the server there is ramiform {version}"
        return RequestError(
            f"{self._http.url} has no route POST {PATH}, which runs programs over HTTP: {found}; "
            "update the server, or connect by ZMQ",
            param="url",
            code="unsupported",
        )

    def _request_ended(self, program: _Program, request: ProgramRequest, result: OperationResult | ErrorInfo) -> None:
        """Fail the operations that an ended request left unanswered, and plan the program's next request."""
        del program.requests[request]
        if program.history.number not in self._programs:
            return
        if not isinstance(result, ErrorInfo):
            result = ErrorInfo.of(RuntimeFailed(f"{self._http.url}{PATH} left an operation unanswered"))
        for state in request.unanswered:
            state.num_sent = state.num_answered
            self._fail(program, state, result)
        self._hurry(program)

    def _receive(self, program: _Program, request: ProgramRequest, event: Any) -> None:
        """Handle an event of a request."""
        if self._programs.get(program.history.number) is not program:
            return
        try:
            answers = msgspec.convert(event, _Event, str_keys=True).answers
        except msgspec.ValidationError as error:
            reason = ErrorInfo.of(RuntimeFailed(f"{self._http.url}{PATH} sent what cannot be read: {error}"))
            self._lose_program(program, reason)
            return
        for answer in answers:
            if isinstance(answer, session.Lost):
                if answer.error.param == "max_total_tokens":
                    program.budget.exhaust()  # with the whole budget in its error: the request was given what is left
                else:
                    self._lose_program(program, answer.error)
                return
            state = program.history.states.get(answer.state)
            if state is None or state.failure is not None or state.num_answered >= request.ends.get(state, math.inf):
                continue  # it was rolled back behind what the request plays
            if isinstance(answer, session.Failed):
                if answer.op >= state.num_answered:
                    self._fail(program, state, answer.error)
            elif not self._deliver(program, state, answer):
                return
        self._hurry(program)

    def _deliver(self, program: _Program, state: StateHistory, answer: session.Delta | session.Done) -> bool:
        """Pass an answer to the state's listener. Return False if it spent the program's budget."""
        answer = msgspec.structs.replace(answer, op=answer.op - state.num_before_retry)
        if isinstance(answer, session.Done):
            if answer.op != state.num_answered:
                self._fail(
                    program,
                    state,
                    ErrorInfo.of(RuntimeFailed(f"{self._http.url}{PATH} answered operations out of their order")),
                )
                return True
            operation = state.operations[answer.op]
            given = state.supplied.get(answer.op)
            if isinstance(operation, session.Ask) and operation.chosen and isinstance(given, str):
                answer = msgspec.structs.replace(answer, text=given)  # the scores before it showed the template's lead
            try:
                program.budget.spend(sum(sequence.completion_tokens for sequence in answer.sequences or ()))
            except RequestError:
                return False  # the program is lost
            if state.next_is_checked:
                state.attempted(answer)
                for (
                    request
                ) in program.requests:  # it owes the state nothing more; another one may make the next attempt
                    if state in request.ends:
                        request.ends[state] = state.num_answered
                [sequence] = answer.sequences or []
                self._tell(state, session.Attempted(state.number, answer.op, sequence))
                return True
            state.answer(answer)
        self._tell(state, answer)
        return True

    def _tell(self, state: StateHistory, answer: session.Delta | session.Attempted | session.Done) -> None:
        if not state.closed and (listener := self.listeners.get(state.number)) is not None:
            listener.receive(answer)

    def _fail(self, program: _Program, state: StateHistory, error: ErrorInfo) -> None:
        """Fail the state's next operation and those behind it, up to a rollback to before it."""
        if state.failure is None:
            state.failure = error
            self._hurry(program)
            self._deliver_failures(state, state.num_answered)

    def _deliver_failures(self, state: StateHistory, first: int) -> None:
        """Tell that the operations from `first` on have failed. Go on with a rollback to before the failure."""
        assert state.failure is not None
        rollback = state.next_rollback if state.fork_failure is None else None
        if not state.closed and (listener := self.listeners.get(state.number)) is not None:
            for op in range(first, len(state.operations) if rollback is None else rollback):
                listener.receive(session.Failed(state.number, op, state.failure))
        if rollback is not None:
            state.recover(rollback)
