"""Full garbage collections of the core, which wait until it is idle."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from ramiform.runtime.core import main


class Cycle:
    def __init__(self) -> None:
        self.itself = self


class Link:
    """The messages of one call of `receive`."""

    def __init__(self, *messages: Any) -> None:
        self.messages = messages

    def receive(self, timeout_ms: int | None) -> Iterator[Any]:
        yield from self.messages


@pytest.fixture
def _only_full_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_only_full_collections")
@pytest.mark.parametrize(
    ("messages", "timeout_ms", "interval", "is_kept"),
    [
        ((), None, 0, False),
        ((), 0, 0, True),  # requests are computed
        ((), 2, 0, True),  # a grammar is being compiled
        ((), None, 1 << 30, True),  # there was one lately
        (((b"owner", "message"),), None, 0, True),
    ],
)
def test_an_idle_core_collects_garbage(
    messages: Any, timeout_ms: int | None, interval: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "IDLE_COLLECTION_INTERVAL", interval)
    cycle = weakref.ref(Cycle())
    link: Any = Link(*messages)
    assert main.received(link, timeout_ms) == list(messages)
    assert (cycle() is not None) == is_kept
