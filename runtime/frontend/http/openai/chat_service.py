"""Build chat requests and run their completions: rendering, tokenisation, tool calls and reasoning.

Shared by chat, responses and constrained answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

from ....protocol.config import ReasoningFormatName, ToolFormatName
from ....protocol.errors import RequestError
from ....protocol.sampling import Constraint, LogprobParams
from ...chat import harmony
from ...chat.channel_completion import ChannelCompletion
from ...chat.completion import ChatCompletion
from ...chat.exact_history import EncodedPrompt, ExactHistory
from ...chat.reasoning import REASONING_FORMATS, ReasoningMarkers, detect_reasoning_markers
from ...chat.renderer import MessageRenderer
from ...chat.request import ChatRequest, ToolCallOptions
from ...chat.request_templates import RequestTemplates
from ...chat.schema_check import SchemaCheck
from ...chat.tools.detect import detect_tool_format
from ...chat.tools.formats import FORMATS, ToolFormat
from ...core.sessions import RetentionHint, core_retention
from ...text.generation import Generator, Prompt
from ..transport.merge import gather_or_cancel
from .chat_messages import for_harmony, with_short_ids
from .fields import GenerationFields, Truncation, completion_token_limit, truncation_bound
from .finish import name_constraint_field
from .tool_fields import Tool, ToolChoice, tool_call_options

FieldConstraint = tuple[Constraint, str]  # a constraint, and the request field that it came in
TokenLimitField = tuple[int | None, str]  # the maximum number of tokens, and its request field

_MESSAGE_CHANGES = {"mistral": with_short_ids, "harmony": for_harmony}  # what templates of a tool format ask for


class ChatService:
    """Builds chat requests and runs their completions, for every route that chats."""

    def __init__(
        self,
        generator: Generator,
        *,
        tool_parser: Literal["auto", ToolFormatName] = "auto",
        reasoning_parser: Literal["auto", "none", ReasoningFormatName] = "auto",
        trusts_templates: bool = False,
        exact_history: bool = True,
    ) -> None:
        """`tool_parser` and `reasoning_parser`: "auto" detects the model's format from its chat template.

        `trusts_templates`: requests may bring a template of their own. `exact_history`: histories are encoded with the
        ids that were generated, unless a request has a seed or says otherwise.
        """
        self.generator = generator
        self._history = ExactHistory(generator.tokenizer, generator.encoder)
        self._uses_history = exact_history
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

    async def request(
        self,
        messages: Sequence[Mapping[str, Any]],
        fields: GenerationFields,
        constraint: FieldConstraint | None,
        *,
        limit: TokenLimitField,
        prompt_field: str,
        tools: list[Tool] | None = None,
        tool_choice: ToolChoice | None = None,
        parallel_calls: bool = True,
        logprobs: LogprobParams | None = None,
        splits_reasoning: bool = True,
        template: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        default_limit: int | None = None,
        thinking_budget: int | None = None,
        truncation: Truncation | None = None,
        name: str | None = None,
        in_bulk: bool = False,
        exact_history: bool | None = None,
        retain: Sequence[RetentionHint] = (),
    ) -> ChatRequest:
        """Render and tokenise the messages, and build the request.

        `limit` is the maximum number of tokens and its field; without one, `default_limit` holds, or what fits.
        `prompt_field` names the messages' field in errors. `in_bulk`: the answer is read as a whole.
        `thinking_budget` is the maximum number of reasoning tokens; `name` is the client's id of the request;
        `template` is its own chat template. `exact_history` says whether ids of earlier answers are used; None: the
        default. `retain` are hints how long to keep the prompt. Raises RequestError.
        """
        options = tool_call_options(
            self.tool_format,
            tools or [],
            tool_choice,
            parallel=parallel_calls,
            constrained=constraint is not None,
            additional_properties=fields.additional_properties,
        )
        if options is not None:
            options = await self._check_schemas(options)
        encoder = self.generator.encoder
        bound = truncation_bound(truncation) or await encoder.prompt_bound(prompt_field, limit[0])
        segments = await self.renderer.render_aside(
            encoder,
            _MESSAGE_CHANGES.get(self.tool_format.name, list)(messages),
            bound=bound,
            tools=None if options is None else self._template_tools(tools or []),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            options=template_options,
            template=template,
        )
        if exact_history is None:
            exact_history = self._uses_history and fields.seed is None
        conversation: EncodedPrompt | None = None
        if exact_history and truncation is None:
            conversation = await self._history.encode(segments, fields.namespace, bound=bound)
            tokens = conversation.tokens
        else:
            tokens = await encoder.encode_async(segments, at_start=True, bound=bound)
        if truncation is not None:
            tokens = truncation.cut(tokens)
        tail = segments[-1].text.rstrip()
        reasoning = self.reasoning if splits_reasoning else None
        if reasoning is not None and reasoning.is_prompted and not any(reasoning.end in each.text for each in segments):
            reasoning = None
        may_reason = reasoning is not None and not tail.endswith(reasoning.end) and not continue_final_message
        in_reasoning = reasoning is not None and tail.endswith(reasoning.start)
        if options is not None and not options.strict and may_reason and not in_reasoning and thinking_budget is None:
            # Stages would force the model to reason, which the client did not ask for.
            options = replace(options, constrained=False)
        prompt = self._prompt(
            tokens,
            fields,
            constraint,
            limit=limit,
            prompt_field=prompt_field,
            default_limit=default_limit,
            in_bulk=in_bulk,
            logprobs=logprobs,
            name=name,
        )
        if hints := [*retain, *fields.retention]:
            text = "".join(part for part, _ in segments)
            prompt = replace(prompt, retain=core_retention(hints, text, len(tokens)))
        return ChatRequest(
            prompt=prompt,
            constraint_field=None if constraint is None else constraint[1],
            reasoning=reasoning,
            may_reason=may_reason,
            in_reasoning=in_reasoning,
            thinking_budget=thinking_budget,
            tools=options,
            place=self._place(tail, continue_final_message) if self._has_channels else None,
            conversation=conversation,
        )

    def _template_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """Convert tools for the chat template."""
        given = [tool.model_dump(exclude_none=True) for tool in tools]
        if self._has_channels:  # its template takes every tool to have a description
            for tool in given:
                tool["function"].setdefault("description", "")
        return given

    def _place(self, tail: str, continue_final_message: bool) -> harmony.Place:
        """Return where in a message the answer to a prompt in harmony begins."""
        if tail.endswith(harmony.ANALYSIS):
            return "analysis"
        return "final" if continue_final_message or tail.endswith(harmony.MESSAGE) else "start"

    async def plain_request(
        self,
        prompt: str | list[int],
        fields: GenerationFields,
        constraint: FieldConstraint | None,
        *,
        limit: TokenLimitField,
        default_limit: int | None = None,
    ) -> ChatRequest:
        """Build a request from the field `prompt`, without a chat template. Raises RequestError."""
        if isinstance(prompt, str):
            encoder = self.generator.encoder
            bound = await encoder.prompt_bound("prompt", limit[0])
            prompt = await encoder.encode_prompt(prompt, bound=bound)
        return ChatRequest(
            prompt=self._prompt(
                prompt,
                fields,
                constraint,
                limit=limit,
                prompt_field="prompt",
                default_limit=default_limit,
                in_bulk=True,
            ),
            constraint_field=None if constraint is None else constraint[1],
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

    def _prompt(
        self,
        tokens: list[int],
        fields: GenerationFields,
        constraint: FieldConstraint | None,
        *,
        limit: TokenLimitField,
        prompt_field: str,
        default_limit: int | None,
        in_bulk: bool,
        logprobs: LogprobParams | None = None,
        name: str | None = None,
    ) -> Prompt:
        info = self.generator.core.require_info()
        max_tokens = completion_token_limit(
            info, len(tokens), limit[0], prompt=prompt_field, limit=limit[1], default=default_limit
        )
        return Prompt(
            tokens=tokens,
            sampling=fields.sampling(max_tokens, None if constraint is None else constraint[0]),
            logprobs=logprobs,
            priority=fields.queue_priority,
            namespace=fields.namespace,
            session=fields.session,
            name=name,
            in_bulk=in_bulk,
            adapter=fields.adapter(info),
        )
