"""Encoding and decoding with every kind of vocabulary: the bytes of a text's tokens are the bytes of the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

import ramiform
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.tokenizer import Tokenizer, load_tokenizer
from ramiform.runtime.tokenizer.tiktoken_ranks import PATTERN, read_ranks

from .conftest import metaspace

SHIPPED = Path(ramiform.__file__).parent / "runtime" / "shipped_model"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
# Names of special tokens and of added ones, whole and broken, among ordinary text.
NAMED_TEXT = st.lists(
    ANY_TEXT | st.sampled_from(["<s>", "</s>", "<|bos|>", "[INST]", "<tool_call>", "<|im_end|>", "<0x41>", "▁", "  "])
).map("".join)


def bytes_of(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(tokenizer.token_bytes[token] or b"" for token in ids)


def metaspaces_are_spaces(tokenizer: Tokenizer, text: str) -> str:
    """Replace SentencePiece's space mark, which it cannot tell from a space."""
    return text.replace("▁", " ") if bytes_of(tokenizer, tokenizer.encode("▁", continues=True)) == b" " else text


@pytest.mark.slow
@given(text=NAMED_TEXT)
def test_plain_text_keeps_its_bytes_and_never_becomes_a_special_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, parse_special=False, continues=True)
    assert bytes_of(tokenizer, ids) == metaspaces_are_spaces(tokenizer, text).encode()
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert tokenizer.decode(ids) == metaspaces_are_spaces(tokenizer, text)


@pytest.mark.slow
@given(text=NAMED_TEXT)
def test_text_with_special_tokens_comes_back_when_they_are_shown(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, continues=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == metaspaces_are_spaces(tokenizer, text)


@given(text=ANY_TEXT)
def test_the_first_word_of_a_sequence_gets_at_most_a_space(tokenizer: Tokenizer, text: str) -> None:
    shown = tokenizer.decode(tokenizer.encode(text, parse_special=False))
    assert shown in {metaspaces_are_spaces(tokenizer, t) for t in (text, " " + text)}


def test_a_special_token_is_one_id_when_asked_for_and_shown_only_when_asked_for(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.special_ids) >= 2
    for name, token in tokenizer.special_ids.items():
        assert tokenizer.token_bytes[token] is None
        assert tokenizer.encode(f"a{name}b", continues=True).count(token) == 1
        assert tokenizer.decode([token]) == ""
        assert tokenizer.decode([token], skip_special_tokens=False) == name


def test_added_tokens_that_are_not_special_have_bytes(tokenizer: Tokenizer) -> None:
    for name in ("<tool_call>", "<think>", "<é>"):
        ids = tokenizer.encode(name, continues=True)
        assert tokenizer.decode(ids) == name
        assert name not in tokenizer.special_ids
        if name.encode() in tokenizer.token_bytes:
            assert ids == [tokenizer.token_bytes.index(name.encode())]


@pytest.mark.parametrize("name", ["<tool>", "two words", " <blank>"])
@pytest.mark.parametrize("normalized", [True, False])
def test_an_added_token_has_the_bytes_that_the_library_writes(name: str, normalized: bool, tmp_path: Path) -> None:
    """A normalised one, AddedToken's default, stands for a blank too where the normaliser puts one before it."""
    metaspace(tmp_path)
    file = tmp_path / "tokenizer.json"
    library = Library.from_file(str(file))
    library.add_tokens([AddedToken(name, normalized=normalized, special=False)])
    library.save(str(file))
    tokenizer, token = load_tokenizer(tmp_path), library.get_vocab_size() - 1
    for ids in (library.encode(f"say {name} or{name}.").ids, [token, *library.encode("a").ids, token, token]):
        assert tokenizer.decode_sequence(ids) == library.decode(ids)
    assert token in library.encode(f"say {name.strip()} now {name}").ids or normalized


def test_bos_is_added_only_when_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.adds_bos
    assert tokenizer.bos_id is not None
    assert tokenizer.encode("hello", add_bos=True) == [tokenizer.bos_id, *tokenizer.encode("hello")]
    assert tokenizer.encode("", add_bos=True) == [tokenizer.bos_id]


def test_an_unpaired_surrogate_is_the_clients_mistake(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate") as caught:
        tokenizer.encode("ab\ud83d")
    assert caught.value.param == "text"


def test_unused_ids_show_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size + 5, -1]) == ""
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size


@pytest.mark.slow
@given(text=ANY_TEXT)
def test_ids_equal_those_of_the_library(folder: Path, tokenizer: Tokenizer, text: str) -> None:
    plain = tokenizer.encode(text, parse_special=False)
    if (folder / "tokenizer.json").exists():
        library = Library.from_file(str(folder / "tokenizer.json"))
        library.no_truncation()
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode_sequence(plain) == library.decode(plain)
    elif (folder / "config.json").exists():
        library = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        if "<think>" not in text:  # which only the configuration knows
            assert plain == library.encode(text)
            assert library.decode(plain) == tokenizer.decode_sequence(plain)
    else:
        library = tiktoken.Encoding(
            "judge", pat_str=PATTERN, mergeable_ranks=read_ranks(folder / "tokenizer.model"), special_tokens={}
        )
        assert plain == library.encode_ordinary(text)


@pytest.mark.slow
@given(ids=st.lists(st.integers(0, 2047), max_size=12))
def test_the_shipped_tokenizer_decodes_any_ids_as_its_library_does(ids: list[int]) -> None:
    library = Library.from_file(str(SHIPPED / "tokenizer.json"))
    assert SHIPPED_TOKENIZER.decode(ids) == library.decode(ids)
    assert SHIPPED_TOKENIZER.decode(ids, skip_special_tokens=False) == library.decode(ids, skip_special_tokens=False)


SHIPPED_TOKENIZER = load_tokenizer(SHIPPED)


def test_the_shipped_tokenizer_ends_where_its_configuration_says() -> None:
    configured = json.loads((SHIPPED / "generation_config.json").read_text())["eos_token_id"]
    assert set(configured) <= set(SHIPPED_TOKENIZER.eos_ids)
    assert SHIPPED_TOKENIZER.chat is not None
