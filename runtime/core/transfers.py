"""Exchange of KV pages with other runtimes, as a service of the core's loop."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..protocol.core import CoreReply, FromCore, MovePrefixes, TakeSessions, ToCore
from ..protocol.errors import ErrorInfo
from ..transfer.hub import TransferHub, cannot_move
from .service import POLL_MS, Reply, Service


class Transfers(Service):
    """Moves prefixes and sessions, and serves and fetches prompts' pages."""

    def __init__(self, hub: TransferHub) -> None:
        self._hub = hub

    @property
    def wait_ms(self) -> int | None:
        return POLL_MS if self._hub.active else None

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        if not isinstance(message, MovePrefixes):
            return message
        self._hub.move(owner, message)
        return []

    def advance(self) -> Iterator[Reply]:
        self._hub.advance()
        yield from self._hub.take_replies()
        for sessions in self._hub.take_sessions():
            yield "sessions", TakeSessions(sessions)

    def note_answers(self, answers: list[FromCore]) -> None:
        self._hub.note_answers(answers)

    def count(self, reply: CoreReply) -> CoreReply:
        assert reply.stats is not None
        return replace(reply, stats=self._hub.count(reply.stats))


class NoTransfers(Service):
    """Refuses to move prefixes, because no settings allow any exchange."""

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        if not isinstance(message, MovePrefixes):
            return message
        return [(owner, CoreReply(message.call, error=ErrorInfo.of(cannot_move())))]
