"""Executes a program's state from answers that are kept, and on a backend from the first one that is not.

A state that needs the backend is opened there with its text so far: generated text as its token ids, which generates
nothing again. Answers that are kept further on are sent the same way before the next one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from ...runtime.programs.executor import OnDelta, OperationResult, PendingResult
from ...runtime.programs.running_program import StateProgress
from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RamiformError, RequestError
from ..backends.executor import token_ids_refused
from ..backends.transcript import check_joinable
from .answers import AnswerStore, Lookup, StateContent, StoredAnswer, StoredRequest, StoredRun, normalised
from .remote import ForkPoint, Post, Remotes, RemoteState

Replay = Callable[[StoredAnswer], session.Operation | None]  # what appends an answer again without generating it


class Appended(NamedTuple):
    """An operation that appends what a state has appended, and its text."""

    operation: session.Operation | None
    text: str


class StoredSnapshot(NamedTuple):
    """The content of a state at a mark."""

    content: StateContent
    base: ForkPoint | None
    since_base: tuple[session.Operation, ...]
    appended: tuple[Appended, ...]


@dataclass(frozen=True)
class StoreAccess:
    """State that the executors of a channel share: the store, the backend's states, and the executors by state."""

    store: AnswerStore
    remotes: Remotes
    post: Post
    executors: MutableMapping[int, StoredExecutor]


