"""The plain pages for browsers need no key and no network, and do not trust the Host header."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

import ramiform
from ramiform.tests.page.browser import find_browser

KEY = "sesame-2f1c"
BROWSER = {"accept": "text/html,*/*"}
NAME = "<b onclick=x>&amp;"


class Page(HTMLParser):
    """What a page refers to, what it runs, and the lines that are to be copied."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.commands: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = {name: value or "" for name, value in attrs}
        assert not any(name.startswith("on") for name in given)
        if tag == "a":
            self.links.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])
        elif tag == "link":
            self.loads.append(given["href"])
        if tag == "pre":
            self.commands.append("")

    def handle_data(self, data: str) -> None:
        if self.commands and self.lasttag == "code":
            self.commands[-1] += data if data.strip() else ""


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx.Client]:
    """A server without the page that has scripts, and a client."""
    with (
        ramiform.Runtime(port=0, dtype="float32", num_pages=256, log_level="error", page=False) as started,
        httpx.Client(base_url=started.url or "", timeout=120) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    """A server that asks for a key, and a client that has none."""
    with (
        ramiform.Runtime(
            port=0, dtype="float32", num_pages=256, log_level="error", api_key=KEY, served_model_name=NAME, page=False
        ) as started,
        httpx.Client(base_url=started.url or "", timeout=120) as client,
    ):
        yield client


def raw(url: str, host: bytes) -> bytes:
    """The answer to `GET /` with a Host header that no client library would send."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("accept", ["text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "text/html"])
def test_the_first_page_says_what_is_served_and_how_to_ask_it(plain: httpx.Client, model: str, accept: str) -> None:
    answer = plain.get("/", headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert model in answer.text
    assert "2048 tokens" in answer.text
    page = Page(answer.text)
    assert {"docs", "v1/models", "health", "metrics"} == set(page.links)
    for link in page.links:
        assert plain.get(urljoin("/", link)).status_code == 200
    assert "script" not in page.tags
    assert [load for load in page.loads if not load.startswith("data:")] == []
    assert not re.search(r"@import|url\(", answer.text)


@pytest.mark.exhaustive
def test_its_three_lines_work_when_copied(plain: httpx.Client) -> None:
    commands = Page(plain.get("/", headers=BROWSER).text).commands
    assert len(commands) == 3
    for line in commands:
        curl, url, *options = shlex.split(line)
        assert curl == "curl"
        assert url.startswith(str(plain.base_url).rstrip("/"))
        fields = dict(zip(options[::2], options[1::2], strict=True))
        name, _, value = fields["-H"].partition(": ")
        assert httpx.post(url, content=fields["-d"], headers={name: value}, timeout=120).status_code == 200
        if shutil.which("curl"):
            done = subprocess.run(["bash", "-c", line + " -sS --fail --noproxy '*'"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert '"model"' in done.stdout


@pytest.mark.exhaustive
def test_with_a_key_the_lines_ask_for_it_and_the_model_is_not_told(locked: httpx.Client) -> None:
    answer = locked.get("/", headers=BROWSER)
    assert answer.status_code == 200
    assert "API key" in answer.text
    assert KEY not in answer.text
    assert escape(NAME) not in answer.text
    told = locked.get("/", headers=BROWSER | {"authorization": f"Bearer {KEY}"}).text
    assert NAME not in told
    assert escape(NAME) in told
    for line in Page(answer.text).commands:
        assert shlex.split(line)[-2:] == ["-H", "Authorization: Bearer $API_KEY"]
        if shutil.which("curl"):
            asked = ["bash", "-c", line + " -sS --fail --noproxy '*'"]
            assert subprocess.run(asked, capture_output=True).returncode == 22  # an HTTP error
            keyed = subprocess.run(asked, capture_output=True, env={"PATH": "/usr/bin:/bin", "API_KEY": KEY})
            assert keyed.returncode == 0, keyed.stderr


@pytest.mark.parametrize(
    "host",
    [
        b'"><script>alert(1)</script>',
        b"<img src=x onerror=alert(1)>",
        b"a'; rm -rf ~; '",
        b"$(touch pwned)",
        b"evil.example/path",
        b"user@evil.example",
        b"evil.example:80:80",
        b"\xff\xfe",
        b"a" * 5000,
        b"",
    ],
)
def test_a_host_header_that_is_no_host_is_not_repeated(plain: httpx.Client, host: bytes) -> None:
    answer = raw(str(plain.base_url), host)
    status = int(answer.split(b" ", 2)[1])
    assert status in (200, 400, 431)
    assert not host or host not in answer
    assert b"<script" not in answer
    if status == 200:
        assert str(plain.base_url).rstrip("/").encode() + b"/v1/" in answer


@pytest.mark.parametrize("host", ["example.org", "example.org:8080", "[::1]:30000", "10.0.0.7:80"])
def test_a_host_header_that_is_one_stands_in_the_lines(plain: httpx.Client, host: str) -> None:
    for line in Page(plain.get("/", headers=BROWSER | {"host": host}).text).commands:
        assert shlex.split(line)[1].startswith(f"http://{host}/")


def test_every_page_forbids_what_it_does_not_need(plain: httpx.Client) -> None:
    for path in ("/", "/docs"):
        headers = plain.get(path, headers=BROWSER).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.exhaustive
@pytest.mark.parametrize("server", ["open", "locked"])
def test_the_reference_loads_nothing_from_elsewhere_and_needs_no_key(
    http: httpx.Client, locked: httpx.Client, server: str
) -> None:
    client = http if server == "open" else locked
    answer = client.get("/docs")
    assert answer.status_code == 200
    assert "//" not in re.sub(r"<!--.*?-->", "", answer.text)  # no scheme and no host
    page = Page(answer.text)
    assert len(page.loads) == 3
    [described] = re.findall(r"url: '([^']*)'", answer.text)
    for load in [*page.loads, described]:
        asset = client.get(urljoin("/docs", load))
        assert asset.status_code == 200
        assert len(asset.content) > 100
    assert client.get("/redoc").status_code in (401, 404)


def test_the_document_says_how_to_send_a_key(http: httpx.Client, locked: httpx.Client) -> None:
    described = locked.get("/openapi.json").json()
    [(name, scheme)] = described["components"]["securitySchemes"].items()
    assert scheme == {"type": "http", "scheme": "bearer"}
    assert described["security"] == [{name: []}]
    assert described["paths"]["/health"]["get"]["security"] == []
    assert "security" not in http.get("/openapi.json").json()


@pytest.mark.slow
def test_only_the_pages_are_open(locked: httpx.Client) -> None:
    for path in ("/v1/models", "/metrics", "/docs/", "/docs/nothing.js", "/openapi.json/", "/get_server_info"):
        assert locked.get(path).status_code == 401
    assert locked.post("/").status_code == 405


# A real browser, where there is one.


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    # The name of every other host leads nowhere: what the page needs from elsewhere is missing.
    return [
        *[
            find_browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-sync",
            "--disable-dev-shm-usage",
            *quiet,
        ],
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={tmp_path_factory.mktemp('browser')}",
        "--virtual-time-budget=20000",
    ]


@pytest.mark.exhaustive
def shown(browser: list[str], url: str) -> str:
    """The page as it is once its scripts have run."""
    done = subprocess.run([*browser, "--dump-dom", url], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.exhaustive
def test_a_browser_shows_the_pages_without_key_and_network(
    browser: list[str], plain: httpx.Client, locked: httpx.Client, model: str
) -> None:
    assert model in shown(browser, str(plain.base_url))
    for client in (plain, locked):
        page = shown(browser, str(client.base_url.join("/docs")))
        assert "/v1/chat/completions" in page
        assert "opblock" in page  # Swagger UI's name for an operation
        assert ("Authorize" in page) == (client is locked)
