"""Downloads images from hosts that the server's owner allows, and from no address inside the owner's networks.

A name may lead anywhere, and to another place the next time. So the address that a name has is checked, and that very
address is connected to, at each redirect anew.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from urllib.parse import SplitResult, urljoin, urlsplit

from ...protocol.errors import RequestError
from .offload import CancellationToken, offload

MAX_REDIRECTS = 3
SECONDS = 10.0  # for an image, from the first name to the last byte
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
Resolve = Callable[[str, int], Sequence[str]]


def resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a name. Raises OSError."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: str) -> bool:
    """Return True for an address of the open internet, not of a machine's own or a private network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return found.is_global and not found.is_multicast and (inner is None or is_public(str(inner)))


class ImageDownloads:
    """Reads images by http and https from `hosts`, names by commas; `*.NAME` allows all names under one."""

    def __init__(
        self,
        hosts: str | None,
        max_bytes: int,
        *,
        resolve: Resolve = resolved,
        allows: Callable[[str], bool] = is_public,
        seconds: float = SECONDS,
    ) -> None:
        self._hosts = [name.strip().lower().rstrip(".") for name in (hosts or "").split(",") if name.strip()]
        self._max_bytes = max_bytes
        self._resolve = resolve
        self._allows = allows
        self._seconds = seconds

    async def read(self, url: str) -> bytes:
        """Return the file at `url`. Raises RequestError for a host or an address that is not allowed, a file that is
        too large, and a server that does not send it in time."""
        if not self._hosts:
            raise RequestError("images of other servers need --allow-image-hosts: send the image as a data URL")
        return await offload(lambda cancellation: self._read(url, cancellation))

    def _read(self, url: str, cancellation: CancellationToken) -> bytes:
        deadline = time.monotonic() + self._seconds
        for _ in range(1 + MAX_REDIRECTS):
            cancellation.check()
            parts = self._checked(url)
            try:
                next_url, data = self._ask(parts, deadline, cancellation)
            except (OSError, http.client.HTTPException, UnicodeError, ValueError) as error:
                if isinstance(error, RequestError):
                    raise
                raise RequestError(f"the image cannot be downloaded from {parts.hostname}: {error!r}") from None
            if next_url is None:
                return data
            url = urljoin(url, next_url)
        raise RequestError(f"the image is behind more than {MAX_REDIRECTS} redirects")

    def _checked(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            host, _ = (parts.hostname or "").lower().rstrip("."), parts.port
        except ValueError:
            raise RequestError("the image's URL cannot be read") from None
        if parts.scheme not in _PORTS:
            raise RequestError(f"images come by http, https or as a data URL, not by {parts.scheme!r}")
        if parts.username is not None or parts.password is not None:
            raise RequestError("the image's URL has a name or a password")
        if not any(host == own or (own[:2] == "*." and host.endswith(own[1:])) for own in self._hosts):
            raise RequestError(f"images may not come from the host {host!r} (--allow-image-hosts)")
        return parts

    def _ask(self, parts: SplitResult, deadline: float, cancellation: CancellationToken) -> tuple[str | None, bytes]:
        """Return where a redirect leads, or the file."""
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        addresses = self._resolve(host, port)
        if not addresses or not all(map(self._allows, addresses)):
            raise RequestError(f"the host {host!r} has an address in a private network")
        left = deadline - time.monotonic()
        connected = self._connected(parts.scheme, host, addresses[0], port, max(0.01, left))
        # A server may send a byte now and then, for ever: each wait is short, all of them are not.
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [connected])
        timer.daemon = True
        timer.start()
        connection = http.client.HTTPConnection(host, port)
        connection.sock = connected
        answer: http.client.HTTPResponse | None = None
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept": "image/*", "Connection": "close"})
            answer = connection.getresponse()
            if answer.status in _REDIRECTS and (place := answer.getheader("Location")):
                return place, b""
            if answer.status != 200:
                raise RequestError(f"the host {host!r} answers with status {answer.status}")
            data = self._body(answer, cancellation)
        finally:
            timer.cancel()
            if answer is not None:
                answer.close()
            connection.close()
            connected.close()
        if time.monotonic() >= deadline:
            raise RequestError(f"the image did not come within {self._seconds:g} seconds")
        return None, data

    def _connected(self, scheme: str, host: str, address: str, port: int, seconds: float) -> socket.socket:
        connected = socket.create_connection((address, port), timeout=seconds)
        try:
            return connected if scheme == "http" else self._context.wrap_socket(connected, server_hostname=host)
        except BaseException:
            connected.close()
            raise

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _body(self, answer: http.client.HTTPResponse, cancellation: CancellationToken) -> bytes:
        data = bytearray()
        while part := answer.read1(1 << 16):
            cancellation.check()
            data += part
            if len(data) > self._max_bytes:
                raise RequestError(f"it has more than {self._max_bytes} bytes, which are the most")
        return bytes(data)


def _cut(connected: socket.socket) -> None:
    """End a connection: who waits for it has an error, or the end of the data."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
