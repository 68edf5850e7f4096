"""Qwen2.5-Coder-0.5B-Instruct as it is published, in Q4_K_M: an untied head, biases of keys up to 220."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from . import checks
from .packages import QWEN_CODER

MODEL = QWEN_CODER
pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def test_ids_are_those_of_transformers(http: httpx.Client, file: Path) -> None:
    checks.check_ids(http, file)


def test_the_template_is_the_files(http: httpx.Client, file: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    checks.check_template(http, file, messages, text)


_STACK = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"


@pytest.mark.parametrize(
    ("prompt", "continuation"),
    [
        ("def add(a, b):\n    return", " a + b\n\ndef subtract(a, b):\n    return a - b\n\n"),
        (
            _STACK,
            "        self.items.append(item)\n\n    def pop(self):\n        if not self.is_empty():\n"
            "            return self.items.pop()\n",
        ),
        (
            "def factorial(n):\n    if n == 0:\n",
            "        return 1\n    else:\n        return n * factorial(n - 1)\n\n",
        ),
        ("The capital of France is", " Paris"),
        ("import numpy as", " np"),
    ],
)
def test_greedy_continuations_are_those_of_llama_cpp(http: httpx.Client, prompt: str, continuation: str) -> None:
    """Texts end where llama.cpp's first token is no longer well ahead of its second."""
    assert checks.continued(http, prompt, 24).startswith(continuation)


def test_forced_tool_calls_fit_their_schema(http: httpx.Client) -> None:
    checks.check_tool_calls(http, ["Paris", "Tokyo", "Lima"])


def test_a_schema_extracts(http: httpx.Client) -> None:
    assert checks.extracted(http) >= 3


def test_warm_prompts_have_the_bits_of_cold_ones(http: httpx.Client, file: Path) -> None:
    checks.check_warm_bits(http, file, checks.PROSE.read_text()[:1500])


def test_perplexities_of_kv_formats(http: httpx.Client, file: Path) -> None:
    """The model whose keys are the hardest to round."""
    ids = checks.ids_of(http, checks.PROSE.read_text())[:500]
    found = checks.losses(file, ids, [("kv_dtype", "int8"), ("kv_dtype", "fp8"), ("kv_dtype", "int4")])
    assert found["int8"] < 0.01
    assert found["fp8"] < 0.015
    assert found["int4"] < 0.04
