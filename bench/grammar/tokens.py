"""The vocabulary that every engine of the grammar bench gets: the same bytes, the same end, the same cuts.

Reads a tekken file (as the `mistral-common` package carries), a SentencePiece model or a Hugging Face tokenizer.json.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tiktoken

from ramiform.runtime.tokenizer.hf import HFTokenizer
from ramiform.runtime.tokenizer.interface import Tokenizer
from ramiform.runtime.tokenizer.sentencepiece_model import SentencePieceTokenizer
from ramiform.runtime.tokenizer.tokenizer_config import TokenizerConfig, read_tokenizer_config

TEKKEN_EOS = 2


@dataclass(frozen=True)
class Tokens:
    """`data[id]` is the bytes of a token, None for a special one. `encode` gives the ids whose bytes are the text."""

    name: str
    data: list[bytes | None]
    eos: int
    encode: Callable[[str], list[int]]


def find_tokenizer(name: str) -> Path:
    """A path, or the name of a file that the `mistral-common` package carries."""
    path = Path(name)
    if path.exists():
        return path
    package = find_spec("mistral_common")
    if package is None or package.origin is None:
        raise FileNotFoundError(f"there is no file {name}, and the package mistral-common is not installed")
    path = Path(package.origin).parent / "data" / name
    if not path.exists():
        raise FileNotFoundError(f"there is no file {name}, neither here nor in {path.parent}")
    return path


def load_tokens(path: Path) -> Tokens:
    """Raises TokenizerError or ValueError when the file is none of the three kinds."""
    if path.suffix == ".json":
        head = path.read_text("utf-8")[:4096]
        return _tekken(path) if '"default_vocab_size"' in head else _library(path, HFTokenizer(path, _facts(path)))
    return _library(path, SentencePieceTokenizer(path, _facts(path)))


def _facts(path: Path) -> TokenizerConfig:
    return read_tokenizer_config(path.parent)


def _library(path: Path, tokenizer: Tokenizer) -> Tokens:
    if not tokenizer.eos_ids:
        raise ValueError(f"{path} names no end of sequence")
    return Tokens(
        path.name,
        tokenizer.token_bytes,
        tokenizer.eos_ids[0],
        lambda text: tokenizer.encode(text, parse_special=False, continues=True),
    )


def _tekken(path: Path) -> Tokens:
    """Return the tokens of a Tekken file: its first ids are special, its last ranks are beyond the model's
    vocabulary."""
    document = json.loads(path.read_text("utf-8"))
    config = document["config"]
    num_special = config["default_num_special_tokens"]
    ranks = [base64.b64decode(entry["token_bytes"]) for entry in document["vocab"]]
    ranks = ranks[: config["default_vocab_size"] - num_special]
    encoding = tiktoken.Encoding(
        path.name,
        pat_str=config["pattern"],
        mergeable_ranks={token: rank for rank, token in enumerate(ranks)},
        special_tokens={},
    )
    return Tokens(
        path.name,
        [None] * num_special + list[bytes | None](ranks),
        TEKKEN_EOS,
        lambda text: [num_special + rank for rank in encoding.encode_ordinary(text)],
    )
