"""SentencePiece `tokenizer.model` (Llama 2, Mistral, Gemma), read by `sentencepiece`."""

from __future__ import annotations

import re
from pathlib import Path

import sentencepiece

from .byte_alphabets import metaspace_bytes
from .errors import TokenizerError
from .interface import Tokenizer
from .token_bound import TokenCountBound
from .tokenizer_config import TokenizerConfig

# A serialized ModelProto followed by another is their merge (protobuf); this one says
# `normalizer_spec { add_dummy_prefix: false }`: no space is put before the first word.
_NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
# Numbers of fields, in the ModelProto and in its normalizer_spec.
_NORMALIZER_SPEC, _CHARACTERS_MAP, _REMOVES_BLANKS = 3, 2, 4


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer of `sentencepiece`. The library never parses special tokens; their names are searched for here."""

    def __init__(self, path: Path, config: TokenizerConfig, model: bytes | None = None) -> None:
        """Load the tokenizer.model `path`, or its content `model`; errors name `path`."""
        if model is None:
            model = path.read_bytes()
        self._first = _load(path, model)
        self._continuing = _load(path, model + _NO_DUMMY_PREFIX)
        size = self._first.vocab_size()
        token_bytes: list[bytes | None] = []
        special_ids: dict[str, int] = {}
        for number in range(size):
            piece = self._first.id_to_piece(number)
            if self._first.is_control(number) or self._first.is_unknown(number):
                special_ids[piece] = number
                token_bytes.append(None)
            elif self._first.is_unused(number):
                token_bytes.append(None)
            else:
                token_bytes.append(metaspace_bytes(piece, byte_fallback=self._first.is_byte(number)))
        # Tokens added by fine-tuning, which are in the configuration files only.
        added = {number: entry for number, entry in config.added.items() if number >= size}
        token_bytes += [None] * (1 + max(added, default=size - 1) - size)
        for number, (text, special) in added.items():
            token_bytes[number] = None if special else text.encode()
            if special:
                special_ids[text] = number
        self._named = special_ids | {text: number for number, (text, special) in added.items() if not special}
        super().__init__(
            token_bytes,
            special_ids,
            config,
            bound=self._bound(model),
            default_bos=self._name(self._first.bos_id()),
            default_eos=[name for name in [self._name(self._first.eos_id())] if name is not None],
            adds_bos=True,
        )
        word = next((token for token in range(size) if self._first.id_to_piece(token).startswith("▁")), None)
        self.strips_blank = word is not None and self._first.decode([word]).encode() != token_bytes[word]
        ordinary = [text for text in self._named if text not in special_ids]
        self._any_name = _any_of([*self._named])
        self._ordinary_name = _any_of(ordinary)

    def encode_text(self, text: str, *, parse_special: bool, continues: bool) -> list[int]:
        names = self._any_name if parse_special else self._ordinary_name
        parts = names.split(text) if names is not None else [text]
        ids: list[int] = []
        for n, part in enumerate(parts):
            if n % 2:  # captured by the pattern: a name
                ids.append(self._named[part])
            elif part:
                is_first = not continues and ids in ([], [self.bos_id])
                ids += (self._first if is_first else self._continuing).encode(part)
        return ids

    def encode_end(self, text: str, *, continues: bool) -> list[int]:
        return self.encode(text, continues=True)  # the first word of the longer text is not in it

    def _bound(self, model: bytes) -> TokenCountBound:
        library = self._first
        numbers = range(library.vocab_size())
        normalizer = _fields(_fields(model).get(_NORMALIZER_SPEC, b""))
        # A character map may shrink text; without all byte pieces a run of unknown characters is one token.
        if normalizer.get(_CHARACTERS_MAP) or sum(map(library.is_byte, numbers)) < 256:
            return TokenCountBound(None)
        pieces = [*map(library.id_to_piece, numbers), *self._named]
        return TokenCountBound(
            max(len(piece.encode()) for piece in pieces), strips=normalizer.get(_REMOVES_BLANKS, b"\1") != b"\0"
        )

    def _name(self, number: int) -> str | None:
        return self._first.id_to_piece(number) if number >= 0 else None


def _load(path: Path, model: bytes) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError, OSError) as error:
        raise TokenizerError(f"{path} is not a SentencePiece model: {error}") from None


def _fields(message: bytes) -> dict[int, bytes]:
    """Return the last value of each field of a protobuf message: bytes as they are, a varint as its bytes."""
    fields: dict[int, bytes] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                _, end = _varint(message, at)
            case 1:
                end = at + 8
            case 2:
                length, at = _varint(message, at)
                end = at + length
            case _:
                end = at + 4
        fields[key >> 3] = message[at:end]
        at = end
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _any_of(names: list[str]) -> re.Pattern[str] | None:
    """Make a pattern that splits a text at the longest names."""
    if not names:
        return None
    return re.compile(f"({'|'.join(re.escape(name) for name in sorted(names, key=len, reverse=True))})")
