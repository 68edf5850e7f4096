"""Small tokenizers of every kind, trained or written here."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from ramiform.runtime.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.\nIt's 1234 or 5.67!\n",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": None}\n",
    "Größe, naïve café, 東京は日本の首都です。 Привет, мир! 🙂👍🏽 \t tabs\r\n",
    "hello hello world world END of the END. User: hi Assistant: there",
] * 20


def byte_level(folder: Path) -> None:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|bos|>", "<|eos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(TEXTS, trainer)
    library.add_tokens(
        [AddedToken("<tool_call>", special=False, normalized=False), AddedToken("<é>", normalized=False)]
    )
    library.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    library.enable_truncation(8)
    library.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def metaspace(folder: Path) -> None:
    """Write a tokenizer as transformers converts a Llama 2 model."""
    library = Library(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *pieces], show_progress=False, limit_alphabet=60
    )
    library.train_from_iterator([text.replace(" ", "▁") for text in TEXTS], trainer)
    state = json.loads(library.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in pieces]
    (folder / "tokenizer.json").write_text(json.dumps(state))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))


def sentencepiece_of(kind: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS),
            model_writer=model,
            vocab_size=420,
            model_type=kind,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            control_symbols=["[INST]"],
            user_defined_symbols=["<tool_call>"],
            hard_vocab_limit=False,
            character_coverage=0.98,
            minloglevel=2,
        )
        (folder / "tokenizer.model").write_bytes(model.getvalue())
        added = {
            "2": {"content": "</s>", "special": True},
            "900": {"content": "<|im_end|>", "special": True},
            "901": {"content": "<think>", "special": False},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
        (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))

    return write


def ranks(folder: Path) -> None:
    words = [b"the", b"th", b" the", b"he", b"lo", b"llo", b"hello", b" w", b"or", b"ld", b"12", b"123", "é".encode()]
    words += ["東".encode(), "東京".encode(), "🙂".encode()[:3], b"  ", b"\n\n", b"END", b"EN"]
    tokens = [bytes([byte]) for byte in range(256)] + words
    (folder / "tokenizer.model").write_bytes(
        b"".join(base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens))
    )


KINDS: dict[str, Callable[[Path], None]] = {
    "byte_level": byte_level,
    "metaspace": metaspace,
    "sentencepiece_bpe": sentencepiece_of("bpe"),
    "sentencepiece_unigram": sentencepiece_of("unigram"),
    "ranks": ranks,
}


@pytest.fixture(scope="session", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    KINDS[request.param](path)
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)
