"""Whatever happens around them, requests with LoRA adapters get what merged weights give.

Judge: transformers, greedy, on the model that ships with each adapter merged into its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

from .lora_files import merged, write_adapter

torch.set_num_threads(1)  # threads that wait for each other on a busy machine cost more than this model

NAMES = ("sql", "chat", "law", "poem")
PROMPTS = (
    "Question: What is the capital of France?\nAnswer:",
    "Question: What is the capital of Italy?\nAnswer: It is a city on a river. Ada says that",
)
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    settings: list[dict[str, Any]] = [
        {"rank": 8},
        {"rank": 4, "targets": ["q_proj", "v_proj"], "use_rslora": True},
        {"rank": 16, "alpha_pattern": {"down_proj": 16}},
        {"rank": 3, "targets": ["gate_proj", "up_proj", "down_proj"]},
    ]
    return {
        name: write_adapter(folder / name, SHIPPED_MODEL, seed=seed, **own)
        for seed, (name, own) in enumerate(zip(NAMES, settings, strict=True))
    }


@pytest.fixture(scope="module")
def expected(adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[int]]:
    """The greedy tokens of each adapter, and of the base (""), after each prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    folder, found = tmp_path_factory.mktemp("merged"), {}
    for name in ("", *NAMES):
        path = SHIPPED_MODEL if not name else merged(folder / name, SHIPPED_MODEL, adapters[name])
        judge = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for prompt in PROMPTS:
            ids, cache = tokenizer(prompt, return_tensors="pt").input_ids, None
            found[name, prompt] = []
            for _ in range(NUM_TOKENS):
                with torch.inference_mode():
                    output = judge(ids, past_key_values=cache, use_cache=True)
                ids, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
                found[name, prompt].append(int(ids))
    return found


def start(adapters: dict[str, Path], **settings: Any) -> ramiform.Runtime:
    return ramiform.Runtime(
        port=0,
        dtype="float32",
        log_level="error",
        lora=[f"{name}={path}" for name, path in adapters.items()],
        **{"num_pages": 512, "speculative": "off"} | settings,
    )


@pytest.fixture(scope="module")
def served(adapters: dict[str, Path]) -> Iterator[ramiform.Runtime]:
    with start(adapters) as runtime:
        yield runtime


def generate(url: str, name: str, prompt: str) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {"text": prompt, "sampling_params": params, "lora_path": name or None}
    answer = httpx.post(f"{url}/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def check_all(runtime: ramiform.Runtime, expected: dict[tuple[str, str], list[int]]) -> list[dict[str, Any]]:
    """Ask for everything at once; return the answers."""
    assert runtime.url is not None
    keys = [*expected, *expected]
    with ThreadPoolExecutor(len(keys)) as pool:
        answers = list(pool.map(lambda key: generate(runtime.url or "", *key), keys))
    for key, answer in zip(keys, answers, strict=True):
        assert answer["output_ids"] == expected[key], key
    return answers


def test_adapters_and_the_base_in_shared_steps_give_the_tokens_of_merged_weights(
    served: ramiform.Runtime, expected: dict[tuple[str, str], list[int]]
) -> None:
    check_all(served, expected)
    warm = check_all(served, expected)
    assert min(answer["meta_info"]["cached_tokens"] for answer in warm) > 5
