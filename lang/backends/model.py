"""What a backend has to be beside the playing of operations: something that generates, and whose calls can be ended.

Knows transcripts and operations; no states, no listeners.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from ...runtime.protocol.decisions import DecisionAnswer, Question
from ...runtime.protocol.errors import RuntimeFailed
from ...runtime.protocol.session import Choice, Gen, Reply, Select, Sequence
from .transcript import SpeculatedText, Transcript, TranscriptPart

Method = Literal["info", "stats", "flush_cache"]
OnText = Callable[[str], None]  # of a streamed Gen: more text


class ModelCall:
    """One use of a model, which another thread may end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._abort: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End it if it still runs. Calling it again does nothing."""
        with self._lock:
            self._cancelled = True
            if self._abort is not None:
                self._abort()

    @contextlib.contextmanager
    def aborted_by(self, abort: Callable[[], None]) -> Iterator[None]:
        """Inside the block `cancel` calls `abort`. Raises RuntimeFailed when it was cancelled before."""
        with self._lock:
            if self._cancelled:
                raise RuntimeFailed("the call was cancelled")
            self._abort = abort
        try:
            yield
        finally:
            with self._lock:
                self._abort = None


@dataclass(frozen=True)
class ModelOutput:
    """`parts` are what the state goes on with: the first of the sequences."""

    sequences: list[Sequence]
    parts: tuple[TranscriptPart, ...]
    foretold: SpeculatedText | None = None


class Model(Protocol):
    """Any method may raise RamiformError; `generate`, `select` and `decide` may take their time, in a thread."""

    def begin_role(self, role: str) -> str:
        """How the beginning of a message is shown."""
        ...

    def end_role(self, role: str) -> str: ...

    def generate(self, transcript: Transcript, gen: Gen, on_text: OnText, call: ModelCall) -> ModelOutput: ...

    def select(self, transcript: Transcript, select: Select, call: ModelCall) -> Choice: ...

    def decide(
        self, transcript: Transcript, questions: tuple[Question, ...], call: ModelCall
    ) -> list[DecisionAnswer]: ...

    def tell(self, method: Method, number: int) -> Reply:
        """The answer to a question outside any state."""
        ...
