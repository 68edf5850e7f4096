"""Saved form of conversation states: token ids, from which another replica goes on. Their KV travels as cached pages.

A state is its token ids: no text is tokenised again when it is restored, so a saved state goes on with the same tokens.
The language's checkpoints hold ids in the same way, as operations with their answers.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from . import wire


class SavedRequest(msgspec.Struct, frozen=True):
    """A finished request of a session: the first `num_kept` tokens of request `parent`, then its own prompt and
    output."""

    rid: str
    parent: str | None
    num_kept: Annotated[int, Meta(ge=0)]
    tokens: list[int]
    num_prompt: Annotated[int, Meta(ge=0)]  # of the whole prompt and output


class SavedSession(msgspec.Struct, frozen=True):
    """A session and its requests, parents first. `owner` is a digest of the API key."""

    owner: str | None
    id: str
    requests: list[SavedRequest]


class SavedSessions(msgspec.Struct, frozen=True):
    """The sessions of one replica."""

    sessions: list[SavedSession]
    version: Literal[1] = 1


_decoder = msgspec.msgpack.Decoder(SavedSessions)


class SavedAnchor(msgspec.Struct, frozen=True, tag="anchor"):
    """Ids of a piece of a remembered conversation (`runtime/frontend/chat/history_tree.py`). `number` names it in its
    file, `base` the piece before it, which comes before it in the file. `owner` is a digest of the API key."""

    owner: str
    namespace: bytes  # UTF-8, also of lone surrogates, as `text`
    number: int
    base: int | None
    text: bytes
    ids: bytes  # packed
    is_generated: bool
    is_divided: bool


class SavedTurn(msgspec.Struct, frozen=True, tag="turn"):
    """Records a change of a session: it was opened or closed, got `request`, or gave up what came after request `rid`,
    or all where that is None."""

    owner: str | None  # a digest of the API key
    id: str
    action: Literal["open", "close", "add", "replace"]
    request: SavedRequest | None = None
    rid: str | None = None


SavedRecord = SavedAnchor | SavedTurn
_record_decoder = msgspec.msgpack.Decoder(SavedRecord)


def encode_record(record: SavedRecord) -> bytes:
    """Encode a record of a frontend's file."""
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes) -> SavedRecord | None:
    """Decode a record of a frontend's file; None for anything else."""
    try:
        record: SavedRecord = _record_decoder.decode(data)
    except msgspec.MsgspecError:
        return None
    return record


def save(sessions: list[SavedSession]) -> bytes:
    """Encode sessions. Raises RequestError when they are too long for a message."""
    return wire.encode(SavedSessions(sessions))


def restore(data: bytes) -> list[SavedSession]:
    """Decode sessions. Raises RequestError for anything else."""
    saved: SavedSessions = wire.decode(_decoder, data)
    return saved.sessions
