"""Lines of batches: OpenAI's and vLLM's lines of requests, and the lines of results that OpenAI's and Anthropic's
clients read."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .records import BatchKind, LineError, RowPlace, RowState, new_name

MAX_ROWS = 50_000  # of a batch
MAX_NAMED = 100  # lines at fault that a batch names
MAX_CUSTOM_ID = 512  # characters


class BatchLine(msgspec.Struct, forbid_unknown_fields=True):
    """A row of a batch: a request of the route `url`, by the client's name for it."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


_rows = msgspec.json.Decoder(BatchLine)
_encoder = msgspec.json.Encoder()


class LineAnswer(NamedTuple):
    """An HTTP status and a body, as a route answers a request."""

    status: int
    body: dict[str, Any]


def batch_line(data: bytes) -> BatchLine:
    """Read a line that `read_rows` has accepted."""
    return _rows.decode(data)


def read_rows(path: Path, urls: Collection[str], endpoint: str | None) -> tuple[list[RowPlace], list[LineError]]:
    """Return the rows of an input file, each with its number as position, and what is wrong with its lines.

    `endpoint`: the one that every row must name; None: each may name another of `urls`.
    """
    rows: list[RowPlace] = []
    errors: list[LineError] = []
    names: set[str] = set()
    start = 0
    with path.open("rb") as lines:
        for number, data in enumerate(lines, 1):
            if data.strip():
                if len(rows) == MAX_ROWS:
                    return [], [LineError("too_many_lines", f"a batch has at most {MAX_ROWS} requests", number)]
                if (error := _fault(data, number, urls, endpoint, names)) is not None:
                    errors.append(error)
                    if len(errors) == MAX_NAMED:
                        break
                rows.append(RowPlace(len(rows), start, len(data)))
            start += len(data)
    if not rows and not errors:
        errors.append(LineError("empty_file", "the file has no requests"))
    return rows, errors


def _fault(data: bytes, number: int, urls: Collection[str], endpoint: str | None, names: set[str]) -> LineError | None:
    """Return what is wrong with a line, of which only the body is left to be checked; add its name to `names`."""
    try:
        row = _rows.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return LineError("invalid_json_line", f"the line is no request of a batch: {error}", number)
    is_other, url = endpoint is not None and row.url != endpoint, repr(row.url[:80])
    faults = (
        (row.method != "POST", "invalid_method", "method", f"method must be POST, got {row.method[:20]!r}"),
        (
            not 1 <= len(row.custom_id) <= MAX_CUSTOM_ID,
            "invalid_custom_id",
            "custom_id",
            f"custom_id must have 1 to {MAX_CUSTOM_ID} characters",
        ),
        (row.custom_id in names, "duplicate_custom_id", "custom_id", "custom_id is another line's too"),
        (is_other, "mismatched_endpoint", "url", f"url must be {endpoint}, the batch's; got {url}"),
        (row.url not in urls, "invalid_url", "url", f"url {url} is none of {', '.join(sorted(urls))}"),
        (not bytes(row.body).startswith(b"{"), "invalid_body", "body", "body must be an object"),
    )
    names.add(row.custom_id)
    return next((LineError(code, told, number, param) for wrong, code, param, told in faults if wrong), None)


def result_line(kind: BatchKind, custom_id: str, outcome: LineAnswer) -> tuple[RowState, bytes]:
    """Return how a row with an answer ended, and the line of its result."""
    state: RowState = "completed" if outcome.status == 200 else "failed"
    if kind == "anthropic":
        name, member = ("succeeded", "message") if state == "completed" else ("errored", "error")
        value: dict[str, Any] = {"custom_id": custom_id, "result": {"type": name, member: outcome.body}}
    else:
        response = {"status_code": outcome.status, "request_id": new_name("req_"), "body": outcome.body}
        value = {"id": new_name("batch_req_"), "custom_id": custom_id, "response": response, "error": None}
    return state, _encoder.encode(value)


def unanswered_line(kind: BatchKind, custom_id: str, state: RowState) -> bytes:
    """Return the line of a row that was cancelled or has expired."""
    if kind == "anthropic":
        name = "canceled" if state == "cancelled" else "expired"
        return _encoder.encode({"custom_id": custom_id, "result": {"type": name}})
    told = "was cancelled" if state == "cancelled" else "has expired: its completion window is over"
    error = {"code": f"batch_{state}", "message": f"the batch {told}; this request was not answered"}
    return _encoder.encode({"id": new_name("batch_req_"), "custom_id": custom_id, "response": None, "error": error})
