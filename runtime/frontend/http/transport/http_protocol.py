"""HTTP/1.1 and WebSocket protocols on top of uvicorn's, with bounded heads and bounded waits.

They answer requests that never reach the application: heads that are too long or too slow, and excess connections.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import httptools
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Request

from ..errors import error_body, error_response
from ..scope import HEALTH_PATHS
from .connection_limits import ConnectionSlot

MAX_HEAD = 65_536  # bytes of a request line and its header fields
MAX_URL = 32_768  # bytes of a request line's target
MAX_FIELDS = 128  # header fields and trailers of a request
MAX_LINE = 8_192  # bytes per line of a WebSocket handshake, as the library allows
MAX_PIPELINED = 64  # requests waiting on a connection for earlier responses
MAX_CHUNK_OVERHEAD = 8  # framing bytes per body byte in a chunked body
MAX_FRAGMENTS = 4_096  # frames per WebSocket message

HEAD_SECONDS = 20.0  # from connecting, or from the first byte of a later head, to the end of the head
WRITE_SECONDS = 300.0  # for a client to read what was sent
LINGER_SECONDS = 2.0  # for a refused client to read the error

TOO_MANY_CONNECTIONS = "there are too many connections; try again later"


class Refusal(Exception):
    """Error to send instead of a response; the connection closes after it."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SlotProtocol(asyncio.Protocol):
    """Connection in a slot, which it releases at its end. A client that reads nothing for WRITE_SECONDS is aborted."""

    slot: ConnectionSlot
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _write_timer: asyncio.TimerHandle | None = None  # runs while the write buffer is full

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_write_timer()
        self.slot.release()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class HttpProtocol(SlotProtocol, HttpToolsProtocol):
    """HTTP connection in `slot`. A spare connection gets a 503, except at /health.

    A message has two parts, head and body. The bytes of a part are counted as they arrive, because the parser buffers
    unfinished fields. In the read that begins a part, the parser's callbacks count instead.
    """

    def __init__(self, config: Config, server_state: ServerState, slot: ConnectionSlot, *, is_spare: bool) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        if is_spare:
            self.app = _only_health(self.app)
        self.slot = slot
        self._is_spare = is_spare
        self._ignores_input = False  # further input is ignored
        self._deferred_refusal: Refusal | None = None  # waits for earlier responses
        self._num_parts = 0  # heads and bodies completed; odd: inside a body
        self._is_in_head = False  # inside an incomplete head
        self._num_bytes = 0  # of the current part
        self._num_fields = 0
        self._num_field_bytes = 0
        self._num_body_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None  # of the head, or of closing

    # Connection events

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.slot.close = transport.abort
        self._set_deadline(HEAD_SECONDS, self._on_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_deadline()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        num_parts = self._num_parts
        try:
            self.parser.feed_data(data)
            if self._num_parts == num_parts:
                self._num_bytes += len(data)
                self._check_size()
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(
                cause if isinstance(cause, Refusal) else Refusal(400, "this is not HTTP/1.1", "invalid_http_request")
            )
            return
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if not self._is_serving and self._deadline is None and not self.transport.is_closing():
            self._set_deadline(HEAD_SECONDS, self._on_timeout)

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    # Parser callbacks. A Refusal raised here stops the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_fields = self._num_field_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL:
            raise Refusal(414, f"the URL is longer than {MAX_URL} bytes", "uri_too_long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_fields += 1
        self._num_field_bytes += len(name) + len(value) + 4
        if self._num_fields > MAX_FIELDS:
            raise _too_large(f"the request has more than {MAX_FIELDS} header fields")
        if len(self.url) + self._num_field_bytes > MAX_HEAD:
            raise _head_too_long()
        if not self._is_in_body:  # trailers would change the headers of a running request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refusal(400, f"more than {MAX_PIPELINED} requests wait on this connection", "too_many_requests")
        before = self.cycle
        super().on_headers_complete()
        self._is_in_head = False
        self._start_part()
        if self.cycle is not before:  # a request, not a handshake
            self._unset_deadline()
            self.slot.busy()

    def on_body(self, body: bytes) -> None:
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._start_part()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # after the response is sent
            self._set_deadline(WRITE_SECONDS, self.transport.abort)
        elif not self._is_serving:
            self.slot.idle()
            if self._deferred_refusal is not None:
                self._refuse(self._deferred_refusal)
                return
            if self._is_in_body or self._is_in_head:
                self._set_deadline(HEAD_SECONDS, self._on_timeout)

    def handle_websocket_upgrade(self) -> None:
        has_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
            for name, value in self.headers
        )
        lines = [len(name) + len(value) + 4 for name, value in self.headers]
        if self._is_spare:
            self._refuse(_too_many_connections())
        elif self._is_serving:
            self._refuse(Refusal(400, "a request before this handshake is not answered yet", "invalid_http_request"))
        elif has_body:  # the WebSocket library would neither read nor refuse it
            self._refuse(Refusal(400, "a WebSocket's handshake has no body", "invalid_http_request"))
        elif len(self.url) + len("OPTIONS  HTTP/1.1\r\n") > MAX_LINE:
            self._refuse(Refusal(414, f"a WebSocket's URL is longer than {MAX_LINE} bytes", "uri_too_long"))
        elif max(lines) > MAX_LINE:
            self._refuse(_too_large(f"a header field of a WebSocket is longer than {MAX_LINE} bytes"))
        else:
            self._ignores_input = True
            self._unset_deadline()
            self.slot.busy()
            super().handle_websocket_upgrade()
            protocol = self.transport.get_protocol()
            assert isinstance(protocol, WebSocketProtocol)
            protocol.slot = self.slot
            if not protocol.has_request:  # an unreadable handshake: nothing would answer it
                self.transport.abort()

    # Closing and limits

    @property
    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_in_body(self) -> bool:
        return self._num_parts % 2 == 1

    def _start_part(self) -> None:
        self._num_parts += 1
        self._num_bytes = self._num_body_bytes = 0

    def _check_size(self) -> None:
        if not self._is_in_body:
            if self._num_bytes > MAX_HEAD:
                raise _head_too_long()
        elif self._num_bytes > MAX_HEAD + (1 + MAX_CHUNK_OVERHEAD) * self._num_body_bytes:
            raise Refusal(400, "the body's chunks have more bytes around them than in them", "invalid_http_request")

    def _on_timeout(self) -> None:
        if self._is_in_head:
            message = f"the request's head was not complete after {HEAD_SECONDS:g} s"
            self._refuse(Refusal(408, message, "request_timeout"))
        else:
            self._close()

    def _refuse(self, refusal: Refusal) -> None:
        """Send the refusal and close the connection; earlier requests are answered first."""
        self._ignores_input = True
        self._unset_deadline()
        self._unset_keepalive_if_required()
        if self._is_serving and not self._is_in_body:
            self._deferred_refusal = refusal
            return
        if self._is_serving:  # the rest of its body cannot be parsed
            if self.pipeline or self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._abort_later()
        self.transport.write(_response(refusal, self.server_state.default_headers))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        try:
            # Closing now would reset the connection of a client that still sends, before it reads the response.
            self.transport.write_eof()
        except OSError:  # the client has left
            self.transport.abort()

    def _close(self) -> None:
        self._ignores_input = True
        self._abort_later()
        self.transport.close()

    def _abort_later(self) -> None:
        """Abort after the client had time to read what was sent."""
        has_unread = self.transport.get_write_buffer_size() > 0
        self._set_deadline(WRITE_SECONDS if has_unread else LINGER_SECONDS, self.transport.abort)

    def _set_deadline(self, seconds: float, then: Any) -> None:
        self._unset_deadline()
        self._deadline = self.loop.call_later(seconds, then)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class WebSocketProtocol(SlotProtocol, WebSocketsSansIOProtocol):
    """WebSocket in the slot of its HTTP connection. uvicorn bounds its messages and sends pings."""

    has_request = False
    _num_fragments = 0  # of an incomplete message

    def handle_connect(self, event: Request) -> None:
        self.has_request = True
        super().handle_connect(event)

    def handle_ping(self) -> None:
        pong = b"".join(self.conn.data_to_send())
        if self._write_timer is None:  # pongs would pile up for a client that does not read
            self.transport.write(pong)

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        self._num_fragments = 0 if event.fin else self._num_fragments + 1
        if self._num_fragments > MAX_FRAGMENTS:
            self.conn.fail(1009, f"a message of more than {MAX_FRAGMENTS} frames")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is None:  # the handshake was unreadable
            self.transport.abort()
        else:
            super().handle_parser_exception()


def _only_health(app: Any) -> ASGIApp:
    """Wrap `app` to answer one request on a connection beyond the limit, then close it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        if scope["path"] in HEALTH_PATHS:
            await app(scope, receive, send_last)
        else:
            refusal = _too_many_connections()
            await error_response(refusal.status, str(refusal), code=refusal.code)(scope, receive, send_last)

    return answer


def _too_many_connections() -> Refusal:
    return Refusal(503, TOO_MANY_CONNECTIONS, "too_many_connections")


def _head_too_long() -> Refusal:
    return _too_large(f"the request's head is longer than {MAX_HEAD} bytes")


def _too_large(message: str) -> Refusal:
    return Refusal(431, message, "request_header_fields_too_large")


def _response(refusal: Refusal, headers: list[tuple[bytes, bytes]]) -> bytes:
    body = json.dumps(error_body(refusal.status, str(refusal), code=refusal.code)).encode()
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    lines += [b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close"]
    if refusal.status == 503:
        lines.append(b"retry-after: 1")
    return b"\r\n".join([*lines, b"", body])
