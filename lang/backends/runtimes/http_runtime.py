"""A backend for a ramiform runtime that is reached over HTTP alone, through its route `/programs`."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from ....runtime.protocol import session
from ....runtime.protocol.core import CoreStats, ModelInfo
from ....runtime.protocol.errors import RamiformError
from ..http_client import HttpClient
from ..model import Method, ModelCall
from .http_channel import HttpChannel


class HttpRuntime:
    """Runs programs on the runtime at `url`, which may be behind a proxy.

    The results are those over ZMQ. The server keeps nothing between two requests but its prefix cache, so each request
    repeats what the program was answered before. A compiled program is one request; otherwise everything that can be
    played goes into one, whenever the program has appended something or an answer has come. Requests of a program that
    run at the same time may each compute what is left of its token budget before the program is ended.

    Raises RequestError for an invalid `url`. Programs fail when they run and nothing listens there, or the server does
    not answer for `timeout` seconds.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout: float = 600.0) -> None:
        self._http = HttpClient(url, api_key, timeout)
        self._lock = threading.Lock()
        self._channel: HttpChannel | None = None

    def connection(self) -> HttpChannel:
        with self._lock:
            if self._channel is None:
                self._channel = HttpChannel(self._http, self._answer_call, self._wants_notes)
            return self._channel

    def close(self) -> None:
        """End every program that runs on it. Calling it again does nothing."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
        self._http.close()

    def server_info(self) -> dict[str, Any]:
        """Return the facts of `/get_server_info`.

        Raises RequestError if there is no such route, RuntimeFailed if the runtime cannot be reached.
        """
        facts = self._http.get("/get_server_info")
        return facts if isinstance(facts, dict) else {}

    def _wants_notes(self) -> bool:
        """Return whether the server keeps records of programs; False if it cannot be asked."""
        try:
            return self.server_info().get("wants_notes") is True
        except RamiformError:
            return False

    def _answer_call(self, method: Method, number: int) -> session.Reply:
        match method:
            case "info":
                return session.Reply(number, info=msgspec.convert(self._http.get("/get_model_info"), ModelInfo))
            case "stats":
                return session.Reply(number, stats=msgspec.convert(self._http.get("/get_server_info"), CoreStats))
            case "flush_cache":
                self._http.post("/flush_cache", None, ModelCall())
                return session.Reply(number)
