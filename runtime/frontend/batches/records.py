"""Files and batches as values, as they are stored. What belongs to one API key is invisible to the others."""

from __future__ import annotations

import secrets
from typing import Literal, NamedTuple

import msgspec

BatchKind = Literal["openai", "anthropic"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
Ending = Literal["completed", "expired", "cancelled"]
RowState = Literal["completed", "failed", "cancelled", "expired"]
FilePurpose = Literal["batch", "batch_output", "messages"]  # the last: requests of a message batch, which no file names
KEPT_SECONDS = 30 * 86400  # that files and finished batches are kept, unless the client asks for less


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of one owner. `filename` is the client's, and never a path here."""

    id: str
    owner: str
    filename: str
    purpose: FilePurpose
    num_bytes: int
    created_at: int
    expires_at: int


class LineError(msgspec.Struct, frozen=True):
    """Why an input file is no batch. `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class StoredBatch(msgspec.Struct, kw_only=True):
    """A batch of one owner. `endpoint`: None if each row may have another.

    `output_bytes` and `error_bytes` are the lengths of the whole lines of its result files: what follows was being
    written when the server ended, and is not valid. `times` are those at which statuses began.
    """

    id: str
    owner: str
    kind: BatchKind
    endpoint: str | None
    input_file: str
    output_file: str
    error_file: str
    window: str = "24h"
    expires_at: int
    results_seconds: int = KEPT_SECONDS
    metadata: dict[str, str] | None = None
    status: BatchStatus = "validating"
    times: dict[str, int] = {}
    errors: list[LineError] = []
    has_order: bool = False  # its rows are stored
    num_rows: int = 0
    num_abreast: int = 16  # rows in flight at once
    num_completed: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_expired: int = 0
    output_bytes: int = 0
    error_bytes: int = 0

    @property
    def is_over(self) -> bool:
        """True if nothing changes any more."""
        return self.status in ("failed", "completed", "expired", "cancelled")

    @property
    def created_at(self) -> int:
        return self.times["validating"]

    def begin(self, status: BatchStatus, now: float) -> None:
        """Enter a status."""
        self.status = status
        self.times = {**self.times, status: int(now)}


class RowPlace(NamedTuple):
    """A row's place in the order of its batch, and its line in the input file."""

    position: int
    start: int
    size: int


class LineResult(NamedTuple):
    """A row that is over: the line of its result, without a newline."""

    position: int
    state: RowState
    line: bytes


def new_name(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"
