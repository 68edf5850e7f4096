"""One program state in action: its operations played in order, by one task, while other states play theirs.

Knows nothing of clients and sockets: answers go to a function, and forks are reached through their players.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.core import Claim
from ..protocol.errors import ErrorInfo, RamifyError, RequestError
from ..protocol.session import Delta, Done, Failed, Gen, RoleBegin, RoleEnd, Select, Sync, Text
from .claims import Ancestor
from .content import Appended, Content
from .generation import Generator, Prompt
from .select import select

logger = logging.getLogger("ramify.frontend")

Report = Appended | ErrorInfo


@dataclass(frozen=True)
class Branch:
    """Fork: `children` begin with the content as it is here."""

    children: tuple[Player, ...]


@dataclass(frozen=True)
class Join:
    """Concatenate: append what each child reports to have appended."""

    reports: tuple[asyncio.Future[Report], ...]


@dataclass(frozen=True)
class Tell:
    """Asked by the state that joins this one: what was appended since the fork, up to here. No client sees it."""

    report: asyncio.Future[Report]


Step = Text | RoleBegin | RoleEnd | Gen | Select | Sync | Branch | Join | Tell | ErrorInfo


class Player:
    """Plays steps once it has a content. An ErrorInfo as a step is an operation that was wrong from the start."""

    def __init__(
        self, number: int, program: str, generator: Generator, send: Callable[[Done | Failed | Delta], None]
    ) -> None:
        self.number = number
        self._program = program
        self._generator = generator
        self._send = send
        self._content: Content | None = None
        self._failure: ErrorInfo | None = None
        self._steps: deque[tuple[int, Step]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ancestors: tuple[Ancestor, ...] = ()  # whose claims ride on our first request
        self.closed = False

    def begin(self, content: Content, ancestors: tuple[Ancestor, ...] = ()) -> None:
        self._content = content
        self._ancestors = ancestors
        self._wake()

    def fail(self, error: ErrorInfo) -> None:
        """Answer every step, and those to come, with `error`."""
        self._failure = error
        self._wake()

    def add(self, op: int, step: Step) -> None:
        self._steps.append((op, step))
        self._wake()

    def report(self) -> asyncio.Future[Report]:
        """What will have been appended since the fork once all steps added so far are played."""
        future: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.add(-1, Tell(future))
        return future

    def close(self) -> None:
        """Answer no more. Only what other states still wait for is played: forks of this one, and reports to joins."""
        self._send = _to_nobody
        self.closed = True
        while self._steps and not isinstance(self._steps[-1][1], Branch | Tell):
            self._steps.pop()
        if not self._steps:
            self.abort()

    def abort(self) -> None:
        """Answer no more and play no more; whoever waits for this state is told."""
        self._send = _to_nobody
        self.closed = True
        self._failure = ErrorInfo.of(RequestError(f"state {self.number} was closed", code="state_closed"))
        if self._task is not None:
            self._task.cancel()
        while self._steps:
            self._refuse(*self._steps.popleft(), self._failure)

    @property
    def is_over(self) -> bool:
        return not self._steps and (self._task is None or self._task.done())

    def _wake(self) -> None:
        if self._task is None and self._steps and (self._content is not None or self._failure is not None):
            self._task = asyncio.create_task(self._play_all(), name=f"state {self.number}")

    async def _play_all(self) -> None:
        while self._steps:
            op, step = self._steps.popleft()
            if self._failure is None:
                await self._play(op, step)
            else:
                self._refuse(op, step, self._failure)
        self._task = None

    async def _play(self, op: int, step: Step) -> None:
        assert self._content is not None
        try:
            done = await self._perform(self._content, op, step)
        except Exception as error:
            if not isinstance(error, RamifyError):
                logger.exception("an operation failed on an error of ours")
            self._failure = ErrorInfo.of(error)
            self._refuse(op, step, self._failure)
        else:
            if done is not None:
                self._send(done)

    def _refuse(self, op: int, step: Step, error: ErrorInfo) -> None:
        match step:
            case Tell(report=report):
                if not report.done():
                    report.set_result(error)
                return
            case Branch(children=children):
                for child in children:
                    child.fail(error)
        self._send(Failed(self.number, op, error))

    async def _perform(self, content: Content, op: int, step: Step) -> Done | None:
        match step:
            case Text(text=text):
                return self._done(op, content.append_text(text))
            case RoleBegin(role=role):
                return self._done(op, content.begin_role(role))
            case RoleEnd():
                return self._done(op, content.end_role())
            case Gen():
                return await self._generate(content, op, step)
            case Select():
                return await self._select(content, op, step)
            case Sync():
                return self._done(op, "")
            case Branch(children=children):
                ancestors = (*self._ancestors, Ancestor.of(self, content))
                for child in children:
                    child.begin(content.fork(), ancestors)
                return self._done(op, "")
            case Join(reports=reports):
                return self._done(op, await self._join(content, reports))
            case Tell(report=report):
                if not report.done():  # else: whoever asked was closed
                    report.set_result(content.since_fork())
                return None
            case ErrorInfo():
                raise step.to_exception()

    def _done(self, op: int, text: str) -> Done:
        return Done(self.number, op, text)

    async def _generate(self, content: Content, op: int, step: Gen) -> Done:
        content.drop_lead()
        tokens = await content.flush()
        prompt = Prompt(
            tokens=tokens,
            sampling=step.sampling,
            logprobs=step.logprobs,
            program=self._program,
            claims=self._claims(tokens, None),
        )
        with self._generator.start(prompt, step.n) as samples:
            if step.stream:
                async for piece in samples[0]:
                    self._send(Delta(self.number, op, piece.text, piece.ids, piece.logprobs))
            results = [await sample.result() for sample in samples]
        await content.append_generated(results[0].sequence.ids, results[0].leftover)
        sequences = [result.sequence for result in results]
        return Done(self.number, op, sequences[0].text, sequences=sequences)

    def _claims(self, tokens: list[int], num_kept: int | None) -> list[Claim]:
        """On a request for `tokens`, of which this state will keep the first `num_kept`; None: all, and the output."""
        if self.closed:
            return []
        token_bytes = self._generator.tokenizer.token_bytes
        claims = [ancestor.claim(tokens, token_bytes) for ancestor in self._ancestors]
        self._ancestors = ()
        return [claim for claim in claims if claim is not None] + [Claim(self.number, num_kept)]

    async def _select(self, content: Content, op: int, step: Select) -> Done:
        lead = content.take_lead()
        choice = await select(self._generator, content, step, program=self._program, claims=self._claims)
        await content.append_chosen(choice.text)
        return Done(self.number, op, lead + choice.text, choice=choice)

    async def _join(self, content: Content, reports: tuple[asyncio.Future[Report], ...]) -> str:
        texts = []
        for future in reports:
            report = await future
            if isinstance(report, ErrorInfo):
                raise report.to_exception()
            texts.append(await content.join(report))
        return "".join(texts)


def _to_nobody(message: Done | Failed | Delta) -> None:
    """Where the answers of a closed state go."""
