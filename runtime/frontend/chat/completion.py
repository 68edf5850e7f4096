"""Generate one answer of a chat: its reasoning, its text and its tool calls.

Most answers are one request to the core. Some have parts that must match exactly and follow the model's free text: an
answer under a grammar after the reasoning, or a call's arguments under their schema. Such an answer runs in stages. The
model writes up to a marker, the completion appends the text that is certain, and generation continues under the
constraint.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import msgspec

from ...protocol.core import Finish
from ...protocol.sampling import Constraint, TokenLogprob
from ...protocol.session import Sequence
from ..text.generation import Generator, Piece
from . import harmony
from .reasoning import ReasoningMarkers, ReasoningParser
from .request import ChatDelta, ChatRequest, ToolCallDelta, ToolCallOptions
from .staged_generation import StagedGeneration, with_token_limit
from .tools.calls import ToolCall, new_tool_call_id
from .tools.parser import ToolCallParser

MAX_TOOL_CALLS = 128
_MARKER_SLACK = 8  # tokens before a marker: blanks, a few words


class ChatCompletion:
    """One answer, submitted on construction. Iterate over `deltas` once; then `finish` and the counts are final. Call
    `close` at the end.
    """

    def __init__(self, generator: Generator, request: ChatRequest, number: int) -> None:
        """Submit answer `number` of the request; its seed is the request's plus `number`."""
        self.finish: Finish | None = None
        self.num_calls = 0
        self._first_tool: str | None = None  # that the answer calls
        self.num_reasoning_tokens = 0
        self._request = request
        self._tools = tools = request.tools
        self._parser: ToolCallParser | None = None  # of what the model writes freely
        if tools is not None and request.prompt.sampling.constraint is None:
            # Nothing but the grammar engine can tell whether an input is of its grammar: such a call is not read.
            schemas = {name: one for name, one in tools.schemas.items() if one.kind == "json_schema"}
            reads_bare = tools.reads_bare and not tools.forced
            self._parser = ToolCallParser(tools.format, schemas, schemas, reads_bare=reads_bare)
        self._sampling = sampling = request.prompt.sampling
        assert sampling.seed is not None
        self._format = request.reasoning if request.splits_reasoning else None
        self._reasoning = None if self._format is None else ReasoningParser(self._format, is_open=request.in_reasoning)
        shows_special = any(marker in generator.tokenizer.special_ids for marker in _markers(request))
        self._stages = StagedGeneration(
            generator,
            request,
            sampling.seed + number,
            skip_special_tokens=sampling.skip_special_tokens and not shows_special,
        )
        self._begin()

    def _begin(self) -> None:
        """Begin the first stage."""
        request = self._request
        if request.is_staged and self._format is not None:
            thinking = self._stages.until(self._format.end)
            if request.thinking_budget is not None:
                thinking = with_token_limit(thinking, request.thinking_budget)
            self._stages.begin("" if request.in_reasoning else f"{self._format.start}\n", thinking)
        else:
            self._begin_answer()

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens taken from the cache."""
        return self._stages.num_cached_tokens

    @property
    def first_at(self) -> float | None:
        """Moment of the first token, by `time.monotonic`; None before it."""
        return self._stages.first_at

    @property
    def num_completion_tokens(self) -> int:
        return self._stages.num_completion_tokens

    @property
    def sequences(self) -> list[Sequence]:
        """Outputs of the core that the answer was made of, as far as they have ended."""
        return self._stages.sequences

    @property
    def prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """Log-probabilities of the client's prompt, if they were requested."""
        return self._stages.prompt_logprobs

    @property
    def tokens(self) -> list[int]:
        """Token ids of the client's prompt and of the answer so far."""
        return self._stages.tokens

    @property
    def said(self) -> list[int]:
        """Token ids of the answer so far, without a stop."""
        return self._stages.said

    def close(self) -> None:
        """Abort what still runs. After a whole answer, tell the core what the conversation waits for."""
        self._stages.close()
        if self.finish is not None and self.finish.type == "stop":
            self._stages.sample.note_turn_ended(self._first_tool or "user")

    async def deltas(self) -> AsyncGenerator[ChatDelta]:
        """Yield the answer as it is generated. Raises RamiformError when a stage fails."""
        tools = self._tools
        if self._reasoning is None and tools is None:
            async for piece in self._stages.sample:
                yield ChatDelta(piece.text, logprobs=piece.logprobs)
            self.finish = self._stages.finish
            return
        if self._request.is_staged and self._format is not None:
            async for delta in self._generate_reasoning(self._format):
                yield delta
            if self.finish is not None:
                return
        if not self._request.is_staged or tools is None:
            answer = self._parse_deltas()
        elif tools.forced:
            answer = self._generate_forced_calls(tools)
        else:
            answer = self._generate_until_calls(tools)
        async for delta in answer:
            yield delta

    def _begin_answer(self) -> None:
        tools = self._tools
        if tools is not None and tools.forced:
            self._open_call(tools, tools.format.opening)
        elif tools is not None and self._request.is_staged:
            trigger = tools.format.trigger
            sampling = self._stages.until(trigger)
            if self._sampling.constraint is not None:  # probe: does the answer begin with a call?
                sampling = with_token_limit(sampling, self._stages.num_tokens(trigger) + _MARKER_SLACK)
            self._stages.begin("", sampling)
        else:
            self._stages.begin("", self._sampling)

    async def _generate_reasoning(self, reasoning: ReasoningMarkers) -> AsyncGenerator[ChatDelta]:
        """Yield the reasoning, which is free, then begin the answer, which is constrained."""
        parser, self._reasoning = ReasoningParser(reasoning, is_open=True), None
        async for piece in self._stages.sample:
            yield ChatDelta(reasoning=parser.feed(piece.text)[0], logprobs=piece.logprobs)
        yield ChatDelta(reasoning=parser.finish()[0])
        self.num_reasoning_tokens = self.num_completion_tokens
        is_cut = self._stages.finish.type == "length" and self._stages.num_tokens_unused > 0  # by the budget
        if not is_cut and (self._stages.finish.type != "stop" or self._stages.stopped_by_client(reasoning.end)):
            self.finish = self._stages.finish
            return
        self._stages.keep()
        self._stages.append(f"{reasoning.end}\n\n")
        self._begin_answer()

    async def _parse_deltas(self) -> AsyncGenerator[ChatDelta]:
        """Yield one request's output, parsed into reasoning, text and calls."""
        async for piece in self._stages.sample:
            yield self._split(piece)
            if self._is_complete:
                self._stages.close()
                self.finish = Finish("stop")
                return
        reasoning, text = ("", "") if self._reasoning is None else self._reasoning.finish()
        yield self._read(ChatDelta(reasoning=reasoning), text, is_last=True)
        self.finish = self._stages.finish

    @property
    def _is_complete(self) -> bool:
        """Return True if a call ends the answer."""
        return self.num_calls > 0 and self._tools is not None and not self._tools.parallel

    async def _generate_forced_calls(self, tools: ToolCallOptions) -> AsyncGenerator[ChatDelta]:
        """Yield calls only. After each one the model may open another, if its format allows several."""
        stages, trigger = self._stages, tools.format.next_trigger
        while True:
            async for delta in self._generate_call(tools):
                yield delta
            if self.finish is not None:
                return
            if trigger is None or not self._may_call_again(tools):
                self.finish = Finish("stop")
                return
            stages.append(tools.format.appended_closing)
            probe = stages.until(trigger, tools.format.end_of_calls)
            stages.begin("", with_token_limit(probe, stages.num_tokens(trigger) + _MARKER_SLACK))
            await stages.sample.result()
            if not stages.stopped_at(trigger):
                stages.discard()
                self.finish = Finish("stop")
                return
            stages.keep()
            self._open_call(tools, tools.format.next_opening)

    async def _generate_until_calls(self, tools: ToolCallOptions) -> AsyncGenerator[ChatDelta]:
        """Yield free or constrained text until the model opens a call, then the call under its schema."""
        stages, constraint = self._stages, self._sampling.constraint
        trigger: str | None = tools.format.trigger
        opening = tools.format.opening
        while trigger is not None:
            async for piece in stages.sample:
                if self._parser is not None:
                    yield self._read(ChatDelta(logprobs=piece.logprobs), piece.text)
                    if self._is_complete:
                        stages.close()
                        self.finish = Finish("stop")
                        return
            if (
                self.num_calls
                and tools.format.end_of_calls is not None
                and stages.stopped_at(tools.format.end_of_calls)
            ):
                self.finish = Finish("stop")
                return
            is_call = stages.stopped_at(trigger)
            if self._parser is not None:
                yield self._read(ChatDelta(), "", is_last=not is_call, before_call=is_call)
            if not is_call:
                break
            stages.keep()
            self._open_call(tools, opening)
            async for delta in self._generate_call(tools):
                yield delta
            trigger, opening = tools.format.next_trigger, tools.format.next_opening
            if self.finish is None and (constraint is not None or trigger is None or not self._may_call_again(tools)):
                self.finish = Finish("stop")
            if self.finish is not None:
                return
            assert trigger is not None
            stages.append(tools.format.appended_closing)
            stages.begin("", stages.until(trigger, tools.format.end_of_calls))
        if constraint is not None:
            stages.begin("", self._sampling)  # no call: generate the answer from its beginning
            async for piece in stages.sample:
                yield ChatDelta(piece.text, logprobs=piece.logprobs)
        elif self._sampling.no_stop_trim and isinstance(stop := stages.finish.matched, str):
            yield ChatDelta(stop)
        self.finish = stages.finish

    async def _generate_call(self, tools: ToolCallOptions) -> AsyncGenerator[ChatDelta]:
        """Yield one call, whose opening ends the current prompt: its name, if there are several tools, and its
        arguments.
        """
        stages = self._stages
        name = next(iter(tools.schemas))
        if len(tools.schemas) > 1:
            terminator = tools.format.name_terminator
            name = (await stages.sample.result()).sequence.text.removesuffix(terminator)
            if stages.finish.type != "stop":
                self.finish = stages.finish
                return
            stages.discard()  # appended again with what follows, in the tokens of the joined text
            self._begin_arguments(tools, name, f"{name}{tools.format.arguments_opening(self.num_calls)}")
        index, self.num_calls = self.num_calls, self.num_calls + 1
        self._first_tool = self._first_tool or name
        yield ChatDelta(calls=[ToolCallDelta(index, "", new_tool_call_id(), name)])
        closing, text, begun = tools.format.generated_closing, "", False
        async for piece in stages.sample:
            text += piece.text if begun else piece.text.lstrip(" ")
            begun = begun or bool(text)
            # The last brace may belong to the format.
            num_certain = len(text) - len(closing) if text.endswith("}") else len(text)
            certain, text = text[:num_certain], text[num_certain:]
            yield ChatDelta(calls=[ToolCallDelta(index, certain)] if certain else [], logprobs=piece.logprobs)
        if stages.finish.type != "stop":
            self.finish = stages.finish
            return
        stages.keep()

    def _open_call(self, tools: ToolCallOptions, opening: str) -> None:
        names = list(tools.schemas)
        if len(names) == 1:
            self._begin_arguments(
                tools, names[0], f"{opening}{names[0]}{tools.format.arguments_opening(self.num_calls)}"
            )
            return
        # Includes the terminator, so that no name is a prefix of another choice.
        choices = json.dumps([name + tools.format.name_terminator for name in names], ensure_ascii=False)
        self._stages.begin(opening, self._stages.constrained(Constraint("choices", choices)))

    def _begin_arguments(self, tools: ToolCallOptions, name: str, text: str) -> None:
        """Generate the arguments after `text`.

        A trailing blank of `text`, and a brace after the arguments, are left to the model: its tokens often join them
        with the arguments' own braces.
        """
        written = text.rstrip(" ")
        constraint = _json_between(text[len(written) :], tools.schemas[name], tools.format.generated_closing)
        self._stages.begin(written, self._stages.constrained(constraint))

    def _may_call_again(self, tools: ToolCallOptions) -> bool:
        return tools.parallel and self.num_calls < MAX_TOOL_CALLS and self._stages.num_tokens_left > 0

    def _split(self, piece: Piece) -> ChatDelta:
        reasoning, text = "", piece.text
        if self._reasoning is not None:
            was_reasoning = self._reasoning.in_reasoning
            reasoning, text = self._reasoning.feed(text)
            if was_reasoning or self._reasoning.in_reasoning:
                self.num_reasoning_tokens += len(piece.ids)
        return self._read(ChatDelta(reasoning=reasoning, logprobs=piece.logprobs), text)

    def _read(self, delta: ChatDelta, text: str, *, is_last: bool = False, before_call: bool = False) -> ChatDelta:
        """Add the model's text to `delta`, as content and calls. A call is opened after a text `before_call`."""
        if self._parser is None:
            delta.content = text
            return delta
        parsed = [self._parser.feed(text)]
        if is_last or before_call:
            parsed.append(self._parser.finish(before_call=before_call))
        delta.content = "".join(each.text for each in parsed)
        delta.calls = self._call_deltas([call for each in parsed for call in each.calls])
        return delta

    def _call_deltas(self, calls: list[ToolCall]) -> list[ToolCallDelta]:
        tools = self._tools
        assert tools is not None
        most = (MAX_TOOL_CALLS if tools.parallel else 1) - self.num_calls
        deltas = [
            ToolCallDelta(self.num_calls + index, call.arguments, new_tool_call_id(), call.name)
            for index, call in enumerate(calls[: max(0, most)])
        ]
        self.num_calls += len(deltas)
        if deltas:
            self._first_tool = self._first_tool or deltas[0].name
        return deltas


