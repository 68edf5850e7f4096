"""Plays operations in order: what waits for what, what is asked of the model, who is told. For one thread.

Knows states, programs and their listeners; nothing of what the model is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ...runtime.protocol.session import Append, Close, Delta, Done, Failed, Open, Play, Supply
from .calls import Answered, Calls, Streamed
from .model import Model, ModelOutput
from .steps import Join, Program, State, Step, Tell, after
from .transcript import Transcript

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener

_MODEL_STEPS = session.Gen | session.Select | session.Decide


class Player:
    """`post` brings a message to `take` later: from another thread, or when a program's time is over."""

    def __init__(self, model: Model, calls: Calls, post: Callable[[Any], None], listeners: dict[int, Listener]) -> None:
        self._model = model
        self._calls = calls
        self._post = post
        self._listeners = listeners
        self._states: dict[int, State] = {}
        self._woken: list[State] | None = None  # by the step that is played now
        self._programs: dict[int, Program] = {}

    def end_all(self) -> None:
        """Forget every program."""
        for program in list(self._programs.values()):
            self._end(program)

    def take(self, message: Any) -> None:
        """Play what a client's message, the model's answer or the end of a program's time brings."""
        match message:
            case Play(messages=messages):
                for part in messages:
                    self.take(part)
            case Open(state=number, program=of, budget=budget):
                if of not in self._programs:
                    self._programs[of] = Program(of, budget, self._post)
                self._create(number, self._programs[of], None).transcript = Transcript()
            case Append(state=number, operations=operations):
                if (state := self._states.get(number)) is None:
                    self._refuse_unknown(message)
                    return
                for operation in operations:
                    self._add(state, operation)
                self._advance(state)
            case Supply(state=number, op=op):
                if (state := self._states.get(number)) is not None:
                    state.supplied[op] = message
                    self._advance(state)
            case Close(states=numbers, programs=programs):
                for number in programs:
                    if (program := self._programs.get(number)) is not None:
                        self._end(program)
                for number in numbers:
                    if (state := self._states.get(number)) is not None:
                        self._close(state)
            case Streamed(state=state, call=call, op=op, text=text):
                if state.call is call:
                    self._answer(state, Delta(state.number, op, text, []))
            case Answered(state=state, call=call, op=op, answer=answer):
                self._calls.ended()
                if state.call is call:
                    state.call = None
                    self._finish(state, op, answer)
                    self._advance(state)
            case Program():
                if message.number in self._programs:
                    self._end(message, ErrorInfo.of(message.expired()))
            case _:
                raise AssertionError(f"no message of a program: {message!r}")

    def _create(self, number: int, program: Program, parent: State | None) -> State:
        state = State(number, program, parent)
        self._states[number] = program.states[number] = state
        return state

    def _add(self, state: State, operation: session.Operation) -> None:
        step: Step
        match operation:
            case session.Fork(children=children):
                for number in children:  # from here on, so that what is appended to them may come before they begin
                    self._create(number, state.program, state)
                step = operation
            case session.Concatenate(children=children):
                join = Join(state, [None] * len(children))
                step = join
                for index, number in enumerate(children):
                    child = self._states.get(number)
                    if child is None or child.parent is not state:
                        message = f"state {number} is not a fork of this one"
                        step = ErrorInfo.of(RequestError(message, param="children", code="bad_state"))
                        break
                    child.steps.append((-1, Tell(join, index)))
            case _:
                step = operation
        state.steps.append((state.next_op, step))
        state.next_op += 1
        if isinstance(step, Join):
            for number in operation.children:  # type: ignore[union-attr]
                self._advance(self._states[number])

    def _advance(self, state: State) -> None:
        """Play what can be played: of the state, and as soon as a step lets others go on, of those before it."""
        if self._woken is not None:
            self._woken.append(state)
            return
        stack = [state]  # as forks of forks may be deep
        try:
            while stack:
                self._woken = []
                if not self._play_step(stack[-1]):
                    stack.pop()
                stack += reversed(self._woken)
        finally:
            self._woken = None

    def _play_step(self, state: State) -> bool:
        """False when there is none that can be played."""
        if state.call is not None:
            return False
        if not state.steps:
            if state.closed:
                self._forget(state)
            return False
        op, step = state.steps[0]
        if state.failure is None and not self._is_ready(state, op, step):
            return False
        state.steps.popleft()
        if state.failure is not None:
            self._refuse(state, op, step, state.failure)
        elif isinstance(step, _MODEL_STEPS):
            self._ask_model(state, op, step)
        else:
            self._perform(state, op, step)
        return True

    def _is_ready(self, state: State, op: int, step: Step) -> bool:
        if isinstance(step, session.Ask):
            return op in state.supplied
        if isinstance(step, Join):
            return all(report is not None for report in step.reports)
        return state.transcript is not None

    def _perform(self, state: State, op: int, step: Step) -> None:
        assert state.transcript is not None
        try:
            before, state.transcript = state.transcript, after(self._model, state, op, step)
        except RamiformError as error:
            self._fail(state, op, step, ErrorInfo.of(error))
            return
        if isinstance(step, Tell):
            self._advance(step.join.state)
            return
        text = "".join(part.text for part in state.transcript.parts[len(before.parts) :])
        self._answer(state, Done(state.number, op, text))
        if isinstance(step, session.Fork):
            for number in step.children:
                if (child := self._states.get(number)) is not None:
                    child.start = child.transcript = state.transcript.fork()
                    self._advance(child)

    def _ask_model(self, state: State, op: int, step: session.Gen | session.Select | session.Decide) -> None:
        if isinstance(step, session.Gen):
            try:
                step = state.program.afford(step)
            except RequestError as error:
                self._end(state.program, ErrorInfo.of(error))
                return
        self._calls.begin(state, op, step)

    def _finish(self, state: State, op: int, answer: Any) -> None:
        """The model has answered."""
        assert state.transcript is not None
        match answer:
            case ErrorInfo():
                self._fail(state, op, session.Sync(), answer)
            case ModelOutput(sequences=sequences, parts=parts, foretold=foretold):
                if not state.program.spend(sum(sequence.completion_tokens for sequence in sequences)):
                    self._end(state.program, ErrorInfo.of(state.program.exhausted()))
                    return
                state.transcript = state.transcript.add_generated(parts, foretold)
                self._answer(state, Done(state.number, op, "".join(part.text for part in parts), sequences=sequences))
            case (session.Select(append=appends), session.Choice() as choice):
                if appends:
                    state.transcript = state.transcript.add_text(choice.text)
                self._answer(state, Done(state.number, op, choice.text if appends else "", choice=choice))
            case answers:
                self._answer(state, Done(state.number, op, "", answers=answers))

    def _fail(self, state: State, op: int, step: Step, error: ErrorInfo) -> None:
        state.failure = error
        self._refuse(state, op, step, error)

    def _refuse(self, state: State, op: int, step: Step, error: ErrorInfo) -> None:
        match step:
            case Tell(join=join, index=index):
                join.reports[index] = error
                self._advance(join.state)
                return
            case session.Fork(children=children):
                for number in children:
                    if (child := self._states.get(number)) is not None:
                        child.failure = error
                        self._advance(child)
        self._answer(state, Failed(state.number, op, error))

    def _refuse_unknown(self, message: Append) -> None:
        """The program has ended meanwhile; who still says something must not wait for an answer."""
        error = ErrorInfo.of(RequestError(f"there is no state {message.state}", param="state", code="bad_state"))
        if (listener := self._listeners.get(message.state)) is not None:
            for op in range(message.first, message.first + len(message.operations)):
                listener.receive(Failed(message.state, op, error))

    def _answer(self, state: State, answer: Delta | Done | Failed) -> None:
        if (listener := self._listeners.get(state.number)) is not None:
            listener.receive(answer)

    def _close(self, state: State) -> None:
        """Nobody listens to it any more. What other states wait for is still played."""
        if not state.trim():
            state.cancel()
            self._forget(state)

    def _forget(self, state: State) -> None:
        self._states.pop(state.number, None)
        state.program.states.pop(state.number, None)
        if not state.program.states:
            state.program.end()
            self._programs.pop(state.program.number, None)

    def _end(self, program: Program, error: ErrorInfo | None = None) -> None:
        for state in list(program.states.values()):
            state.steps.clear()
            state.cancel()
            self._forget(state)
            if error is not None and (listener := self._listeners.pop(state.number, None)) is not None:
                listener.fail(error)
