"""Judge: the tokenizer on the whole text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.text.encoding import Encoder, PromptSegment
from ramiform.runtime.tokenizer import load_tokenizer
from ramiform.tests.frontend.harness import shipped_tokenizer

TOKENIZER = shipped_tokenizer()
ENCODER = Encoder(TOKENIZER)
NAMES = sorted(TOKENIZER.special_ids)
words = st.text("ab .\né", max_size=8) | st.sampled_from(["Hello", " world", "<|", "|>", "user"])
harmless = st.lists(st.builds(PromptSegment, words, st.booleans()), max_size=6).filter(
    lambda segments: not any(name in "".join(text for text, _ in segments) for name in NAMES)
)
pieces = st.builds(PromptSegment, st.text("ab <|>", max_size=5) | st.sampled_from(NAMES), st.booleans())


def without_bos(ids: list[int]) -> list[int]:
    return ids[1:] if ids[:1] == [TOKENIZER.bos_id] else ids


@pytest.mark.exhaustive
@given(harmless)
def test_the_ids_are_those_of_the_whole_text(segments: list[PromptSegment]) -> None:
    whole = TOKENIZER.encode("".join(text for text, _ in segments), continues=True)
    assert ENCODER.encode(segments, at_start=False) == whole


@given(st.lists(pieces, max_size=6))
def test_untrusted_text_never_makes_a_special_token(segments: list[PromptSegment]) -> None:
    ids = ENCODER.encode(segments, at_start=False)
    special = set(TOKENIZER.special_ids.values())
    # Trusted stretches are what special tokens may come from.
    allowed = 0
    stretch = ""
    for text, trusted in [*segments, PromptSegment("", False)]:
        if trusted:
            stretch += text
        elif text or (text, trusted) == ("", False):
            allowed += sum(token in special for token in TOKENIZER.encode(stretch))
            stretch = ""
    assert sum(token in special for token in ids) <= allowed
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == "".join(text for text, _ in segments)


def test_a_name_that_only_whole_text_spells_is_no_special_token() -> None:
    name = NAMES[0]
    for cut in range(1, len(name)):
        ids = ENCODER.encode([PromptSegment(name[:cut], False), PromptSegment(name[cut:], True)], at_start=False)
        assert TOKENIZER.special_ids[name] not in ids
        assert TOKENIZER.decode(ids) == name


def test_bos_comes_first_and_once() -> None:
    bos = TOKENIZER.bos_id
    assert bos is not None
    name = next(name for name, token in TOKENIZER.special_ids.items() if token == bos)
    expected = [bos] if TOKENIZER.adds_bos else []
    assert ENCODER.encode([PromptSegment("a", True)], at_start=True)[:-1] == expected
    assert ENCODER.encode([PromptSegment(name + "a", True)], at_start=True).count(bos) == 1
    assert ENCODER.encode([], at_start=True) == expected
    assert ENCODER.encode([PromptSegment("a", True)], at_start=False).count(bos) == 0


def test_a_sentencepiece_model_puts_no_space_where_text_goes_on(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world, it is a small world", "hello again"] * 20),
        model_writer=model,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    tokenizer = load_tokenizer(tmp_path)
    encoder = Encoder(tokenizer)
    name = next(iter(tokenizer.special_ids))
    start = encoder.encode([PromptSegment("hello", True)], at_start=True)
    more = encoder.encode(
        [PromptSegment(" world", True), PromptSegment(f" {name}is", False), PromptSegment("small", True)],
        at_start=False,
    )
    assert tokenizer.decode(start + more) == tokenizer.decode(start) + f" world {name}issmall"
