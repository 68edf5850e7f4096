"""Downloads of images: whom the server asks, and how much it takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ramiform.runtime.frontend.text.image_download import ImageDownloads, is_public
from ramiform.runtime.protocol.errors import RequestError

FILE = b"x" * 1000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, _, place = self.path[1:].partition("?")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", place)
            self.end_headers()
        elif kind == "slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                time.sleep(0.1)
                self.wfile.write(b"x")
                self.wfile.flush()
        else:
            self.send_response(200 if kind == "file" else 404)
            self.end_headers()
            self.wfile.write(FILE)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


def read(url: str, *, hosts: str | None = "a.example, *.b.example", **options: Any) -> bytes:
    """Download, where all names lead to this machine except those inside."""
    downloads = ImageDownloads(
        hosts,
        options.pop("max_bytes", len(FILE)),
        resolve=lambda host, port: ["10.0.0.1"] if host.startswith("inside") else ["127.0.0.1"],
        allows=lambda address: address == "127.0.0.1",
        **options,
    )
    return asyncio.run(downloads.read(url))


def test_a_host_of_the_list_is_asked(port: int) -> None:
    assert read(f"http://a.example:{port}/file") == FILE
    assert read(f"http://x.b.example:{port}/to?http://A.example:{port}/to?/file") == FILE


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://b.example/file", "may not come from the host 'b.example'"),
        ("http://xa.example/file", "may not come from"),
        ("ftp://a.example/file", "not by 'ftp'"),
        ("http://a.example@evil.example/", "a name or a password"),
        ("http://inside.b.example/file", "an address in a private network"),
        ("http://a.example:PORT/to?http://evil.example/", "may not come from the host 'evil.example'"),
        ("http://a.example:PORT/to?/to?/to?/to?/file", "more than 3 redirects"),
        ("http://a.example:PORT/none", "status 404"),
        ("http://a.example:1/file", "cannot be downloaded"),
    ],
)
def test_others_are_refused_by_name(port: int, url: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read(url.replace("PORT", str(port)))


def test_a_redirect_into_a_private_network_is_refused(port: int) -> None:
    with pytest.raises(RequestError, match="an address in a private network"):
        read(f"http://a.example:{port}/to?http://inside.b.example/file")


def test_no_list_is_no_download(port: int) -> None:
    with pytest.raises(RequestError, match="--allow-image-hosts"):
        read(f"http://a.example:{port}/file", hosts=None)


def test_bytes_and_seconds_are_bounded(port: int) -> None:
    with pytest.raises(RequestError, match="more than 999 bytes"):
        read(f"http://a.example:{port}/file", max_bytes=999)
    began = time.monotonic()
    with pytest.raises(RequestError, match=r"did not come within|cannot be downloaded"):
        read(f"http://a.example:{port}/slow", seconds=0.5)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:a00:1::", False),
    ],
)
def test_addresses_of_networks_behind_the_server_are_not_public(address: str, public: bool) -> None:
    assert is_public(address) is public
