"""Lower bound on a text's number of tokens, from its length alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Largest factor by which NFC or NFD can divide a text's UTF-8 bytes: one character becomes a shorter one by a factor of
# 3 at most, and so do several that are composed; both may happen to the same text.
MAX_NORMALISATION_SHRINK = 9
WHITESPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # Unicode has none beyond U+3000


@dataclass(frozen=True)
class TokenCountBound:
    """Bound of one tokenizer. `num_bytes` is the most bytes of text that one token id stands for; None: unlimited.

    `shrinks` is the most by which normalisation divides the bytes of text that is not ASCII. `strips`: blanks may be
    removed before tokenisation, so they do not count.
    """

    num_bytes: int | None
    shrinks: int = 1
    strips: bool = False

    def least_tokens(self, texts: Iterable[str]) -> int:
        """Return a lower bound on the tokens of the concatenation of `texts`, without tokenising them."""
        if self.num_bytes is None:
            return 0
        total = sum(self._share(text) for text in texts)
        return -(-total // (self.num_bytes * self.shrinks))

    def _share(self, text: str) -> int:
        """Return the bytes of text that count, multiplied by `shrinks` where nothing can shrink."""
        is_ascii = text.isascii()
        num_bytes = len(text) if is_ascii else len(text.encode("utf-8", "surrogatepass"))
        if self.strips:
            num_bytes -= sum(text.count(blank) * len(blank.encode()) for blank in WHITESPACE)
        # ASCII text is in every normal form already.
        return num_bytes * self.shrinks if is_ascii else num_bytes
