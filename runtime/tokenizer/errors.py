"""The error of tokenizer files."""

from __future__ import annotations

from ..protocol.errors import RamiformError


class TokenizerError(RamiformError):
    """Raised when a checkpoint has no tokenizer, or an unreadable one. The message names the file."""
