"""The topics of the live page: health, the radix tree, the list of programs, one program."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any

import msgspec

from ....programs.records.view import ProgramView
from ....protocol.errors import RequestError
from ....protocol.tree import MAX_TREE_NODES, TreeEvents, TreeMessage
from ...api.validation import NotFoundError
from ...core.client import CoreClient
from ...core.frontend_peers import FrontendPeers
from ...records.log import LogChanges, OwnedView, Owner, ProgramLog
from .access import PageAccess, Viewer
from .health import HealthHistory
from .live import ProgramOptions, TreeOptions

TREE_SECONDS = 0.5  # between two questions to the core
PROGRAM_SECONDS = 0.5  # between two looks at a program
VIEW_SHARE = 0.02  # of this process's time, for making views of a program
FIRST_ROWS = 200
CHANGED_ROWS = 1000  # at once; of more, those that changed last
ROWS_PER_MESSAGE = 100
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


class LogPeers:
    """Changes in the records of all frontends."""

    def __init__(self, log: ProgramLog, peers: FrontendPeers, access: PageAccess) -> None:
        self.log = log
        self.access = access
        self._peers = peers
        peers.on("record_changes", self._changes_asked)

    async def changes(self, versions: dict[int, int], viewer: Viewer) -> dict[int, LogChanges]:
        """Return what has changed in each frontend's records since these versions, from the beginning if it has none.

        Raises RuntimeFailed when a frontend does not answer.
        """
        own = {self._peers.index: self._changes(versions.get(self._peers.index), viewer)}
        asked = json.dumps([versions, viewer.key, viewer.is_admin])
        answers = await self._peers.ask("record_changes", asked, tuple[int, LogChanges])
        return own | dict(answers)

    async def view(self, id: str, viewer: Viewer) -> tuple[int, ProgramView] | None:
        """Return a record's version and view, as the viewer may see it; None if there is none for the viewer."""
        found = self.log.view(id)
        if found is None:
            found = next(iter(await self._peers.ask("record_view", id, OwnedView)), None)
        view = None if found is None else self.access.shown_view(viewer, found)
        return None if found is None or view is None else (found.version, view)

    def _changes(self, version: int | None, viewer: Viewer) -> LogChanges:
        def sees(owner: Owner) -> bool:
            return self.access.sees(viewer, owner)

        if version is None:
            return LogChanges(self.log.version, self.log.rows(FIRST_ROWS, sees=sees), [])
        return self.log.rows_since(version, CHANGED_ROWS, sees)

    async def _changes_asked(self, about: str | None) -> tuple[int, LogChanges]:
        versions, key, is_admin = json.loads(about or "{}")
        return self._peers.index, self._changes(versions.get(str(self._peers.index)), Viewer(key, is_admin))


class ProgramsTopic:
    """The newest rows of the list of programs, then those that change."""

    def __init__(self, records: LogPeers, viewer: Viewer) -> None:
        self._records = records
        self._viewer = viewer
        self._versions: dict[int, int] = {}
        self._parts: list[dict[str, Any]] = []
        self._is_first = True

    async def news(self) -> Any:
        if not self._parts:
            changes = await self._records.changes(self._versions, self._viewer)
            self._versions = {index: one.version for index, one in changes.items()}
            rows = [row for one in changes.values() for row in one.rows]
            if self._is_first:
                rows = sorted(rows, key=lambda one: -one.row.seq)[:FIRST_ROWS]
            shown = [self._records.access.shown_row(self._viewer, row) for row in rows]
            if shown or self._is_first or any(one.removed for one in changes.values()):
                self._parts = [
                    {"type": "programs", "rows": shown[start : start + ROWS_PER_MESSAGE], "removed": []}
                    for start in range(0, max(1, len(shown)), ROWS_PER_MESSAGE)
                ]
                self._parts[0]["removed"] = [id for one in changes.values() for id in one.removed]
            self._is_first = False
        return self._parts.pop(0) if self._parts else None

    def close(self) -> None:
        pass


class ProgramTopic:
    """Sends a program, whole, whenever it has changed. The larger it is, the more seldom it is looked at."""

    def __init__(self, records: LogPeers, viewer: Viewer, options: ProgramOptions) -> None:
        self._records = records
        self._viewer = viewer
        self._id = options.id
        self._version = -1
        self._look_at = 0.0

    async def news(self) -> Any:
        if time.monotonic() < self._look_at or self._records.log.version_of(self._id) == self._version:
            return None
        began = time.monotonic()
        found = await self._records.view(self._id, self._viewer)
        now = time.monotonic()
        self._look_at = now + max(PROGRAM_SECONDS, (now - began) / VIEW_SHARE)
        if found is None:
            raise NotFoundError(f"no record has the id {self._id!r}", param="id", code="not_found")
        version, view = found
        if version == self._version:
            return None
        self._version = version
        return {"type": "program", "view": view}

    def close(self) -> None:
        pass
