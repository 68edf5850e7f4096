"""Tokenizers in GGUF files. Judges: the original tokenizers in `tokenizers` and `sentencepiece`."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import gguf
import pytest
import sentencepiece
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ramiform.runtime.tokenizer.errors import TokenizerError
from ramiform.runtime.tokenizer.gguf import load_gguf_tokenizer
from ramiform.runtime.tokenizer.interface import Tokenizer as Ours
from ramiform.runtime.tokenizer.load import load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?",
    "def f(x):\n    return x ** 2  # \tsquared\r\n\r\n",
    "Größe, naïve, 東京都, Привет мир — “quotes” … 😀👍🏽",
] * 20
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}{% endfor %}"
# What tiktoken and the models' cards say of how text is cut.
PATTERNS = {
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    ),
}
SPECIAL = ["<|begin|>", "<|end|>"]


def trained_bpe(pre: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if pre in PATTERNS:
        cut = pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def written(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bpe_file(path: Path, tokenizer: Tokenizer, pre: str) -> Path:
    state = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in SPECIAL else 1 for piece in pieces])
    writer.add_token_merges([" ".join(merge) for merge in state["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    written(writer)
    return path


@pytest.fixture(scope="module", params=["gpt-2", "llama-bpe", "qwen2"])
def bpe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Ours]:
    theirs = trained_bpe(request.param)
    path = bpe_file(tmp_path_factory.mktemp("gguf") / "model.gguf", theirs, request.param)
    return theirs, load_tokenizer(path)


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=40), st.sampled_from(CORPUS)))
def test_byte_level_bpe_encodes_as_it_was_trained(bpe: tuple[Tokenizer, Ours], text: str) -> None:
    theirs, ours = bpe
    assume(unicodedata.is_normalized("NFC", text))  # Qwen's tokenizers compose characters first
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) == ids
    assert ours.decode(ids) == theirs.decode(ids)


def test_a_merge_that_begins_as_a_comment_of_merges_txt_is_kept(tmp_path: Path) -> None:
    word = "#versions"
    merges = [(word[:end], word[end]) for end in range(1, len(word))]
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    theirs = Tokenizer(models.BPE({text: number for number, text in enumerate(words)}, merges))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    theirs.decoder = decoders.ByteLevel()
    ours = load_tokenizer(bpe_file(tmp_path / "model.gguf", theirs, "gpt-2"))
    assert ours.encode(f"{word} a") == theirs.encode(f"{word} a").ids
    assert len(ours.encode("versions")) == 8


def test_the_metadata_say_which_tokens_are_special_and_how_a_chat_is_written(bpe: tuple[Tokenizer, Ours]) -> None:
    _, ours = bpe
    assert (ours.bos_id, ours.eos_ids, ours.adds_bos) == (0, (1,), True)
    assert ours.special_ids == {"<|begin|>": 0, "<|end|>": 1}
    assert ours.encode("a<|end|>")[-1] == 1
    assert 1 not in ours.encode("a<|end|>", parse_special=False)
    assert ours.chat is not None
    assert ours.chat.render([{"role": "user", "content": "Hi"}]) == "<|user|>Hi<|end|>"


@pytest.fixture(scope="module", params=[True, False], ids=["first space", "no first space"])
def pieces(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[sentencepiece.SentencePieceProcessor, Ours]:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=trained,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=request.param,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    numbers = range(theirs.vocab_size())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([theirs.id_to_piece(n) for n in numbers])
    writer.add_token_scores([theirs.get_score(n) for n in numbers])
    writer.add_token_types(
        [2 if theirs.is_unknown(n) else 3 if theirs.is_control(n) else 6 if theirs.is_byte(n) else 1 for n in numbers]
    )
    writer.add_bos_token_id(theirs.bos_id())
    writer.add_eos_token_id(theirs.eos_id())
    writer.add_unk_token_id(theirs.unk_id())
    writer.add_add_space_prefix(request.param)
    written(writer)
    return theirs, load_tokenizer(path)


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=40), st.sampled_from(CORPUS)))
def test_sentencepiece_encodes_as_it_was_trained(
    pieces: tuple[sentencepiece.SentencePieceProcessor, Ours], text: str
) -> None:
    theirs, ours = pieces
    assert ours.encode(text, parse_special=False) == theirs.encode(text)
    assert ours.bos_id == theirs.bos_id()
    assert ours.eos_ids == (theirs.eos_id(),)


@pytest.mark.parametrize(
    ("model", "pre", "message"),
    [
        ("bert", "default", r"tokenizer\.ggml\.model: supported: gpt2, llama; 'bert' is not supported"),
        ("gpt2", "kimi-k2", r"tokenizer\.ggml\.pre: supported: .*'kimi-k2' is not supported"),
    ],
)
def test_another_kind_of_tokenizer_is_refused_by_its_key(model: str, pre: str, message: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b"])
    writer.add_token_merges(["a b"])
    written(writer)
    with pytest.raises(TokenizerError, match=message):
        load_gguf_tokenizer(tmp_path / "model.gguf")


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(1)
    written(writer)
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.tokens is missing: the file has no tokenizer"):
        load_gguf_tokenizer(tmp_path / "model.gguf")
