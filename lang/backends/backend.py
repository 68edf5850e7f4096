"""Backends: the interface of whatever runs programs, the address of a running runtime, and the default backend.

Importing it loads no socket library; the first connection does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ...runtime.protocol.errors import RamiformError, RequestError
from ...runtime.protocol.session import Reply, ToFrontend

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener
    from .runtimes.http_channel import HttpChannel
    from .runtimes.movable import MovableChannel

ADDRESS_VARIABLE = "RAMIFORM_ADDRESS"  # set by `ramiform run --address`
API_KEY_VARIABLE = "RAMIFORM_API_KEY"
KEYS_VARIABLE = "RAMIFORM_KEYS"  # set by `ramiform run --keys`


class Channel(Protocol):
    """Executes the operations of states and answers them; `Connection` documents each method.

    `send` takes Open, Append, Close, Play and Supply. Listeners receive a Done or Failed for every operation, in order.
    A channel whose attribute `wants_notes` is true is sent notes with them.
    """

    def attach(self, listener: Listener) -> int: ...

    def detach(self, state: int) -> None: ...

    def send(self, message: ToFrontend) -> None: ...

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> Reply: ...


class Backend(Protocol):
    """Runs programs; `Runtime` is one."""

    def connection(self) -> Channel:
        """Return the channel, ready for use: the same one at every call."""
        ...


class RuntimeEndpoint:
    """A running runtime, reached by its address. Connects at the first use.

    A TCP address needs `keys`, a folder made by `ramiform keys`; the default is the variable RAMIFORM_KEYS. An HTTP
    address may need `api_key`; the default is the variable RAMIFORM_API_KEY. A runtime on this machine tells its local
    address over HTTP and is then reached by it; another one is used as an `HttpRuntime`. Raises RuntimeFailed at the
    first use if nothing listens there, or if the server does not have the key that `keys` names.
    """

    def __init__(self, address: str, keys: str | os.PathLike[str] | None = None, *, api_key: str | None = None) -> None:
        if not address.startswith(("ipc://", "tcp://", "inproc://", "http://", "https://")):
            raise RequestError(
                f"{address!r} is not an address; `ramiform serve` prints two, such as http://127.0.0.1:30000 and "
                "ipc:///tmp/ramiform-x/frontend",
                param="address",
                code="invalid_address",
            )
        self.address = address
        self.keys = os.environ.get(KEYS_VARIABLE) if keys is None else keys
        self.api_key = os.environ.get(API_KEY_VARIABLE) if api_key is None else api_key
        self._lock = threading.Lock()
        self._connection: tuple[MovableChannel | HttpChannel, Callable[[], None]] | None = None

    def connection(self) -> MovableChannel | HttpChannel:
        with self._lock:
            if self._connection is None:
                if self.address.startswith("http"):
                    from .runtimes.connect import connect_url

                    self._connection = connect_url(self.address, self.api_key)
                else:
                    from .runtimes.connect import connect
                    from .runtimes.movable import MovableChannel

                    channel = MovableChannel(connect(self.address, self.keys), lambda to: connect(to, self.keys))
                    self._connection = channel, channel.close
            return self._connection[0]

    def close(self) -> None:
        """Close the connection; the runtime keeps running. Idempotent."""
        with self._lock:
            if self._connection is not None:
                self._connection[1]()
                self._connection = None

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


ChannelWrapper = Callable[[Backend, Channel], Channel]

_default: Backend | None = None
_wrappers: list[ChannelWrapper] = []  # of all programs, the innermost last
_lock = threading.Lock()


def set_default_backend(backend: Backend | None) -> None:
    """Set the backend of programs that are run without `backend`. None: the one of RAMIFORM_ADDRESS again."""
    global _default
    if backend is not None:
        _checked(backend)
    with _lock:
        _default = backend


def channel_of(backend: Backend | None) -> Channel:
    """Return the channel of `backend`, or of the default one. Raises RamiformError if there is none."""
    chosen = chosen_backend(backend)
    channel = chosen.connection()
    for wrapper in _wrappers[-1:]:
        channel = wrapper(chosen, channel)
    return channel


def chosen_backend(backend: Backend | None) -> Backend:
    """Return `backend`, or the default one. Raises RamiformError if there is none."""
    return _default_backend() if backend is None else _checked(backend)


def wrap_channels(wrapper: ChannelWrapper) -> None:
    """Put `wrapper` before the channels of all programs that begin from now on."""
    with _lock:
        _wrappers.append(wrapper)


def unwrap_channels(wrapper: ChannelWrapper) -> None:
    """Undo one `wrap_channels`."""
    with _lock:
        _wrappers.reverse()
        _wrappers.remove(wrapper)
        _wrappers.reverse()


def flush_cache(backend: Backend | None = None) -> None:
    """Drop every cached prefix that no running request uses."""
    channel_of(backend).call("flush_cache")


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """Return the facts of the served model and its current counters."""
    channel = channel_of(backend)
    facts = (channel.call("info").info, channel.call("stats").stats)
    return {name: value for part in facts if part is not None for name, value in msgspec.structs.asdict(part).items()}


def _default_backend() -> Backend:
    global _default
    with _lock:
        if _default is None:
            address = os.environ.get(ADDRESS_VARIABLE)
            if not address:
                raise RamiformError(
                    "no backend to run on: call ramiform.set_default_backend(ramiform.Runtime()), pass backend=..., "
                    "or start the script with `ramiform run FILE`"
                )
            _default = RuntimeEndpoint(address)
        return _default


def _checked(backend: Any) -> Backend:
    if not callable(getattr(backend, "connection", None)):
        raise RequestError(f"{backend!r} is not a backend: it has no method connection()", param="backend")
    return backend  # type: ignore[no-any-return]
