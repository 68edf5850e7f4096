"""One program state in action: its operations played in order, by one task, while other states play theirs.

Knows nothing of clients and sockets: answers go to a function, and forks are reached through their players.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.core import SoftPin
from ...protocol.errors import ErrorInfo, RamiformError, RequestError
from ...protocol.session import Ask, Decide, Delta, Done, Failed, Gen, RoleBegin, RoleEnd, Select, Sync, Text
from ..text.generation import Generator, Piece
from ..text.scoring import RequestContext
from .content import AppendedContent, TokenContent
from .decisions import decide
from .generate import generate
from .running_program import RunningProgram
from .select import select
from .soft_pins import Ancestor

logger = logging.getLogger("ramiform.frontend")

Report = AppendedContent | ErrorInfo


@dataclass(frozen=True)
class ForkStep:
    """Fork: `children` begin with the content as it is here."""

    children: tuple[StateInterpreter, ...]


@dataclass(frozen=True)
class JoinStep:
    """Concatenate: append what each child reports to have appended."""

    reports: tuple[asyncio.Future[Report], ...]


@dataclass(frozen=True)
class ReportStep:
    """Asked by the state that joins this one: what was appended since the fork, up to here. No client sees it."""

    report: asyncio.Future[Report]


Step = Text | RoleBegin | RoleEnd | Gen | Select | Ask | Decide | Sync | ForkStep | JoinStep | ReportStep | ErrorInfo
_GENERATION = Gen | Select | Decide  # what needs the core


class StateInterpreter:
    """Plays steps once it has a content. An ErrorInfo as a step is an operation that was wrong from the start."""

    def __init__(
        self, number: int, program: RunningProgram, generator: Generator, send: Callable[[Done | Failed | Delta], None]
    ) -> None:
        self.number = number
        self.width = 1  # how many were forked together
        self._program = program
        self._generator = generator
        self._send = send
        self._content: TokenContent | None = None
        self._failure: ErrorInfo | None = None
        self._steps: deque[tuple[int, Step]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ancestors: tuple[Ancestor, ...] = ()  # whose claims ride on our first request
        self._num_generations = 0  # not begun
        self._has_claim = False
        self._supplies: dict[int, asyncio.Future[str | ErrorInfo]] = {}  # of every Ask that is not played
        self._closed = False

    def begin(self, content: TokenContent, ancestors: tuple[Ancestor, ...] = ()) -> None:
        self._content = content
        self._ancestors = ancestors
        self._wake()

    def fail(self, error: ErrorInfo) -> None:
        """Answer every step, and those to come, with `error`."""
        self._failure = error
        self._wake()

    def add(self, op: int, step: Step) -> None:
        self._steps.append((op, step))
        if isinstance(step, _GENERATION):
            self._num_generations += 1
            self._program.num_generations += 1
        elif isinstance(step, Ask):
            self._supplies[op] = asyncio.get_running_loop().create_future()
        self._wake()

    def supply(self, op: int, given: str | ErrorInfo) -> None:
        """What an Ask waits for; the first counts, and one that nobody waits for is dropped."""
        future = self._supplies.get(op)
        if future is not None and not future.done():
            future.set_result(given)

    def report(self) -> asyncio.Future[Report]:
        """What will have been appended since the fork once all steps added so far are played."""
        future: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.add(-1, ReportStep(future))
        return future

    def close(self) -> None:
        """Answer no more. Only what other states still wait for is played: forks of this one, and reports to joins."""
        self._send = _to_nobody
        self._closed = True
        while self._steps and not isinstance(self._steps[-1][1], ForkStep | ReportStep):
            step = self._steps.pop()[1]
            self._begun(step)
            self._ended(step)
        closed = ErrorInfo.of(RequestError(f"state {self.number} was closed", code="state_closed"))
        for op in self._supplies:
            self.supply(op, closed)  # nobody else will
        if not self._steps:
            self.abort()

    def abort(self) -> None:
        """Answer no more and play no more; whoever waits for this state is told."""
        self._send = _to_nobody
        self._closed = True
        self._failure = ErrorInfo.of(RequestError(f"state {self.number} was closed", code="state_closed"))
        if self._task is not None:
            self._task.cancel()
        while self._steps:
            op, step = self._next()
            self._refuse(op, step, self._failure)
            self._ended(step)

    @property
    def closed(self) -> bool:
        """Whether it will ask the core for nothing more."""
        return self._closed or (self._program.complete and not self._num_generations)

    @property
    def is_over(self) -> bool:
        return not self._steps and (self._task is None or self._task.done())

    def _wake(self) -> None:
        if self._task is None and self._steps and (self._content is not None or self._failure is not None):
            self._task = asyncio.create_task(self._play_all(), name=f"state {self.number}")

    async def _play_all(self) -> None:
        while self._steps:
            op, step = self._next()
            try:
                if self._failure is None:
                    await self._play(op, step)
                else:
                    self._refuse(op, step, self._failure)
            finally:
                self._ended(step)
        self._task = None

    def _next(self) -> tuple[int, Step]:
        op, step = self._steps.popleft()
        self._begun(step)
        return op, step

    def _begun(self, step: Step) -> None:
        if isinstance(step, _GENERATION):
            self._num_generations -= 1

    def _ended(self, step: Step) -> None:
        if not isinstance(step, _GENERATION):
            return
        self._program.num_generations -= 1
        if self._has_claim and self.closed and not self._closed:  # else: whoever closed it says so
            self._has_claim = False
            self._generator.core.end_states(self._program.name, [self.number])

    async def _play(self, op: int, step: Step) -> None:
        assert self._content is not None
        try:
            done = await self._perform(self._content, op, step)
        except Exception as error:
            if not isinstance(error, RamiformError):
                logger.exception("an operation failed on an error of ours")
            self._failure = ErrorInfo.of(error)
            self._refuse(op, step, self._failure)
        else:
            if done is not None:
                self._send(done)

    def _refuse(self, op: int, step: Step, error: ErrorInfo) -> None:
        match step:
            case ReportStep(report=report):
                if not report.done():
                    report.set_result(error)
                return
            case ForkStep(children=children):
                for child in children:
                    child.fail(error)
        self._send(Failed(self.number, op, error))

    async def _perform(self, content: TokenContent, op: int, step: Step) -> Done | None:
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
            case Ask():
                return self._done(op, await self._ask(content, op, step))
            case Decide(questions=questions):
                decided = await decide(self._generator, content, questions, asker=self._asker)
                return Done(self.number, op, "", answers=decided.answers)
            case Sync():
                return self._done(op, "")
            case ForkStep(children=children):
                ancestors = (*self._ancestors, Ancestor.of(self, content))
                for child in children:
                    child.width = len(children)
                    child.begin(content.fork(), ancestors)
                return self._done(op, "")
            case JoinStep(reports=reports):
                return self._done(op, await self._join(content, reports))
            case ReportStep(report=report):
                if not report.done():  # else: whoever asked was closed
                    report.set_result(content.since_fork())
                return None
            case ErrorInfo():
                raise step.to_exception()

    def _done(self, op: int, text: str) -> Done:
        return Done(self.number, op, text)

    async def _generate(self, content: TokenContent, op: int, step: Gen) -> Done:
        content.drop_lead()
        tokens = await content.flush()

        def on_piece(piece: Piece) -> None:
            self._send(Delta(self.number, op, piece.text, piece.ids, piece.logprobs))

        asker = self._asker(tokens, None)
        outcome = await generate(self._generator, self._program, step, tokens, asker, on_piece)
        first = outcome.sequences[0]
        await content.append_generated(first.ids, outcome.leftover)
        return Done(self.number, op, first.text, sequences=outcome.sequences)

    def _asker(self, tokens: list[int], num_kept: int | None) -> RequestContext:
        """On whose behalf `tokens` are asked for, of which this state will keep the first `num_kept`; None: all, and
        the output."""
        return RequestContext(
            program=self._program.name,
            claims=self._claims(tokens, num_kept),
            outlook=self._program.outlook(self.width),
        )

    def _claims(self, tokens: list[int], num_kept: int | None) -> list[SoftPin]:
        if self._closed:
            return []
        token_bytes = self._generator.tokenizer.token_bytes
        claims = [ancestor.claim(tokens, token_bytes) for ancestor in self._ancestors]
        self._ancestors = ()
        known = [claim for claim in claims if claim is not None]
        if self.closed:
            return known  # its last request: nothing of it is needed again
        self._has_claim = True
        return [*known, SoftPin(self.number, num_kept)]

    async def _select(self, content: TokenContent, op: int, step: Select) -> Done:
        lead = content.take_lead()
        choice = await select(self._generator, content, step, asker=self._asker)
        if not step.append:
            return Done(self.number, op, lead, choice=choice)
        await content.append_chosen(choice.text)
        return Done(self.number, op, lead + choice.text, choice=choice)

    async def _ask(self, content: TokenContent, op: int, step: Ask) -> str:
        given = await self._supplies[op]
        del self._supplies[op]
        if isinstance(given, ErrorInfo):
            raise given.to_exception()
        if not step.chosen:
            return content.append_text(given)
        await content.append_chosen(given)
        return given

    async def _join(self, content: TokenContent, reports: tuple[asyncio.Future[Report], ...]) -> str:
        texts = []
        for future in reports:
            report = await future
            if isinstance(report, ErrorInfo):
                raise report.to_exception()
            texts.append(await content.join(report))
        return "".join(texts)


def _to_nobody(message: Done | Failed | Delta) -> None:
    """Where the answers of a closed state go."""
