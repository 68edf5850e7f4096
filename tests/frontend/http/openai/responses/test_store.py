"""The response store bounds number, size and age; a conversation is a chain of responses."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.http.openai.responses.store import ResponseStore, StoredResponse


def entry(name: str, previous: StoredResponse | None = None, **response: Any) -> StoredResponse:
    item = {"type": "message", "content": f"{name}?"}
    answer = {"type": "message", "content": f"{name}!"}
    return StoredResponse({"id": name, "output": [answer], **response}, [item], previous)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.integers(1, 5))
def test_the_newest_are_kept(steps: list[tuple[int, bool]], most: int) -> None:
    """Judge: a list searched linearly."""
    store = ResponseStore(max_entries=most)
    kept: list[str] = []
    for number, removes in steps:
        name = str(number)
        if removes:
            assert (store.remove(name) is not None) == (name in kept)
        else:
            store.put(entry(name))
        kept = [other for other in kept if other != name]
        if not removes:
            kept = [*kept, name][-most:]
        assert {str(n) for n in range(10) if store.get(str(n)) is not None} == set(kept)
        assert len(store) == len(kept)


def test_they_are_forgotten_after_a_while() -> None:
    now = 0.0
    store = ResponseStore(seconds=10, clock=lambda: now)
    store.put(entry("a"))
    now = 6.0
    store.put(entry("b"))
    now = 9.9
    assert store.get("a") is not None
    now = 10.0
    assert store.get("a") is None
    assert store.get("b") is not None


def test_long_ones_push_others_out() -> None:
    store = ResponseStore(max_bytes=10_000)
    for number in range(10):
        store.put(entry(str(number), filler="x" * 2000))
    assert 1 <= len(store) < 6
    store.put(entry("huge", filler="x" * 20_000))
    assert len(store) == 0


def test_a_finished_response_is_kept_as_json_and_one_that_runs_as_it_is() -> None:
    store = ResponseStore()
    running, finished = entry("a", status="in_progress"), entry("b", status="completed")
    for each in (running, finished):
        store.put(each)
    assert running.response is running.response
    assert finished.response is not finished.response
    assert finished.response["output"] == entry("b").response["output"]
    finished.response |= {"status": "cancelled"}
    assert finished.response["status"] == "cancelled"


def test_items_are_found_by_id_in_inputs_and_outputs() -> None:
    store = ResponseStore()
    given, made = {"id": 'in"1', "type": "message"}, {"id": "out", "type": "message", "text": "unlike"}
    store.put(StoredResponse({"id": "a", "output": [made]}, [given], owner="one"))
    assert store.items(['in"1', "out", "unlike", "none"], "one") == {'in"1': given, "out": made}
    assert store.items(["out"], "another") == {}


def test_what_a_conversation_keeps_alive_counts_as_long_as_it_does() -> None:
    store = ResponseStore(max_bytes=30_000)
    for number in range(10):
        long = entry(f"long {number}", filler="x" * 20_000)
        store.put(long)
        store.put(entry(f"short {number}", long))
        store.remove(f"long {number}")
        assert len(store) == 1, "the long one before it takes its room still"
    store.remove("short 9")
    for number in range(5):
        store.put(entry(str(number), filler="x" * 2000))
    assert len(store) == 5


def test_a_conversation_outlives_what_is_forgotten() -> None:
    store = ResponseStore(max_entries=1)
    first = entry("a")
    second = entry("b", first)
    third = entry("c", second)
    for each in (first, second, third):
        store.put(each)
    assert store.get("a") is None
    found = store.get("c")
    assert found is not None
    assert [item["content"] for item in found.conversation()] == ["a?", "a!", "b?", "b!", "c?", "c!"]
