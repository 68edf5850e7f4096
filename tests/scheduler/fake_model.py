"""A fake vocabulary and model: a pure function of the whole history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from ramiform.runtime.protocol.sampling import TokenLogprob
from ramiform.runtime.scheduler.interfaces import VocabularyInfo

EOS = 0
SPECIAL = 1
# Half characters, a stop string in pieces, whole words.
TOKEN_BYTES: list[bytes | None] = [
    None,
    None,
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"\xc3",
    b"\xa9",
    b"\n",
    b"Stop",
    b" ",
    b"c" * 5,
]
VOCABULARY = VocabularyInfo(len(TOKEN_BYTES), TOKEN_BYTES, frozenset({EOS}), forced_end=EOS)


def number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def choose(history: Sequence[int], allowed: Iterable[int], how: object) -> int:
    """The fake model and sampler."""
    candidates = sorted(allowed)
    return candidates[number(tuple(history), how) % len(candidates)]


def logprob(history: Sequence[int], token: int, num_top: int, of: Sequence[int] = ()) -> TokenLogprob:
    top = [(-float(i), number(tuple(history), i) % VOCABULARY.vocab_size) for i in range(num_top)]
    values = [-(number(tuple(history), each) % 1000) / 100 for each in (token, *of)]
    return TokenLogprob(values[0], token, top, values[1:])


def hidden(history: Sequence[int]) -> np.ndarray:
    """The fake hidden state of the last token, in whole numbers, so that sums are exact in any order."""
    return np.array([number(tuple(history), "hidden", i) % 1000 for i in range(3)], dtype="<f4")


def retokenise(before: Sequence[int], data: bytes) -> list[int]:
    """A tokenizer that takes the longest token and ignores the seam."""
    ids = []
    while data:
        fitting = [t for t, text in enumerate(TOKEN_BYTES) if text and data.startswith(text)]
        token = max(fitting, key=lambda t: len(TOKEN_BYTES[t] or b""))
        ids.append(token)
        data = data[len(TOKEN_BYTES[token] or b"") :]
    return ids
