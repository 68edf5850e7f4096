"""The interface of a model for local programs: it generates from transcripts, in calls that can be cancelled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from ...runtime.protocol.decisions import DecisionAnswer, Question
from ...runtime.protocol.errors import RuntimeFailed
from ...runtime.protocol.session import Choice, Gen, Operation, Reply, Select, Sequence
from .transcript import SpeculatedText, Transcript, TranscriptPart

Method = Literal["info", "stats", "flush_cache"]
OnText = Callable[[str], None]  # called with each piece of text of a streamed Gen


class ModelCall:
    """A call of a model, which another thread may cancel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._abort: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Abort the call if it still runs. Calling it again does nothing."""
        with self._lock:
            self._cancelled = True
            if self._abort is not None:
                self._abort()

    @contextlib.contextmanager
    def aborted_by(self, abort: Callable[[], None]) -> Iterator[None]:
        """Let `cancel` call `abort` inside the block. Raises RuntimeFailed if the call was cancelled before."""
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
    """Generated sequences. `parts` are those of the first, which the state goes on with."""

    sequences: list[Sequence]
    parts: tuple[TranscriptPart, ...]
    speculated: SpeculatedText | None = None


class TextEvents:
    """Base of what collects the events of one streamed text; `on_text` gets each piece."""

    def __init__(self, on_text: OnText) -> None:
        self.has_text = False
        self.text = ""
        self._on_text = on_text

    def give(self, piece: str | None) -> None:
        """Add a piece of the text."""
        if piece:
            self.has_text = True
            self.text += piece
            self._on_text(piece)


class Model(Protocol):
    """Generates, scores and decides. Any method may raise RamiformError.

    `generate`, `select` and `decide` may block: they are called in threads. Where there is no chat template, ChatML's
    marks show messages. With `takes_tools` the model reads the tools that a chat offers from the transcript, else they
    are described in its first message. With `checks_operations` a program's operations are checked when it appends
    them, and those before its first read are sent together.
    """

    takes_tools: bool = False
    checks_operations: bool = False

    def check(self, transcript: Transcript, operation: Operation) -> None:
        """Raise RequestError, without waiting, for an operation that cannot be answered after such a transcript."""

    def begin_role(self, role: str) -> str:
        """Return the text that shows the beginning of a message."""
        return f"<|im_start|>{role}\n"

    def end_role(self, role: str) -> str:
        return "<|im_end|>\n"

    def generate(self, transcript: Transcript, gen: Gen, on_text: OnText, call: ModelCall) -> ModelOutput: ...

    def select(self, transcript: Transcript, select: Select, call: ModelCall) -> Choice: ...

    def decide(
        self, transcript: Transcript, questions: tuple[Question, ...], call: ModelCall
    ) -> list[DecisionAnswer]: ...

    def answer_call(self, method: Method, number: int) -> Reply:
        """Answer a call that concerns no state."""
        ...
