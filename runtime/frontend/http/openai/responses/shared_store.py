"""Stored responses of all frontends: each frontend keeps its own, and asks the others for unknown ids."""

from __future__ import annotations

import asyncio
from typing import Any

from ....core.frontend_peers import FrontendPeers
from .store import ResponseStore, StoredResponse


class SharedResponseStore:
    """The local store, with access to those of the other frontends."""

    def __init__(self, store: ResponseStore, siblings: FrontendPeers) -> None:
        self._store = store
        self._siblings = siblings
        siblings.on("find_response", self._describe)
        siblings.on("remove_response", self._remove)
        siblings.on("cancel_response", self._cancel)

    async def find(self, response_id: str) -> StoredResponse | None:
        """Return the response in its current state; a copy when another frontend owns it."""
        entry = self._store.get(response_id)
        if entry is not None:
            return entry
        for answer in await self._siblings.ask("find_response", response_id, dict):
            history = StoredResponse({"id": "", "output": []}, answer["history"])
            return StoredResponse(answer["response"], answer["input"], previous=history if answer["history"] else None)
        return None

    async def copy_here(self, response_id: str | None) -> None:
        """Copy a finished response of another frontend into the local store, to continue it."""
        if response_id is None or self._store.get(response_id) is not None:
            return
        entry = await self.find(response_id)
        if entry is not None and entry.response["status"] in ("completed", "incomplete"):
            self._store.put(entry)

    async def remove(self, response_id: str) -> None:
        """Delete the response on every frontend, and end it if it still runs."""
        await self._remove(response_id)
        await self._siblings.ask("remove_response", response_id, bool)

    async def cancel(self, response_id: str) -> None:
        """End a background response, on whichever frontend it runs."""
        await self._cancel(response_id)
        await self._siblings.ask("cancel_response", response_id, bool)

    async def _describe(self, response_id: str | None) -> dict[str, Any] | None:
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
