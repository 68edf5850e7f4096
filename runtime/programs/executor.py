"""The interface between the interpreter and whatever holds a state and generates for it.

The interpreter decides when an operation is played; a state's executor plays it. The runtime's executor holds token ids
and asks the core, the others hold text and call an endpoint or a script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..protocol import session
from ..protocol.decisions import DecisionAnswer
from ..protocol.errors import ErrorInfo
from ..protocol.sampling import TokenLogprob
from .running_program import StateProgress

OnDelta = Callable[[str, list[int], list[TokenLogprob] | None], None]  # more text of a streamed Gen, its ids, logprobs


class OperationResult(NamedTuple):
    """The text that an operation appended; of a Gen also its sequences, of a Select its choice, of a Decide answers.

    `ids`: those of the content, for a Sync that asks.
    """

    text: str
    sequences: list[session.Sequence] | None = None
    choice: session.Choice | None = None
    answers: list[DecisionAnswer] | None = None
    ids: list[int] | None = None


class PendingResult:
    """The result of an operation that takes time: `resolve` it once, on the interpreter's thread.

    `cancel` calls `stop`, and what is resolved afterwards is ignored.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self.cancelled = False
        self._stop = stop
        self._callback: Callable[[OperationResult | ErrorInfo], None] | None = None

    def then(self, callback: Callable[[OperationResult | ErrorInfo], None]) -> None:
        """Call `callback` when the result is there. Call this before `resolve`."""
        self._callback = callback

    def resolve(self, result: OperationResult | ErrorInfo) -> None:
        if not self.cancelled:
            assert self._callback is not None
            self._callback(result)

    def cancel(self) -> None:
        self.cancelled = True
        self._stop()


class StateExecutor(Protocol):
    """Holds one state's content and plays its operations. Any method may raise RamiformError, which fails the state.

    The methods that return text return what they appended, as `s.text()` shows it.
    """

    def append_text(self, text: str) -> str | PendingResult: ...

    def append_image(self, data: bytes) -> PendingResult:
        """Append an image, the bytes of its file. Its text is a mark that stands for it."""
        ...

    def begin_role(self, role: str, tools: session.OfferedTools | None = None) -> str | PendingResult: ...

    def end_role(self) -> str | PendingResult: ...

    def supply(self, text: str, *, chosen: bool) -> OperationResult | PendingResult:
        """Append a text that the client supplied; `chosen`: one of the choices that were scored just before."""
        ...

    def generate(self, gen: session.Gen, on_delta: OnDelta) -> PendingResult:
        """Generate and append the first sequence. Count the tokens by `RunningProgram.spend`."""
        ...

    def append_generated(self, generated: session.Generated) -> OperationResult | PendingResult:
        """Append text that was generated or chosen before."""
        ...

    def select(self, select: session.Select) -> PendingResult: ...

    def decide(self, decide: session.Decide) -> PendingResult: ...

    def token_ids(self) -> PendingResult:
        """Tokenise the content as it stands, and return its ids. Raises RequestError where it is held as text."""
        ...

    def fork(self, children: Sequence[StateProgress]) -> Sequence[StateExecutor]:
        """Return an executor for each of `children`, with this state's content."""
        ...

    def snapshot(self) -> Any:
        """Return the content as `restore` takes it. Nothing is played meanwhile."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Return to the content at `snapshot`, which may be restored again; later snapshots are invalid from now on."""
        ...

    def since_fork(self) -> Any:
        """Return what was appended since the fork, as `join` of the parent's executor takes it."""
        ...

    def join(self, appended: Sequence[Any]) -> OperationResult | PendingResult:
        """Append what forks of this state appended, in this order."""
        ...

    def generation_ended(self) -> None:
        """Called after each Gen, Select and Decide of the state, whether it was played or refused."""
        ...
