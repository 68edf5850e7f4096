"""Generate one answer in harmony (see harmony.py): messages on channels instead of texts between markers.

A staged answer goes from message to message. The model chooses the next channel among those that may follow, under a
constraint; the rest of the header is appended. So a call, or a content that has a grammar, is constrained from its
beginning, and everything else is free.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import msgspec

from ...protocol.core import Finish
from ...protocol.sampling import Constraint, SamplingParams
from .completion import ChatCompletion
from .harmony import ANSWER, CALL, CHANNEL, END, MESSAGE, RETURN, TO_FUNCTION, HarmonyOutput, HarmonyParser
from .request import ChatDelta
from .staged_generation import with_token_limit

_TO_FUNCTION = f"commentary {TO_FUNCTION}"


class ChannelCompletion(ChatCompletion):
    """One answer in harmony."""

    def _begin(self) -> None:
        request, tools = self._request, self._tools
        assert request.place is not None
        schemas = {} if tools is None else tools.schemas
        self._parser = HarmonyParser(
            schemas,
            schemas,
            place=request.place,
            keeps_reasoning=not request.splits_reasoning,
            reads_bare=tools is not None
            and tools.reads_bare
            and not tools.forced
            and self._sampling.constraint is None,
        )
        self._channel: str | None = None  # of the current message of a staged answer; None: it is being chosen
        if not request.is_staged:
            self._stages.begin("", self._until_end(self._sampling))
        elif request.place == "final" and tools is not None and tools.forced:
            self._stages.append(f"{END}{ANSWER}")
            self._begin_choice()
        elif request.place == "start":
            self._begin_choice()
        else:
            self._begin_message(request.place, "")

    async def deltas(self) -> AsyncGenerator[ChatDelta]:
        """Yield the answer as it is generated. Raises RamiformError when a stage fails."""
        answer = self._generate_messages() if self._request.is_staged else self._parse_messages()
        async for delta in answer:
            yield delta

    async def _parse_messages(self) -> AsyncGenerator[ChatDelta]:
        """Yield one request's output."""
        async for piece in self._stages.sample:
            was_reasoning = self._parser.in_reasoning
            delta = self._delta(self._parser.feed(piece.text))
            if was_reasoning or self._parser.in_reasoning:
                self.num_reasoning_tokens += len(piece.ids)
            delta.logprobs = piece.logprobs
            yield delta
            if self.num_calls and self._tools is not None and not self._tools.parallel:
                self._stages.close()
                self.finish = Finish("stop")
                return
        yield self._delta(self._parser.finish())
        self.finish = self._stages.finish

    async def _generate_messages(self) -> AsyncGenerator[ChatDelta]:
        """Yield message after message, until one ends the answer."""
        while self.finish is None:
            if self._channel is None:
                await self._choose()
            elif self._channel == _TO_FUNCTION:
                assert self._tools is not None
                async for delta in self._generate_call(self._tools):
                    yield delta
                self.finish = self.finish or Finish("stop")
            else:
                async for piece in self._stages.sample:
                    delta = self._delta(self._parser.feed(piece.text))
                    delta.logprobs = piece.logprobs
                    yield delta
                yield self._delta(self._end_message())

    def _begin_choice(self) -> None:
        """Begin a message with the choice of its channel, unless only one may follow."""
        tools, budget = self._tools, self._request.thinking_budget
        channels = ["analysis"] if budget is None or self.num_reasoning_tokens < budget else []
        channels += ["final"] if tools is None or not tools.forced else []
        channels += [] if tools is None else [_TO_FUNCTION]
        if len(channels) > 1:
            self._channel = None
            choice = Constraint("choices", json.dumps(channels))
            self._stages.begin(CHANNEL, self._stages.constrained(choice))
        else:
            self._stages.append(CHANNEL)
            self._begin_message(channels[0], f"{channels[0]}{MESSAGE}")

    async def _choose(self) -> None:
        """Wait for the choice and begin the message."""
        channel = (await self._stages.sample.result()).sequence.text
        if self._stages.finish.type != "stop":
            self.finish = self._stages.finish
            return
        self._stages.discard()
        self._begin_message(channel, f"{channel}{MESSAGE}")

    def _begin_message(self, channel: str, header: str) -> None:
        """Begin the body of a message after the rest of its header."""
        self._channel = channel
        if channel == _TO_FUNCTION:
            assert self._tools is not None
            self._open_call(self._tools, _TO_FUNCTION)
            return
        if header:
            self._parser.feed(f"{CHANNEL}{header}")
        sampling = self._sampling
        if channel == "analysis":
            sampling = self._stages.until(END)
            if (budget := self._request.thinking_budget) is not None:
                sampling = with_token_limit(sampling, budget - self.num_reasoning_tokens)
        elif sampling.constraint is None:
            sampling = self._until_end(self._stages.until(END))
        self._stages.begin(header, sampling)

    def _end_message(self) -> HarmonyOutput:
        """End the current message: the answer too, unless it was reasoning."""
        stages = self._stages
        if self._channel == "analysis":
            self.num_reasoning_tokens = self.num_completion_tokens
            is_cut = stages.finish.type == "length" and stages.num_tokens_unused > 0  # by the budget
            if is_cut or (stages.finish.type == "stop" and not stages.stopped_by_client(END)):
                stages.keep()
                stages.append(f"{END}{ANSWER}")
                output = self._parser.feed(f"{END}{ANSWER}")
                self._begin_choice()
                return output
        self.finish = stages.finish
        return self._parser.finish()

    def _until_end(self, sampling: SamplingParams) -> SamplingParams:
        """Return `sampling` that also stops where an answer ends; not every checkpoint names both ends."""
        tokenizer = self._stages.tokenizer
        ends = [tokenizer.special_ids[end] for end in (RETURN, CALL) if end in tokenizer.special_ids]
        missing = [] if sampling.ignore_eos else [end for end in ends if end not in tokenizer.eos_ids]
        return msgspec.structs.replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *missing))

    def _delta(self, output: HarmonyOutput) -> ChatDelta:
        return ChatDelta(output.content, output.reasoning, self._call_deltas(output.calls) if output.calls else [])
