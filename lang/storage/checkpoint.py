"""The file of a checkpoint: a line of JSON for every operation that was answered and every tool that was called.

A line is written before the program gets the answer. The last line may be torn if the program was killed; it is
dropped when the file is opened again.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from .answers import Lookup, StoredAnswer, StoredRequest

VERSION = 1
MAX_CHECKPOINT_BYTES = 4 << 30

Key = tuple[str, str, int]  # item, path of the state, index of the operation


class CheckpointHeader(msgspec.Struct, frozen=True, tag="ramiform_checkpoint"):
    """The first line."""

    version: int
    program: str


class KeptModel(msgspec.Struct, frozen=True, tag="model"):
    """The model that answered, as far as it is known."""

    identity: str


class KeptOperation(msgspec.Struct, frozen=True, tag="operation", omit_defaults=True):
    """An operation and its answer; `packed` is the answer as MessagePack if JSON cannot hold it."""

    item: str
    state: str
    index: int
    operation: session.Operation
    answer: StoredAnswer | None = None
    packed: str | None = None


class KeptCall(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """A call of a tool and its result, for the operation that appends its text."""

    item: str
    state: str
    index: int
    name: str | None
    arguments: dict[str, Any] | None
    result: msgspec.Raw
    text: str  # of the result
    appended: str
    error: str | None = None


Line = CheckpointHeader | KeptModel | KeptOperation | KeptCall
_open: weakref.WeakValueDictionary[str, Checkpoint] = weakref.WeakValueDictionary()  # by real path
_opening = threading.Lock()


class Checkpoint:
    """Holds the contents of a checkpoint file. Any thread may use it.

    Raises RequestError if the file is no checkpoint, is one of another program, or is used by another process.
    """

    def __init__(self, path: Path, program: str) -> None:
        self.path = path
        self.program = program
        self._lock = threading.Lock()
        self._operations: dict[Key, KeptOperation] = {}
        self._calls: dict[Key, KeptCall] = {}
        self._model: str | None = None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise self._wrong(str(error)) from None
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RequestError(
                f"the checkpoint {str(path)!r} is used by another process", param="checkpoint", code="checkpoint_in_use"
            ) from None
        self._load()

    def call(self, key: Key) -> KeptCall | None:
        """Return the call of a tool, if it was made."""
        return self._calls.get(key)

    def keep_call(self, call: KeptCall) -> None:
        """Add the call of a tool."""
        self._write(call)
        self._calls[call.item, call.state, call.index] = call

    def check_model(self, identity: str) -> None:
        """Note the model. Raises RequestError if the file is of another one."""
        with self._lock:
            before, self._model = self._model, self._model or identity
        if before is None:
            self._write(KeptModel(identity))
        elif before != identity:
            raise self._diverged(f"it was written with the model {before}, this is {identity}")

    # Methods of `AnswerStore`

    def look_up(self, request: StoredRequest) -> Lookup:
        kept = self._operations.get((request.run.item, request.path, request.index))
        if kept is None:
            return Lookup(None, functools.partial(self._keep, request))
        if kept.operation != _as_kept(kept.operation, request):
            raise self._diverged(_difference(kept.operation, request.operation))
        return Lookup(self._answer_of(kept), lambda answer: None)

    def note(self, request: StoredRequest, answer: StoredAnswer) -> None:
        lookup = self.look_up(request)
        if lookup.answer is None:
            lookup.keep(answer)
        elif lookup.answer.text != answer.text:
            raise self._diverged(f"there the program appended {lookup.answer.text!r}, now {answer.text!r}")

    def _keep(self, request: StoredRequest, answer: StoredAnswer) -> None:
        kept = KeptOperation(request.run.item, request.path, request.index, request.operation, answer)
        if _round_trip(kept) != kept:  # infinite log-probabilities
            packed = base64.b64encode(msgspec.msgpack.encode(answer)).decode()
            kept = msgspec.structs.replace(kept, answer=None, packed=packed)
        self._write(kept)
        self._operations[kept.item, kept.state, kept.index] = kept

    def _answer_of(self, kept: KeptOperation) -> StoredAnswer:
        if kept.answer is not None:
            return kept.answer
        try:
            return msgspec.msgpack.decode(base64.b64decode(kept.packed or ""), type=StoredAnswer)
        except ValueError as error:  # msgspec's and base64's errors
            raise self._wrong(f"an answer cannot be read: {error}") from None

    # The file

    def _load(self) -> None:
        if os.fstat(self._file).st_size > MAX_CHECKPOINT_BYTES:
            raise self._wrong(f"it is longer than {MAX_CHECKPOINT_BYTES} bytes")
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        decoder = msgspec.json.Decoder(Line)
        header: CheckpointHeader | None = None
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                line = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RequestError) as error:
                raise self._wrong(f"line {number}: {error}") from None
            if isinstance(line, CheckpointHeader) != (number == 1):
                raise self._wrong(f"line {number} is not what a checkpoint has there")
            match line:
                case CheckpointHeader():
                    header = line
                case KeptModel(identity=identity):
                    self._model = identity
                case KeptOperation():
                    self._operations[line.item, line.state, line.index] = line
                case KeptCall():
                    self._calls[line.item, line.state, line.index] = line
        if header is None:
            if data and not b'{"type":"ramiform_checkpoint"'.startswith(data[:29]):
                raise self._wrong("it is another file")  # a torn first line is our own
            os.ftruncate(self._file, 0)
            self._write(CheckpointHeader(VERSION, self.program))
            return
        if header.version != VERSION:
            raise self._wrong(f"it has format {header.version}, this is {VERSION}")
        if header.program != self.program:
            raise self._diverged(f"it is of the program {header.program}, this is {self.program}")
        os.ftruncate(self._file, len(whole))

    def _write(self, line: Line) -> None:
        data = msgspec.json.encode(line) + b"\n"
        try:
            with self._lock:
                while data:  # appended, and in the system's hands when the call returns
                    data = data[os.write(self._file, data) :]
        except OSError as error:
            raise self._wrong(str(error)) from None

    def _wrong(self, reason: str) -> RequestError:
        return RequestError(
            f"{str(self.path)!r} cannot be used as a checkpoint: {reason}",
            param="checkpoint",
            code="invalid_checkpoint",
        )

    def _diverged(self, reason: str) -> RequestError:
        return RequestError(
            f"the program does not follow its checkpoint {str(self.path)!r}: {reason}",
            param="checkpoint",
            code="checkpoint_diverged",
        )


def open_checkpoint(path: str | os.PathLike[str], program: str) -> Checkpoint:
    """Open a checkpoint file, which is made if it is not there. Runs of one process share it."""
    try:
        real = os.path.realpath(os.fspath(path))
    except TypeError:
        raise RequestError(f"checkpoint must be the path of a file, got {path!r}", param="checkpoint") from None
    with _opening:
        checkpoint = _open.get(real)
        if checkpoint is None:
            checkpoint = _open[real] = Checkpoint(Path(real), program)
    if checkpoint.program != program:
        raise checkpoint._diverged(f"it is of the program {checkpoint.program}, this is {program}")
    return checkpoint


def _round_trip(kept: KeptOperation) -> KeptOperation | None:
    with contextlib.suppress(ValueError):
        return msgspec.json.decode(msgspec.json.encode(kept), type=KeptOperation)
    return None


def _as_kept(kept: session.Operation, request: StoredRequest) -> session.Operation:
    """Return the operation of a request, with the number of tokens of the kept one where a budget limits it."""
    now = request.operation
    if request.is_limited and isinstance(kept, session.Gen) and isinstance(now, session.Gen):
        most, least = kept.sampling.max_new_tokens, kept.sampling.min_new_tokens
        sampling = msgspec.structs.replace(now.sampling, max_new_tokens=most, min_new_tokens=least)
        return msgspec.structs.replace(now, sampling=sampling)
    return now


def _difference(kept: session.Operation, now: session.Operation) -> str:
    """Describe how two operations differ."""
    if type(kept) is not type(now):
        return f"there it has {_shown(kept)}, now comes {_shown(now)}"
    changed = list(_changes(msgspec.to_builtins(kept), msgspec.to_builtins(now), ""))
    return f"the {type(now).__name__.lower()} there has {', '.join(changed)}"


def _changes(kept: Any, now: Any, name: str) -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(now, dict):
        for field in {**kept, **now}:
            yield from _changes(kept.get(field), now.get(field), f"{name}.{field}" if name else str(field))
    elif kept != now:
        yield f"{name} {_short(kept)}, now {_short(now)}"


def _shown(operation: session.Operation) -> str:
    match operation:
        case session.Text(text=text):
            return f"the text {_short(text)}"
        case session.RoleBegin(role=role):
            return f"the beginning of a {role} message"
    return f"a {type(operation).__name__.lower()}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
