"""Gemma 3 270M as it is published, in Q4_K_M: windows of two ropes, a SentencePiece vocabulary of 262,144 tokens."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from . import checks
from .packages import GEMMA3

MODEL = GEMMA3
pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def test_ids_are_those_of_transformers(http: httpx.Client, file: Path) -> None:
    checks.check_ids(http, file)


@pytest.mark.parametrize(
    ("prompt", "continuation"),
    [
        ("1, 2, 3, 4, 5, 6,", " 7, 8, 9, 10, 11, 12"),
        ("def add(a, b):\n    return", " a + b\n\ndef sub(a, b):\n    return a - b\n\ndef"),
        ("The opposite of hot is", " cold.\n\nThe opposite of cold is hot.\n\nThe opposite"),
    ],
)
def test_greedy_continuations_are_those_of_llama_cpp(http: httpx.Client, prompt: str, continuation: str) -> None:
    """Texts end where llama.cpp's first token is no longer well ahead of its second."""
    assert checks.continued(http, prompt, 20).startswith(continuation)


def test_a_grammar_is_kept(http: httpx.Client) -> None:
    body = {"model": "default", "prompt": "My age is", "max_tokens": 8, "temperature": 0, "guided_regex": "[0-9]{2}"}
    text = http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
    assert text.isdigit()
    assert len(text) == 2


def test_warm_prompts_have_the_bits_of_cold_ones(http: httpx.Client, file: Path) -> None:
    checks.check_warm_bits(http, file, checks.PROSE.read_text()[:1500])
