"""The record of an HTTP request that generates: a state for each sample."""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias

from ...programs.records.events import Event, RunRecord, ShownImage, TokenCounts, TracedState, total_of
from ...programs.records.steps import DIGEST_DIGITS, described, generation_fields
from ...programs.records.view import MAX_TEXT, ProgramRow, ProgramView, RowKey, RowOutcome, Status, excerpt_of, view_of
from ...protocol.errors import ErrorInfo
from ...protocol.pictures import Picture
from ...protocol.sampling import SamplingParams
from ...protocol.session import Gen
from ...protocol.session import Sequence as GeneratedSequence
from .log import Owner, ProgramLog

MAX_PROMPT = 1500  # tokens of a prompt that are kept: mostly more than MAX_TEXT characters
SAMPLE_BYTES = 850  # of a sample without its texts
CONSTRAINT_BYTES = 600  # of its constraint without the source


class PromptPicture(NamedTuple):
    """An image of a prompt: its tokens, and the start of its pixels' digest."""

    num_tokens: int
    digest: str


PromptPart: TypeAlias = "array[int] | PromptPicture"
current_request: ContextVar[RequestRecorder | None] = ContextVar("ramiform_request", default=None)


class RequestRecorder:
    """Makes the record of the current request when it generates; most requests do not.

    `owner` is called then. `end` ends the record, if there is one.
    """

    __slots__ = ("_owner", "_title", "record")

    def __init__(self, title: str, owner: Callable[[], Owner]) -> None:
        self._title = title
        self._owner = owner
        self.record: RequestRecord | None = None

    def begin(self, log: ProgramLog) -> RequestRecord:
        """Return the request's record."""
        if self.record is None:
            self.record = RequestRecord(log, self._owner(), self._title)
        return self.record

    def end(self, title: str, status: int) -> None:
        """Note the end of the request, its route and the status of the answer."""
        if self.record is not None:
            self.record.end(title, status)


def begin_sample(
    log: ProgramLog, tokens: list[int], sampling: SamplingParams, began: float, pictures: Sequence[Picture] = ()
) -> SampleRecord:
    """Return the record of a sample, one of the current request or else one of its own. It began at `began`, before it
    was submitted: the core may have computed since."""
    recorder = current_request.get()
    if recorder is not None:
        return recorder.begin(log).add(tokens, sampling, began, pictures)
    return RequestRecord(log, Owner(), "generation", is_single=True).add(tokens, sampling, began, pictures)


class SampleRecord:
    """A sample: when it began, had its first text and ended, and how."""

    __slots__ = (
        "_request",
        "began",
        "ended",
        "error",
        "first_text",
        "prompt",
        "sampling",
        "sequence",
        "status",
        "text",
    )

    def __init__(
        self, request: RequestRecord, prompt: list[PromptPart], sampling: SamplingParams, began: float
    ) -> None:
        self._request: RequestRecord | None = request  # until the sample has ended
        self.prompt = prompt
        self.sampling = sampling
        self.began = began
        self.first_text: float | None = None
        self.ended: float | None = None
        self.status: Status = "running"
        self.sequence: dict[str, object] | None = None  # fields of an Event
        self.text: str | None = None
        self.error: str | None = None

    @property
    def tokens(self) -> TokenCounts:
        found = None if self.sequence is None else self.sequence.get("tokens")
        return found if isinstance(found, TokenCounts) else TokenCounts(0, 0, 0)

    def finish(self, sequence: GeneratedSequence) -> None:
        """Note the generated sequence."""
        if self.ended is None:
            self.text = sequence.text[: MAX_TEXT + 1]
            self.sequence = generation_fields([sequence])
            self._end("lost" if sequence.finish.type == "abort" else "done")

    def fail(self, error: ErrorInfo) -> None:
        if self.ended is None:
            self.error = error.message
            self._end("failed")

    def close(self) -> None:
        """Note that nobody reads the rest."""
        if self.ended is None:
            self._end("lost")

    def _end(self, status: Status) -> None:
        self.ended = time.monotonic()
        self.status = status
        if (request := self._request) is not None:
            self._request = None  # with the last sample its request is free at once
            request.sample_ended(sys.getsizeof(self.text) + sys.getsizeof(self.error))


