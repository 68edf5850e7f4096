"""The error of checkpoints that cannot be served."""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import RamiformError


class CheckpointError(RamiformError):
    """Raised when a checkpoint cannot be served. The message names the file, and the field or tensor."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file
