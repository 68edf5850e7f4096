"""Node 0's view of the other nodes: joins, reports and lost connections.

A thread owns the control socket and the connections' monitors. The plan sockets, one to each node, belong to the thread
that computes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from ..protocol import wire
from ..protocol.config import RuntimeConfig
from ..protocol.errors import ErrorInfo, RamiformError, RequestError, RuntimeFailed
from ..protocol.keys import server_keys
from .fingerprint import NodeFingerprint
from .master_address import MasterAddress
from .messages import FromNode, NodeFailed, NodeJoin, NodeLeave, NodeReady, NodeWelcome, Rendezvous
from .node_sockets import (
    LOST_EVENTS,
    MAX_PLAN_BYTES,
    MAX_REPORT_BYTES,
    REFUSED_EVENTS,
    KeyAuthenticator,
    configure_socket,
    logger,
    monitor_socket,
)

JOIN_TIMEOUT = 300.0  # seconds for all nodes to join
# A report may arrive after the news that its sender is gone. Several polls instead of one wait: a suspended machine
# then loses one poll only.
_FINAL_POLLS, _POLL_MS = 4, 50
_LEAVE_POLLS = 20  # for the nodes to leave


class WorkerNodes:
    """The nodes from 1 on.

    `on_ready` is called when all ranks of a node have loaded, `on_gone` when a node is lost; both from another thread.
    Raises RequestError when the address cannot be bound, or a file is missing.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        rendezvous: Rendezvous,
        on_ready: Callable[[], None],
        on_gone: Callable[[RamiformError], None],
    ) -> None:
        core = config.core
        assert core.node_keys is not None, "checked before"
        self._keys = server_keys(Path(core.node_keys))
        self._num_nodes = core.nnodes
        self._fingerprint = NodeFingerprint.of(core)
        self._rendezvous = rendezvous
        self._on_ready, self._on_gone = on_ready, on_gone
        self._context = zmq.Context()
        self._authenticator = KeyAuthenticator(self._context, lambda key: key in self._keys.programs)
        self._control = self._context.socket(zmq.ROUTER)
        configure_socket(self._control, self._own, server=None, most=MAX_REPORT_BYTES)
        master = MasterAddress.of(core)
        try:
            self._control.bind(f"tcp://{master.ip}:{master.port}")
        except zmq.ZMQError as error:
            raise RequestError(f"cannot listen at master {core.master}: {error}", param="master") from None
        self._decoder = msgspec.msgpack.Decoder(FromNode)
        self._condition = threading.Condition()
        self._joined: dict[bytes, NodeJoin] = {}  # by ROUTER identity
        self._plans: list[zmq.Socket[bytes]] = []
        self._monitors: dict[zmq.Socket[bytes], bytes] = {}
        self._woken, self._waker = os.pipe()
        self._leave: NodeLeave | None = None
        self._all_left = threading.Event()
        threading.Thread(target=self._run, name="nodes", daemon=True).start()

    @property
    def _own(self) -> tuple[bytes, bytes]:
        return self._keys.public, self._keys.secret

    def wait_joined(self, check: Callable[[], None]) -> None:
        """Wait until all nodes have joined; `check` raises when waiting is useless. Raises RuntimeFailed when nodes are
        missing."""
        with self._condition:
            joined = self._condition.wait_for(
                lambda: len(self._joined) == self._num_nodes - 1 or self._leave, JOIN_TIMEOUT
            )
            here = {join.node for join in self._joined.values()}
        check()
        if not joined:
            missing = ", ".join(str(node) for node in range(1, self._num_nodes) if node not in here)
            raise RuntimeFailed(f"of nnodes {self._num_nodes}, these did not join within {JOIN_TIMEOUT:g} s: {missing}")

    def send(self, data: bytes) -> None:
        for socket in self._plans:
            socket.send(data)

    def end(self, error: ErrorInfo | None) -> None:
        """Ask all nodes to leave, without waiting."""
        with self._condition:
            if self._leave is None:
                self._leave = NodeLeave(error)
                os.write(self._waker, b"\n")
            self._condition.notify_all()

    def quit(self) -> None:
        """Ask all nodes to leave, and wait a moment for it."""
        self.end(None)
        any(self._all_left.wait(_POLL_MS / 1000) for _ in range(2 * _LEAVE_POLLS))

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while self._leave is None:
            ready = dict(poller.poll())
            if self._control in ready:
                self._receive(poller)
            for monitor in self._monitors.keys() & ready.keys():
                poller.unregister(monitor)
                self._report_lost(self._monitors.pop(monitor), poller)
        for identity in self._joined:
            self._control.send_multipart([identity, wire.encode(self._leave)])
        connected = set(self._monitors)
        for _ in range(_LEAVE_POLLS):
            connected -= {monitor for monitor in connected if monitor.poll(max(1, _POLL_MS // len(connected)))}
        self._all_left.set()

    def _receive(self, poller: zmq.Poller) -> None:
        identity, *frames = self._control.recv_multipart()
        try:
            message = wire.decode(self._decoder, b"".join(frames))
        except RequestError as error:
            logger.warning("dropped a message of a node: %s", error)
            return
        match message:
            case NodeJoin():
                self._join(identity, message, poller)
            case NodeReady() if identity in self._joined:
                self._on_ready()
            case NodeFailed(error=error) if identity in self._joined:
                self._on_gone(error.to_exception())
            case _:
                logger.warning("dropped a message of a node that has not joined")

    def _join(self, identity: bytes, join: NodeJoin, poller: zmq.Poller) -> None:
        try:
            self._check(join)
        except RequestError as error:
            logger.warning("refused node %d at %s: %s", join.node, join.address, error)
            self._control.send_multipart([identity, wire.encode(NodeLeave(ErrorInfo.of(error)))])
            return
        socket = self._context.socket(zmq.PUSH)
        configure_socket(socket, self._own, server=join.key.encode(), most=MAX_PLAN_BYTES)
        monitor = monitor_socket(socket, LOST_EVENTS | REFUSED_EVENTS)
        socket.connect(join.address)
        poller.register(monitor, zmq.POLLIN)
        self._monitors[monitor] = identity
        self._control.send_multipart([identity, wire.encode(NodeWelcome(self._rendezvous))])
        with self._condition:
            self._plans.append(socket)
            self._joined[identity] = join
            self._condition.notify_all()

    def _check(self, join: NodeJoin) -> None:
        """Raise RequestError for a node that does not fit the others."""
        if not 0 < join.node < self._num_nodes:
            raise RequestError(
                f"node_rank {join.node} of nnodes {self._num_nodes}: nodes are counted from 0, which is here",
                param="node_rank",
            )
        self._fingerprint.check(join.fingerprint, join.node)
        for other in self._joined.values():
            if other.node == join.node:
                raise RequestError(f"node_rank {join.node} is taken, by a node at {other.address}", param="node_rank")
        if join.key.encode() not in self._keys.programs:
            raise RequestError(f"node {join.node} waits for plans with an unknown key", param="node_keys")

    def _report_lost(self, identity: bytes, poller: zmq.Poller) -> None:
        for _ in range(_FINAL_POLLS):
            while self._control.poll(_POLL_MS):
                self._receive(poller)
        join = self._joined[identity]
        self._on_gone(RuntimeFailed(f"node {join.node} ({join.address}) is gone; the runtime is down"))
