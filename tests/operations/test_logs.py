"""Logs: JSON lines for machines, colours for a terminal."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest
from rich.logging import RichHandler

from ramiform.runtime.processes import logs
from ramiform.runtime.protocol.config import ServeConfig

from .servers import serving


@pytest.fixture(autouse=True)
def the_root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_log_is_an_object_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    logs.set_up_logging(ServeConfig(socket_dir="", log_level="info"), "core")
    logger = logging.getLogger("ramiform.core")
    logger.debug("not this")
    logger.info("two\nlines, %d", 7)
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("it failed")
    first, second = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {"level": "info", "logger": "ramiform.core", "process": "core", "message": "two\nlines, 7"}
    assert second["level"] == "error"
    assert second["error"].endswith("ValueError: inner")


@pytest.mark.parametrize(
    ("log_format", "terminal", "rich"),
    [("auto", True, True), ("auto", False, False), ("rich", False, True), ("json", True, False)],
)
def test_people_get_colours(log_format: str, terminal: bool, rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    logs.set_up_logging(ServeConfig(socket_dir="", log_format=log_format), "frontend")  # type: ignore[arg-type]
    [handler] = logging.getLogger().handlers
    assert isinstance(handler, RichHandler) == rich


@pytest.mark.parametrize(
    ("log_requests", "terminal", "logged"),
    [("auto", True, True), ("auto", False, False), ("on", False, True), ("off", True, False)],
)
def test_requests_are_logged_for_people(
    log_requests: str, terminal: bool, logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    logs.set_up_logging(ServeConfig(socket_dir="", log_requests=log_requests), "frontend")  # type: ignore[arg-type]
    assert logging.getLogger(logs.REQUESTS).isEnabledFor(logging.INFO) is logged


@pytest.mark.exhaustive
def test_a_request_is_a_line_with_its_tokens_and_without_its_text() -> None:
    body = {
        "model": "ramiform-demo",
        "prompt": "Question: secret?",
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
    }
    with serving("--log-requests", "on", "--host", "0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        httpx.post(f"{url}/v1/completions", json=body | {"max_tokens": -1}, timeout=60)
        server.process.send_signal(signal.SIGINT)
        status, told = server.end()
    assert status == 0
    assert "secret" not in told
    assert "--api-key KEY asks for a key" in told
    done, refused = (json.loads(line) for line in told.splitlines() if "ramiform.requests" in line)
    assert done["route"] == refused["route"] == "POST /v1/completions"
    assert (done["status"], refused["status"]) == (200, 400)
    assert done["completion_tokens"] == 3
    assert done["prompt_tokens"] > done["cached_tokens"] == 0
    assert 0 < done["first_token_seconds"] <= done["seconds"]
