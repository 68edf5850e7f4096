"""The sockets between nodes: TCP, CURVE keys both ways, and a way to notice that the other side is gone.

A side that connects watches its connection: the end of it is the end of the other process, or of the network between.
So each side connects once: a node to node 0's address, where it joins and reports, and node 0 to the node, for plans.
That tells at once when a process has died. A machine that vanishes without a word is found out by TCP's keep-alives,
which a system answers for a process that is merely stopped; ZMQ's own heartbeats would not let it come back.
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
_UNANSWERED_MS = 10_000  # that bytes may be on their way
_HANDSHAKE_MS = 15_000


def configure_socket(socket: zmq.Socket[bytes], own: tuple[bytes, bytes], *, server: bytes | None, most: int) -> None:
    """Before it binds or connects: `own` are our public and secret key. `server` is the key of whom it connects to;
    None: it will be bound, and the context's authenticator says who may come."""
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
# Of whoever was there before we connect: nobody listens any more.
REFUSED_EVENTS = zmq.Event.CONNECT_RETRIED


def monitor_socket(socket: zmq.Socket[bytes], events: zmq.Event = LOST_EVENTS) -> zmq.Socket[bytes]:
    """A socket to read these events from, of one that connects."""
    return socket.get_monitor_socket(events)


def next_monitor_event(monitor: zmq.Socket[bytes]) -> zmq.Event:
    """Of those that `watch` asked for."""
    return zmq.Event(recv_monitor_message(monitor)["event"])


class KeyAuthenticator:
    """Lets in who shows one of the known keys, in every bound socket of a context."""

    def __init__(self, context: zmq.Context[Any], knows: Callable[[bytes], bool]) -> None:
        self._knows = knows
        self._authenticator = ThreadAuthenticator(context, log=logging.getLogger("ramiform.keys"))
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by the authenticator."""
        known = self._knows(key)
        if not known:
            logger.warning("a node with an unknown key was refused: %s", key.decode())
        return known

    def stop(self) -> None:
        self._authenticator.stop()
