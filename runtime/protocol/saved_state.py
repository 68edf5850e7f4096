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


def save(sessions: list[SavedSession]) -> bytes:
    """Encode sessions. Raises RequestError when they are too long for a message."""
    return wire.encode(SavedSessions(sessions))


def restore(data: bytes) -> list[SavedSession]:
    """Decode sessions. Raises RequestError for anything else."""
    saved: SavedSessions = wire.decode(_decoder, data)
    return saved.sessions