class RequestRecord:
    """A request over HTTP. `is_single`: it ends with its only sample."""

    def __init__(self, log: ProgramLog, owner: Owner, title: str, *, is_single: bool = False) -> None:
        self.title = title
        self.samples: list[SampleRecord] = []
        self.ended: float | None = None
        self.status: Status = "running"
        self._log = log
        self._is_single = is_single
        self._prompt: tuple[list[int], list[PromptPart]] | None = None  # of the sample before, perhaps another of it
        self.entry = log.add(owner, self)

    def add(
        self, tokens: list[int], sampling: SamplingParams, began: float, pictures: Sequence[Picture] = ()
    ) -> SampleRecord:
        """Record a sample that began at `began`, a time of `time.monotonic`."""
        if self._prompt is None or self._prompt[0] is not tokens:
            self._prompt = tokens, _prompt_parts(tokens, pictures)
            self.entry.touch(sum(map(sys.getsizeof, self._prompt[1])))
        sample = SampleRecord(self, self._prompt[1], sampling, began)
        if self.entry.has_room:
            self.samples.append(sample)
        constraint = sampling.constraint
        more = 0 if constraint is None else CONSTRAINT_BYTES + sys.getsizeof(constraint.source)
        self.entry.touch(SAMPLE_BYTES + more)
        return sample

    def sample_ended(self, num_bytes: int) -> None:
        """Note the end of a sample, with so much text."""
        self.entry.touch(num_bytes)
        if self._is_single:
            self.end(self.title, 200)

    def end(self, title: str, status: int) -> None:
        """Note the end of the request."""
        if self.ended is not None:
            return
        self.title = title
        self.ended = time.monotonic()
        self._prompt = None
        outcomes = {sample.status for sample in self.samples}
        if "failed" in outcomes or status >= 400:
            self.status = "lost" if status == 499 else "failed"
        else:
            self.status = "lost" if outcomes & {"lost", "running"} else "done"
        self.entry.end()

    def totals(self) -> tuple[TokenCounts, float | None]:
        """Return the samples' tokens, and the seconds from the request's begin to its first token, if there was one."""
        first = min((sample.first_text for sample in self.samples if sample.first_text is not None), default=None)
        return total_of([sample.tokens for sample in self.samples]), None if first is None else first - self.entry.began

    def row(self, now: float) -> ProgramRow:
        total, _ = self.totals()
        return ProgramRow(
            id=self.entry.id,
            seq=self.entry.seq,
            kind="request",
            title=self.title,
            status=self.status,
            began_at=self.entry.began_at,
            seconds=(now if self.ended is None else self.ended) - self.entry.began,
            states=len(self.samples),
            generations=len(self.samples),
            prompt_tokens=total.prompt,
            cached_tokens=total.cached,
            completion_tokens=total.completion,
            error=self._error(),
            excerpt=self._excerpt(),
        )

    def view(self, now: float, texts: bool) -> ProgramView:
        record = RunRecord(
            title=self.title,
            began_at=self.entry.began_at,
            states=[self._state(number, sample) for number, sample in enumerate(self.samples)],
        )
        return view_of(
            record,
            RowKey(self.entry.id, self.entry.seq, "request"),
            RowOutcome(self.status, self._error(), excerpt=self._excerpt()),
            source={},
            now=None if self.ended is not None else now - self.entry.began,
            texts=texts,
        )

    def _excerpt(self) -> str | None:
        return excerpt_of(next((sample.text for sample in self.samples if sample.text), None))

    def _error(self) -> str | None:
        return next((sample.error for sample in self.samples if sample.error is not None), None)

    def _prompt_event(self, part: PromptPart, start: float) -> Event:
        if isinstance(part, PromptPicture):
            label = f"image of {part.num_tokens} tokens"
            return Event(kind="text", label=label, place="", image=ShownImage(part.digest), start=start, end=start)
        return Event(kind="text", label="prompt", place="", text=self._text_of(part), start=start, end=start)

    def _text_of(self, prompt: array[int]) -> str | None:
        if self._log.decode is None:
            return None
        try:
            return self._log.decode(prompt.tolist())
        except Exception:  # ids that are not in the vocabulary, for which the request has failed
            return None

    def _state(self, number: int, sample: SampleRecord) -> TracedState:
        began = self.entry.began
        start = sample.began - began
        _, label = described(Gen(sampling=sample.sampling), None)
        events = [
            *(self._prompt_event(part, start) for part in sample.prompt),
            Event(
                kind="gen",
                label=label,
                place="",
                text=sample.text,
                start=start,
                first_text=None if sample.first_text is None else sample.first_text - began,
                end=None if sample.ended is None else sample.ended - began,
                error=sample.error,
                **(sample.sequence or {}),  # type: ignore[arg-type]
            ),
        ]
        return TracedState(number=number, parent=None, events=events, begin=start)


def _prompt_parts(tokens: list[int], pictures: Sequence[Picture]) -> list[PromptPart]:
    """Return the first tokens of a prompt, with its pictures in place of their tokens."""
    parts: list[PromptPart] = []
    begin, left = 0, MAX_PROMPT
    for picture in pictures:
        if (first := picture.runs[0].first) - begin > left:
            break
        parts += [_packed(tokens[begin:first])] if first > begin else []
        parts.append(PromptPicture(picture.end - first, picture.key.hex()[:DIGEST_DIGITS]))
        left -= first - begin
        begin = picture.end
    return [*parts, _packed(tokens[begin : begin + left])]


def _packed(tokens: list[int]) -> array[int]:
    """Return token ids in four bytes each; nothing for what cannot be token ids, which the core will refuse."""
    try:
        return array("I", tokens)
    except OverflowError:
        return array("I")
