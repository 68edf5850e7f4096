"""`ramiform serve` names the page, and opens it where it is asked to."""

from __future__ import annotations

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
