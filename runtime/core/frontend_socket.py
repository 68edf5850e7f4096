"""The core's socket to the frontends: messages in, and each answer to the frontend that asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import msgspec
import zmq

from ..protocol import wire
from ..protocol.core import (
    Abort,
    Answers,
    Attach,
    CoreFailed,
    FromCore,
    Generate,
    RequestFailed,
    ToCore,
    Tokens,
)
from ..protocol.errors import ErrorInfo, RequestError
from .service import Reply

logger = logging.getLogger("ramiform.core")


class FrontendSocket:
    """ROUTER socket to the frontends, and the frontend that each request came from."""

    def __init__(self, address: str, wake: int) -> None:
        """`wake` is a file descriptor; while it is readable, `receive` does not wait."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        wire.set_options(self._socket)
        self._socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(wake, zmq.POLLIN)
        self._takes_sessions: bytes | None = None  # the first frontend that can
        self._decoder = msgspec.msgpack.Decoder(ToCore)
        self._owners: dict[str, bytes] = {}
        self._attached: set[bytes] = set()

    def receive(self, timeout_ms: int | None) -> Iterator[tuple[bytes, ToCore]]:
        """Iterate over the pending messages. Waits for the first one up to `timeout_ms`, without limit when None."""
        if not self._poller.poll(timeout_ms):
            return
        while True:
            try:
                owner, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = wire.decode(self._decoder, b"".join(frames))
            except RequestError as error:
                logger.warning("dropped a message: %s", error)
                continue
            match message:
                case Attach(takes_sessions=takes_sessions):
                    self._attached.add(owner)
                    if takes_sessions:
                        self._takes_sessions = self._takes_sessions or owner
                case Generate(rid=rid) if rid in self._owners:
                    duplicate = RequestError(f"rid {rid!r} is already running", param="rid")
                    self.reply(owner, RequestFailed(rid, ErrorInfo.of(duplicate)))
                    continue
                case Generate(rid=rid):
                    self._owners[rid] = owner
                case _:
                    pass
            yield owner, message

    def has_messages(self) -> bool:
        """Return True if `receive` has something to read."""
        return bool(self._poller.poll(0))

    def wake_on(self, sockets: list[zmq.Socket[bytes] | int]) -> None:
        """Do not wait in `receive` while one of these sockets is readable either; a number is a file descriptor."""
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)

    def reply(self, owner: bytes, message: FromCore) -> None:
        """Send a message to one frontend."""
        self._socket.send_multipart([owner, wire.encode(message)])

    def deliver(self, replies: Iterable[Reply]) -> None:
        """Send each message to those that it is for. A request that fails is forgotten."""
        for receiver, message in replies:
            if receiver == "all":
                self._tell_all(message)
            elif receiver == "sessions":
                if self._takes_sessions is not None:
                    self.reply(self._takes_sessions, message)
            else:
                if isinstance(message, RequestFailed):
                    self._owners.pop(message.rid, None)
                self.reply(receiver, message)

    def send(self, messages: list[FromCore]) -> list[tuple[bytes, Abort]]:
        """Send each answer to the frontend that asked, all answers of one frontend at once.

        Finished requests are forgotten. A request whose answer is too long for a message fails. Returns aborts for the
        failed ones that still run.
        """
        answers: dict[bytes, list[Tokens | RequestFailed]] = {}
        for message in messages:
            assert isinstance(message, Tokens | RequestFailed)
            finished = isinstance(message, RequestFailed) or message.finish is not None
            owner = self._owners.pop(message.rid, None) if finished else self._owners.get(message.rid)
            if owner is not None:
                answers.setdefault(owner, []).append(message)
        return [abort for owner, owned in answers.items() for abort in self._send(owner, owned)]

    def fail(self, error: BaseException, *, num_frontends: int = 0, seconds: float = 0.0) -> None:
        """Tell every frontend that the core is going down, and give the bytes time to leave.

        Waits up to `seconds` until `num_frontends` have attached: those that come late are told too.
        """
        told, deadline = set[bytes](), time.monotonic() + seconds
        while True:
            for owner in self._attached - told:
                self.reply(owner, CoreFailed(ErrorInfo.of(error)))
            told |= self._attached
            left = deadline - time.monotonic()
            if len(told) >= num_frontends or left <= 0:
                break
            if self._socket.poll(int(1000 * left)):
                list(self.receive(0))
        self._socket.close(linger=500)
        self._context.term()

    def _send(self, owner: bytes, answers: list[Tokens | RequestFailed]) -> list[tuple[bytes, Abort]]:
        try:
            self.reply(owner, answers[0] if len(answers) == 1 else Answers(answers))
            return []
        except RequestError as error:  # too long, e.g. log-probabilities of much forced text
            if len(answers) == 1:
                [answer] = answers
                self.reply(owner, RequestFailed(answer.rid, ErrorInfo.of(error)))
                return [] if self._owners.pop(answer.rid, None) is None else [(owner, Abort(answer.rid))]
        return [abort for answer in answers for abort in self._send(owner, [answer])]

    def _tell_all(self, message: FromCore) -> None:
        for owner in self._attached:
            self.reply(owner, message)
