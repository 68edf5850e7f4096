"""Finite languages of token sequences, in place of compiled grammars."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ramiform.runtime.protocol.sampling import Constraint

from .fake_model import EOS, TOKEN_BYTES


class FakeMatcher:
    """A finite language of token sequences."""

    def __init__(self, language: list[list[int]]) -> None:
        self.language = language
        self.accepted: list[int] = []

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


def next_in(language: list[list[int]], prefix: list[int]) -> set[int]:
    n = len(prefix)
    following = {s[n] for s in language if len(s) > n and s[:n] == prefix}
    return following | ({EOS} if prefix in language else set())


@dataclass
class FakeGrammar:
    language: list[list[int]]

    def matcher(self) -> FakeMatcher:
        return FakeMatcher(self.language)


@dataclass
class FakeGrammars:
    """Compiles when `compile` is called."""

    pending: list[tuple[Future[Any], Constraint]] = field(default_factory=list)

    def get(self, constraint: Constraint) -> Future[Any]:
        future: Future[Any] = Future()
        self.pending.append((future, constraint))
        return future

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        self.pending = [one for one in self.pending if one[0] is not future]

    def compile(self) -> None:
        for future, constraint in self.pending:
            future.set_result(FakeGrammar(json.loads(constraint.source)))
        self.pending.clear()
