"""Exact histories with n, grammars, logprobs, speculation and retraction: each answer is that to its prompt's ids."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import ramiform
from ramiform.tests.frontend.harness import shipped_tokenizer

LETTERS = [
    token for token, data in enumerate(shipped_tokenizer().token_bytes) if data in (b"t", b"h", b"e", b"n", b" ")
]


@pytest.mark.exhaustive
def test_answers_to_exact_histories_are_those_to_their_ids(url: str) -> None:
    """Chat on a small pool with speculation; play each prompt's ids by `/generate` on an ample one without it."""
    with (
        ramiform.Runtime(port=0, dtype="float32", num_pages=14, speculative="suffix", log_level="error") as runtime,
        httpx.Client(base_url=str(runtime.url), timeout=120) as chat,
        httpx.Client(base_url=url, timeout=120) as judge,
    ):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Tell me about cats."}]
        before: list[int] = []
        mixes: list[dict[str, Any]] = [{"n": 4}, {"regex": "[the n]{20,30}"}, {"logprobs": True}, {"n": 3}]
        for mix in mixes:
            rules = {"allowed_token_ids": LETTERS} if "regex" not in mix else {}
            body = {"messages": messages, "max_tokens": 32, "temperature": 0, "return_token_ids": True} | rules | mix
            answer = chat.post("/v1/chat/completions", json=body).json()
            prompt = answer["prompt_token_ids"]
            sampling: dict[str, Any] = {"max_new_tokens": 32, "temperature": 0} | rules
            sampling |= {"regex": mix["regex"]} if "regex" in mix else {}
            asked = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
            expected = judge.post("/generate", json=asked).json()
            for choice in answer["choices"]:
                assert choice["token_ids"] == expected["output_ids"]
            if mix.get("logprobs"):
                values = [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]
                wanted = [entry[0] for entry in expected["meta_info"]["output_token_logprobs"]]
                assert values == pytest.approx(wanted[: len(values)], abs=1e-4)
            usage = answer["usage"]
            if len(messages) > 1:
                assert usage["prompt_tokens_details"]["remembered_tokens"] > 0
                assert before == prompt[: len(before)]
            text = answer["choices"][0]["message"]["content"]
            before = [*prompt, *answer["choices"][0]["token_ids"]]
            before = before[:-1] if before[-1] in shipped_tokenizer().eos_ids else before
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
