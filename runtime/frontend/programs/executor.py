"""Executes a program state's operations on token ids: exact prefix reuse, and generation through the core."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from ...programs.executor import OnDelta, OperationResult, PendingResult
from ...programs.running_program import StateProgress
from ...protocol import session
from ...protocol.core import Finish, ProgramProgress, RequestOptions, SoftPin
from ...protocol.errors import ErrorInfo, RamiformError, RequestError
from ...protocol.sampling import Constraint
from ..text.generation import FinishedSample, Generator, Prompt, SampleStream
from ..text.pictures import ImageSource
from .content import AppendedContent, ContentSnapshot, TokenContent
from .decisions import decide
from .select import select
from .soft_pins import Ancestor, pins_of

logger = logging.getLogger("ramiform.frontend")


class TokenExecutor:
    """A `StateExecutor` on a state's `TokenContent`. Operations that ask the core run as tasks of the event loop.

    `program` is the program's name for the core; `ancestors` are the states whose soft pins ride on the first request;
    `namespace` separates cached prefixes.
    """

    def __init__(
        self,
        generator: Generator,
        state: StateProgress,
        program: str,
        content: TokenContent,
        ancestors: tuple[Ancestor, ...] = (),
        namespace: str = "",
    ) -> None:
        self._generator = generator
        self._state = state
        self._program = program
        self._content = content
        self._ancestors = ancestors
        self._namespace = namespace
        self._is_pinned = False
        self._task: asyncio.Task[None] | None = None
        self._work: tuple[Callable[[], Coroutine[Any, Any, OperationResult]], PendingResult] | None = None

    def append_text(self, text: str) -> str:
        return self._content.append_text(text)

    def append_image(self, data: bytes) -> PendingResult:
        return self._start(partial(self._append_image, data))

    def begin_role(self, role: str, tools: session.OfferedTools | None = None) -> str:
        return self._content.begin_role(role, tools)

    def end_role(self) -> str:
        return self._content.end_role()

    def supply(self, text: str, *, chosen: bool) -> OperationResult | PendingResult:
        if chosen:
            return self._start(partial(self._append_chosen, text))
        return OperationResult(self._content.append_text(text))

    def generate(self, gen: session.Gen, on_delta: OnDelta) -> PendingResult:
        return self._start(partial(self._generate, gen, on_delta))

    def append_generated(self, generated: session.Generated) -> PendingResult:
        return self._start(partial(self._append_generated, generated))

    def select(self, select: session.Select) -> PendingResult:
        return self._start(partial(self._select, select))

    def decide(self, op: session.Decide) -> PendingResult:
        return self._start(partial(self._decide, op))

    def token_ids(self) -> PendingResult:
        return self._start(self._token_ids)

    def fork(self, children: Sequence[StateProgress]) -> list[TokenExecutor]:
        ancestors = (*self._ancestors, Ancestor.of(self._state, self._content))
        return [
            TokenExecutor(self._generator, child, self._program, self._content.fork(), ancestors, self._namespace)
            for child in children
        ]

    def snapshot(self) -> ContentSnapshot:
        return self._content.snapshot()

    def restore(self, snapshot: ContentSnapshot) -> None:
        self._content.restore(snapshot)

    def since_fork(self) -> AppendedContent:
        return self._content.since_fork()

    def join(self, appended: Sequence[AppendedContent]) -> PendingResult:
        return self._start(partial(self._join, appended))

    def generation_ended(self) -> None:
        """Release the state's pin once it needs no more generations."""
        if self._is_pinned and self._state.finished and not self._state.closed:  # else: whoever closed it says so
            self._is_pinned = False
            self._generator.core.end_states(self._program, [self._state.number])

    def _start(self, work: Callable[[], Coroutine[Any, Any, OperationResult]]) -> PendingResult:
        """Run `work` in the state's task. Work that begins when earlier work resolves continues in the same task."""
        pending = PendingResult(self._cancel)
        self._work = work, pending
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"state {self._state.number}")
        return pending

    def _cancel(self) -> None:
        """Cancel the work. Later work begins in a task of its own."""
        if self._task is not None:
            self._task.cancel()
        self._task = self._work = None

    async def _run(self) -> None:
        while self._work is not None:
            (work, pending), self._work = self._work, None
            result: OperationResult | ErrorInfo
            try:
                result = await work()
            except Exception as error:
                if not isinstance(error, RamiformError):
                    logger.exception("an operation failed on an internal error")
                result = ErrorInfo.of(error)
            pending.resolve(result)
            if self._task is not asyncio.current_task():
                return  # cancelled meanwhile: later work has a task of its own
        self._task = None

    async def _append_chosen(self, text: str) -> OperationResult:
        await self._content.append_chosen(text)
        return OperationResult(text)

    async def _append_image(self, data: bytes) -> OperationResult:
        pictures = self._generator.pictures("image")
        source, num_before = ImageSource(data, "image"), len(self._content.pictures)
        [prepared] = await pictures.prepare([source], self._namespace, num_before=num_before)
        return OperationResult(await self._content.append_picture(prepared))

    async def _generate(self, gen: session.Gen, on_delta: OnDelta) -> OperationResult:
        self._content.drop_lead()
        healed = await self._content.take_open_word(gen.sampling.stop) if gen.heal else ""
        if healed:
            gen, on_delta = _healing(gen, healed), _behind(healed, on_delta)
        tokens = await self._content.flush()
        is_streamed = gen.stream or self._state.program.has_token_budget  # which is spent token by token
        options = self._request_options(tokens, None, gen.lora)
        # No token is asked for, but log-probabilities: of the tokens that could come next, so one is drawn and dropped.
        only_scores = gen.logprobs is not None and gen.sampling.max_new_tokens == 0
        prompt = Prompt(
            tokens=tokens,
            sampling=msgspec.structs.replace(gen.sampling, max_new_tokens=1) if only_scores else gen.sampling,
            options=msgspec.structs.replace(
                options,
                logprobs=gen.logprobs,
                in_bulk=not is_streamed,
                routed_from=0 if gen.routed_experts else None,
            ),
        )
        with self._generator.start(prompt, gen.n) as samples:
            if only_scores:
                finished = [_without_tokens(await sample.result()) for sample in samples]
            else:
                finished = [
                    await self._read(sample, on_delta if gen.stream and index == 0 else None)
                    for index, sample in enumerate(samples)
                ]
        first = finished[0]
        # What is left of the open word where max_tokens ended the output inside it.
        unsaid = healed.removeprefix(first.sequence.text) if healed.startswith(first.sequence.text) else ""
        await self._content.append_generated(first.sequence.ids, first.leftover + unsaid)
        sequences = [_without_lead(sample.sequence, healed) for sample in finished]
        if gen.token_texts:
            sequences = [self._with_token_texts(sequence) for sequence in sequences]
        return OperationResult(sequences[0].text, sequences=sequences)

    async def _append_generated(self, generated: session.Generated) -> OperationResult:
        if generated.chosen:
            lead = self._content.take_lead()
            await self._content.append_chosen(generated.text)
            return OperationResult(lead + generated.text)
        self._content.drop_lead()
        tokenizer = self._generator.tokenizer
        if (wrong := next((id for id in generated.ids if not 0 <= id < tokenizer.vocab_size), None)) is not None:
            raise RequestError(f"ids holds {wrong}, but the vocabulary ends at {tokenizer.vocab_size - 1}", param="ids")
        text = tokenizer.decode(generated.ids)
        if text and not generated.text.startswith(text):  # perhaps the ids begin before it
            before = self._content.open_text()
            sizes = range(1, min(len(text), len(before)) + 1)
            found = (n for n in sizes if before.endswith(text[:n]) and generated.text.startswith(text[n:]))
            if size := next(found, 0):
                self._content.remove_tail(text[:size])
                text = text[size:]
        await self._content.append_generated(
            generated.ids, generated.text[len(text) :] if generated.text.startswith(text) else ""
        )
        return OperationResult(generated.text)

    async def _read(self, sample: SampleStream, on_delta: OnDelta | None) -> FinishedSample:
        num_counted = 0
        async for piece in sample:
            self._state.program.spend(len(sample.output_ids) - num_counted)
            num_counted = len(sample.output_ids)
            if on_delta is not None:
                on_delta(piece.text, piece.ids, piece.logprobs)
        assert sample.generated is not None
        return sample.generated

    def _with_token_texts(self, sequence: session.Sequence) -> session.Sequence:
        entries = [entry for entry in (*(sequence.logprobs or ()), *(sequence.prompt_logprobs or ())) if entry]
        ids = {entry.id for entry in entries} | {token for entry in entries for _, token in entry.top}
        texts = {token: self._generator.tokenizer.decode([token], skip_special_tokens=False) for token in ids}
        return msgspec.structs.replace(sequence, token_texts=texts)

    async def _select(self, op: session.Select) -> OperationResult:
        lead = self._content.take_lead()
        choice = await select(
            self._generator, self._content, op, options_for=partial(self._request_options, lora=op.lora)
        )
        if not op.append:
            return OperationResult(lead, choice=choice)
        await self._content.append_chosen(choice.text)
        return OperationResult(lead + choice.text, choice=choice)

    async def _decide(self, op: session.Decide) -> OperationResult:
        options_for = partial(self._request_options, lora=op.lora)
        decided = await decide(self._generator, self._content, op.questions, options_for=options_for)
        return OperationResult("", answers=decided.answers)

    async def _token_ids(self) -> OperationResult:
        return OperationResult("", ids=list(await self._content.flush()))

    async def _join(self, appended: Sequence[AppendedContent]) -> OperationResult:
        return OperationResult("".join([await self._content.join(each) for each in appended]))

    def _request_options(self, tokens: list[int], num_kept: int | None, lora: str | None) -> RequestOptions:
        """Return the options of a request for `tokens` with the adapter `lora`; the state keeps the first `num_kept`.

        None: it keeps all tokens and the output.
        """
        program = self._state.program
        return RequestOptions(
            program=self._program,
            namespace=self._namespace,
            soft_pins=self._soft_pins(tokens, num_kept),
            progress=ProgramProgress(program.num_generations - 1, self._state.width, program.complete),
            adapter=lora,
            pictures=self._content.pictures,
        )

    def _soft_pins(self, tokens: list[int], num_kept: int | None) -> list[SoftPin]:
        if self._state.closed:
            return []
        token_bytes = self._generator.tokenizer.token_bytes
        pins = pins_of(self._ancestors, tokens, token_bytes)
        self._ancestors = ()
        if self._state.finished:
            return pins  # its last request: nothing of it is needed again
        self._is_pinned = True
        return [*pins, SoftPin(self._state.number, num_kept)]


