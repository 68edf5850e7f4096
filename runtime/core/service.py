"""Interface of the core's services: what answers messages and works between steps, beside the scheduler.

The loop knows a service by this interface alone. A new one is a class with those methods that it needs, and a line in
the list of `load.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from ..protocol.core import CoreReply, FromCore, ToCore

POLL_MS = 2  # polling interval while a thread or another runtime works on something

# A frontend, all frontends, or the one that goes on with sessions of other runtimes.
Receiver = bytes | Literal["all", "sessions"]
Reply = tuple[Receiver, FromCore]


class Service:
    """Base of the services: answers nothing, and does nothing."""

    @property
    def wait_ms(self) -> int | None:
        """Milliseconds after which an idle core has to go on for this service; None: when a message comes."""
        return None

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        """Take a message of the frontend `owner`, and return what it is answered at once. Return any other message for
        those that come next, perhaps with facts added."""
        return message

    def advance(self) -> Iterable[Reply]:
        """Do what the next step may need. Called before each step; never waits."""
        return ()

    def after_step(self) -> Iterable[Reply]:
        """Do what the last step has made due. Called after each step; never waits."""
        return ()

    def note_answers(self, answers: list[FromCore]) -> None:
        """Note answers to requests, which perhaps have ended."""

    def close(self) -> None:
        """Do what a quiet end of the process has to wait for."""

    def count(self, reply: CoreReply) -> CoreReply:
        """Add what this service counts to a reply with statistics."""
        return reply


class Services(Service):
    """Several services as one: each takes its turn, in the order of the list."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._services = tuple(services)

    @property
    def wait_ms(self) -> int | None:
        return shortest(*(service.wait_ms for service in self._services))

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        for service in self._services:
            handled = service.handle(owner, message)
            if isinstance(handled, list):
                return handled
            message = handled
        return message

    def advance(self) -> Iterator[Reply]:
        for service in self._services:
            yield from service.advance()

    def after_step(self) -> Iterator[Reply]:
        for service in self._services:
            yield from service.after_step()

    def note_answers(self, answers: list[FromCore]) -> None:
        for service in self._services:
            service.note_answers(answers)

    def close(self) -> None:
        for service in self._services:
            service.close()

    def count(self, reply: CoreReply) -> CoreReply:
        for service in self._services:
            reply = service.count(reply)
        return reply


def shortest(*waits_ms: int | None) -> int | None:
    """Return the shortest wait, where None has no end."""
    return min((wait for wait in waits_ms if wait is not None), default=None)
