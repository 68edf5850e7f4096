"""Agents over HTTP on a small pool: sessions named in headers are kept as programs are, and change no token."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

import ramiform
from ramiform.runtime.frontend.core.sessions import ClientSessions, SessionId, note_headers, requested_session
from ramiform.runtime.frontend.core.tenant import Tenant, current_tenant

NUM_PAGES = 64  # about a third of what all sessions hold
WORDS = "the cat found a mouse in the old house near our river and told its friends".split()


def play(eviction: str, headers: bool) -> tuple[list[str], float]:
    """Interleave sessions; some end early. Returns all answers, and the share of history that was recomputed."""
    texts: list[str] = []
    num_history = num_cached = 0
    draw = random.Random(3)
    with (
        ramiform.Runtime(port=0, dtype="float32", num_pages=NUM_PAGES, eviction=eviction, log_level="error") as runtime,
        httpx.Client(base_url=str(runtime.url), timeout=120) as http,
    ):
        histories: dict[str, list[Any]] = {}
        lengths: dict[str, int] = {}
        for number in range(28):
            name = f"agent {number}" if number % 2 == 0 else draw.choice(sorted(histories))
            messages = histories.setdefault(name, [])
            messages.append({"role": "user", "content": f"{name}: {' '.join(draw.choices(WORDS, k=40))}"})
            response = http.post(
                "/v1/chat/completions",
                json={"messages": messages, "max_tokens": 12, "temperature": 0},
                headers={"x-session-id": name} if headers else {},
            )
            answer = response.json()
            text = answer["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": text})
            texts.append(text)
            usage = answer["usage"]
            num_history += lengths.get(name, 0)
            num_cached += min(lengths.get(name, 0), usage["prompt_tokens_details"]["cached_tokens"])
            lengths[name] = usage["total_tokens"] - 1
            if len(histories) > 5:  # the oldest agent is done
                done = next(iter(histories))
                del histories[done]
                if headers:
                    assert http.post("/close_session", json={"session_id": done}).status_code == 200
    return texts, 1 - num_cached / num_history


@pytest.mark.exhaustive
def test_sessions_in_headers_save_recomputation_on_a_small_pool_and_change_no_token() -> None:
    texts, recomputed = play("lru", headers=False)
    told, saved = play("program", headers=True)
    assert told == texts
    assert saved < recomputed


def test_a_field_precedes_headers_and_these_a_cache_key() -> None:
    assert requested_session(None) is None
    assert requested_session(None, "k", "r") == SessionId("key k", is_shared=True)
    assert requested_session(None, None, "r") == SessionId("chain r")
    note_headers({"x-claude-code-session-id": "c", "x-session-affinity": "a"})
    assert requested_session(None, "k") == SessionId("c")
    assert requested_session("own", "k") == SessionId("own")
    note_headers({})
    assert requested_session(None) is None


def test_a_session_is_a_keys_own_and_the_one_used_least_recently_ends_first() -> None:
    ended: list[str] = []
    sessions = ClientSessions(ended.append, max_per_key=2)
    first, second = sessions.note(SessionId("a")), sessions.note(SessionId("b"))
    assert sessions.note(SessionId("a")) == first
    token = current_tenant.set(Tenant("other"))
    assert sessions.note(SessionId("a")) not in (first, second)
    current_tenant.reset(token)
    assert not ended
    sessions.note(SessionId("c"))
    assert ended == [second]
    assert sessions.close(None, "a")
    assert not sessions.close(None, "a")
    assert ended == [second, first]
