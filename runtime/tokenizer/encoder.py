"""Tokenizers of encoders: texts and pairs of texts, with the special tokens that the checkpoint puts around them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .errors import TokenizerError
from .hf import HFTokenizer
from .interface import check_characters
from .tokenizer_config import TokenizerConfig


class EncodedTexts(NamedTuple):
    """Token ids of a text or of a pair, with special tokens, and which text each belongs to: 0 or 1."""

    ids: list[int]
    types: list[int]


class EncoderTokenizer(HFTokenizer):
    """The tokenizer.json of an encoder, whose post-processor knows how texts and pairs are marked."""

    reads_only = True

    def __init__(self, folder: Path, config: TokenizerConfig, name: str) -> None:
        """`name` is the encoder's class. Raises TokenizerError for a file that is missing or marks no texts."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise TokenizerError(
                f"{folder} has no tokenizer.json, which says how {name} marks texts and pairs: save one with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        super().__init__(file, config)
        if self._state.get("post_processor") is None:
            raise TokenizerError(f"{file} has no post_processor, which says how {name} marks texts and pairs")

    def encode_marked(self, first: str, second: str | None = None, *, parse_special: bool) -> EncodedTexts:
        """Return a text, or a pair of texts, with the checkpoint's special tokens.

        `parse_special=False`: names of special tokens in the texts are ordinary text. Raises RequestError when a text
        holds an unpaired surrogate.
        """
        check_characters(first)
        check_characters(second or "")
        library = self._library(parse_special=parse_special, continues=False)
        given = first if second is None else (first, second)
        [encoding] = library.encode_batch_fast([given], add_special_tokens=True)
        return EncodedTexts(encoding.ids, encoding.type_ids)
