"""Stored responses of all frontends: each frontend keeps its own, and asks the others for unknown ids."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ....core.frontend_peers import FrontendPeers
from ....core.tenant import current_tenant
from .store import ResponseStore, StoredResponse


class SharedResponseStore:
    """The local store, with access to those of the other frontends."""

    def __init__(self, store: ResponseStore, peers: FrontendPeers) -> None:
        self._store = store
        self._peers = peers
        peers.on("find_response", self._describe)
        peers.on("remove_response", self._remove)
        peers.on("cancel_response", self._cancel)

    async def find(self, response_id: str) -> StoredResponse | None:
        """Return the response in its current state; a copy when another frontend owns it."""
        owner = current_tenant.get().key
        entry = self._store.get(response_id, owner)
        if entry is not None:
            return entry
        for answer in await self._peers.ask("find_response", _question(response_id), dict):
            history = StoredResponse({"id": "", "output": []}, answer["history"])
            previous = history if answer["history"] else None
            return StoredResponse(answer["response"], answer["input"], previous, owner)
        return None

    async def copy_here(self, response_id: str | None) -> None:
        """Copy a finished response of another frontend into the local store, to continue it."""
        if response_id is None or self._store.get(response_id, current_tenant.get().key) is not None:
            return
        entry = await self.find(response_id)
        if entry is not None and entry.response["status"] in ("completed", "incomplete"):
            self._store.put(entry)

    async def remove(self, response_id: str) -> None:
        """Delete the response on every frontend, and end it if it still runs."""
        question = _question(response_id)
        await self._remove(question)
        await self._peers.ask("remove_response", question, bool)

    async def cancel(self, response_id: str) -> None:
        """End a background response, on whichever frontend it runs."""
        question = _question(response_id)
        await self._cancel(question)
        await self._peers.ask("cancel_response", question, bool)

    async def _describe(self, question: str | None) -> dict[str, Any] | None:
        entry = self._asked_for(question)
        if entry is None:
            return None
        history = [] if entry.previous is None else entry.previous.conversation()
        return {"response": entry.response, "input": entry.input, "history": history}

    async def _remove(self, question: str | None) -> bool:
        entry = self._asked_for(question)
        if entry is None:
            return False
        self._store.remove(entry.response["id"])
        if entry.task is not None:
            entry.task.cancel()
        return True

    async def _cancel(self, question: str | None) -> bool:
        entry = self._asked_for(question)
        if entry is None or entry.task is None or entry.task.done():
            return False
        entry.task.cancel()
        await asyncio.wait({entry.task})
        return True

    def _asked_for(self, question: str | None) -> StoredResponse | None:
        response_id, owner = json.loads(question or "")
        return self._store.get(response_id, owner)


def _question(response_id: str) -> str:
    """Return what a frontend asks its peers: the id of a response and the API key that asks."""
    return json.dumps([response_id, current_tenant.get().key])