def _json_between(before: str, value: Constraint, after: str) -> Constraint:
    """Constrain the output to `before`, a JSON value and `after`, as a structural tag."""
    if not before and not after:
        return value
    if value.kind == "tool_input":
        around = json.loads(value.source)
        around |= {"before": before + around["before"], "after": around["after"] + after}
        return msgspec.structs.replace(value, source=json.dumps(around))
    parts = [f'{{"type": "const_string", "value": {json.dumps(text)}}}' for text in (before, after)]
    parts.insert(1, f'{{"type": "json_schema", "json_schema": {value.source}}}')
    whole = f'{{"type": "structural_tag", "format": {{"type": "sequence", "elements": [{", ".join(parts)}]}}}}'
    return msgspec.structs.replace(value, kind="structural_tag", source=whole)


def _markers(request: ChatRequest) -> list[str]:
    """Return the markers that the parsers look for; special tokens among them must be detokenised."""
    markers: list[str] = [] if request.place is None else [harmony.CHANNEL]
    if request.reasoning is not None and request.splits_reasoning:
        markers += [request.reasoning.start, request.reasoning.end]
    if request.tools is not None:
        tool_format = request.tools.format
        markers += [*tool_format.begin_markers, tool_format.end_marker or "", tool_format.next_trigger or ""]
        markers += tool_format.inner or ()
    return markers
