"""The transfers of one core: its sockets, and who serves, fetches and moves prefixes. Called between steps."""

from __future__ import annotations

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import zmq
from msgspec.structs import replace

from ..protocol.config import CoreConfig
from ..protocol.core import CoreReply, CoreStats, FromCore, MovePrefixes, ToCore
from ..protocol.errors import ErrorInfo, RamiformError, RequestError, RuntimeFailed
from ..scheduler.request import Request
from .exporter import PrefixExporter
from .fetcher import PrefixFetcher
from .messages import (
    CancelFetch,
    FetchEnded,
    FetchPrefix,
    Greet,
    Greeting,
    KvLayout,
    PagesSent,
    PagesTaken,
    PrefixStored,
    StorePrefix,
    StoreSessions,
    ToServer,
)
from .nixl import NixlAgent, is_installed
from .pages import CachePages
from .replication import PrefixReceiver, PrefixSender
from .sockets import PeerSocket, ServerSocket, check_address, is_local

logger = logging.getLogger("ramiform.transfer")

_CONNECT_SECONDS = 10.0  # to reach the runtime that prefixes are moved to
MAX_PEERS = 1024  # that have greeted this runtime's server


def uses_transfers(config: CoreConfig) -> bool:
    """Return True if the settings ask for an exchange of pages. Raises RequestError for settings that do not go
    together."""
    if config.role == "prefill" and config.transfer_bind is None:
        raise RequestError("role prefill needs transfer_bind, where decode runtimes fetch", param="transfer_bind")
    if config.role == "decode" and config.prefill_workers is None:
        raise RequestError("role decode needs prefill_workers, their addresses", param="prefill_workers")
    if config.role == "prefill" and config.prefill_workers is not None:
        raise RequestError(
            "role prefill computes its prompts itself: prefill_workers is for decode and both", param="role"
        )
    addresses = list_prefill_workers(config)
    for param, listed in (("transfer_bind", [config.transfer_bind]), ("prefill_workers", addresses)):
        for address in filter(None, listed):
            check_address(address, config.transfer_keys, param)
    if config.transfer_bind is None and not addresses and config.transfer_keys is None:
        return False
    reasons = {
        "prefix_cache": None if config.prefix_cache else "pages are exchanged through the prefix cache",
        "log_plans": None if config.log_plans is None else "a plan log could not be replayed",
        "nnodes": None if config.nnodes == 1 else "ranks of other machines do not send their pages yet",
    }
    for setting, reason in reasons.items():
        if reason is not None:
            raise RequestError(f"{setting} does not go with the exchange of KV pages: {reason}", param=setting)
    if config.transfer == "nixl" and not is_installed():
        raise RequestError("transfer 'nixl' needs the package nixl: install ramiform[nixl]", param="transfer")
    return True


def list_prefill_workers(config: CoreConfig) -> list[str]:
    """Return the addresses of the prefill runtimes."""
    return [part.strip() for part in (config.prefill_workers or "").split(",") if part.strip()]


def cannot_move() -> RequestError:
    """Make the error for prefixes that cannot be moved, because no settings allow any exchange."""
    return RequestError(
        "prefixes move between runtimes that were started with transfer_bind or transfer_keys", param="to"
    )


@dataclass(eq=False)
class _Peer:
    number: int
    socket: PeerSocket
    has_settled_scales: bool = False  # of this connection: they are adopted, or offered, once


@dataclass(eq=False)
class _Move:
    """Prefixes that are being moved to a peer, for the frontend that asked."""

    owner: bytes
    message: MovePrefixes
    peer: _Peer
    deadline: float  # to be connected by
    sender: PrefixSender | None = None


