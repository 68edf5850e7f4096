"""`ramiform serve` names the page and opens it where it is asked to, talks in its terminal, and starts without one."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from .servers import RAMIFORM, serving


@pytest.mark.exhaustive
def test_the_first_line_names_the_page_and_open_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with serving("--open") as server:
        deadline = time.monotonic() + 60
        while not opened.exists():
            assert time.monotonic() < deadline, "no browser was started"
            time.sleep(0.05)
        assert opened.read_text().strip() == server.url
        page = httpx.get(server.url, timeout=60, headers={"accept": "text/html"})
        assert page.headers["content-type"].startswith("text/html")
        assert 'src="page/app.js"' in page.text
        assert server.first_line.endswith(f" and its page at {server.url}\n")


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--no-page",), ("--uds", "/tmp/nothing.sock")])
def test_there_must_be_a_page_to_open(options: tuple[str, ...]) -> None:
    done = subprocess.run([RAMIFORM, "serve", "--open", *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "--open needs the page" in done.stderr


@pytest.mark.exhaustive
def test_a_terminal_is_told_of_the_start_of_each_request_and_of_the_end() -> None:
    ours, theirs = pty.openpty()
    command = [RAMIFORM, "serve", "--num-pages", "512", "--port", "0"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=os.environ | {"COLUMNS": "80"}) as server:
        os.close(theirs)
        told = ""

        def read_until(text: str) -> None:
            nonlocal told
            while text not in told:
                told += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(ours, 4096).decode())

        read_until("--address ipc:")
        url = re.findall(r"and its page at (\S+)", told)[0]
        body = {"model": "ramiform-demo", "prompt": "A secret:", "max_tokens": 3, "ignore_eos": True}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
        read_until("3 out")
        server.send_signal(signal.SIGINT)
        read_until("the server has ended")
    os.close(ours)
    assert server.returncode == 0
    assert "loading the model that ships" in told
    assert "POST /v1/completions 200" in told
    assert "secret" not in told


def _listens(path: Path) -> bool:
    """Return whether a server takes connections. Its socket is not there at first, then it is bound and takes none."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(str(path)) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("stdout", ["/dev/full", "a pipe that nobody reads", None])
def test_a_server_starts_where_nothing_can_be_printed(stdout: str | None, tmp_path: Path) -> None:
    path = tmp_path / "s"
    unread, pipe = os.pipe()
    os.close(unread)
    place = ">&-" if stdout is None else f">{stdout}" if stdout == "/dev/full" else ""
    command = f'exec "{RAMIFORM}" serve --num-pages 512 --uds {path} {place}'
    with subprocess.Popen(["sh", "-c", command], stdout=pipe, stderr=subprocess.PIPE, text=True) as server:
        os.close(pipe)
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=120) as client:
            while not _listens(path) or client.get("/health").status_code != 200:
                assert server.poll() is None
                time.sleep(0.1)
        server.send_signal(signal.SIGINT)
        _, told = server.communicate(timeout=60)
    assert server.returncode == 0
    assert "Traceback" not in told
    assert ("serving ramiform-demo at" in told) == (stdout is not None)  # then it is said where it can be
