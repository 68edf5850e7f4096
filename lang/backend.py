"""Where programs run: the smallest thing a backend must be, the runtime as one, and the default.

Knows nothing of programs. Importing it loads no socket library; the first connection does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ..runtime.protocol.errors import RamiformError, RequestError
from ..runtime.protocol.session import Reply, ToFrontend

if TYPE_CHECKING:
    from ..runtime.protocol.client import Connection, Listener
    from .backends.channel import LocalChannel

ADDRESS_VARIABLE = "RAMIFORM_ADDRESS"  # set by `ramiform run --address`
API_KEY_VARIABLE = "RAMIFORM_API_KEY"
KEYS_VARIABLE = "RAMIFORM_KEYS"  # set by `ramiform run --keys`


class Channel(Protocol):
    """What plays operations and answers them; `Connection` says what each method means.

    `send` takes Open, Append, Close, Play and Supply. Listeners get a Done or Failed for every operation, in order.
    """

    def attach(self, listener: Listener) -> int: ...

    def detach(self, state: int) -> None: ...

    def send(self, message: ToFrontend) -> None: ...

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> Reply: ...


class Backend(Protocol):
    """Anything that programs can run on; `Runtime` is one."""

    def connection(self) -> Channel:
        """The same channel every time, ready for use."""
        ...


class RuntimeEndpoint:
    """A runtime that runs already, reached by its address. Connects when first used.

    An address of TCP needs `keys`, a folder as `ramiform keys` makes it; by default that of the variable RAMIFORM_KEYS.
    An HTTP address may need `api_key`, by default that of the variable RAMIFORM_API_KEY; a runtime of this machine
    tells there where programs come, and is then reached as by that address, any other as by `HttpRuntime`.
    Raises RuntimeFailed when it connects and nothing listens there, or what does is not whom the keys name.
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
        self._reached: tuple[Connection | LocalChannel, Callable[[], None]] | None = None

    def connection(self) -> Connection | LocalChannel:
        with self._lock:
            if self._reached is None:
                if self.address.startswith("http"):
                    from .backends.connect_url import connect_url

                    self._reached = connect_url(self.address, self.api_key)
                else:
                    connection = connected(self.address, self.keys)
                    self._reached = connection, connection.close
            return self._reached[0]

    def close(self) -> None:
        """Leave; the runtime goes on. Calling it again does nothing."""
        with self._lock:
            if self._reached is not None:
                self._reached[1]()
                self._reached = None

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connected(address: str, keys: str | os.PathLike[str] | None = None) -> Connection:
    """A connection to the runtime that listens at an address of ZMQ. Raises RuntimeFailed when none does."""
    from ..runtime.protocol.client import Connection
    from ..runtime.protocol.keys import keys_for

    connection = Connection(address, keys_for(address, keys))
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


_default: Backend | None = None
_lock = threading.Lock()


def set_default_backend(backend: Backend | None) -> None:
    """Run programs there unless they say otherwise. None: as at the start."""
    global _default
    if backend is not None:
        _checked(backend)
    with _lock:
        _default = backend


def channel_of(backend: Backend | None) -> Channel:
    """The channel of `backend`, or of the default one. Raises RamiformError when there is none."""
    return (_default_backend() if backend is None else _checked(backend)).connection()


def flush_cache(backend: Backend | None = None) -> None:
    """Forget every cached prefix that nothing running uses."""
    channel_of(backend).call("flush_cache")


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """The facts of the model that serves, and the counters of now."""
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
