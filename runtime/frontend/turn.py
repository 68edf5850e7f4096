"""One answer of a chat: its thinking, its text and its tool calls, as they come.

Most answers are one request to the core. Where something has to follow the model's free text exactly - an answer that
matches a grammar after the thinking, a call's arguments that match their schema - the turn is a small program: it lets
the model write up to a mark, writes what is certain itself, and goes on from there under the constraint. Each step's
prompt is the last one's tokens and more, so that nothing is computed twice.
Knows tokens and formats; nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

import msgspec

from ..protocol.core import Finish
from ..protocol.sampling import Constraint, LogprobParams, SamplingParams, TokenLogprob
from .generation import Generator, Piece, Prompt, Sample
from .reasoning import CLOSE, OPEN, ThoughtSplitter
from .segments import Segment
from .tools.calls import Call, new_call_id
from .tools.formats import ToolFormat
from .tools.parser import CallParser

MAX_CALLS = 128
_PROBE_TOKENS = 12  # more than any trigger has


@dataclass(frozen=True, kw_only=True)
class Calling:
    """Which tools may be called, and how. `schemas` has the JSON schema of each tool's arguments."""

    format: ToolFormat
    schemas: Mapping[str, str]
    forced: bool = False  # the answer is a call
    exact: bool = False  # a call that the model opens itself is held to its schema
    parallel: bool = True


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a turn is to answer. `sampling` is for all of it: its limit, and the constraint of the answer's text.

    `thinks`: the answer may begin with thinking; `thinking`: the prompt has begun it.
    """

    tokens: list[int]
    sampling: SamplingParams
    logprobs: LogprobParams | None = None
    priority: int = 0
    namespace: str = ""
    thinks: bool = False
    thinking: bool = False
    calling: Calling | None = None


@dataclass(frozen=True)
class CallDelta:
    """More of call `index`. Its first delta has the id and the name."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Delta:
    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None


