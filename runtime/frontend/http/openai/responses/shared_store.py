"""Stored responses of all frontends: each keeps its own, and asks the others for what it does not know."""

from __future__ import annotations

import asyncio
from typing import Any

from ....core.frontend_peers import FrontendPeers
from .store import ResponseStore, StoredResponse


class SharedResponseStore:
    def __init__(self, store: ResponseStore, siblings: FrontendPeers) -> None:
        self._store = store
        self._siblings = siblings
        siblings.on("find_response", self._tell)
        siblings.on("remove_response", self._remove)
        siblings.on("cancel_response", self._cancel)

    async def find(self, response_id: str) -> StoredResponse | None:
        """As it is now; a copy when another frontend made it."""
        entry = self._store.get(response_id)
        if entry is not None:
            return entry
        for told in await self._siblings.ask("find_response", response_id, dict):
            history = StoredResponse({"id": "", "output": []}, told["history"])
            return StoredResponse(told["response"], told["input"], previous=history if told["history"] else None)
        return None

    async def bring(self, response_id: str | None) -> None:
        """Keep a copy of it here, to be continued, if it is known anywhere and finished."""
        if response_id is None or self._store.get(response_id) is not None:
            return
        entry = await self.find(response_id)
        if entry is not None and entry.response["status"] in ("completed", "incomplete"):
            self._store.put(entry)

    async def remove(self, response_id: str) -> None:
        """Everywhere. One that is still made is ended."""
        await self._remove(response_id)
        await self._siblings.ask("remove_response", response_id, bool)

    async def cancel(self, response_id: str) -> None:
        """End one that is made in the background, wherever."""
        await self._cancel(response_id)
        await self._siblings.ask("cancel_response", response_id, bool)

    async def _tell(self, response_id: str | None) -> dict[str, Any] | None:
        entry = self._store.get(response_id or "")
        if entry is None:
            return None
        history = [] if entry.previous is None else entry.previous.conversation()
        return {"response": entry.response, "input": entry.input, "history": history}

    async def _remove(self, response_id: str | None) -> bool:
        entry = self._store.remove(response_id or "")
        if entry is not None and entry.task is not None:
            entry.task.cancel()
        return entry is not None

    async def _cancel(self, response_id: str | None) -> bool:
        entry = self._store.get(response_id or "")
        if entry is None or entry.task is None or entry.task.done():
            return False
        entry.task.cancel()
        await asyncio.wait({entry.task})
        return True
