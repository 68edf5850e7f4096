"""Replays of a real server's plan log under another eviction."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import ramiform

PROMPT_TOKENS = 200
NUM_PROMPTS = 6
# All together are more than fits. The first comes often, which lfu sees and lru does not.
ORDER = [0, 0, 0, *range(NUM_PROMPTS), *range(NUM_PROMPTS)]


@pytest.mark.exhaustive
def test_the_plan_log_tells_what_an_eviction_has_cost(tmp_path: Path) -> None:
    with (
        ramiform.Runtime(
            port=0, dtype="float32", num_pages=64, log_level="error", log_plans=str(tmp_path / "plans"), eviction="lru"
        ) as started,
        httpx.Client(base_url=started.url or "", timeout=120) as client,
    ):
        assert client.get("/v1/ramiform/about").json()["plan_log"]
        for number in ORDER:
            body = {"input_ids": [300 + number] * PROMPT_TOKENS, "sampling_params": {"max_new_tokens": 2}}
            client.post("/generate", json=body).raise_for_status()
        computed = client.get("/get_server_info").json()
        answer = client.post("/v1/ramiform/what-if", json={"eviction": "lfu"}).raise_for_status().json()
        logged, other = answer["logged"], answer["what_if"]
        assert (logged["eviction"], other["eviction"]) == ("lru", "lfu")
        assert logged["prompt_tokens"] == other["prompt_tokens"] == len(ORDER) * PROMPT_TOKENS
        assert logged["computed"] == computed["num_prompt_tokens"] - computed["num_cached_tokens"]
        # Without evictions each prompt is computed once, and its last token, whose logits are needed, each time.
        least = NUM_PROMPTS * PROMPT_TOKENS + len(ORDER) - NUM_PROMPTS
        assert logged["computed"] - logged["recomputed"] == other["computed"] - other["recomputed"] == least
        assert logged["recomputed"] > other["recomputed"] >= 0
        assert logged["recomputed_share"] == pytest.approx(logged["recomputed"] / logged["prompt_tokens"])
        same = client.post("/v1/ramiform/what-if", json={"eviction": "lru"}).json()
        assert same["logged"] == same["what_if"] == logged
        assert client.post("/v1/ramiform/what-if", json={"eviction": "best"}).status_code == 400


def test_a_server_without_a_plan_log_has_no_such_route(url: str) -> None:
    assert httpx.post(f"{url}/v1/ramiform/what-if", json={"eviction": "lru"}, timeout=60).status_code == 404
