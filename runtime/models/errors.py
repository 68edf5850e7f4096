"""Errors of checkpoints that cannot be served."""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import RamiformError


class CheckpointError(RamiformError):
    """Raised when a checkpoint cannot be served. The message names the file, and the field or tensor."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file
        self.reason = problem


class UnsupportedField(CheckpointError):
    """Raised when config.json asks for something valid that no native family computes."""
