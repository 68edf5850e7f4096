"""The topics of the live page: health and the radix tree."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import msgspec

from ....protocol.errors import RequestError
from ....protocol.tree import MAX_TREE_NODES, TreeEvents, TreeMessage
from ...core.client import CoreClient
from .health import HealthHistory
from .live import TreeOptions

TREE_SECONDS = 0.5  # between two questions to the core
NODES_PER_MESSAGE = 400  # a larger tree comes in several messages, so that other topics' news come in between


class HealthTopic:
    """The newest point, each second."""

    def __init__(self, history: HealthHistory) -> None:
        self._history = history
        self._watching = history.watching()
        self._watching.__enter__()
        self._sent = 0.0

    async def news(self) -> Any:
        point = self._history.points[-1] if self._history.points else None
        if point is None or point.t <= self._sent:
            return None
        self._sent = point.t
        return {"type": "health", "point": point}

    def close(self) -> None:
        self._watching.__exit__(None, None, None)


class TreeTopic:
    """The tree, then what changes of it. The core is asked again when everything that it told has been sent."""

    _numbers = itertools.count()

    def __init__(self, core: CoreClient, options: TreeOptions) -> None:
        if not 1 <= options.limit <= MAX_TREE_NODES:
            raise RequestError(f"limit is from 1 to {MAX_TREE_NODES}, got {options.limit}", param="limit")
        self._core = core
        self._options = options
        self._watch = next(self._numbers)
        self._parts: list[TreeMessage] = []
        self._asking: asyncio.Task[TreeMessage] | None = None
        self._ask_at = 0.0

    async def news(self) -> Any:
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            self._parts = _in_parts(asked.result())
        if self._parts:
            return {"type": "tree", **msgspec.structs.asdict(self._parts.pop(0))}
        if self._asking is None and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + TREE_SECONDS
            question = self._core.tree(watch=self._watch, root=self._options.root, limit=self._options.limit)
            # A core with much to do answers late; other topics do not wait for it.
            self._asking = asyncio.create_task(question, name="tree of the live page")
        return None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())  # retrieved


def _in_parts(message: TreeMessage) -> list[TreeMessage]:
    """Divide a message that is large. One that says nothing has no parts."""
    if not (message.full or message.nodes or message.removed or message.events != TreeEvents()):
        return []
    nodes, replace = message.nodes, msgspec.structs.replace
    rest = replace(message, full=False, removed=[], events=TreeEvents())
    return [
        replace(rest if start else message, nodes=nodes[start : start + NODES_PER_MESSAGE])
        for start in range(0, max(1, len(nodes)), NODES_PER_MESSAGE)
    ]
