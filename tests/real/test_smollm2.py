"""SmolLM2-135M-Instruct as it is published, in Q4_1: without its perplexities the minute that CI has."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from . import checks
from .packages import SMOLLM2

MODEL = SMOLLM2
pytestmark = pytest.mark.real


def test_ids_are_those_of_transformers(http: httpx.Client, file: Path) -> None:
    checks.check_ids(http, file)


def test_the_template_is_the_files(http: httpx.Client, file: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    checks.check_template(http, file, messages, text)


@pytest.mark.parametrize(
    ("prompt", "continuation"),
    [("The capital of France is", " Paris"), ("1, 2, 3, 4, 5, 6,", " 7, 8"), ("The opposite of hot is", " cold")],
)
def test_greedy_continuations(http: httpx.Client, prompt: str, continuation: str) -> None:
    assert checks.continued(http, prompt, 8).startswith(continuation)


def test_a_chat_ends_its_turn(http: httpx.Client) -> None:
    choice = checks.chat(http, "What is the capital of Italy? Answer in one word.")
    assert "Rome" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


def test_forced_tool_calls_fit_their_schema(http: httpx.Client) -> None:
    checks.check_tool_calls(http, ["Paris", "Tokyo"])


def test_a_schema_extracts(http: httpx.Client) -> None:
    assert checks.extracted(http) >= 3


def test_warm_prompts_have_the_bits_of_cold_ones(http: httpx.Client, file: Path) -> None:
    checks.check_warm_bits(http, file, checks.PROSE.read_text()[:1500])


def test_perplexities_of_kv_formats(http: httpx.Client, file: Path) -> None:
    ids = checks.ids_of(http, checks.PROSE.read_text())[:300]
    found = checks.losses(file, ids, [("kv_dtype", "int8"), ("kv_dtype", "fp8"), ("kv_dtype", "int4")])
    assert found["int8"] < 0.02
    assert found["fp8"] < 0.02
    assert found["int4"] < 0.05


def test_perplexities_of_weight_formats(http: httpx.Client, file: Path, tmp_path: Path) -> None:
    """Files that are wholly in four bits are not rounded again, a dense copy is."""
    ids = checks.ids_of(http, checks.PROSE.read_text())[:300]
    dense = checks.dense_copy(file, tmp_path)
    found = checks.losses(dense, ids, [("quantize", "int8"), ("quantize", "fp8"), ("quantize", "int4")])
    assert found["int8"] < 0.01
    assert found["fp8"] < 0.01
    assert found["int4"] < 0.3
