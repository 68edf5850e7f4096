"""The lower bound on a text's tokens. Judges: the tokenizer itself, and the standard library's Unicode tables."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramiform.runtime.tokenizer import Tokenizer, load_tokenizer
from ramiform.runtime.tokenizer.token_bound import MAX_NORMALISATION_SHRINK, WHITESPACE

from .conftest import KINDS

words = st.sampled_from(
    ["the", " ", "  \n", "hello", "東京", "🙂", "<|eos|>", "</s>", "<tool_call>", "e\u0301", "\u212a"]
)
texts = st.lists(words | st.text(max_size=6), max_size=30).map("".join)
Change = Callable[[dict[str, Any]], None]


def normalised(step: dict[str, Any]) -> Change:
    return lambda state: state.update(normalizer=step)


def split_by(step: dict[str, Any]) -> Change:
    def change(state: dict[str, Any]) -> None:
        state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [step, state["pre_tokenizer"]]}

    return change


def taking_blanks(state: dict[str, Any]) -> None:
    for token in state["added_tokens"]:
        token["rstrip"] = True


def without_a_byte(state: dict[str, Any]) -> None:
    vocabulary = state["model"]["vocab"]
    vocabulary["unusual"] = vocabulary.pop("Ń")


# How a byte-level tokenizer is changed, and whether a bound is known then.
CHANGES: dict[str, tuple[Change, bool]] = {
    "NFC": (normalised({"type": "NFC"}), True),
    "NFD": (normalised({"type": "NFD"}), True),
    "NFKC": (normalised({"type": "NFKC"}), False),
    "lower case": (normalised({"type": "Lowercase"}), False),
    "strip": (normalised({"type": "Strip", "strip_left": True, "strip_right": True}), True),
    "replace": (normalised({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}), False),
    "blanks dropped": (split_by({"type": "WhitespaceSplit"}), True),
    "text dropped": (
        split_by({"type": "Split", "pattern": {"String": "e"}, "behavior": "Removed", "invert": False}),
        False,
    ),
    "tokens that take blanks": (taking_blanks, True),
    "a byte is missing": (without_a_byte, False),
}


def changed(folder: Path, change: Change) -> Tokenizer:
    KINDS["byte_level"](folder)
    state = json.loads((folder / "tokenizer.json").read_text())
    change(state)
    (folder / "tokenizer.json").write_text(json.dumps(state))
    return load_tokenizer(folder)


def check(tokenizer: Tokenizer, text: str) -> None:
    try:
        ids = tokenizer.encode(text)
    except ValueError:  # half a surrogate pair
        return
    assert tokenizer.bound.least_tokens([text]) <= len(ids)
    middle = len(text) // 2
    assert tokenizer.bound.least_tokens([text[:middle], text[middle:]]) <= len(ids)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts)
def test_no_text_has_fewer_tokens_than_the_bound(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.bound.num_bytes is not None
    check(tokenizer, text)


def test_the_longest_tokens_and_names_of_a_vocabulary_are_within_the_bound(tokenizer: Tokenizer) -> None:
    for data in tokenizer.token_bytes:
        check(tokenizer, (data or b"").decode("utf-8", "ignore") * 50)
    for name in tokenizer.special_ids:
        check(tokenizer, name * 50)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_normalisation_that_shrinks_text_is_allowed_for(name: str, tmp_path: Path) -> None:
    change, is_known = CHANGES[name]
    tokenizer = changed(tmp_path, change)
    assert (tokenizer.bound.num_bytes is not None) == is_known

    @given(texts)
    def no_text_has_fewer(text: str) -> None:
        check(tokenizer, text)

    no_text_has_fewer()
    for text in (" " * 500, "<|eos|>" + " " * 500, "e\u0301" * 500, "\u212a" * 500, "Å" * 500, "e" * 500):
        check(tokenizer, text)


def test_a_sentencepiece_model_that_maps_characters_has_no_bound(tmp_path: Path) -> None:
    import io

    import sentencepiece

    for rule, is_known in (("nmt_nfkc", False), ("identity", True)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["hello world, it is a small world", "hello again"] * 20),
            model_writer=model,
            vocab_size=300,
            model_type="bpe",
            byte_fallback=True,
            normalization_rule_name=rule,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
        tokenizer = load_tokenizer(tmp_path)
        assert (tokenizer.bound.num_bytes is not None) == is_known
        for text in (" " * 500, "hello" + " " * 500 + "world", "ﬁ" * 200, "①" * 200, "hello " * 50):
            check(tokenizer, text)


@pytest.mark.slow
def test_normal_forms_shrink_no_text_by_more_than_is_allowed_for() -> None:
    size = [len(chr(point).encode("utf-8", "surrogatepass")) for point in range(sys.maxunicode + 1)]
    decomposed = [unicodedata.normalize("NFD", chr(point)) for point in range(sys.maxunicode + 1)]
    num_bytes = [len(text.encode("utf-8", "surrogatepass")) for text in decomposed]
    shrinks = max(before / after for before, after in zip(size, num_bytes, strict=True))
    composed = max(
        after / before
        for point, (before, after) in enumerate(zip(size, num_bytes, strict=True))
        if unicodedata.is_normalized("NFC", chr(point))
    )
    assert shrinks * composed <= MAX_NORMALISATION_SHRINK


def test_whitespace_is_complete() -> None:
    assert {chr(point) for point in range(sys.maxunicode + 1) if chr(point).isspace()} == set(WHITESPACE)
