"""One answer of a chat: its thinking, its text and its tool calls, as they come.

Most answers are one request to the core. Where something has to follow the model's free text exactly - an answer that
matches a grammar after the thinking, a call's arguments that match their schema - the turn is a small program: it lets
the model write up to a mark, writes what is certain itself, and goes on from there under the constraint.
Knows steps and formats; nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from ...protocol.core import Finish
from ...protocol.sampling import Constraint
from ..text.generation import Generator, Piece
from .reasoning import THINK_END, THINK_START, ReasoningParser
from .request import ChatDelta, ChatRequest, ToolCallDelta, ToolCallOptions
from .staged_generation import StagedGeneration, with_token_limit
from .tools.calls import ToolCall, new_tool_call_id
from .tools.parser import ToolCallParser

MAX_TOOL_CALLS = 128
_SLACK = 8  # tokens before a mark: blanks, a few words


class ChatCompletion:
    """Submitted when made. Iterate over `deltas` once; then `finish` and the counts are final. `close` at the end."""

    def __init__(self, generator: Generator, ask: ChatRequest, number: int, seed: int) -> None:
        """The `number`th answer of a request whose seed is `seed`."""
        self.finish: Finish | None = None
        self.num_calls = 0
        self.num_reasoning_tokens = 0
        self._ask = ask
        self._splitter = ReasoningParser(is_open=ask.thinking) if ask.thinks or ask.thinking else None
        shows_special = any(mark in generator.tokenizer.special_ids for mark in _marks(ask))
        self._steps = StagedGeneration(
            generator,
            ask,
            seed + number,
            skip_special_tokens=ask.sampling.skip_special_tokens and not shows_special,
        )
        if ask.is_staged and self._splitter is not None:
            self._steps.begin("" if ask.thinking else f"{THINK_START}\n", self._steps.until(THINK_END))
        else:
            self._begin_answer()

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt."""
        return self._steps.num_cached_tokens

    @property
    def num_completion_tokens(self) -> int:
        return self._steps.num_completion_tokens

    def close(self) -> None:
        """Nobody reads on: abort what runs."""
        self._steps.close()

    async def deltas(self) -> AsyncGenerator[ChatDelta]:
        """Raises RamiformError when a step fails."""
        calling = self._ask.calling
        if self._splitter is None and calling is None:
            async for piece in self._steps.sample:
                yield ChatDelta(piece.text, logprobs=piece.logprobs)
            self.finish = self._steps.ended
            return
        if self._ask.is_staged and self._splitter is not None:
            async for delta in self._think():
                yield delta
            if self.finish is not None:
                return
        if not self._ask.is_staged or calling is None:
            answer = self._read(calling)
        elif calling.forced:
            answer = self._forced(calling)
        else:
            answer = self._watched(calling)
        async for delta in answer:
            yield delta

    def _begin_answer(self) -> None:
        calling = self._ask.calling
        if calling is not None and calling.forced:
            self._open_call(calling, calling.format.opening)
        elif calling is not None and self._ask.is_staged:
            trigger = calling.format.trigger
            sampling = self._steps.until(trigger)
            is_probe = self._ask.sampling.constraint is not None
            self._steps.begin(
                "", with_token_limit(sampling, self._steps.size(trigger) + _SLACK) if is_probe else sampling
            )
        else:
            self._steps.begin("", self._ask.sampling)

    async def _think(self) -> AsyncGenerator[ChatDelta]:
        """Up to the end of the thinking, which is free, then on to the answer, which is not."""
        splitter, self._splitter = ReasoningParser(is_open=True), None
        async for piece in self._steps.sample:
            yield ChatDelta(reasoning=splitter.feed(piece.text)[0], logprobs=piece.logprobs)
        yield ChatDelta(reasoning=splitter.finish()[0])
        self.num_reasoning_tokens = self.num_completion_tokens
        if self._steps.ended.type != "stop" or self._steps.ended_by_wish(THINK_END):
            self.finish = self._steps.ended
            return
        self._steps.keep()
        self._steps.write(f"{THINK_END}\n\n")
        self._begin_answer()

    async def _read(self, calling: ToolCallOptions | None) -> AsyncGenerator[ChatDelta]:
        """One request's answer, parted into what it is made of."""
        parser = None if calling is None else ToolCallParser(calling.format, calling.schemas)
        async for piece in self._steps.sample:
            yield self._parted(piece, parser)
            if self.num_calls and calling is not None and not calling.parallel:
                self._steps.close()
                self.finish = Finish("stop")
                return
        thought, text = ("", "") if self._splitter is None else self._splitter.finish()
        delta = ChatDelta(text, thought)
        if parser is not None:
            certain, rest = parser.feed(text), parser.finish()
            delta.content = certain.text + rest.text
            delta.calls = self._new_calls(certain.calls + rest.calls)
        yield delta
        self.finish = self._steps.ended

    async def _forced(self, calling: ToolCallOptions) -> AsyncGenerator[ChatDelta]:
        """Nothing but calls. After one the model may open another where its format has several."""
        steps, again = self._steps, calling.format.again
        while True:
            async for delta in self._call(calling):
                yield delta
            if self.finish is not None:
                return
            if again is None or not self._may_call_again(calling):
                self.finish = Finish("stop")
                return
            steps.write(calling.format.rest)
            steps.begin("", with_token_limit(steps.until(again, calling.format.over), steps.size(again) + _SLACK))
            await steps.sample.result()
            if not steps.ended_at(again):
                steps.drop()
                self.finish = Finish("stop")
                return
            steps.keep()
            self._open_call(calling, calling.format.opening_again)

    async def _watched(self, calling: ToolCallOptions) -> AsyncGenerator[ChatDelta]:
        """Free text, or text that matches the constraint, until the model opens a call, which is held to its schema."""
        steps, constraint = self._steps, self._ask.sampling.constraint
        trigger: str | None = calling.format.trigger
        opening = calling.format.opening
        while trigger is not None:
            blanks = ""  # held back: before a call they are the format's
            async for piece in steps.sample:
                if constraint is None:
                    text = blanks + piece.text
                    blanks = text[len(text.rstrip()) :]
                    yield ChatDelta(text.rstrip(), logprobs=piece.logprobs)
            if self.num_calls and calling.format.over is not None and steps.ended_at(calling.format.over):
                self.finish = Finish("stop")
                return
            if not steps.ended_at(trigger):
                if not self.num_calls:
                    yield ChatDelta(blanks)
                break
            steps.keep()
            self._open_call(calling, opening)
            async for delta in self._call(calling):
                yield delta
            trigger, opening = calling.format.again, calling.format.opening_again
            if self.finish is None and (constraint is not None or trigger is None or not self._may_call_again(calling)):
                self.finish = Finish("stop")
            if self.finish is not None:
                return
            assert trigger is not None
            steps.write(calling.format.rest)
            steps.begin("", steps.until(trigger, calling.format.over))
        if constraint is not None:
            steps.begin("", self._ask.sampling)  # it does not call: the answer, from its beginning
            async for piece in steps.sample:
                yield ChatDelta(piece.text, logprobs=piece.logprobs)
        elif self._ask.sampling.no_stop_trim and isinstance(stop := steps.ended.matched, str):
            yield ChatDelta(stop)
        self.finish = steps.ended

    async def _call(self, calling: ToolCallOptions) -> AsyncGenerator[ChatDelta]:
        """One call whose opening the step's prompt ends with: its name, if there are several, and its arguments."""
        steps = self._steps
        name = next(iter(calling.schemas))
        if len(calling.schemas) > 1:
            ending = calling.format.name_end
            name = (await steps.sample.result()).sequence.text.removesuffix(ending)
            if steps.ended.type != "stop":
                self.finish = steps.ended
                return
            steps.drop()  # and written again with what follows, in the tokens that the whole has
            self._begin_arguments(calling, name, f"{name}{calling.format.to_arguments}")
        index, self.num_calls = self.num_calls, self.num_calls + 1
        yield ChatDelta(calls=[ToolCallDelta(index, "", new_tool_call_id(), name)])
        brace, text, begun = calling.format.brace, "", False
        async for piece in steps.sample:
            text += piece.text if begun else piece.text.lstrip(" ")
            begun = begun or bool(text)
            num_certain = len(text) - len(brace) if text.endswith("}") else len(text)  # the rest may be the format's
            certain, text = text[:num_certain], text[num_certain:]
            yield ChatDelta(calls=[ToolCallDelta(index, certain)] if certain else [], logprobs=piece.logprobs)
        if steps.ended.type != "stop":
            self.finish = steps.ended
            return
        steps.keep()

    def _open_call(self, calling: ToolCallOptions, opening: str) -> None:
        names = list(calling.schemas)
        to_arguments = calling.format.to_arguments
        if len(names) == 1:
            self._begin_arguments(calling, names[0], f"{opening}{names[0]}{to_arguments}")
            return
        # With the character that ends a name, so that none is the beginning of another.
        choices = json.dumps([name + calling.format.name_end for name in names], ensure_ascii=False)
        self._steps.begin(opening, self._steps.held_to(Constraint("choices", choices)))

    def _begin_arguments(self, calling: ToolCallOptions, name: str, text: str) -> None:
        """The blank that `text` may end with, and a brace that follows the arguments, are left to be generated: in the
        model's tokens they are one with the arguments' own braces."""
        written = text.rstrip(" ")
        constraint = _between(text[len(written) :], calling.schemas[name], calling.format.brace)
        self._steps.begin(written, self._steps.held_to(constraint))

    def _may_call_again(self, calling: ToolCallOptions) -> bool:
        return calling.parallel and self.num_calls < MAX_TOOL_CALLS and self._steps.room > 0

    def _parted(self, piece: Piece, parser: ToolCallParser | None) -> ChatDelta:
        thought, text = "", piece.text
        if self._splitter is not None:
            was_in_thought = self._splitter.in_thought
            thought, text = self._splitter.feed(text)
            if was_in_thought or self._splitter.in_thought:
                self.num_reasoning_tokens += len(piece.ids)
        delta = ChatDelta(text, thought, logprobs=piece.logprobs)
        if parser is not None:
            parsed = parser.feed(text)
            delta.content = parsed.text
            delta.calls = self._new_calls(parsed.calls)
        return delta

    def _new_calls(self, calls: list[ToolCall]) -> list[ToolCallDelta]:
        calling = self._ask.calling
        assert calling is not None
        most = (MAX_TOOL_CALLS if calling.parallel else 1) - self.num_calls
        deltas = [
            ToolCallDelta(self.num_calls + index, call.arguments, new_tool_call_id(), call.name)
            for index, call in enumerate(calls[: max(0, most)])
        ]
        self.num_calls += len(deltas)
        return deltas


def _between(before: str, value: Constraint, after: str) -> Constraint:
    """A JSON value between two texts."""
    if not before and not after:
        return value
    parts = [f'{{"type": "const_string", "value": {json.dumps(text)}}}' for text in (before, after)]
    parts.insert(1, f'{{"type": "json_schema", "json_schema": {value.source}}}')
    whole = f'{{"type": "structural_tag", "format": {{"type": "sequence", "elements": [{", ".join(parts)}]}}}}'
    return Constraint("structural_tag", whole, value.order, value.additional_properties)


def _marks(ask: ChatRequest) -> list[str]:
    """What the answer is read by: must be shown where it is a special token."""
    marks = [THINK_START, THINK_END] if ask.thinks or ask.thinking else []
    if ask.calling is not None:
        tool_format = ask.calling.format
        marks += [*tool_format.begins, tool_format.end or "", tool_format.again or ""]
    return marks
