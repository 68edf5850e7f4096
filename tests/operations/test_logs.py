"""Logs: JSON lines for machines, colours for a terminal."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest
from rich.logging import RichHandler

from ramiform.runtime.processes import logs
from ramiform.runtime.protocol.config import ServeConfig


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
