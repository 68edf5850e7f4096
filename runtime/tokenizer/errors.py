"""What is wrong with a tokenizer's files."""

from __future__ import annotations

from ..protocol.errors import RamiformError


class TokenizerError(RamiformError):
    """A checkpoint has no tokenizer, or one that cannot be read. The message names the file."""
