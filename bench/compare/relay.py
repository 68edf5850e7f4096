"""Counts the requests that pass to a server, and the bytes of their bodies."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class CountingRelay:
    """A server at `url` that forwards to `target`. `calls` and `bytes_sent` count its POST requests."""

    def __init__(self, target: str) -> None:
        self.calls = self.bytes_sent = 0
        relay, address, lock = self, urlsplit(target).netloc, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            # Of HTTP/1.0: the end of a streamed answer is the end of its connection.
            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.command == "POST":
                    with lock:
                        relay.calls += 1
                        relay.bytes_sent += len(body)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                connection = http.client.HTTPConnection(address, timeout=300)
                try:
                    connection.request(self.command, self.path, body, headers)
                    answer = connection.getresponse()
                    self.send_response(answer.status)
                    for name, value in answer.getheaders():
                        if name.lower() not in _HOP:
                            self.send_header(name, value)
                    self.end_headers()
                    while piece := answer.read1(65536):
                        self.wfile.write(piece)
                        self.wfile.flush()
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has gone; closing the connection aborts its request
                finally:
                    connection.close()

            do_GET = do_POST = do_PUT = _forward

            def log_message(self, format: str, *values: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> CountingRelay:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
