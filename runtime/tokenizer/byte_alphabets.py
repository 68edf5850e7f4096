"""Byte alphabets of vocabularies: GPT-2's byte-level alphabet, SentencePiece's `▁` and `<0x0A>`."""

from __future__ import annotations

import codecs
import re

METASPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    # Printable bytes stand for themselves; the others are numbered from U+0100 on, in order (GPT-2, 2019).
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()
_TO_BYTES = codecs.charmap_build("".join(sorted(BYTE_ALPHABET, key=BYTE_ALPHABET.__getitem__)))


def byte_level_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level piece, e.g. `Ġthe` -> b" the". A piece outside the alphabet stands for
    itself."""
    try:
        return codecs.charmap_encode(piece, "strict", _TO_BYTES)[0]
    except UnicodeEncodeError:
        return piece.encode()


def metaspace_bytes(piece: str, *, space: str = METASPACE, byte_fallback: bool = True) -> bytes:
    """Return the bytes of a SentencePiece piece, e.g. `▁the` -> b" the", `<0x0A>` -> b"\\n"."""
    if byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return piece.replace(space, " ").encode()