def _healing(gen: session.Gen, healed: str) -> session.Gen:
    """Return the gen whose output begins with a text and goes on as the gen says."""
    constraint = gen.sampling.constraint
    if constraint is None:
        elements = [{"type": "const_string", "value": healed}, {"type": "any_text"}]
        spec = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
        led = Constraint("structural_tag", json.dumps(spec))
    else:
        led = msgspec.structs.replace(constraint, lead=healed)
    return msgspec.structs.replace(gen, sampling=msgspec.structs.replace(gen.sampling, constraint=led))


def _behind(healed: str, on_delta: OnDelta) -> OnDelta:
    """Return the function that is told of an output without the text at its beginning."""
    left = len(healed)

    def told(text: str, ids: Any, logprobs: Any) -> None:
        nonlocal left
        cut = min(left, len(text))
        left -= cut
        on_delta(text[cut:], ids, logprobs)

    return told


def _without_lead(sequence: session.Sequence, lead: str) -> session.Sequence:
    text = "" if lead.startswith(sequence.text) else sequence.text.removeprefix(lead)
    return msgspec.structs.replace(sequence, text=text) if lead else sequence


def _without_tokens(sample: FinishedSample) -> FinishedSample:
    """Return the sample with its log-probabilities, and none of its tokens."""
    sequence = msgspec.structs.replace(
        sample.sequence, text="", ids=[], completion_tokens=0, finish=Finish("length"), num_passes=0
    )
    return FinishedSample(sequence, [], "")
