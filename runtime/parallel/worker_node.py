"""A node other than node 0: it starts its ranks, relays node 0's plans to them, and reports their state.

`ramiform serve --node-rank N` runs it. It serves no clients. It ends with node 0, and node 0 with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from ..protocol import wire
from ..protocol.config import CoreConfig, RuntimeConfig
from ..protocol.errors import ErrorInfo, RamiformError, RequestError, RuntimeFailed
from ..protocol.keys import program_keys
from .fingerprint import NodeFingerprint
from .master_address import MasterAddress
from .messages import FromNode, NodeFailed, NodeJoin, NodeLeave, NodeReady, NodeWelcome, ToNode
from .node_sockets import (
    MAX_PLAN_BYTES,
    MAX_REPORT_BYTES,
    KeyAuthenticator,
    configure_socket,
    monitor_socket,
    next_monitor_event,
)
from .rank_processes import RankProcesses
from .rendezvous import write_rendezvous

JOIN_TIMEOUT = 300.0  # seconds for node 0 to answer
_CHECK_INTERVAL_MS = 50  # between checks of loading ranks
_LINGER_MS = 1000  # for the last messages to leave


class NodeZeroConnection:
    """The sockets between this node and node 0."""

    def __init__(self, config: CoreConfig) -> None:
        assert config.node_keys is not None, "checked before"
        self._master, self._name = MasterAddress.of(config), config.master
        self._keys = keys = program_keys(Path(config.node_keys))
        own = (keys.public, keys.secret)
        self._context = zmq.Context()
        self._authenticator = KeyAuthenticator(self._context, lambda key: key == keys.server)
        self.plans = self._context.socket(zmq.PULL)
        configure_socket(self.plans, own, server=None, most=MAX_PLAN_BYTES)
        self.plans.bind(f"tcp://{self._master.own_ip()}:*")
        self.control = self._context.socket(zmq.DEALER)
        configure_socket(self.control, own, server=keys.server, most=MAX_REPORT_BYTES)
        self.monitor = monitor_socket(self.control)
        self.control.connect(f"tcp://{self._master.ip}:{self._master.port}")
        self._decoder = msgspec.msgpack.Decoder(ToNode)

    def join(self, node: int, fingerprint: NodeFingerprint) -> NodeWelcome:
        """Join the runtime. Raises RequestError with node 0's reason for a refusal, RuntimeFailed when it does not
        answer."""
        address = self.plans.getsockopt_string(zmq.LAST_ENDPOINT)
        joining = wire.encode(NodeJoin(node, fingerprint, address, self._keys.public.decode()))
        with suppress(zmq.Again):  # node 0 has refused the key already: sending would wait for ever
            self.control.send(joining, zmq.NOBLOCK)
        end = time.monotonic() + JOIN_TIMEOUT
        while (remaining := end - time.monotonic()) > 0:
            poller = zmq.Poller()
            for socket in (self.control, self.monitor):
                poller.register(socket, zmq.POLLIN)
            ready = dict(poller.poll(remaining * 1000))
            if self.control in ready:
                message = self.receive()
                if isinstance(message, NodeWelcome):
                    return message
                raise RuntimeFailed("node 0 is leaving") if message.error is None else message.error.to_exception()
            if self.monitor in ready and next_monitor_event(self.monitor) == zmq.Event.HANDSHAKE_FAILED_AUTH:
                raise RequestError(f"node 0 at {self._name} does not know our key", param="node_keys")
        raise RuntimeFailed(
            f"node 0 at {self._name} did not answer within {JOIN_TIMEOUT:g} s, or its key is not server.key"
        )

    def receive(self) -> ToNode:
        message: ToNode = wire.decode(self._decoder, self.control.recv())
        return message

    def send(self, message: FromNode) -> None:
        self.control.send(wire.encode(message))

    def close(self) -> None:
        """Close the sockets; messages under way get `_LINGER_MS` to leave."""
        self._authenticator.stop()
        self._context.destroy(linger=_LINGER_MS)


def serve_node(config: RuntimeConfig, on_start: Callable[[], None]) -> None:
    """Run the node until node 0 ends it; `on_start` is called when node 0 has accepted it.

    Raises RamiformError when node 0 fails or refuses the node, a rank is lost, a setting is wrong, or this process is
    told to end. The directory of the sockets is removed at the end in every case.
    """
    node, ranks = config.core.node_rank, RankProcesses()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        fingerprint, connection = NodeFingerprint.of(config.core), NodeZeroConnection(config.core)
        try:
            welcome = connection.join(node, fingerprint)
            try:
                write_rendezvous(config.serve.socket_dir, welcome.rendezvous)
                ranks.start(config)
                on_start()
                with _termination_pipe() as termination_pipe:
                    _relay_plans(connection, ranks, f"node 0 at {config.core.master}", termination_pipe)
            except KeyboardInterrupt:
                raise _report_failure(
                    connection, RuntimeFailed(f"node {node} was told to end; the runtime is down")
                ) from None
            except RamiformError as error:
                raise _report_failure(connection, error) from None
        finally:
            ranks.stop()
            connection.close()
    finally:
        shutil.rmtree(config.serve.socket_dir, ignore_errors=True)


def _report_failure(connection: NodeZeroConnection, error: RamiformError) -> RamiformError:
    """Report the error to node 0, and return it."""
    connection.send(NodeFailed(ErrorInfo.of(error)))
    return error


@contextmanager
def _termination_pipe() -> Iterator[int]:
    """Yield a file descriptor that becomes readable on SIGINT or SIGTERM.

    An exception out of a signal's handler would be lost where it comes up in a callback.
    """
    readable, writable = os.pipe()

    def notify(number: int, frame: FrameType | None) -> None:
        os.write(writable, b"x")

    before = {number: signal.signal(number, notify) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield readable
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(readable)
        os.close(writable)


def _relay_plans(connection: NodeZeroConnection, ranks: RankProcesses, master: str, termination_pipe: int) -> None:
    """Relay plans to the ranks until node 0 ends the runtime. Raises KeyboardInterrupt when `termination_pipe` is
    readable."""
    poller = zmq.Poller()
    for waited in (connection.plans, connection.control, connection.monitor, ranks.wake, termination_pipe):
        poller.register(waited, zmq.POLLIN)
    ready_sent = False
    while True:
        readable = dict(poller.poll(None if ready_sent else _CHECK_INTERVAL_MS))
        if termination_pipe in readable:
            raise KeyboardInterrupt
        ranks.check()
        if not ready_sent and ranks.ready:
            connection.send(NodeReady())
            ready_sent = True
        while connection.plans in readable and connection.plans.poll(0):
            ranks.relay(connection.plans.recv())
        if connection.control in readable:
            message = connection.receive()
            assert isinstance(message, NodeLeave), "NodeWelcome is sent once"
            if message.error is not None:
                raise message.error.to_exception()
            return
        if connection.monitor in readable and not connection.control.poll(0):  # a final message takes precedence
            raise RuntimeFailed(f"{master} is gone; the runtime is down")
