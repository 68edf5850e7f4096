"""The store of conversations bounds number, size and age; a key finds its own alone."""

from __future__ import annotations

import pytest

from ramiform.runtime.frontend.http.openai.responses.conversations import ConversationStore, StoredConversation


def conversation(name: str, *texts: str, owner: str | None = None) -> StoredConversation:
    made = StoredConversation(name, owner, 0, {})
    made.add([{"id": f"{name}{number}", "type": "message", "content": text} for number, text in enumerate(texts)])
    return made


@pytest.mark.parametrize(("bounds", "kept"), [({"max_entries": 2}, "ac"), ({"max_bytes": 25_000}, "ac"), ({}, "abc")])
def test_the_last_used_are_kept(bounds: dict[str, int], kept: str) -> None:
    store = ConversationStore(**bounds)  # type: ignore[arg-type]
    for name in "ab":
        store.put(conversation(name, "x" * 10_000))
    store.put(store.get("a", None) or conversation("none"))
    store.put(conversation("c", "x" * 10_000))
    assert [name for name in "abc" if store.get(name, None)] == list(kept)


def test_they_are_forgotten_a_while_after_their_last_use() -> None:
    now = 0.0
    store = ConversationStore(seconds=10, clock=lambda: now)
    store.put(conversation("a"))
    now = 9.0
    store.put(store.get("a", None) or conversation("none"))
    now = 18.9
    assert store.get("a", None)
    now = 19.0
    assert store.get("a", None) is None
    assert len(store) == 0


def test_a_key_finds_its_own() -> None:
    store = ConversationStore()
    store.put(conversation("a", "mine", owner="one"))
    assert store.get("a", "one")
    for other in ("two", None):
        assert store.get("a", other) is None
        assert store.items(["a0"], other) == {}
    assert store.items(["a0", "a1"], "one")["a0"]["content"] == "mine"


def test_ids_stay_different() -> None:
    made = conversation("a", "one")
    [again] = made.add([item for item in made.items() if item["id"] == "a0"])
    assert again["id"] != "a0"
    assert [item["content"] for item in made.items()] == ["one", "one"]