class Turn:
    """Submitted when made. Iterate over `deltas` once; then `finish` and the counts are final. `close` at the end."""

    def __init__(self, generator: Generator, ask: Ask, number: int, seed: int) -> None:
        """The `number`th answer of a request whose seed is `seed`."""
        self.finish: Finish | None = None
        self.num_calls = 0
        self.num_reasoning_tokens = 0
        self._generator = generator
        self._ask = ask
        self._seed = seed + number
        self._num_steps = 0
        self._tokens = ask.tokens  # the step's prompt
        self._is_kept = False  # whether what the step has generated counts as a part of them, or not at all
        self._first_cached: int | None = None
        self._skips_special = ask.sampling.skip_special_tokens and not self._reads_special_tokens()
        self._splitter = ThoughtSplitter(is_open=ask.thinking) if ask.thinks or ask.thinking else None
        self._sample = self._first()

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt as the client gave it."""
        cached = self._sample.num_cached if self._first_cached is None else self._first_cached
        return min(cached, len(self._ask.tokens))

    @property
    def num_completion_tokens(self) -> int:
        """All that follows the client's prompt and stayed, what was written for the model included."""
        written = len(self._tokens) - len(self._ask.tokens)
        return written if self._is_kept else written + len(self._sample.output_ids)

    def close(self) -> None:
        self._sample.close()

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Raises RamifyError when a step fails."""
        calling = self._ask.calling
        if self._splitter is None and calling is None:
            async for piece in self._sample:
                yield Delta(piece.text, logprobs=piece.logprobs)
            self._end()
            return
        if self._is_staged and self._splitter is not None:
            async for delta in self._think():
                yield delta
            if self.finish is not None:
                return
        if calling is not None and calling.forced:
            steps = self._forced(calling)
        elif calling is not None and self._is_staged:
            steps = self._watched(calling)
        else:
            steps = self._read(calling)
        async for delta in steps:
            yield delta

    # The steps

    @property
    def _is_staged(self) -> bool:
        calling = self._ask.calling
        if calling is not None and (calling.forced or calling.exact):
            return True
        return self._ask.sampling.constraint is not None and (self._splitter is not None or calling is not None)

    def _first(self) -> Sample:
        calling = self._ask.calling
        if self._is_staged and self._splitter is not None:
            return self._begin("" if self._ask.thinking else f"{OPEN}\n", self._until(CLOSE))
        if calling is not None and calling.forced:
            return self._open_call(calling, calling.format.opening)
        if calling is not None and self._is_staged:
            return self._watch(calling)
        return self._begin("", self._ask.sampling)

    async def _think(self) -> AsyncGenerator[Delta]:
        """Up to the end of the thinking, which is free, then on to the answer, which is not."""
        assert self._splitter is not None
        splitter = ThoughtSplitter(is_open=True)
        async for piece in self._sample:
            yield Delta(reasoning=splitter.feed(piece.text)[0], logprobs=piece.logprobs)
        yield Delta(reasoning=splitter.finish()[0])
        self.num_reasoning_tokens = self.num_completion_tokens
        matched = self._matched
        ends = (*self._ask.sampling.stop, *self._ask.sampling.stop_token_ids)
        if matched.type != "stop" or matched.matched in ends:
            self.finish = matched
            return
        calling = self._ask.calling
        self._keep()
        self._write(f"{CLOSE}\n\n")
        if calling is not None and calling.forced:
            self._sample = self._open_call(calling, calling.format.opening)
        elif calling is not None:
            self._sample = self._watch(calling)
        else:
            self._sample = self._begin("", self._ask.sampling)
        self._splitter = None

    async def _read(self, calling: Calling | None) -> AsyncGenerator[Delta]:
        """One free answer, parted into what it is made of."""
        parser = None if calling is None else CallParser(calling.format, calling.schemas)
        async for piece in self._sample:
            yield self._parted(piece, parser)
            if self.num_calls and calling is not None and not calling.parallel:
                self._sample.close()
                self.finish = Finish("stop")
                return
        thought, text = ("", "") if self._splitter is None else self._splitter.finish()
        delta = Delta(text, thought)
        if parser is not None:
            certain, rest = parser.feed(text), parser.finish()
            delta.content = certain.text + rest.text
            delta.calls = self._new_calls(certain.calls + rest.calls)
        yield delta
        self._end()

    async def _forced(self, calling: Calling) -> AsyncGenerator[Delta]:
        """Nothing but calls. After one the model may open another where its format has several."""
        while True:
            async for delta in self._call(calling):
                yield delta
            if self.finish is not None:
                return
            tool_format = calling.format
            if not calling.parallel or tool_format.again is None or self.num_calls == MAX_CALLS or not self._room:
                self.finish = Finish("stop")
                return
            self._write(tool_format.closing)
            probe = self._until(tool_format.again)
            self._sample = self._begin("", _limited(probe, _PROBE_TOKENS))
            async for _ in self._sample:
                pass
            if not self._is_trigger(tool_format.again):
                self._is_kept = True  # not at all: a forced answer is nothing but calls
                self.finish = Finish("stop")
                return
            self._keep()
            self._sample = self._open_call(calling, tool_format.opening_again)

    async def _watched(self, calling: Calling) -> AsyncGenerator[Delta]:
        """Free text, or text that matches the constraint, until the model opens a call, which is held to its schema."""
        constraint = self._ask.sampling.constraint
        trigger, opening = calling.format.trigger, calling.format.opening
        while True:
            held = ""
            async for piece in self._sample:
                if constraint is None:
                    yield self._parted(piece, None)
                held += piece.text
            if not self._is_trigger(trigger):
                break
            self._keep()
            self._sample = self._open_call(calling, opening)
            async for delta in self._call(calling):
                yield delta
            if self.finish is None and (not calling.parallel or self.num_calls == MAX_CALLS or not self._room):
                self.finish = Finish("stop")
            if self.finish is not None:
                return
            if calling.format.again is None or constraint is not None:
                self.finish = Finish("stop")
                return
            trigger, opening = calling.format.again, calling.format.opening_again
            self._write(calling.format.closing)
            self._sample = self._begin("", self._until(trigger))
        if constraint is not None:
            self._sample = self._begin("", self._ask.sampling)  # it does not call: the answer, from its beginning
            async for piece in self._sample:
                yield Delta(piece.text, logprobs=piece.logprobs)
        self._end()

    async def _call(self, calling: Calling) -> AsyncGenerator[Delta]:
        """One call whose opening the step's prompt ends with: its name, if there are several, and its arguments."""
        names = list(calling.schemas)
        index, self.num_calls = self.num_calls, self.num_calls + 1
        name = names[0]
        if len(names) > 1:
            name = (await self._sample.result()).sequence.text
            if self._matched.type != "stop":
                self.num_calls -= 1
                self.finish = self._matched
                return
            self._keep()
            name = name[:-1]
            self._sample = self._arguments(calling, name, calling.format.to_arguments[1:])
        yield Delta(calls=[CallDelta(index, "", new_call_id(), name)])
        async for piece in self._sample:
            yield Delta(calls=[CallDelta(index, piece.text)] if piece.text else [], logprobs=piece.logprobs)
        if self._matched.type != "stop":
            self.finish = self._matched
            return
        self._keep()

    # What they are made of

    def _watch(self, calling: Calling) -> Sample:
        """The step in which the model may open a call."""
        sampling = self._until(calling.format.trigger)
        if self._ask.sampling.constraint is not None:
            sampling = _limited(sampling, _PROBE_TOKENS)
        return self._begin("", sampling)

    def _open_call(self, calling: Calling, opening: str) -> Sample:
        names = list(calling.schemas)
        to_arguments = calling.format.to_arguments
        if len(names) == 1:
            return self._arguments(calling, names[0], f"{opening}{names[0]}{to_arguments}")
        # With the character that ends a name, so that none is the beginning of another.
        choices = json.dumps([name + to_arguments[0] for name in names], ensure_ascii=False)
        return self._begin(opening, self._held_to(Constraint("choices", choices)))

    def _arguments(self, calling: Calling, name: str, text: str) -> Sample:
        return self._begin(text, self._held_to(Constraint("json_schema", calling.schemas[name])))

    def _held_to(self, constraint: Constraint) -> SamplingParams:
        """Nothing but the constraint ends it: a stop string in the arguments would leave half of them."""
        return msgspec.structs.replace(
            self._ask.sampling,
            constraint=constraint,
            stop=(),
            stop_token_ids=(),
            ignore_eos=False,
            min_new_tokens=0,
            no_stop_trim=False,
        )

    def _until(self, mark: str) -> SamplingParams:
        """Free, up to `mark`."""
        sampling = self._ask.sampling
        special = self._generator.tokenizer.special_ids.get(mark)
        return msgspec.structs.replace(
            sampling,
            constraint=None,
            stop=sampling.stop if special is not None else (*sampling.stop, mark),
            stop_token_ids=sampling.stop_token_ids if special is None else (*sampling.stop_token_ids, special),
            no_stop_trim=False,
        )

    @property
    def _room(self) -> int:
        """How many tokens the answer may still have."""
        return self._ask.sampling.max_new_tokens - (len(self._tokens) - len(self._ask.tokens))

    def _begin(self, text: str, sampling: SamplingParams) -> Sample:
        """Go on after `text`, which is ours."""
        self._write(text)
        ask = self._ask
        room = max(0, min(self._room, sampling.max_new_tokens))
        sampling = msgspec.structs.replace(
            sampling,
            max_new_tokens=room,
            min_new_tokens=min(room, max(0, sampling.min_new_tokens - (len(self._tokens) - len(ask.tokens)))),
            seed=_wrapped(self._seed ^ self._num_steps << 32),  # steps of one answer must not draw alike
            skip_special_tokens=self._skips_special,
        )
        if self._num_steps:
            self._first_cached = self.num_cached_tokens
        self._num_steps += 1
        self._is_kept = False
        prompt = Prompt(
            tokens=self._tokens,
            sampling=sampling,
            logprobs=ask.logprobs,
            priority=ask.priority,
            namespace=ask.namespace,
        )
        return self._generator.start(prompt)[0]

    def _write(self, text: str, *, trusted: bool = True) -> None:
        if text:
            ids = self._generator.encoder.encode([Segment(text, trusted=trusted)], at_start=False)
            self._tokens = [*self._tokens, *ids]

    def _keep(self) -> None:
        """What the step has generated, without its stop, becomes a part of the prompt."""
        generated = self._sample.generated
        assert generated is not None
        self._tokens = [*self._tokens, *generated.sequence.ids]
        self._is_kept = True
        self._write(generated.leftover, trusted=False)

    @property
    def _matched(self) -> Finish:
        generated = self._sample.generated
        assert generated is not None
        return generated.sequence.finish

    def _is_trigger(self, mark: str) -> bool:
        matched = self._matched.matched
        return self._matched.type == "stop" and matched in (mark, self._generator.tokenizer.special_ids.get(mark, mark))

    def _end(self) -> None:
        self.finish = self._matched

    def _parted(self, piece: Piece, parser: CallParser | None) -> Delta:
        thought, text = "", piece.text
        if self._splitter is not None:
            was_in_thought = self._splitter.in_thought
            thought, text = self._splitter.feed(text)
            if was_in_thought or self._splitter.in_thought:
                self.num_reasoning_tokens += len(piece.ids)
        delta = Delta(text, thought, logprobs=piece.logprobs)
        if parser is not None:
            parsed = parser.feed(text)
            delta.content = parsed.text
            delta.calls = self._new_calls(parsed.calls)
        return delta

    def _new_calls(self, calls: list[Call]) -> list[CallDelta]:
        calling = self._ask.calling
        assert calling is not None
        most = (MAX_CALLS if calling.parallel else 1) - self.num_calls
        deltas = [
            CallDelta(self.num_calls + index, call.arguments, new_call_id(), call.name)
            for index, call in enumerate(calls[: max(0, most)])
        ]
        self.num_calls += len(deltas)
        return deltas

    def _reads_special_tokens(self) -> bool:
        """Whether marks that the answer is read by are special tokens, which must then be shown."""
        marks = [OPEN, CLOSE] if self._ask.thinks or self._ask.thinking else []
        if (calling := self._ask.calling) is not None:
            marks += [*calling.format.begins, calling.format.end or "", calling.format.again or ""]
        return any(mark in self._generator.tokenizer.special_ids for mark in marks)


def _limited(sampling: SamplingParams, num_tokens: int) -> SamplingParams:
    most = min(num_tokens, sampling.max_new_tokens)
    least = min(most, sampling.min_new_tokens)
    return msgspec.structs.replace(sampling, max_new_tokens=most, min_new_tokens=least)


def _wrapped(seed: int) -> int:
    """As the 64-bit number that it is."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
