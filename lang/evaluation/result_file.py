"""Results of single examples, and the file that an evaluation appends them to, so that a later one goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from ...runtime.programs.records.events import TokenCounts
from ...runtime.protocol.errors import RequestError
from ..tracing.trace import Trace
from .dataset import Example, digest


class ExampleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one example. `trace` is kept where the program failed or the first score is 0."""

    index: int
    digest: str  # of the example
    example: dict[str, Any]
    scores: dict[str, float]  # empty if the program or the metric raised
    error: str | None
    outputs: dict[str, Any]  # the generated variables
    text: str  # of the state, as far as it was generated
    seconds: float
    tokens: TokenCounts
    trace: Trace | None = None


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """The first line: what was evaluated."""

    ramiform_evaluation: int
    program: str
    options: str  # digest of the arguments of `run`


class ResultFile:
    """Results in a .jsonl file: a header, then one result a line. A last line that is cut off is ignored.

    Raises RequestError if the file belongs to another program, other options, or is no file of results.
    """

    def __init__(self, path: str | os.PathLike[str], *, program: str, options: Mapping[str, Any]) -> None:
        self._path = Path(path)
        self._header = _Header(1, program, digest(dict(options)))
        self._results: list[ExampleResult] = []
        self._file: IO[bytes] | None = None

    def __enter__(self) -> ResultFile:
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
        except OSError as error:
            raise RequestError(f"the file {str(self._path)!r} cannot be read: {error}", param="resume") from None
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if lines:
            self._read(lines)
        elif content:
            raise self._wrong("it has no header")
        try:
            self._file = self._path.open("r+b" if self._path.exists() else "w+b")
        except OSError as error:
            raise RequestError(f"the file {str(self._path)!r} cannot be written: {error}", param="resume") from None
        self._file.truncate(len(whole))  # the rest is a line that was cut off
        self._file.seek(len(whole))
        if not lines:
            self._write(self._header)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._file is not None
        self._file.close()

    def known(self, examples: Sequence[Example]) -> dict[int, ExampleResult]:
        """Return the results of these examples by index. Raises RequestError for one of another example."""
        for result in sorted(self._results, key=lambda one: one.index):
            if result.index >= len(examples) or result.digest != digest(examples[result.index]):
                raise RequestError(
                    f"{str(self._path)!r} holds a result of another example {result.index}: the dataset has changed",
                    param="resume",
                )
        return {result.index: result for result in self._results}

    def append(self, result: ExampleResult) -> None:
        """Write a result through to the file."""
        self._write(result)

    def _read(self, lines: list[bytes]) -> None:
        try:
            header = msgspec.json.decode(lines[0], type=_Header)
            self._results = [msgspec.json.decode(line, type=ExampleResult) for line in lines[1:]]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._wrong(str(error)) from None
        if header != self._header:
            what = f"the program {header.program!r}" if header.program != self._header.program else "other options"
            raise RequestError(f"{str(self._path)!r} holds results of {what}", param="resume")

    def _write(self, value: msgspec.Struct) -> None:
        assert self._file is not None
        self._file.write(msgspec.json.encode(value) + b"\n")
        self._file.flush()

    def _wrong(self, reason: str) -> RequestError:
        return RequestError(f"{str(self._path)!r} is not a file of results: {reason}", param="resume")
