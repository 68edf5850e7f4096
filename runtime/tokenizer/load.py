"""Loading a checkpoint's tokenizer, whichever format it has."""

from __future__ import annotations

from pathlib import Path

from ..models.encoders.table import encoder_class
from ..models.gguf.file import is_gguf
from .encoder import EncoderTokenizer
from .errors import TokenizerError
from .gguf import load_gguf_tokenizer
from .hf import HFTokenizer
from .interface import Tokenizer
from .sentencepiece_model import SentencePieceTokenizer
from .tiktoken_ranks import TiktokenTokenizer, looks_like_ranks
from .tokenizer_config import read_tokenizer_config


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of the directory or GGUF file `path`.

    A directory has a tokenizer.json, else a tokenizer.model (SentencePiece or tiktoken ranks); an encoder has the
    first. Raises TokenizerError when there is none, or when a file cannot be read.
    """
    if is_gguf(path):
        return load_gguf_tokenizer(path)
    config = read_tokenizer_config(path)
    if (encoder := encoder_class(path)) is not None:
        return EncoderTokenizer(path, config, encoder)
    if (path / "tokenizer.json").exists():
        return HFTokenizer(path / "tokenizer.json", config)
    model = path / "tokenizer.model"
    try:
        with model.open("rb") as file:
            head = file.read(512)
    except OSError:
        raise TokenizerError(f"{path} has no tokenizer: neither tokenizer.json nor tokenizer.model") from None
    return TiktokenTokenizer(model, config) if looks_like_ranks(head) else SentencePieceTokenizer(model, config)
