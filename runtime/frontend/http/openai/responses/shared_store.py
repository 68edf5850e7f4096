"""Stored responses of all frontends: each frontend keeps its own, and asks the others for unknown ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Collection
from typing import Any

from ....core.frontend_peers import FrontendPeers
from ....core.tenant import current_tenant
from .conversations import ConversationStore
from .store import KeptEvents, ResponseStore, StoredResponse

MAX_EVENTS = 256  # in an answer of another frontend
POLL_SECONDS = 0.1  # between questions for the events of a response that runs on another frontend


class SharedResponseStore:
    """The local store, with access to those of the other frontends."""

    def __init__(self, store: ResponseStore, conversations: ConversationStore, peers: FrontendPeers) -> None:
        self._store = store
        self._conversations = conversations
        self._peers = peers
        peers.on("find_response", self._describe)
        peers.on("remove_response", self._remove)
        peers.on("cancel_response", self._cancel)
        peers.on("response_events", self._events_after)
        peers.on("find_items", self._find_items)

    async def find(self, response_id: str) -> StoredResponse | None:
        """Return the response in its current state; a copy when another frontend owns it."""
        owner = current_tenant.get().key
        entry = self._store.get(response_id, owner)
        if entry is not None:
            return entry
        for answer in await self._peers.ask("find_response", _question(response_id), dict):
            history = StoredResponse({"id": "", "output": []}, answer["history"])
            previous = history if answer["history"] else None
            events = KeptEvents() if answer["has_events"] else None  # which the other frontend keeps
            return StoredResponse(answer["response"], answer["input"], previous, owner, events=events)
        return None

    async def items(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the items of those ids, of responses and conversations on any frontend, by id."""
        owner = current_tenant.get().key
        found = self._local_items(ids, owner)
        if missing := [name for name in ids if name not in found]:
            for answer in await self._peers.ask("find_items", json.dumps([missing, owner]), dict):
                found |= answer
        return found

    async def follow(self, response_id: str, number: int) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of a response that is streamed in the background, after event `number`, as they come."""
        entry = self._store.get(response_id, current_tenant.get().key)
        if entry is not None and entry.events is not None:
            async for event in entry.events.follow(number):
                yield event
            return
        while answers := await self._peers.ask("response_events", _question(response_id, number), dict):
            for event in answers[0]["events"]:
                number += 1
                yield event
            if answers[0]["is_last"]:
                return
            if not answers[0]["events"]:
                await asyncio.sleep(POLL_SECONDS)

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
        return {
            "response": entry.response,
            "input": entry.input,
            "history": history,
            "has_events": entry.events is not None,
        }

    async def _events_after(self, question: str | None) -> dict[str, Any] | None:
        entry = self._asked_for(question)
        if entry is None or entry.events is None:
            return None
        events = entry.events.after(json.loads(question or "")[2], MAX_EVENTS)
        return {"events": events, "is_last": entry.events.is_ended and len(events) < MAX_EVENTS}

    async def _find_items(self, question: str | None) -> dict[str, Any]:
        return self._local_items(*json.loads(question or ""))

    def _local_items(self, ids: Collection[str], owner: str | None) -> dict[str, dict[str, Any]]:
        return self._conversations.items(ids, owner) | self._store.items(ids, owner)

    async def _remove(self, question: str | None) -> bool:
        entry = self._asked_for(question)
        if entry is None:
            return False
        self._store.remove(entry.id)
        if entry.task is not None:
            entry.task.cancel()
        return True

    async def _cancel(self, question: str | None) -> bool:
        entry = self._asked_for(question)
        if entry is None or entry.task is None or entry.task.done():
            return False
        entry.task.cancel()
        await asyncio.wait({entry.task})
        if entry.response["status"] == "queued":  # the task had not begun
            entry.response |= {"status": "cancelled"}
        return True

    def _asked_for(self, question: str | None) -> StoredResponse | None:
        response_id, owner, *_ = json.loads(question or "")
        return self._store.get(response_id, owner)


def _question(response_id: str, *further: int) -> str:
    """Return what a frontend asks its peers: the id of a response, the API key that asks, and more."""
    return json.dumps([response_id, current_tenant.get().key, *further])
