"""From messages and wishes to a turn: rendering, tokenising, and what the model's own format of thinking and calling
has to say. Shared by chat and responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from ....protocol.errors import RequestError
from ....protocol.sampling import Constraint, LogprobParams
from ...chat.completion import ChatCompletion
from ...chat.reasoning import THINK_END, THINK_START, can_reason
from ...chat.renderer import MessageRenderer
from ...chat.request import ChatRequest, ToolCallOptions
from ...chat.schema_check import SchemaCheck
from ...chat.tools.detect import detect_tool_format
from ...chat.tools.formats import FORMATS, ToolFormat
from ...text.generation import Generator
from ..transport.merge import gather_or_cancel
from .chat_messages import with_short_ids
from .fields import GenerationFields, completion_token_limit
from .finish import name_constraint_field
from .tool_fields import Tool, ToolChoice, tool_call_options


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is asked besides the messages."""

    fields: GenerationFields
    limit: tuple[int | None, str]  # tokens, and the field that says so
    prompt: str  # the field that the messages, or the prompt, came in
    tools: list[Tool]
    tool_choice: ToolChoice | None = None
    parallel: bool = True
    logprobs: LogprobParams | None = None
    splits_reasoning: bool = True
    options: Mapping[str, Any]  # further variables of the chat template
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    asked: tuple[Constraint, str] | None = None
    default: int | None = None  # the limit where none is asked for; None: what fits
    in_bulk: bool = False  # the answer is read whole


class ChatService:
    def __init__(self, generator: Generator, *, tool_parser: str = "auto", reasoning_parser: str = "auto") -> None:
        self.generator = generator
        self.messages = MessageRenderer(generator.tokenizer)
        self._schemas = SchemaCheck(generator)
        self.tool_format: ToolFormat = (
            detect_tool_format(generator.tokenizer) if tool_parser == "auto" else FORMATS[tool_parser]
        )
        self._thinks = can_reason(generator.tokenizer) if reasoning_parser == "auto" else reasoning_parser == "think"

    async def ask(self, messages: Sequence[Mapping[str, Any]], wish: Wish) -> ChatRequest:
        """Raises RequestError."""
        called = tool_call_options(
            self.tool_format,
            wish.tools,
            wish.tool_choice,
            parallel=wish.parallel,
            constrained=wish.asked is not None,
            additional_properties=wish.fields.additional_properties,
        )
        if called is not None:
            called = await self._checked(called)
        encoder = self.generator.encoder
        bound = await encoder.prompt_bound(wish.prompt, wish.limit[0])
        segments = await self.messages.render_aside(
            encoder,
            with_short_ids(messages) if self.tool_format.name == "mistral" else messages,
            bound=bound,
            tools=None if called is None else [tool.model_dump(exclude_none=True) for tool in wish.tools],
            add_generation_prompt=wish.add_generation_prompt,
            continue_final_message=wish.continue_final_message,
            options=wish.options,
        )
        plain = self._plain(await encoder.encode_async(segments, at_start=True, bound=bound), wish)
        tail = segments[-1].text.rstrip()
        splits = self._thinks and wish.splits_reasoning
        thinks = splits and not tail.endswith(THINK_END) and not wish.continue_final_message
        thinking = splits and tail.endswith(THINK_START)
        if called is not None and not called.strict and thinks and not thinking:
            called = replace(called, exact=False)  # steps would make it think, and nobody asked for either
        return replace(plain, thinks=thinks, thinking=thinking, calling=called)

    async def ask_plainly(self, prompt: str | list[int], wish: Wish) -> ChatRequest:
        """Without any template. Raises RequestError."""
        if isinstance(prompt, str):
            encoder = self.generator.encoder
            bound = await encoder.prompt_bound(wish.prompt, wish.limit[0])
            prompt = await encoder.encode_prompt(prompt, bound=bound)
        return self._plain(prompt, wish)

    async def _checked(self, called: ToolCallOptions) -> ToolCallOptions:
        """With `exact` set. Raises RequestError for a schema that cannot be compiled, and has to be."""
        if not (called.forced or called.strict or called.format.is_marked):
            return called
        checks = (self._schemas.check_tool(name, arguments) for name, arguments in called.schemas.items())
        try:
            await gather_or_cancel(checks)
        except RequestError as error:
            if called.forced or called.strict or error.code != "invalid_tool":
                raise
            return called  # nothing was promised: the call is read as the model writes it
        return replace(called, exact=not called.forced)

    def _plain(self, tokens: list[int], wish: Wish) -> ChatRequest:
        limit, field = wish.limit
        info = self.generator.core.require_info()
        room = completion_token_limit(info, len(tokens), limit, prompt=wish.prompt, limit=field, default=wish.default)
        return ChatRequest(
            tokens=tokens,
            sampling=wish.fields.sampling(room, None if wish.asked is None else wish.asked[0]),
            logprobs=wish.logprobs,
            priority=wish.fields.priority,
            namespace=wish.fields.cache_salt,
            in_bulk=wish.in_bulk,
        )

    @asynccontextmanager
    async def turns(
        self, ask: ChatRequest, n: int, asked: tuple[Constraint, str] | None
    ) -> AsyncIterator[list[ChatCompletion]]:
        """`n` answers, submitted together; what still runs at the end of the block is aborted."""
        turns: list[ChatCompletion] = []
        assert ask.sampling.seed is not None
        try:
            with name_constraint_field(asked):
                turns += (ChatCompletion(self.generator, ask, number, ask.sampling.seed) for number in range(n))
                yield turns
        finally:
            for turn in turns:
                turn.close()
