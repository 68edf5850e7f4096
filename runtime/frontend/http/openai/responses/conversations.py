"""Conversations: lists of items that responses read and extend. Each is kept by the frontend that created it, which
answers the others' questions for it. Items are kept as JSON, so that their size is known."""

from __future__ import annotations

import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from .....protocol.errors import RequestError
from ....api.validation import NotFoundError
from ....core.frontend_peers import FrontendPeers
from ....core.tenant import current_tenant
from .items import new_item_id
from .output import new_id

MAX_CONVERSATIONS = 4096
MAX_CONVERSATION_BYTES = 64 << 20
ENTRY_BYTES = 1300  # of a conversation without its items
ITEM_BYTES = 200  # of an item without its JSON
KEPT_SECONDS = 3600.0  # since a conversation was used

Item = dict[str, Any]
Action = Literal["read", "update", "delete", "add", "remove"]


@dataclass
class StoredConversation:
    """Items by id, oldest first. Only the API key `owner` may see it."""

    id: str
    owner: str | None
    created_at: int
    metadata: dict[str, str]
    expires: float = 0.0
    _items: dict[str, bytes] = field(default_factory=dict)
    _item_bytes: int = 0

    @property
    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }

    @property
    def num_bytes(self) -> int:
        return ENTRY_BYTES + sum(map(sys.getsizeof, self.metadata.values())) + self._item_bytes

    def items(self) -> list[Item]:
        return [msgspec.json.decode(packed) for packed in self._items.values()]

    def find(self, item_id: str) -> Item | None:
        packed = self._items.get(item_id)
        return None if packed is None else msgspec.json.decode(packed)

    def add(self, items: Collection[Item]) -> list[Item]:
        """Append items and return them; one whose id is taken gets another."""
        added = [item if item["id"] not in self._items else item | {"id": new_item_id(item)} for item in items]
        for item in added:
            packed = self._items[item["id"]] = msgspec.json.encode(item)
            self._item_bytes += sys.getsizeof(packed) + ITEM_BYTES
        return added

    def remove(self, item_id: str) -> Item | None:
        """Remove an item; return None if there is none of that id."""
        if (packed := self._items.pop(item_id, None)) is None:
            return None
        self._item_bytes -= sys.getsizeof(packed) + ITEM_BYTES
        item: Item = msgspec.json.decode(packed)
        return item


class ConversationStore:
    """Bounded store of conversations. Those that were not used for the longest time are evicted first."""

    def __init__(
        self,
        *,
        max_entries: int = MAX_CONVERSATIONS,
        max_bytes: int = MAX_CONVERSATION_BYTES,
        seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[str, StoredConversation] = OrderedDict()  # the last used one last

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: StoredConversation) -> None:
        """Insert or renew an entry; evict others when there is no room."""
        self._entries[entry.id] = entry
        self._entries.move_to_end(entry.id)
        entry.expires = self._clock() + self._seconds
        self._evict()

    def get(self, name: str, owner: str | None) -> StoredConversation | None:
        """Return the conversation of that id if it belongs to `owner`."""
        self._evict()
        entry = self._entries.get(name)
        return entry if entry is not None and entry.owner == owner else None

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def items(self, ids: Collection[str], owner: str | None) -> dict[str, Item]:
        """Return the items of those ids, by id."""
        self._evict()
        mine = [entry for entry in self._entries.values() if entry.owner == owner]
        return {name: item for name in ids for entry in mine if (item := entry.find(name)) is not None}

    def _evict(self) -> None:
        now, num_bytes = self._clock(), sum(entry.num_bytes for entry in self._entries.values())
        while self._entries:
            oldest = next(iter(self._entries.values()))
            is_full = len(self._entries) > self._max_entries or num_bytes > self._max_bytes
            if not is_full and oldest.expires > now:
                return
            num_bytes -= oldest.num_bytes
            self.remove(oldest.id)


class SharedConversations:
    """The conversations of all frontends. Methods raise NotFoundError for one that the API key does not have."""

    def __init__(self, peers: FrontendPeers, store: ConversationStore | None = None) -> None:
        self.store = store or ConversationStore()
        self._peers = peers
        peers.on("conversation", self._answer)

    def create(self, metadata: dict[str, str], items: Collection[Item]) -> dict[str, Any]:
        entry = StoredConversation(new_id("conv"), current_tenant.get().key, int(time.time()), metadata)
        entry.add(items)
        self.store.put(entry)
        return entry.shown

    async def shown(self, name: str) -> dict[str, Any]:
        return dict((await self._ask("read", name))["shown"])

    async def items(self, name: str) -> list[Item]:
        return list((await self._ask("read", name))["items"])

    async def update(self, name: str, metadata: dict[str, str]) -> dict[str, Any]:
        return dict((await self._ask("update", name, metadata))["shown"])

    async def delete(self, name: str) -> None:
        await self._ask("delete", name)

    async def add(self, name: str, items: Collection[Item]) -> list[Item]:
        """Append items; return them as they are kept."""
        return list((await self._ask("add", name, list(items)))["items"])

    async def remove(self, name: str, item_id: str) -> dict[str, Any]:
        """Remove an item. Raises NotFoundError if there is none of that id."""
        found = await self._ask("remove", name, item_id)
        if not found["items"]:
            raise no_item(name, item_id)
        return dict(found["shown"])

    async def _ask(self, action: Action, name: str, value: Any = None) -> dict[str, Any]:
        """Do it here, or on the frontend that has the conversation."""
        question = (action, name, current_tenant.get().key, value)
        if (done := self._do(*question)) is not None:
            return done
        for answer in await self._peers.ask("conversation", json.dumps(question), dict):
            return answer
        message = f"there is no conversation {name!r}: it was deleted, or not used for an hour"
        raise NotFoundError(message, param="conversation", code="not_found")

    async def _answer(self, question: str | None) -> dict[str, Any] | None:
        return self._do(*json.loads(question or ""))

    def _do(self, action: Action, name: str, owner: str | None, value: Any) -> dict[str, Any] | None:
        """Return the conversation and the items that the action is about; None if it is not here."""
        if (entry := self.store.get(name, owner)) is None:
            return None
        items: list[Item] = []
        match action:
            case "read":
                items = entry.items()
            case "update":
                entry.metadata = value
            case "add":
                items = entry.add(value)
            case "remove":
                items = [item for item in [entry.remove(value)] if item is not None]
        if action == "delete":
            self.store.remove(name)
        else:
            self.store.put(entry)
        return {"shown": entry.shown, "items": items}


def no_item(name: str, item_id: str) -> RequestError:
    return NotFoundError(f"conversation {name!r} has no item {item_id!r}", param="item_id", code="not_found")
