"""Executes a program state's operations on its text: a transcript that grows, and calls of a model."""

from __future__ import annotations

from collections.abc import Sequence

from ...runtime.programs.executor import OnDelta, OperationResult, PendingResult
from ...runtime.programs.running_program import StateProgress
from ...runtime.protocol import session
from ...runtime.protocol.decisions import DecisionAnswer
from ...runtime.protocol.errors import RequestError
from .calls import ModelCalls
from .model import Model, ModelCall, ModelOutput
from .transcript import Transcript, TranscriptPart


class TranscriptExecutor:
    """A `StateExecutor` on a `Transcript`, for any model. The model is called by `calls`."""

    def __init__(self, model: Model, calls: ModelCalls, state: StateProgress, transcript: Transcript) -> None:
        self._model = model
        self._calls = calls
        self._state = state
        self._transcript = self._start = transcript

    def append_text(self, text: str) -> str:
        self._transcript = self._transcript.add_text(text)
        return text

    def append_image(self, data: bytes) -> PendingResult:
        raise RequestError("an image needs a runtime of ramiform: this backend takes texts only", param="image")

    def begin_role(self, role: str, tools: session.OfferedTools | None = None) -> str:
        if tools is not None and self._transcript.has_roles:
            raise RequestError("only the first message of a chat can offer tools", param="tools")
        text = self._model.begin_role(role)
        if self._model.takes_tools:
            self._transcript = self._transcript.begin(role, text, None if tools is None else tools.schemas)
            return text
        self._transcript = self._transcript.begin(role, text)
        return text if tools is None else text + self.append_text(f"{tools.text}\n\n")

    def end_role(self) -> str:
        text = self._model.end_role(self._transcript.open_role or "")
        self._transcript = self._transcript.end(text)
        return text

    def supply(self, text: str, *, chosen: bool) -> OperationResult:
        return OperationResult(self.append_text(text))

    def generate(self, gen: session.Gen, on_delta: OnDelta) -> PendingResult:
        _refuse_adapter(gen)
        if self._model.checks_operations:
            refuse_healing(gen)
        transcript = self._transcript

        def call(model_call: ModelCall) -> ModelOutput:
            return self._model.generate(transcript, gen, on_text, model_call)

        def on_text(text: str) -> None:
            if gen.stream and gen.n == 1:
                self._calls.post(lambda: on_delta(text, [], None))

        def finish(output: ModelOutput) -> OperationResult:
            self._state.program.spend(sum(sequence.completion_tokens for sequence in output.sequences))
            self._transcript = transcript.add_generated(output.parts, output.speculated)
            return OperationResult("".join(part.text for part in output.parts), sequences=output.sequences)

        return self._calls.begin(call, finish)

    def append_generated(self, generated: session.Generated) -> OperationResult:
        if generated.chosen:
            return OperationResult(self.append_text(generated.text))
        part = TranscriptPart("generated", generated.text, tuple(generated.ids) or None)
        self._transcript = self._transcript.add_generated((part,))
        return OperationResult(generated.text)

    def select(self, select: session.Select) -> PendingResult:
        _refuse_adapter(select)
        transcript = self._transcript

        def finish(choice: session.Choice) -> OperationResult:
            if select.append:
                self._transcript = transcript.add_text(choice.text)
            return OperationResult(choice.text if select.append else "", choice=choice)

        return self._calls.begin(lambda call: self._model.select(transcript, select, call), finish)

    def decide(self, decide: session.Decide) -> PendingResult:
        _refuse_adapter(decide)
        transcript = self._transcript

        def finish(answers: list[DecisionAnswer]) -> OperationResult:
            return OperationResult("", answers=answers)

        return self._calls.begin(lambda call: self._model.decide(transcript, decide.questions, call), finish)

    def token_ids(self) -> PendingResult:
        raise token_ids_refused()

    def fork(self, children: Sequence[StateProgress]) -> list[TranscriptExecutor]:
        return [TranscriptExecutor(self._model, self._calls, child, self._transcript.fork()) for child in children]

    def snapshot(self) -> Transcript:
        return self._transcript

    def restore(self, snapshot: Transcript) -> None:
        self._transcript = snapshot.fork()  # without speculated text, which would be generated once more

    def since_fork(self) -> tuple[TranscriptPart, ...]:
        return self._transcript.since(self._start)

    def join(self, appended: Sequence[tuple[TranscriptPart, ...]]) -> OperationResult:
        transcript = self._transcript
        for parts in appended:
            transcript = transcript.join(parts)
        self._transcript = transcript
        return OperationResult("".join(part.text for parts in appended for part in parts))

    def generation_ended(self) -> None:
        """Nothing is kept for generations to come."""


def _refuse_adapter(operation: session.Gen | session.Select | session.Decide) -> None:
    """Raise RequestError for an operation with a LoRA adapter."""
    if operation.lora is not None:
        raise RequestError("lora needs a runtime of ramiform: this backend has no adapters", param="lora")


def token_ids_refused() -> RequestError:
    """Return the error for a question after the token ids of a state that is held as text."""
    message = "token ids need a runtime of ramiform: this backend holds texts"
    return RequestError(message, param="backend", code="no_token_ids")


def refuse_healing(operation: session.Operation) -> None:
    """Raise RequestError for a gen that heals: the tokens of a service cannot be replaced."""
    if isinstance(operation, session.Gen) and operation.heal:
        raise RequestError("heal needs a runtime of ramiform: this backend takes texts, not tokens", param="heal")
