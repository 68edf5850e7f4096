"""`/v1/ramiform/live`: a WebSocket over which the page gets what changes, at a bounded rate.

A topic is asked for news when the connection may send again, so what a slow reader gets is new and nothing queues up.
Nothing is asked while nobody subscribes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from ....protocol.errors import RamiformError, RequestError
from ..errors import error_event
from ..scope import LIVE_PATH, SCOPE_API_KEY
from .access import PageAccess, Viewer

logger = logging.getLogger("ramiform.frontend")

SECONDS_PER_MESSAGE = 0.25
BYTES_PER_SECOND = 100_000
KEY_SECONDS = 10.0  # for the first message
MAX_VIEWERS = 64  # connections of one frontend
MAX_VIEWERS_PER_KEY = 16
MAX_MESSAGE = 4096  # characters of a client's message
BAD_KEY = 4401
BAD_ORIGIN = 4403
TRY_LATER = 1013
TOO_BIG = 1009
BAD_MESSAGE = 1007
_encoder = msgspec.json.Encoder()


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a topic that has none."""


class ProgramOptions(_Options, frozen=True):
    id: str


class TreeOptions(_Options, frozen=True):
    root: int | None = None
    limit: int = 2000


class Topics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topics that a client wants, with their options."""

    health: _Options | None = None
    programs: _Options | None = None
    program: ProgramOptions | None = None
    tree: TreeOptions | None = None


class _ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    subscribe: Topics | None = None


_decoder = msgspec.json.Decoder(_ClientMessage)


class Topic(Protocol):
    """News of one topic for one viewer."""

    async def news(self) -> Any:
        """Return the next message, or None if there is nothing new. Raises RamiformError; then the topic ends."""

    def close(self) -> None: ...


MakeTopic = Callable[[Viewer, Any], Topic]  # from a viewer and the topic's options; may raise RequestError


class LiveApi:
    """The WebSocket route. `topics` makes the topics, by their names in `Topics`."""

    def __init__(self, access: PageAccess, topics: dict[str, MakeTopic], *, origins: list[str]) -> None:
        self.access = access
        self.topics = topics
        self._origins = origins
        self._num_viewers: Counter[str | None] = Counter()

    @property
    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_websocket_route(LIVE_PATH, self.connect)
        return router

    async def connect(self, websocket: WebSocket) -> None:
        if not self.access.keys.required and not self._is_known_origin(websocket):
            # Any web page could connect: browsers do not apply CORS to WebSockets.
            await websocket.close(BAD_ORIGIN, "a page of another origin; see --cors-origins")
            return
        await websocket.accept()
        with suppress(WebSocketDisconnect, RuntimeError):  # the client is gone
            await self._serve(websocket)

    async def _serve(self, websocket: WebSocket) -> None:
        if self._num_viewers.total() >= MAX_VIEWERS:
            await websocket.close(TRY_LATER, f"{MAX_VIEWERS} viewers are connected")
            return
        place: str | None = "\0"  # of those whose key is not known yet: no key of a header
        self._num_viewers[place] += 1
        try:
            message = await _first_message(websocket)
            if message is None:
                return
            viewer = self._viewer(websocket, message)
            if viewer is None:
                await websocket.close(BAD_KEY, "wrong or missing API key")
                return
            if self._num_viewers[viewer.key] >= MAX_VIEWERS_PER_KEY:
                await websocket.close(TRY_LATER, f"{MAX_VIEWERS_PER_KEY} viewers with this key are connected")
                return
            self._num_viewers[place] -= 1
            place = viewer.key
            self._num_viewers[place] += 1
            await LiveSocket(self, websocket, viewer).serve(message)
        finally:
            self._num_viewers[place] -= 1

    def _viewer(self, websocket: WebSocket, message: _ClientMessage) -> Viewer | None:
        """Return who sent the first message; None if a key is needed and the message's, or the header's, is none."""
        keys = self.access.keys
        key: str | None = websocket.scope[SCOPE_API_KEY]
        if isinstance(message.key, str):
            key = keys.find(b"Bearer " + message.key.encode("utf-8", "surrogatepass"))
            if key is None and (keys.required or keys.several):
                return None
        if key is None and keys.required:
            return None
        return Viewer(key, keys.is_admin(key))

    def _is_known_origin(self, websocket: WebSocket) -> bool:
        origin = websocket.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return True
        hosts = [websocket.headers.get("host"), websocket.headers.get("x-forwarded-host")]
        return urlsplit(origin).netloc in hosts


class LiveSocket:
    """Connection of a viewer who is known."""

    def __init__(self, api: LiveApi, websocket: WebSocket, viewer: Viewer) -> None:
        self._api = api
        self._websocket = websocket
        self._viewer = viewer
        self._topics: dict[str, tuple[Any, Topic]] = {}  # with the options; the one that was asked last is the last
        self._error: Any = None  # to send
        self._resting = ""  # the topic that sent more than a second's bytes at once
        self._rests_until = 0.0
        self._changed = asyncio.Event()

    async def serve(self, message: _ClientMessage | None) -> None:
        """Serve until the client leaves or the server stops."""
        sending = asyncio.create_task(self._send_all(), name="live page")
        try:
            while message is not None:
                if message.subscribe is not None:
                    self._subscribe(message.subscribe)
                receiving = asyncio.ensure_future(_next_message(self._websocket))
                try:
                    await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
                    if sending.done():
                        sending.result()
                        return
                    message = receiving.result()
                finally:
                    receiving.cancel()
        finally:
            sending.cancel()
            await asyncio.wait({sending})
            self._subscribe(Topics())

    def _subscribe(self, wanted: Topics) -> None:
        """Replace the set of topics. Those that stay the same go on."""
        for name in Topics.__struct_fields__:
            options = getattr(wanted, name)
            old = self._topics.get(name)
            if old is not None and old[0] == options:
                continue
            if old is not None:
                del self._topics[name]
                old[1].close()
            if options is not None:
                try:
                    self._topics[name] = options, self._make(name, options)
                except RequestError as error:
                    self._error = error_event(error)[1]
        self._changed.set()

    def _make(self, name: str, options: Any) -> Topic:
        make = self._api.topics.get(name)
        if make is None:
            raise RequestError(f"this server has no topic {name!r}", param="subscribe")
        return make(self._viewer, options)

    async def _send_all(self) -> None:
        while True:
            self._changed.clear()
            name, message = await self._next()
            if message is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS_PER_MESSAGE):
                        await self._changed.wait()
                continue
            data = _encoder.encode(message)
            try:
                await self._websocket.send_text(data.decode())  # waits for a client that reads slowly
            except (WebSocketDisconnect, RuntimeError):
                return
            await asyncio.sleep(self._pause_after(name, len(data)))

    def _pause_after(self, name: str, num_bytes: int) -> float:
        """Return the seconds until the next message. A topic that is large pays alone, with half of the bytes."""
        now = time.monotonic()
        if num_bytes > BYTES_PER_SECOND:
            self._resting, self._rests_until = name, now + 2 * num_bytes / BYTES_PER_SECOND
            return SECONDS_PER_MESSAGE
        rate = BYTES_PER_SECOND / 2 if now < self._rests_until else BYTES_PER_SECOND
        return max(SECONDS_PER_MESSAGE, num_bytes / rate)

    async def _next(self) -> tuple[str, Any]:
        """Return the next message, of the topic that has waited longest, and the topic; None if there is no news."""
        if self._error is not None:
            error, self._error = self._error, None
            return "", {"type": "error", **error}
        for name, (_, topic) in list(self._topics.items()):
            if name == self._resting and time.monotonic() < self._rests_until:
                continue
            try:
                message = await topic.news()
            except RamiformError as error:
                if self._topics.get(name, (None, None))[1] is topic:
                    del self._topics[name]
                topic.close()
                return name, {"type": "error", **error_event(error)[1]}
            entry = self._topics.get(name)
            if message is not None and entry is not None and entry[1] is topic:
                self._topics[name] = self._topics.pop(name)  # now the last
                return name, message
        return "", None


async def _first_message(websocket: WebSocket) -> _ClientMessage | None:
    try:
        async with asyncio.timeout(KEY_SECONDS):
            message = await _next_message(websocket)
    except TimeoutError:
        await websocket.close(BAD_KEY, f"no key within {KEY_SECONDS:g} s")
        return None
    if message is not None and message.key is msgspec.UNSET:
        await websocket.close(BAD_KEY, 'the first message is {"key": KEY}, or {"key": null}')
        return None
    return message


async def _next_message(websocket: WebSocket) -> _ClientMessage | None:
    """Return the client's next message; None when it has left, or sent something else, which closes the connection."""
    try:
        received = await websocket.receive()
    except (WebSocketDisconnect, RuntimeError):
        return None
    if received["type"] != "websocket.receive":
        return None
    text: str | bytes = received.get("text") or received.get("bytes") or ""
    if len(text) > MAX_MESSAGE:
        await websocket.close(TOO_BIG, f"a message has at most {MAX_MESSAGE} characters")
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        await websocket.close(BAD_MESSAGE, str(error)[:100])
        return None