class StoredExecutor:
    """A `StateExecutor` whose answers come from a store or from a backend.

    `base` is the content that the state began with or had at its last fork. `unsent` are the operations after it, or
    after those of `remote`, that the backend has not got yet.
    """

    def __init__(
        self,
        access: StoreAccess,
        state: StateProgress,
        run: StoredRun,
        *,
        path: str = "0",
        content: StateContent | None = None,
        base: ForkPoint | None = None,
        remote: RemoteState | None = None,
    ) -> None:
        self.run = run
        self.path = path
        self.index = 0  # of the next operation
        self._access = access
        self._state = state
        access.executors[state.number] = self
        self._content = StateContent() if content is None else content
        self._role_at_fork, self._roles_at_fork = self._content.open_role, self._content.num_roles
        self._base = base
        self._since_base: list[session.Operation] = []
        self._remote = remote
        self._unsent: list[session.Operation] = []
        self._appended: list[Appended] = []  # since the fork

    def append_text(self, text: str) -> str | PendingResult:
        operation = session.Text(text)
        if self._content.may_lead and text:
            return self._answer(operation, lambda answer: operation)
        return self._append(operation, operation, text)

    def append_image(self, data: bytes) -> PendingResult:
        operation = session.AppendImage(data)
        return self._answer(operation, lambda answer: operation)

    def begin_role(self, role: str, tools: session.OfferedTools | None = None) -> PendingResult:
        operation = session.RoleBegin(role, tools)
        return self._answer(operation, lambda answer: operation)

    def end_role(self) -> PendingResult:
        operation = session.RoleEnd()
        return self._answer(operation, lambda answer: operation)

    def supply(self, text: str, *, chosen: bool) -> OperationResult:
        replay = session.Generated(text=text, chosen=True) if chosen else session.Text(text)
        return OperationResult(self._append(session.Ask(chosen=chosen), replay, text))

    def generate(self, gen: session.Gen, on_delta: OnDelta) -> PendingResult:
        def replay(answer: StoredAnswer) -> session.Operation:
            [first, *_] = answer.sequences or []
            return session.Generated(text=first.text, ids=first.ids)

        # Attempts of a checked gen are accepted or rejected here, not at the backend.
        return self._answer(msgspec.structs.replace(gen, checked=False), replay, on_delta)

    def append_generated(self, generated: session.Generated) -> OperationResult | PendingResult:
        if generated.chosen and self._content.may_lead:
            return self._answer(generated, lambda answer: generated)
        return OperationResult(self._append(generated, generated, generated.text))

    def select(self, select: session.Select) -> PendingResult:
        def replay(answer: StoredAnswer) -> session.Operation | None:
            assert answer.choice is not None
            return session.Generated(text=answer.choice.text, chosen=True) if select.append else None

        return self._answer(select, replay)

    def decide(self, decide: session.Decide) -> PendingResult:
        return self._answer(decide, lambda answer: None)

    def token_ids(self) -> PendingResult:
        raise token_ids_refused()

    def fork(self, children: Sequence[StateProgress]) -> list[StoredExecutor]:
        index = self.index
        self._note(session.Fork(tuple(range(len(children)))), "")
        remotes: Sequence[RemoteState | None] = [None] * len(children)
        if self._since_base or self._base is None:
            self._base, self._since_base = ForkPoint(self._base, self._since_base), []
        if self._remote is None:
            self._unsent = []  # they are in the base
        else:
            self._remote.append(self._unsent)
            self._unsent = []
            forks = self._remote.fork(len(children))
            self._access.remotes.add(self._state.program.whole.number, forks)
            remotes = forks
        return [
            StoredExecutor(
                self._access,
                child,
                self.run,
                path=f"{self.path}/{index}.{branch}",
                content=self._content.copy(),
                base=self._base,
                remote=remote,
            )
            for branch, (child, remote) in enumerate(zip(children, remotes, strict=True))
        ]

    def since_fork(self) -> tuple[Appended, ...]:
        """Return what was appended since the fork. Raises RequestError unless the message open there is open."""
        has_begun = self._content.num_roles > self._roles_at_fork
        check_joinable(self._role_at_fork, self._content.open_role, has_begun=has_begun)
        return tuple(self._appended)

    def join(self, appended: Sequence[tuple[Appended, ...]]) -> OperationResult:
        parts = [part for each in appended for part in each]
        if self._content.open_role is not None and any(isinstance(p.operation, session.RoleBegin) for p in parts):
            raise RequestError(
                f"a fork that wrote messages cannot be joined inside role {self._content.open_role!r}", param="role"
            )
        text = "".join(part.text for part in parts)
        self._note(session.Concatenate(tuple(range(len(appended)))), text)
        for part in parts:
            self._apply(part.operation, part.text)
        return OperationResult(text)

    def snapshot(self) -> StoredSnapshot:
        return StoredSnapshot(self._content.copy(), self._base, tuple(self._since_base), tuple(self._appended))

    def restore(self, snapshot: StoredSnapshot) -> None:
        """Return to a content; the backend opens it again when it is asked next."""
        self._content = snapshot.content.copy()
        self._base, self._since_base = snapshot.base, list(snapshot.since_base)
        self._appended = list(snapshot.appended)
        self._unsent = list(snapshot.since_base)
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def generation_ended(self) -> None:
        """Nothing is kept for generations to come."""

    def _request(self, operation: session.Operation) -> StoredRequest:
        self.index += 1
        is_limited = self._state.program.has_token_budget
        return StoredRequest(self.run, self.path, self.index - 1, normalised(operation), self._content, is_limited)

    def _note(self, operation: session.Operation, text: str) -> None:
        self._access.store.note(self._request(operation), StoredAnswer(text))

    def _append(self, operation: session.Operation, replay: session.Operation, text: str) -> str:
        """Append a text that needs no answer."""
        self._note(operation, text)
        self._apply(replay, text)
        return text

    def _apply(self, replay: session.Operation | None, text: str, *, sent: bool = False) -> None:
        self._appended.append(Appended(replay, text))
        if replay is not None:
            self._content.append(replay)
            self._since_base.append(replay)
            if not sent:
                self._unsent.append(replay)

    def _answer(self, operation: session.Operation, replay: Replay, on_delta: OnDelta | None = None) -> PendingResult:
        """Answer an operation from the store, or from the backend."""
        lookup = self._access.store.look_up(self._request(operation))
        pending = PendingResult(self._stop)
        if lookup.answer is not None:
            self._access.post(partial(self._resolve, pending, replay, lookup.answer, sent=False))
            return pending
        unsent, self._unsent = self._unsent, []
        take = partial(self._take, pending, replay, lookup)
        self._opened().append([*unsent, operation], take, on_delta)
        return pending

    def _opened(self) -> RemoteState:
        if self._remote is None:
            program = self._state.program.whole.number
            if self._base is None:
                self._remote = self._access.remotes.open(program)
            else:
                [self._remote] = self._base.state(self._access.remotes, program).fork(1)
                self._access.remotes.add(program, [self._remote])
        return self._remote

    def _take(self, pending: PendingResult, replay: Replay, lookup: Lookup, done: session.Done | ErrorInfo) -> None:
        """Store the backend's answer, also after a cancellation, and resolve `pending` with it."""
        if isinstance(done, ErrorInfo):
            pending.resolve(done)
            return
        answer = StoredAnswer(done.text, done.sequences, done.choice, done.answers)
        try:
            lookup.keep(answer)
        except RamiformError as error:
            pending.resolve(ErrorInfo.of(error))
        else:
            self._resolve(pending, replay, answer, sent=True)

    def _resolve(self, pending: PendingResult, replay: Replay, answer: StoredAnswer, *, sent: bool) -> None:
        if pending.cancelled:
            return
        result: OperationResult | ErrorInfo
        try:
            self._state.program.spend(sum(sequence.completion_tokens for sequence in answer.sequences or ()))
            self._apply(replay(answer), answer.text, sent=sent)
            result = OperationResult(answer.text, answer.sequences, answer.choice, answer.answers)
        except RamiformError as error:
            result = ErrorInfo.of(error)
        pending.resolve(result)

    def _stop(self) -> None:
        if self._remote is not None:
            self._remote.close()
