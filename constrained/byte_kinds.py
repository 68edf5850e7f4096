"""Bytes that patterns seldom tell apart, so that whole branches of a trie of tokens are let in at once."""

from __future__ import annotations

import numpy as np

_ALIKE = [b"0123456789", b"abcdef", b"ghijklmnopqrstuvwxyz", b"ABCDEF", b"GHIJKLMNOPQRSTUVWXYZ", b"_", b"-", b".", b" "]
_ALIKE += [b"/", b":", b"@", b"!#$%&'()*+,;<=>?[]^`{|}~"]
NUM_KINDS = len(_ALIKE)
# Of each byte; `NUM_KINDS` where it is of none: what ends a string or begins an escape, controls, what is not ASCII.
KIND = np.full(256, NUM_KINDS, np.uint8)
for _number, _bytes in enumerate(_ALIKE):
    KIND[list(_bytes)] = _number
