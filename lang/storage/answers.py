"""Stored answers, and the interface of stores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.decisions import DecisionAnswer
from ...runtime.protocol.errors import RequestError
from ..backends.backend import Channel


class StoredAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to an operation: the fields of a Done."""

    text: str
    sequences: list[session.Sequence] | None = None
    choice: session.Choice | None = None
    answers: list[DecisionAnswer] | None = None


@dataclass
class StoredRun:
    """A run of a program: the item of its checkpoint, and how often it has made each request without a seed."""

    item: str = ""
    num_draws: dict[bytes, int] = field(default_factory=dict)  # by key


class StateContent:
    """Content of a state, as a digest of its texts, token ids and roles, with the text appended last apart.

    Texts appended one after the other count as one. Contents are equal if the same requests on them are equal.
    """

    __slots__ = ("_digest", "_text", "may_lead", "num_roles", "open_role")

    def __init__(self) -> None:
        self._digest = b""
        self._text = ""
        self.open_role: str | None = None
        self.num_roles = 0
        self.may_lead = False  # a message has begun, whose template may have something to put before given text

    def copy(self) -> StateContent:
        made = StateContent()
        made._digest, made._text = self._digest, self._text
        made.open_role, made.num_roles, made.may_lead = self.open_role, self.num_roles, self.may_lead
        return made

    def key(self, operation: session.Operation, identity: str) -> bytes:
        """Return the key of an operation on this content, by the model `identity`."""
        return _digest(self._with_text(), identity, operation)

    def append(self, operation: session.Operation) -> None:
        """Append what an operation that generates nothing appends."""
        match operation:
            case session.Text(text=text):
                self._text += text
                self.may_lead = self.may_lead and not text
                return
            case session.RoleBegin(role=role):
                self.open_role, self.num_roles, self.may_lead = role, self.num_roles + 1, True
            case session.RoleEnd():
                self.open_role, self.may_lead = None, False
            case session.Generated() | session.AppendImage():
                self.may_lead = False
            case _:
                raise AssertionError(f"{operation!r} is answered by a model")
        self._digest, self._text = _digest(self._with_text(), operation), ""

    def _with_text(self) -> bytes:
        return _digest(self._digest, self._text) if self._text else self._digest


@dataclass(frozen=True)
class StoredRequest:
    """An operation of a run: operation `index` of the state at `path`, on `content`.

    The path of a branch is that of its state, the index of the fork and the branch's own. `is_limited`: a budget may
    have lowered the number of tokens that the program asks for.
    """

    run: StoredRun
    path: str
    index: int
    operation: session.Operation
    content: StateContent
    is_limited: bool = False


class Lookup(NamedTuple):
    """The answer that is kept, or None and how to keep the one to come."""

    answer: StoredAnswer | None
    keep: Callable[[StoredAnswer], None]


class AnswerStore(Protocol):
    """Keeps answers. Called on one thread of a channel; several channels may share a store."""

    def look_up(self, request: StoredRequest) -> Lookup:
        """Look up an operation that the backend answers. Raises RequestError if what is kept contradicts it."""
        ...

    def note(self, request: StoredRequest, answer: StoredAnswer) -> None:
        """Note an operation that needs no backend. Raises RequestError if what is kept contradicts it."""
        ...


def normalised(operation: session.Operation) -> session.Operation:
    """Return an operation without the parameters that do not change its answer."""
    return msgspec.structs.replace(operation, stream=False) if isinstance(operation, session.Gen) else operation


def identity_of(backend: Any, channel: Channel) -> str:
    """Return a text that identifies the model of a backend; models with equal texts count as the same."""
    info = channel.call("info").info
    if info is not None:
        facts: list[Any] = [info.name, info.path, info.architecture, info.num_parameters, info.vocab_size]
        facts += [info.dtype, info.kv_dtype, info.kv_scales]
        facts += [(adapter.name, adapter.digest) for adapter in info.adapters]
    else:
        facts = [type(backend).__name__, getattr(backend, "model", None)]
    http = getattr(backend, "_http", None)
    facts += [getattr(http, "url", None), getattr(backend, "_roles", None)]
    return msgspec.json.encode(facts, order="deterministic", enc_hook=repr).decode()


def _digest(*parts: Any) -> bytes:
    hashed = hashlib.sha256()
    for part in parts:
        try:
            if not isinstance(part, bytes):
                part = msgspec.json.encode(msgspec.to_builtins(part, str_keys=True), order="deterministic")
        except UnicodeEncodeError:
            raise RequestError(f"text that is not valid Unicode: {part!r}", param="text", code="invalid_text") from None
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()
