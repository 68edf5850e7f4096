"""Plays the messages of one program, given at once, and hands out the answers until all operations have one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable

from ...programs.interpreter import ProgramInterpreter
from ...programs.running_program import StateProgress
from ...protocol.session import Append, Close, Delta, Done, Failed, Lost, Play
from ..records.recorder import ProgramRecorder
from ..text.generation import Generator
from .content import TokenContent
from .executor import TokenExecutor

Answer = Done | Failed | Delta | Lost


class AnswerQueue:
    """Answers that wait for their reader. The deltas of one operation are joined meanwhile, so that a slow reader's
    queue holds no more than the answers' content."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._deltas: dict[tuple[int, int], int] = {}  # the index of an operation's delta
        self._arrived = asyncio.Event()

    def add(self, answer: Answer) -> None:
        self._arrived.set()
        if isinstance(answer, Delta):
            key = answer.state, answer.op
            index = self._deltas.setdefault(key, len(self._answers))
            if index < len(self._answers):
                self._answers[index] = _joined(self._answers[index], answer)
                return
        self._answers.append(answer)

    @property
    def is_empty(self) -> bool:
        """Return whether `take` would have to wait."""
        return not self._answers

    def wake(self) -> None:
        """Let `take` return, with or without answers."""
        self._arrived.set()

    async def take(self, seconds: float) -> list[Answer] | None:
        """Wait for answers and return them all; None after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return None
        answers, self._answers = self._answers, []
        self._deltas.clear()
        self._arrived.clear()
        return answers


class ProgramPlay:
    """Plays `messages` on states of its own, which are closed when `answers` ends.

    `name` is the program's for the core. At most `max_states` states are open at once; `namespace` separates cached
    prefixes.
    """

    def __init__(
        self,
        generator: Generator,
        name: str,
        messages: Play,
        *,
        max_states: int,
        namespace: str,
        recorder: ProgramRecorder | None = None,
    ) -> None:
        self._generator = generator
        self._name = name
        self._messages = messages
        self._namespace = namespace
        self._recorder = recorder
        self._queue = AnswerQueue()
        self._unanswered: Counter[int] = Counter()  # operations, by state
        for message in messages.messages:
            if isinstance(message, Append):
                self._unanswered[message.state] += len(message.operations)
        self._interpreter = ProgramInterpreter(
            self._add,
            self._open_executor,
            asyncio.get_running_loop().call_later,
            states_ended=self._end_states,
            max_states=max_states,
        )

    async def answers(self, pause_seconds: float) -> AsyncGenerator[list[Answer]]:
        """Yield answers as they come, and an empty list after `pause_seconds` without any.

        Raises RequestError for messages that contradict each other.
        """
        try:
            if self._recorder is not None:
                self._recorder.receive(self._messages)
            self._interpreter.receive(self._messages)
            self._interpreter.run()
            while self._unanswered.total():
                answers = await self._queue.take(pause_seconds)
                for answer in answers or ():
                    if isinstance(answer, Done | Failed) and self._unanswered[answer.state]:
                        self._unanswered[answer.state] -= 1
                if answers is None or answers:
                    yield answers or []
                # A budget is spent, or all states are closed; perhaps while the reader was at the last answers.
                if not self._interpreter.num_programs and self._queue.is_empty:
                    return
        finally:
            self._interpreter.close_all()

    def close(self, states: Iterable[int]) -> None:
        """Answer no more operations of these states, and abort what only they need."""
        numbers = tuple(states)
        for number in numbers:
            self._unanswered.pop(number, None)
        self._interpreter.receive(Close(numbers))
        self._interpreter.run()
        self._queue.wake()

    def _add(self, answer: Answer) -> None:
        if self._recorder is not None:
            self._recorder.sent(answer)
        self._queue.add(answer)

    def _end_states(self, program: int, states: list[int] | None) -> None:
        self._generator.core.end_states(self._name, states)
        if self._recorder is not None:
            self._recorder.ended(program, states)

    def _open_executor(self, state: StateProgress) -> TokenExecutor:
        content = TokenContent(self._generator.tokenizer, self._generator.encoder)
        return TokenExecutor(self._generator, state, self._name, content, namespace=self._namespace)


def _joined(first: Answer, second: Delta) -> Delta:
    assert isinstance(first, Delta)
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = [*(first.logprobs or ()), *(second.logprobs or ())]
    return Delta(first.state, first.op, first.text + second.text, [*first.ids, *second.ids], logprobs)
