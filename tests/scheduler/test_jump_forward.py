"""Tokens of forced text. Judge: the tokenizer on the whole text, with anything that may follow."""

from __future__ import annotations

import random

import pytest

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.scheduler.jump_forward import Retokeniser
from ramiform.runtime.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(SHIPPED_MODEL)
PIECES = ['{"name": "', "Ada", '", "age": ', "36", "}", "é🦊", "\n  ", "the ", "capital", " of", ' "', "null", ", "]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=False, continues=True)


@pytest.fixture(scope="module")
def retokeniser() -> Retokeniser:
    return Retokeniser(TOKENIZER.token_bytes, encode)


def test_whatever_comes_after_the_ids_are_those_of_the_whole_text(retokeniser: Retokeniser) -> None:
    draw = random.Random(1)
    num_forced = 0
    for _ in range(2000):
        before, forced, after = ("".join(draw.choices(PIECES, k=draw.randint(0, 4))) for _ in range(3))
        whole = encode(before + forced + after)
        seam = encode(before)
        if whole[: len(seam)] != seam:
            continue
        ids = retokeniser(seam, forced.encode())
        assert whole[len(seam) : len(seam) + len(ids)] == ids
        num_forced += len(ids)
    assert num_forced > 5000


def test_nothing_is_appended_where_the_tokenizer_would_join_the_seam(retokeniser: Retokeniser) -> None:
    capital, cap = encode(" capital"), encode(" cap")
    assert capital[: len(cap)] != cap
    assert retokeniser(cap, b'ital": "') == []


def test_half_a_character_is_left_to_the_model(retokeniser: Retokeniser) -> None:
    ids = retokeniser([], b'a": "' + "🦊".encode()[:2])
    assert b"".join(TOKENIZER.token_bytes[token] or b"" for token in ids) in b'a": "'


def test_special_tokens_are_no_text(retokeniser: Retokeniser) -> None:
    special = next(iter(TOKENIZER.special_ids.values()))
    assert retokeniser([special], b'{"name": 1, ') == retokeniser([], b'{"name": 1, ') != []