class TransferHub:
    """Everything that a core exchanges with other runtimes.

    `submit` gives the scheduler a message from an owner and returns its answers; `num_computed` and `num_free` tell
    how far it is with a request, and how many device pages are free.
    """

    def __init__(
        self,
        config: CoreConfig,
        layout: KvLayout,
        pages: CachePages,
        submit: Callable[[ToCore, bytes], list[FromCore]],
        num_computed: Callable[[str], int],
        num_free: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises RequestError when an address, a key or NIXL is at fault."""
        self._config = config
        self._layout = layout
        self._pages = pages
        self._clock = clock
        self._context: zmq.Context[Any] = zmq.Context()
        self._nixl: NixlAgent | None = None
        # UCX listens on every interface, so it is not started for runtimes of one machine unless it is asked for.
        addresses = [*list_prefill_workers(config), *filter(None, [config.transfer_bind])]
        is_wanted = config.transfer == "auto" and is_installed() and not all(map(is_local, addresses))
        if config.transfer == "nixl" or is_wanted:
            self._nixl = NixlAgent(pages.shape.page_bytes, pages.device)
        self._server: ServerSocket | None = None
        self._greeted: OrderedDict[bytes, bool] = OrderedDict()  # by connection: it reads this runtime's memory
        if config.transfer_bind is not None:
            size = pages.shape.page_bytes
            self._server = ServerSocket(self._context, config.transfer_bind, config.transfer_keys, max_bytes=size)
        self._numbers = itertools.count()
        self._peers: dict[int, _Peer] = {}
        for address in list_prefill_workers(config):
            self._connect(address, "prefill_workers")
        self._fetcher = PrefixFetcher(
            pages,
            lambda peer, message: self._peers[peer].socket.send(message) if peer in self._peers else None,
            min_tokens=config.remote_prefill_tokens,
            clock=clock,
        )
        self._exporter = PrefixExporter(pages, submit, num_computed, self._send)
        self._receiver = PrefixReceiver(pages, self._send, num_free)
        self._moves: list[_Move] = []
        self._received_sessions: list[bytes] = []
        self._replies: list[tuple[bytes, CoreReply]] = []

    @property
    def address(self) -> str | None:
        """The address that other runtimes connect to, with the port that the system chose."""
        return None if self._server is None else self._server.address

    @property
    def wake_sockets(self) -> list[zmq.Socket[Any]]:
        """Sockets on which something for `advance` may arrive."""
        own = [] if self._server is None else [self._server.socket]
        return own + [socket for peer in self._peers.values() for socket in (peer.socket.socket, peer.socket.monitor)]

    @property
    def active(self) -> bool:
        """True while something is to be done again soon, though nothing arrives."""
        return bool(self._exporter.active or self._fetcher.active or self._moves)

    def count(self, stats: CoreStats) -> CoreStats:
        """Return statistics with the counts of what was fetched."""
        counters = self._fetcher.counters
        return replace(
            stats,
            num_fetched_tokens=counters.num_tokens,
            num_early_tokens=counters.num_early_tokens,
            num_failed_fetches=counters.num_failures,
        )

    def take_replies(self) -> list[tuple[bytes, CoreReply]]:
        """Return the answers to frontends since the last call."""
        replies, self._replies = self._replies, []
        return replies

    def take_sessions(self) -> list[bytes]:
        """Return the sessions that other runtimes have handed over since the last call."""
        sessions, self._received_sessions = self._received_sessions, []
        return sessions

    def fetch(self, request: Request) -> Future[None] | None:
        """Begin to fetch a request's prompt, as `PrefixFetcher.fetch` does."""
        return self._fetcher.fetch(request)

    def note_answers(self, answers: list[FromCore]) -> None:
        """Take note of prompts of other runtimes that the scheduler has finished."""
        self._exporter.note_answers(answers)

    def move(self, owner: bytes, message: MovePrefixes) -> None:
        """Begin to move cached prefixes to another runtime; the answer comes by `take_replies`."""
        try:
            check_address(message.to, self._config.transfer_keys, "to")
            peer = self._connect(message.to, "to")
        except RamiformError as error:
            self._replies.append((owner, CoreReply(message.call, error=ErrorInfo.of(error))))
            return
        self._moves.append(_Move(owner, message, peer, self._clock() + _CONNECT_SECONDS))

    def advance(self) -> None:
        """Read the sockets and send what is ready. Never waits."""
        now = self._clock()
        for peer in list(self._peers.values()):
            for is_connected in peer.socket.changes():
                if is_connected:
                    peer.has_settled_scales = False
                    peer.socket.send(Greet(self._layout, self._nixl is not None))
                else:
                    self._lose(peer, f"the connection to {peer.socket.address} was lost")
            for message, payload in peer.socket.receive():
                self._take_answer(peer, message, payload, now)
        if self._server is not None:
            for sender, request, payload in self._server.receive():
                self._serve(sender, request, payload, now)
        if self._nixl is not None and self._nixl.is_reading:
            for number, sent, bytes_PB in self._nixl.finished():
                self._fetcher.take(number, sent, torch.empty(0) if bytes_PB is None else bytes_PB)
        readers = {sender for sender, reads in self._greeted.items() if reads}
        self._exporter.work(now, None if self._nixl is None else self._nixl.outgoing, readers)
        self._fetcher.work(now)
        for move in list(self._moves):
            self._go_on(move, now)

    def close(self) -> None:
        """Close every connection. Fetches end at once."""
        for peer in list(self._peers.values()):
            self._lose(peer, f"the connection to {peer.socket.address} is closed")
            peer.socket.close()
        if self._server is not None:
            self._server.close()
        self._context.term()

    def _connect(self, address: str, param: str) -> _Peer:
        size = self._pages.shape.page_bytes
        try:
            socket = PeerSocket(self._context, address, self._config.transfer_keys, max_bytes=size)
        except zmq.ZMQError as error:  # a name that cannot be one, or a path that is too long
            raise RequestError(f"cannot connect to {address!r}: {error.strerror}", param=param) from None
        peer = _Peer(next(self._numbers), socket)
        self._peers[peer.number] = peer
        return peer

    # What this runtime asked for

    def _take_answer(self, peer: _Peer, message: Any, payload: bytes, now: float) -> None:
        move = next((move for move in self._moves if move.peer is peer), None)
        match message:
            case Greeting():
                if not self._settle_scales(peer, message, payload, move):
                    self._take_greeting(peer, message, move, now)
            case PagesSent(slots=None):
                if (bytes_PB := self._unpack(message, payload)) is not None:
                    self._fetcher.take(peer.number, message, bytes_PB)
            case PagesSent(slots=slots):
                if self._nixl is None or not self._nixl.read(peer.number, slots or [], message.call, message):
                    self._fetcher.take(peer.number, message, torch.empty(0))  # no pages: the fetch ends
            case FetchEnded():
                self._fetcher.end(peer.number, message)
            case _ if move is not None and move.sender is not None:
                move.sender.take(message, now)

    def _settle_scales(self, peer: _Peer, message: Greeting, payload: bytes, move: _Move | None) -> bool:
        """Greet once more where only scales or statistics of keys and values differ: having adopted those of a sender,
        or with those of this runtime, from which prefixes are moved. Return False if there is nothing to settle."""
        if message.error is None or peer.has_settled_scales or not self._layout.differs_in_scales(message.layout):
            return False
        own = None
        if move is not None:
            own = self._pages.constants()
        elif self._reason_to_keep(message.layout) is not None or not self._adopt(payload, message.layout):
            return False
        peer.has_settled_scales = True
        peer.socket.send(Greet(self._layout, self._nixl is not None), own)
        return True

    def _reason_to_keep(self, other: KvLayout) -> str | None:
        """Return why this runtime keeps its scales or statistics; None: it can adopt those of a sender whose layout is
        the same otherwise."""
        if not self._layout.differs_in_scales(other):
            return None
        if self._fetcher.connected or self._greeted or any(move.sender for move in self._moves):
            return ", and pages are exchanged with another runtime already"
        reason = self._pages.reason_to_keep()
        return None if reason is None else f", and {reason}"

    def _adopt(self, data: bytes, layout: KvLayout) -> bool:
        """Store keys and values as a sender of this layout does, which has sent its scales or statistics."""
        if not self._pages.adopt(data, layout.kv_scales):
            logger.warning("dropped %d bytes that are not the scales or statistics %s", len(data), layout.kv_scales)
            return False
        logger.info("KV is stored by the sender's statistics %s, not by those measured here", layout.kv_scales)
        self._layout = replace(self._layout, kv_scales=layout.kv_scales)
        return True

    def _take_greeting(self, peer: _Peer, message: Greeting, move: _Move | None, now: float) -> None:
        try:
            # Which runtime has a reason to keep its scales: a move's target, or this one, which would fetch.
            if message.error is not None and (move is not None or not self._layout.differs_in_scales(message.layout)):
                raise message.error.to_exception()
            self._layout.check(message.layout, self._reason_to_keep(message.layout) or "")
            if self._nixl is not None and message.nixl is not None:
                self._nixl.connect(peer.number, message.nixl)
        except RamiformError as error:
            self._lose(peer, f"no pages are exchanged with {peer.socket.address}: {error}", ErrorInfo.of(error))
            return
        if move is None:
            logger.info("prompts are fetched from %s", peer.socket.address)
            self._fetcher.connected.add(peer.number)
        elif move.sender is None:
            move.sender = PrefixSender(self._pages, peer.socket.send, move.message.sessions, now)

    def _lose(self, peer: _Peer, reason: str, error: ErrorInfo | None = None) -> None:
        logger.warning("%s", reason)
        self._fetcher.lose(peer.number)
        if self._nixl is not None:
            self._nixl.forget(peer.number)
        for move in [move for move in self._moves if move.peer is peer]:
            self._end(move, error or ErrorInfo.of(RuntimeFailed(reason)))

    def _go_on(self, move: _Move, now: float) -> None:
        if move.sender is None:
            if now > move.deadline:
                late = RuntimeFailed(f"{move.message.to} was not reached within {_CONNECT_SECONDS:g} s")
                self._end(move, ErrorInfo.of(late))
            return
        move.sender.work(now)
        if isinstance(move.sender.result, ErrorInfo):
            self._end(move, move.sender.result)
        elif move.sender.result is not None:
            self._replies.append((move.owner, CoreReply(move.message.call, moved=move.sender.result)))
            self._forget(move)

    def _end(self, move: _Move, error: ErrorInfo) -> None:
        self._replies.append((move.owner, CoreReply(move.message.call, error=error)))
        self._forget(move)

    def _forget(self, move: _Move) -> None:
        self._moves.remove(move)
        if self._nixl is not None:
            self._nixl.forget(move.peer.number)
        self._peers.pop(move.peer.number).socket.close()

    # What other runtimes ask for

    def _serve(self, sender: bytes, message: ToServer, payload: bytes, now: float) -> None:
        if not isinstance(message, Greet) and sender not in self._greeted:
            return  # a connection begins with a greeting
        if sender in self._greeted:
            self._greeted.move_to_end(sender)
        match message:
            case Greet():
                self._greet(sender, message, payload)
            case FetchPrefix():
                self._exporter.begin(sender, message, now)
            case CancelFetch(call=call):
                self._exporter.cancel(sender, call, None if self._nixl is None else self._nixl.outgoing)
            case PagesTaken():
                slots = None if self._nixl is None else self._nixl.outgoing
                self._exporter.confirm(sender, message, slots, now)
            case StorePrefix():
                self._receiver.begin(sender, message)
            case PagesSent():
                if (bytes_PB := self._unpack(message, payload)) is not None:
                    self._receiver.take(sender, message, bytes_PB)
            case StoreSessions(call=call, data=data):
                self._received_sessions.append(data)
                self._send(sender, PrefixStored(call, 0))

    def _greet(self, sender: bytes, message: Greet, payload: bytes) -> None:
        reason = self._reason_to_keep(message.layout)
        if payload and reason is None and self._layout.differs_in_scales(message.layout):
            self._adopt(payload, message.layout)
        try:
            self._layout.check(message.layout, reason or "")
        except RequestError as error:
            own = self._pages.constants() if self._layout.differs_in_scales(message.layout) else None
            level = logging.WARNING if own is None or payload else logging.INFO  # the other runtime may adopt `own`
            logger.log(level, "a runtime was refused: %s", error)
            self._send(sender, Greeting(self._layout, error=ErrorInfo.of(error)), own)
            return
        reads = message.wants_nixl and self._nixl is not None
        self._greeted[sender] = reads
        if len(self._greeted) > MAX_PEERS:
            self._greeted.popitem(last=False)  # heard of least recently: most likely it is gone
        self._send(sender, Greeting(self._layout, self._nixl.memory() if reads and self._nixl is not None else None))

    def _send(self, receiver: bytes, message: Any, payload: torch.Tensor | None = None) -> bool:
        assert self._server is not None
        sent = self._server.send(receiver, message, payload)
        if not sent:
            self._greeted.pop(receiver, None)
        return sent

    def _unpack(self, message: PagesSent, payload: bytes) -> torch.Tensor | None:
        """Return the pages of a payload, [P, page_bytes]; None, and a warning, if it has another size."""
        if len(payload) != message.count * self._pages.shape.page_bytes:
            logger.warning("dropped %d bytes that are not %d pages", len(payload), message.count)
            return None
        return torch.frombuffer(bytearray(payload), dtype=torch.uint8).view(message.count, -1)
