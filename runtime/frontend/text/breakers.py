"""Token sequences that end a repetition for DRY: those whose text completes a sequence breaker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...protocol.errors import RequestError
from ...tokenizer.interface import Tokenizer

MAX_TAIL = 20  # tokens after the first, as llama.cpp


def breaker_sequences(tokenizer: Tokenizer, breakers: Sequence[str]) -> list[list[int]]:
    """Return the sequences of `breakers`, as llama.cpp makes them.

    A token whose text holds a breaker is one by itself. A token at whose end a breaker begins is one with the tokens of
    the breaker's rest, as the tokenizer writes that rest by itself.
    """
    names = {token: name.encode() for name, token in tokenizer.special_ids.items()}
    texts = [(token, names.get(token) or data) for token, data in enumerate(tokenizer.token_bytes)]
    bytes_ids = {data[0]: token for token, data in texts if data is not None and len(data) == 1}
    found: dict[tuple[int, ...], None] = {}
    for breaker in breakers:
        wanted = breaker.encode("utf-8", errors="replace")
        tails = [_tail(tokenizer, wanted[length:], bytes_ids) for length in range(1, len(wanted))]
        for token, data in texts:
            if not data:
                continue
            if wanted in data:
                found[(token,)] = None
                continue
            for length in _begun(data, wanted):
                if (tail := tails[length - 1]) is not None:
                    found[(token, *tail[:MAX_TAIL])] = None
    return [list(ids) for ids in found]


def _begun(data: bytes, wanted: bytes) -> Iterator[int]:
    """Iterate over the lengths of the starts of `wanted` with which `data` ends."""
    at = data.find(wanted[:1], max(0, len(data) - len(wanted) + 1))
    while at >= 0:
        if wanted.startswith(data[at:]):
            yield len(data) - at
        at = data.find(wanted[:1], at + 1)


def _tail(tokenizer: Tokenizer, data: bytes, bytes_ids: dict[int, int]) -> list[int] | None:
    """Return the tokens of the rest of a text, whose first bytes may be the end of a character; None without tokens."""
    num_cut = next((at for at, byte in enumerate(data) if byte & 0xC0 != 0x80), len(data))
    cut = [bytes_ids.get(byte) for byte in data[:num_cut]]
    try:
        rest = tokenizer.encode(data[num_cut:].decode(), parse_special=False, continues=True)
    except RequestError:
        return None
    ids = [token for token in cut if token is not None]
    return [*ids, *rest] if len(ids) == num_cut else None
