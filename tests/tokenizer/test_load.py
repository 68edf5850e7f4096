"""Loading tokenizers: files, end tokens, BOS, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from ramiform.runtime.tokenizer import TokenizerError, load_tokenizer

from .conftest import KINDS


def corrupt(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda folder: None, "no tokenizer"),
        (corrupt("tokenizer.json", b"{"), "tokenizer.json cannot be read"),
        (corrupt("tokenizer.json", b"[1]"), "not an object"),
        (corrupt("tokenizer.json", b"{}"), "not readable by `tokenizers`"),
        (corrupt("tokenizer.json", b"\xff\xfe"), "cannot be read"),
        (corrupt("tokenizer.model", b"\x0a\x99garbage"), "not a SentencePiece model"),
        (corrupt("tokenizer.model", b""), "not a SentencePiece model"),
        (corrupt("tokenizer.model", b"IQ== 0\nnot base64 1\n"), "line 2"),
        (corrupt("tokenizer.model", b"IQ== 0\nIg== 1\n"), "256 single bytes"),
        (corrupt("tokenizer_config.json", b"nonsense"), "tokenizer_config.json"),
    ],
)
def test_a_missing_or_corrupt_file_is_named(tmp_path: Path, write: Callable[[Path], None], match: str) -> None:
    write(tmp_path)
    with pytest.raises(TokenizerError, match=match) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_vocabulary_with_an_unknown_decoder_is_refused(tmp_path: Path) -> None:
    KINDS["byte_level"](tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(TokenizerError, match="WordPiece"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_bpe", "ranks"])
def test_ends_come_from_generation_config_then_config_then_the_vocabulary(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path)
    assert (
        set(load_tokenizer(tmp_path).eos_ids)
        == {
            "byte_level": {1},
            "sentencepiece_bpe": {2, 900},
            "ranks": {276 + 1, 276 + 8, 276 + 9},
        }[kind]
    )
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert {5, 6} <= set(load_tokenizer(tmp_path).eos_ids)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert 7 in load_tokenizer(tmp_path).eos_ids
    assert 5 not in load_tokenizer(tmp_path).eos_ids


def test_special_tokens_that_end_a_turn_by_name_or_by_template_end_an_output(tmp_path: Path) -> None:
    KINDS["byte_level"](tmp_path)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    first = library.get_vocab_size()
    library.add_special_tokens(["<|im_end|>", "<|eot_id|>", "<|mine|>", "<|start|>", "<|end|>"])
    library.add_tokens(["<end_of_turn>"])  # which is no special token: text may hold it
    library.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).eos_ids == (1, first, first + 1, first + 4)
    template = "{% for m in messages %}<|start|>{{ m.role }}{{ m.content }} <|mine|>{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    assert load_tokenizer(tmp_path).eos_ids == (1, first, first + 1, first + 4, first + 2)
    # An id that the vocabulary lacks leaves those that are found.
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 99_999}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert load_tokenizer(tmp_path).eos_ids == (first, first + 1, first + 4, first + 2)
    # gpt-oss ends messages with <|end|>, and outputs with <|return|>.
    library.add_special_tokens(["<|return|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).eos_ids == (first, first + 1, library.get_vocab_size() - 1)


def test_a_configuration_may_say_that_bos_is_not_added(tmp_path: Path) -> None:
    KINDS["byte_level"](tmp_path)
    assert load_tokenizer(tmp_path).adds_bos
    config = {"bos_token": "<|bos|>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert not load_tokenizer(tmp_path).adds_bos


@pytest.mark.slow
def test_tokenizers_load_without_torch() -> None:
    code = "import sys, ramiform.runtime.tokenizer; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd="/", check=False).returncode == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"added_tokens_decoder": []}, "added_tokens_decoder is no object"),
        ({"eos_token": "\ud800"}, "not valid Unicode"),
        ({"chat_template": [["name", "default"]]}, "a list of objects with name and template"),
    ],
)
def test_a_configuration_of_another_shape_is_refused(config: dict[str, object], message: str, tmp_path: Path) -> None:
    KINDS["byte_level"](tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)
