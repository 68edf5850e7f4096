"""Hugging Face `tokenizer.json`, read by `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from .byte_alphabets import BYTE_ALPHABET, METASPACE, byte_level_bytes, metaspace_bytes
from .errors import TokenizerError
from .interface import Tokenizer
from .token_bound import MAX_NORMALISATION_SHRINK, TokenCountBound
from .tokenizer_config import TokenizerConfig, read_json


class HFTokenizer(Tokenizer):
    """A tokenizer of `tokenizers`.

    It keeps one library tokenizer per way of encoding, made on first use: other threads would see a setting that is
    switched back and forth.
    """

    reads_only = False  # text is made of ids only to show it

    def __init__(self, path: Path, config: TokenizerConfig, state: dict[str, Any] | None = None) -> None:
        """Load the tokenizer.json `path`, or its content `state`; errors name `path`."""
        self._path = path
        self._state = read_json(path) if state is None else state
        self._has_first_space = _text_steps_without_space(self._state) != _text_steps(self._state)
        self._libraries: dict[tuple[bool, bool], tokenizers.Tokenizer] = {}
        library = self._library(parse_special=True, continues=False)
        vocabulary = library.get_vocab(with_added_tokens=True)
        added = {number: (token.content, token.special) for number, token in library.get_added_tokens_decoder().items()}
        ends = {vocabulary.get(config.names.get(name, "")) for name in ("bos_token", "eos_token")}
        special_ids = {
            piece: number
            for piece, number in vocabulary.items()
            if number in ends or (number in added and added[number][1])
        }
        to_bytes = _piece_decoder(path, self._state, reads_only=self.reads_only)
        unknown = self._state.get("model", {}).get("unk_token")
        # Ids are rows of the model's embedding; some may be unused.
        token_bytes: list[bytes | None] = [None] * (1 + max(vocabulary.values(), default=-1))
        for piece, number in vocabulary.items():
            if piece not in special_ids and piece != unknown:
                # The library keeps an added token that is normalised in that form, often with a blank before it.
                stored = library.id_to_token(number) if number in added else piece
                is_plain = number in added and stored == added[number][0]
                token_bytes[number] = stored.encode() if is_plain else to_bytes(stored)
        super().__init__(token_bytes, special_ids, config, bound=_token_bound(self._state, library))
        word = next((token for token, data in enumerate(token_bytes) if data is not None and data[:1] == b" "), None)
        self.strips_blank = word is not None and library.decode([word]).encode() != token_bytes[word]
        if config.adds_bos is None:
            self.adds_bos = self.bos_id is not None and library.encode("a").ids[:1] == [self.bos_id]

    def encode_text(self, text: str, *, parse_special: bool, continues: bool) -> list[int]:
        library = self._library(parse_special=parse_special, continues=continues and self._has_first_space)
        # Unlike the single call, the batch call releases the GIL.
        [encoding] = library.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _library(self, *, parse_special: bool, continues: bool) -> tokenizers.Tokenizer:
        key = parse_special, continues
        if key not in self._libraries:
            state = self._state | (_text_steps_without_space(self._state) if continues else {})
            try:
                library = tokenizers.Tokenizer.from_str(msgspec.json.encode(state).decode())
            except Exception as error:  # the library raises bare Exception
                raise TokenizerError(f"{self._path} is not readable by `tokenizers`: {error}") from None
            library.no_truncation()
            library.no_padding()
            library.encode_special_tokens = not parse_special
            self._libraries[key] = library
        return self._libraries[key]


def _text_steps(state: dict[str, Any]) -> dict[str, Any]:
    return {part: state.get(part) for part in ("normalizer", "pre_tokenizer")}


def _text_steps_without_space(state: dict[str, Any]) -> dict[str, Any]:
    """Return the normaliser and pre-tokeniser without the step that puts a space before the first word."""
    return {part: _without_first_space(step) for part, step in _text_steps(state).items()}


def _without_first_space(step: dict[str, Any] | None) -> dict[str, Any] | None:
    if step is None:
        return None
    match step:
        case {"type": "Sequence"}:
            name = "normalizers" if "normalizers" in step else "pretokenizers"
            kept = [new for inner in step[name] if (new := _without_first_space(inner)) is not None]
            return step | {name: kept}
        case {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            return {key: value for key, value in step.items() if key != "add_prefix_space"} | {
                "prepend_scheme": "never"
            }
        case {"type": "ByteLevel"}:
            return step | {"add_prefix_space": False}
        case _:
            return step


def _flatten_decoders(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for inner in decoder["decoders"]:
            yield from _flatten_decoders(inner)
    else:
        yield decoder


def _piece_decoder(path: Path, state: dict[str, Any], *, reads_only: bool) -> Callable[[str], bytes]:
    """Return the function from a vocabulary's pieces to bytes, as its decoder describes it.

    The pieces of `reads_only` need not add up to the text: a WordPiece vocabulary keeps no blanks and no capitals.
    """
    steps = {step.get("type"): step for step in _flatten_decoders(state.get("decoder"))}
    if "ByteLevel" in steps:
        return byte_level_bytes
    byte_fallback = "ByteFallback" in steps
    match steps:
        case {"Metaspace": {"replacement": str(space)}}:
            return partial(metaspace_bytes, space=space, byte_fallback=byte_fallback)
        case {"Replace": {"pattern": {"String": str(space)}, "content": " "}}:
            return partial(metaspace_bytes, space=space, byte_fallback=byte_fallback)
        case {"ByteFallback": _}:
            return partial(metaspace_bytes, space=METASPACE)
        case {"WordPiece": {"prefix": str(prefix)}} if reads_only:
            return lambda piece: (piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}").encode()
    raise TokenizerError(
        f"{path}: a vocabulary decoded by {sorted(map(str, steps)) or 'nothing'} is not supported; "
        "ByteLevel, Metaspace and ByteFallback are"
    )


# Pre-processing steps that keep all text, and those that drop only whitespace.
_KEEPING_STEPS = {"ByteLevel", "Digits", "Metaspace", "Prepend", "Punctuation", "Split", "UnicodeScripts"}
_STRIPPING_STEPS = {"Strip", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"}


def _token_bound(state: dict[str, Any], library: tokenizers.Tokenizer) -> TokenCountBound:
    """Compute the bound; unlimited when a step may shrink text in an unknown way."""
    shrinks, strips = 1, False
    steps = [*_flatten_steps(state.get("normalizer")), *_flatten_steps(state.get("pre_tokenizer"))]
    for step in steps:
        match step:
            case {"type": "NFC" | "NFD"}:
                shrinks *= MAX_NORMALISATION_SHRINK
            case {"type": "Replace", "pattern": {"String": str(text)}, "content": "▁"} if len(text.encode()) <= 3:
                pass
            case {"behavior": "Removed"}:
                return TokenCountBound(None)
            case {"type": str(kind)} if kind in _STRIPPING_STEPS:
                strips = True
            case {"type": str(kind)} if kind in _KEEPING_STEPS:
                pass
            case _:
                return TokenCountBound(None)
    model = state.get("model", {})
    by_bytes = any(step.get("type") == "ByteLevel" for step in steps)
    alphabet = set(BYTE_ALPHABET) if by_bytes else {f"<0x{byte:02X}>" for byte in range(256)}
    if model.get("type") not in ("BPE", "Unigram") or not (by_bytes or model.get("byte_fallback")):
        return TokenCountBound(None)
    pieces: Iterable[str] = model["vocab"] if model["type"] == "BPE" else [piece for piece, _ in model["vocab"]]
    if not alphabet.issubset(pieces):  # a run of unknown characters may be one token, or none
        return TokenCountBound(None)
    longest = max(len(byte_level_bytes(piece) if by_bytes else piece.encode()) for piece in pieces)
    normalizer = library.normalizer
    for token in library.get_added_tokens_decoder().values():
        longest = max(longest, len(token.content.encode()))
        if token.normalized and normalizer is not None:
            longest = max(longest, len(normalizer.normalize_str(token.content).encode()))
        strips = strips or token.lstrip or token.rstrip
    return TokenCountBound(longest, shrinks, strips)


def _flatten_steps(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Iterate over the single steps of a normaliser or pre-tokeniser."""
    if step is None:
        return
    if step.get("type") == "Sequence":
        for inner in step.get("normalizers", step.get("pretokenizers", ())):
            yield from _flatten_steps(inner)
    else:
        yield step
