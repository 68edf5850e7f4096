"""Build chat requests and run their completions: rendering, tokenisation, tool calls and reasoning.

Shared by chat, responses and constrained answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ...protocol.config import ReasoningFormatName, ToolCallReading, ToolFormatName
from ...protocol.errors import RequestError
from ...tokenizer.image_processors import PreparedPicture
from ..core.journal import Journal
from ..core.sessions import core_retention
from ..text.encoding import PromptSegment, completion_token_limit
from ..text.generation import Generator, Prompt
from ..text.merge import gather_or_cancel
from ..text.named_fields import name_constraint_field
from ..text.pictures import ImageSource, placed, with_pictures
from . import harmony
from .channel_completion import ChannelCompletion
from .completion import ChatCompletion
from .exact_history import EncodedPrompt, ExactHistory
from .input import CallableTools, ChatInput
from .reasoning import REASONING_FORMATS, ReasoningMarkers, detect_reasoning_markers
from .renderer import MessageRenderer
from .request import ChatRequest, ToolCallOptions
from .request_templates import RequestTemplates
from .schema_check import SchemaCheck
from .template_messages import for_harmony, with_short_ids
from .tools.bare import asks_to_be_shown
from .tools.detect import detect_tool_format
from .tools.formats import FORMATS, ToolFormat

_MESSAGE_CHANGES = {"mistral": with_short_ids, "harmony": for_harmony}  # what templates of a tool format ask for


class ChatService:
    """Builds chat requests and runs their completions, for every route that chats."""

    def __init__(
        self,
        generator: Generator,
        *,
        tool_parser: Literal["auto", ToolFormatName] = "auto",
        tool_calls: ToolCallReading = "lenient",
        reasoning_parser: Literal["auto", "none", ReasoningFormatName] = "auto",
        trusts_templates: bool = False,
        exact_history: bool = True,
        journal: Journal | None = None,
    ) -> None:
        """`tool_parser` and `reasoning_parser`: "auto" detects the model's format from its chat template.

        `tool_calls`: "strict" wants a call in the format's own form, unless a request says otherwise.
        `trusts_templates`: requests may bring a template of their own. `exact_history`: histories are encoded with the
        ids that were generated, unless a request has a seed or says otherwise; `journal` keeps them over a restart.
        """
        self.generator = generator
        self._history = ExactHistory(generator.tokenizer, generator.encoder, journal=journal)
        self._uses_history = exact_history
        self._tool_calls = tool_calls
        self.renderer = MessageRenderer(generator.tokenizer, RequestTemplates() if trusts_templates else None)
        self._schemas = SchemaCheck(generator)
        self.tool_format: ToolFormat = (
            detect_tool_format(generator.tokenizer) if tool_parser == "auto" else FORMATS[tool_parser]
        )
        self.reasoning: ReasoningMarkers | None = (
            detect_reasoning_markers(generator.tokenizer)
            if reasoning_parser == "auto"
            else None
            if reasoning_parser == "none"
            else REASONING_FORMATS[reasoning_parser]
        )
        markers = REASONING_FORMATS["harmony"]
        self._has_channels = self.tool_format.name == "harmony" or self.reasoning == markers
        if self._has_channels:  # both or none
            self.tool_format = FORMATS["harmony"]
            self.reasoning = None if reasoning_parser == "none" else markers

    @property
    def can_reason(self) -> bool:
        """Return True if the model reasons before it answers."""
        return self.reasoning is not None

    def reads_bare(self, asked: ToolCallReading | None) -> bool:
        """Return True if an answer may be a call without the markers of the model's format."""
        return (asked or self._tool_calls) == "lenient"

    async def request(self, asked: ChatInput) -> ChatRequest:
        """Render and tokenise the messages, and build the request. Raises RequestError."""
        self.generator.check_generates()
        options = None
        if asked.tools is not None:
            reads_bare = self.reads_bare(asked.chat.tool_calls) and not asks_to_be_shown(asked.messages)
            options = await self._check_schemas(
                ToolCallOptions(format=self.tool_format, reads_bare=reads_bare, **vars(asked.tools))
            )
        encoder, truncation = self.generator.encoder, asked.truncation
        changed = _MESSAGE_CHANGES.get(self.tool_format.name, list)(asked.messages)
        messages, pictures = await self._pictures(changed, asked)
        bound = truncation.bound if truncation else await encoder.prompt_bound(asked.prompt_field, asked.limit[0])
        segments = await self.renderer.render_aside(
            encoder,
            messages,
            asked.rendering,
            bound=bound,
            tools=None if options is None else self._template_tools(options),
        )
        segments = with_pictures(segments, pictures)
        exact_history = asked.chat.exact_history
        if exact_history is None:
            exact_history = self._uses_history and not asked.has_seed
        conversation: EncodedPrompt | None = None
        if exact_history and truncation is None:
            conversation = await self._history.encode(segments, asked.options.namespace, bound=bound)
            tokens = conversation.tokens
        else:
            tokens = await encoder.encode_async(segments, at_start=True, bound=bound)
        if truncation is not None:
            tokens = truncation.cut(tokens)
        tail = segments[-1].text.rstrip()
        reasoning = self.reasoning if asked.splits_reasoning else None
        if reasoning is not None and reasoning.is_prompted and not any(reasoning.end in each.text for each in segments):
            reasoning = None
        is_continued = asked.rendering.continue_final_message
        may_reason = reasoning is not None and not tail.endswith(reasoning.end) and not is_continued
        in_reasoning = reasoning is not None and tail.endswith(reasoning.start)
        may_be_forced = in_reasoning or asked.thinking_budget is not None
        if options is not None and not options.strict and may_reason and not may_be_forced:
            # Stages would force the model to reason, which the client did not ask for.
            options = replace(options, constrained=False)
        return ChatRequest(
            prompt=self._whole_prompt(tokens, asked, segments, pictures),
            constraint_field=None if asked.constraint is None else asked.constraint[1],
            reasoning=reasoning,
            may_reason=may_reason,
            in_reasoning=in_reasoning,
            thinking_budget=asked.thinking_budget,
            tools=options,
            place=self._place(tail, is_continued) if self._has_channels else None,
            conversation=conversation,
        )

    def _whole_prompt(
        self,
        tokens: list[int],
        asked: ChatInput,
        segments: Sequence[PromptSegment],
        pictures: Sequence[PreparedPicture],
    ) -> Prompt:
        """Return the prompt with its pictures, and with how long it is to be kept."""
        prompt = self._prompt(tokens, asked)
        changes: dict[str, Any] = {}
        if asked.retain:
            changes["retain"] = core_retention(asked.retain, "".join(part for part, _ in segments), len(tokens))
        if pictures:
            changes["pictures"] = placed(pictures, tokens, self.generator.tokenizer)
        return replace(prompt, options=msgspec.structs.replace(prompt.options, **changes)) if changes else prompt

    async def _pictures(
        self, messages: Sequence[Mapping[str, Any]], asked: ChatInput
    ) -> tuple[Sequence[Mapping[str, Any]], list[PreparedPicture]]:
        """Return the messages without their images, and the images prepared, in order."""
        sources: list[ImageSource] = [source for message in messages for source in message.get("images", ())]
        if not sources:
            return messages, []
        pictures = self.generator.pictures(sources[0].where)
        if asked.truncation is not None:
            message = "a prompt with images cannot be truncated: leave truncate_prompt_tokens out"
            raise RequestError(message, param="truncate_prompt_tokens")
        stripped = [{name: value for name, value in each.items() if name != "images"} for each in messages]
        return stripped, await pictures.prepare(sources, asked.options.namespace)

    def _template_tools(self, tools: CallableTools) -> Sequence[dict[str, Any]]:
        """Return the tools for the chat template."""
        if not self._has_channels:
            return tools.definitions
        # Its template takes every tool to have a description.
        functions = [tool["function"] for tool in tools.definitions]
        return [
            {"type": "function", "function": {**each, "description": each.get("description") or ""}}
            for each in functions
        ]

    def _place(self, tail: str, is_continued: bool) -> harmony.Place:
        """Return where in a message the answer to a prompt in harmony begins."""
        if tail.endswith(harmony.ANALYSIS):
            return "analysis"
        return "final" if is_continued or tail.endswith(harmony.MESSAGE) else "start"

    async def plain_request(self, prompt: str | list[int], asked: ChatInput) -> ChatRequest:
        """Build a request from a prompt in place of messages, without a chat template. Raises RequestError."""
        if isinstance(prompt, str):
            encoder = self.generator.encoder
            prompt = await encoder.encode_prompt(prompt, bound=await encoder.prompt_bound("prompt", asked.limit[0]))
        return ChatRequest(
            prompt=self._prompt(prompt, asked),
            constraint_field=None if asked.constraint is None else asked.constraint[1],
        )

    @asynccontextmanager
    async def completions(self, request: ChatRequest, n: int = 1) -> AsyncIterator[list[ChatCompletion]]:
        """Submit `n` completions together; abort those that still run at the end of the block."""
        completions: list[ChatCompletion] = []
        try:
            with name_constraint_field(request.constraint_field):
                kind = ChatCompletion if request.place is None else ChannelCompletion
                completions += (kind(self.generator, request, number) for number in range(n))
                yield completions
        finally:
            for completion in completions:
                self._remember(request, completion)
                completion.close()

    def _remember(self, request: ChatRequest, completion: ChatCompletion) -> None:
        """Remember the ids of an answer, also as they follow its prompt in templates that leave reasoning out."""
        conversation, said = request.conversation, completion.said
        if conversation is None or conversation.tokens is not request.prompt.tokens or not said:
            return
        self._history.remember(conversation, said)
        if request.reasoning is None:
            return
        if request.place is not None:  # a final message follows the prompt without the messages before it
            channel = self.generator.tokenizer.special_ids.get(harmony.CHANNEL)
            places = [index for index, token in enumerate(said) if token == channel]
            if len(places) > 1:
                self._history.remember_without(conversation, conversation.text, said[places[-1] :])
            return
        start, end = request.reasoning.start, request.reasoning.end
        before, begun = conversation.text, conversation.text.rstrip()
        if begun.endswith((start, end)):  # the prompt has begun the reasoning, or has left it empty
            before = begun.removesuffix(end).rstrip().removesuffix(start)
        content = said if begun.endswith(end) else self._history.after(said, end)
        if content:
            self._history.remember_without(conversation, before, content)

    async def _check_schemas(self, options: ToolCallOptions) -> ToolCallOptions:
        """Set `constrained`. Raises RequestError for a schema that does not compile, if a call was forced or strict."""
        if not (options.forced or options.strict or options.format.has_marker):
            return options
        checks = (self._schemas.check_tool(name, arguments) for name, arguments in options.schemas.items())
        try:
            await gather_or_cancel(checks)
        except RequestError as error:
            if options.forced or options.strict or error.code != "invalid_tool":
                raise
            return options  # the call is parsed as the model writes it
        return replace(options, constrained=not options.forced)

    def _prompt(self, tokens: list[int], asked: ChatInput) -> Prompt:
        limit, limit_field = asked.limit
        max_tokens = completion_token_limit(
            self.generator.core.require_info(),
            len(tokens),
            limit,
            prompt=asked.prompt_field,
            limit=limit_field,
            default=asked.default_limit,
        )
        return Prompt(
            tokens=tokens,
            sampling=asked.sampling(max_tokens, None if asked.constraint is None else asked.constraint[0]),
            options=asked.options,
            session=asked.session,
            name=asked.name,
        )
