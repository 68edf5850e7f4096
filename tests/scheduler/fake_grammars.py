"""Finite languages of token sequences, in place of compiled grammars."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ramiform.constrained.errors import GrammarError
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint

from .fake_model import EOS, TOKEN_BYTES


class FakeMatcher:
    """A finite language of token sequences."""

    def __init__(self, language: list[list[int]], luck: random.Random | None = None) -> None:
        self.language = language
        self.accepted: list[int] = []
        self.luck = luck
        self.prepared: tuple[int, bool] | None = None  # at which length, and whether with the forced text

    def next_tokens(self) -> set[int]:
        return next_in(self.language, self.accepted)

    def mask(self, out: Any) -> None:
        out[:] = 0
        for token in self.next_tokens():
            out[token // 32] |= 1 << token % 32

    def accept(self, token: int) -> bool:
        if token not in self.next_tokens() - {EOS}:
            return False
        self.accepted.append(token)
        return True

    def rollback(self, num_tokens: int) -> None:
        del self.accepted[len(self.accepted) - num_tokens :]

    def is_accepting(self) -> bool:
        return self.accepted in self.language

    def forced(self) -> bytes:
        """The bytes of the tokens that have no alternative."""
        prefix, data = list(self.accepted), b""
        while len(following := next_in(self.language, prefix)) == 1 and EOS not in following:
            (token,) = following
            if (text := TOKEN_BYTES[token]) is None:
                break
            prefix.append(token)
            data += text
        return data

    def accept_at_once(self, token: int, *, new_states: bool = False) -> bool | None:
        return None if self.is_unlucky() else self.accept(token)

    def is_ready(self, *, forced: bool, new_states: bool = False) -> bool:
        known = self.prepared is not None and self.prepared[0] == len(self.accepted) and self.prepared[1] >= forced
        return known or not self.is_unlucky()

    def prepare(self, *, forced: bool) -> None:
        self.prepared = len(self.accepted), forced

    def native(self) -> FakeMatcher:
        return self

    temperature = None

    @property
    def num_accepted(self) -> int:
        return len(self.accepted)

    def read_on(self) -> None: ...

    def captures(self) -> None:
        return None

    def is_unlucky(self) -> bool:
        return self.luck is not None and self.luck.random() < 0.4


def next_in(language: list[list[int]], prefix: list[int]) -> set[int]:
    n = len(prefix)
    following = {s[n] for s in language if len(s) > n and s[:n] == prefix}
    return following | ({EOS} if prefix in language else set())


@dataclass
class FakeGrammar:
    language: list[list[int]]
    luck: random.Random | None = None

    def matcher(self) -> FakeMatcher:
        return FakeMatcher(self.language, self.luck)


@dataclass
class FakeGrammars:
    """Compiles when `compile` is called. With `luck`, what matchers have to say is often not ready, until `work`."""

    pending: list[tuple[Future[Any], Constraint]] = field(default_factory=list)
    luck: random.Random | None = None
    works: list[tuple[Future[None], Callable[[], None]]] = field(default_factory=list)

    def get(self, constraint: Constraint) -> Future[Any]:
        future: Future[Any] = Future()
        self.pending.append((future, constraint))
        return future

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        self.pending = [one for one in self.pending if one[0] is not future]

    def compile(self) -> None:
        for future, constraint in self.pending:
            future.set_result(FakeGrammar(json.loads(constraint.source), self.luck))
        self.pending.clear()

    def prepare(self, constraint: Constraint, work: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self.works.append((future, work))
        return future

    def work(self, share: float = 1.0) -> None:
        """Do a share of the works that wait, drawn at random."""
        assert self.luck is not None
        waiting, self.works = self.works, []
        for future, work in waiting:
            if self.luck.random() >= share:
                self.works.append((future, work))
            elif future.set_running_or_notify_cancel():
                try:
                    work()
                except (GrammarError, RequestError) as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
