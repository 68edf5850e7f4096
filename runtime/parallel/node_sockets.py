"""The sockets between nodes: TCP, CURVE keys on both sides, and detection of lost connections.

The side that connects monitors its connection: its end means that the other process or the network is gone. So each
side connects once: a node to node 0, to join and report, and node 0 to the node, for plans. A dead process is noticed
at once. A machine that vanishes is noticed by TCP keep-alives, which a system also answers for a suspended process;
ZMQ's own heartbeats would not let that one come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

logger = logging.getLogger("ramiform.nodes")

MAX_PLAN_BYTES = 1 << 28
MAX_REPORT_BYTES = 1 << 20
_KEEP_ALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 4, zmq.TCP_KEEPALIVE_INTVL: 2, zmq.TCP_KEEPALIVE_CNT: 3}
_UNANSWERED_MS = 10_000  # until unacknowledged bytes close the connection
_HANDSHAKE_MS = 15_000


def configure_socket(socket: zmq.Socket[bytes], own: tuple[bytes, bytes], *, server: bytes | None, most: int) -> None:
    """Set keys and options, before the socket binds or connects. `own` are this node's public and secret key.

    `server` is the key of the peer it connects to. None: it will be bound, and the context's authenticator checks
    peers.
    """
    socket.curve_publickey, socket.curve_secretkey = own
    if server is None:
        socket.curve_server = True
    else:
        socket.curve_serverkey = server
    for option, value in _KEEP_ALIVE.items():
        socket.setsockopt(option, value)
    socket.setsockopt(zmq.TCP_MAXRT, _UNANSWERED_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, most)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)


LOST_EVENTS = zmq.Event.DISCONNECTED | zmq.Event.HANDSHAKE_FAILED_AUTH
# Events of a peer that has closed its port.
REFUSED_EVENTS = zmq.Event.CONNECT_RETRIED


def monitor_socket(socket: zmq.Socket[bytes], events: zmq.Event = LOST_EVENTS) -> zmq.Socket[bytes]:
    """Return a socket that delivers these events of a connecting socket."""
    return socket.get_monitor_socket(events)


def next_monitor_event(monitor: zmq.Socket[bytes]) -> zmq.Event:
    """Return the next event of a monitor."""
    return zmq.Event(recv_monitor_message(monitor)["event"])


class KeyAuthenticator:
    """ZAP authenticator that accepts known public keys, for all bound sockets of a context."""

    def __init__(self, context: zmq.Context[Any], is_known: Callable[[bytes], bool]) -> None:
        self._is_known = is_known
        self._authenticator = ThreadAuthenticator(context, log=logging.getLogger("ramiform.keys"))
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return True for a known key; the authenticator calls this."""
        known = self._is_known(key)
        if not known:
            logger.warning("a node with an unknown key was refused: %s", key.decode())
        return known

    def stop(self) -> None:
        self._authenticator.stop()
