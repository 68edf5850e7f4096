"""`/parse_function_call` and `/separate_reasoning`: read texts of a model as chat does, in SGLang's forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from ....protocol.config import ToolCallReading
from ....protocol.errors import RequestError
from ....protocol.sampling import Constraint
from ....protocol.setting_aliases import value_for_alias
from ...api.bodies import Many, RequestBody, Text, example
from ...api.tool_fields import Tool
from ...chat.harmony import HarmonyParser
from ...chat.reasoning import REASONING_FORMATS, ReasoningMarkers, ReasoningParser
from ...chat.service import ChatService
from ...chat.tools.calls import ToolCall
from ...chat.tools.formats import FORMATS, ToolFormat
from ...chat.tools.parser import ToolCallParser
from ...text.offload import offload_if_large
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response

T = TypeVar("T")


class ParseCallBody(RequestBody):
    """`tool_call_parser` is the name of a format; default: the model's. `tool_calls` is as in chat."""

    model_config = example({"text": '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>', "tools": []})
    text: Text
    tools: Many[Tool] = Field(default_factory=list)
    tool_call_parser: Text | None = None
    tool_calls: ToolCallReading | None = None


class SeparateReasoningBody(RequestBody):
    """`reasoning_parser` is the name of a format; default: the model's."""

    model_config = example({"text": "<think>Hm.</think>Paris.", "reasoning_parser": "think"})
    text: Text
    reasoning_parser: Text | None = None


class ParsingApi:
    """Routes that generate nothing."""

    def __init__(self, service: ChatService) -> None:
        self._service = service

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        for path, endpoint in (
            ("/parse_function_call", self.parse_function_call),
            ("/separate_reasoning", self.separate_reasoning),
        ):
            router.add_api_route(path, endpoint, methods=["POST"], response_model=None, response_class=JSONResponse)
        return router

    async def parse_function_call(self, body: ParseCallBody, request: Request) -> Response:
        """Return the text around the tool calls of a text, and the calls."""
        tool_format = _named(FORMATS, "tool_call_parser", body.tool_call_parser, self._service.tool_format)
        reads_bare = self._service.reads_bare(body.tool_calls)
        work = offload_if_large(lambda _: _read_calls(tool_format, body, reads_bare=reads_bare), body.text)
        text, calls = await cancel_on_disconnect(request, work)
        return json_response(
            {
                "normal_text": text,
                "calls": [
                    {"tool_index": index, "name": call.name, "parameters": call.arguments}
                    for index, call in enumerate(calls)
                ],
            }
        )

    async def separate_reasoning(self, body: SeparateReasoningBody, request: Request) -> Response:
        """Return the reasoning of a text and the rest."""
        default = self._service.reasoning
        markers = _named(REASONING_FORMATS, "reasoning_parser", body.reasoning_parser, default)
        if markers is None:
            raise RequestError("the model does not reason: name a reasoning_parser", param="reasoning_parser")
        work = offload_if_large(lambda _: _split(markers, body.text), body.text)
        reasoning, text = await cancel_on_disconnect(request, work)
        return json_response({"reasoning_text": reasoning, "text": text})


def _named(formats: Mapping[Any, T], field: str, name: str | None, default: T) -> T:
    """Return the format of a name, ours or another server's. Raises RequestError."""
    if name is None:
        return default
    ours = value_for_alias(field, name)
    if ours not in formats:
        raise RequestError(f"unknown {field} {name!r}; there are {', '.join(formats)}", param=field)
    return formats[ours]


def _read_calls(tool_format: ToolFormat, body: ParseCallBody, *, reads_bare: bool) -> tuple[str, list[ToolCall]]:
    schemas = {
        tool.function.name: Constraint("json_schema", json.dumps(tool.function.parameters or {})) for tool in body.tools
    }
    if tool_format.name == "harmony":
        harmony = HarmonyParser(schemas, schemas, keeps_reasoning=True, reads_bare=reads_bare)
        outputs = [harmony.feed(body.text), harmony.finish()]
        return "".join(each.content for each in outputs), [call for each in outputs for call in each.calls]
    parser = ToolCallParser(tool_format, schemas, schemas, reads_bare=reads_bare)
    parsed = [parser.feed(body.text), parser.finish()]
    return "".join(each.text for each in parsed), [call for each in parsed for call in each.calls]


def _split(markers: ReasoningMarkers, text: str) -> tuple[str, str]:
    """Return reasoning and answer. The prompt may have begun the reasoning: then the text has the end marker only."""
    if markers == REASONING_FORMATS["harmony"]:
        harmony = HarmonyParser(())
        outputs = [harmony.feed(text), harmony.finish()]
        return "".join(each.reasoning for each in outputs), "".join(each.content for each in outputs)
    parser = ReasoningParser(markers, is_open=markers.end in text and markers.start not in text)
    parts = [parser.feed(text), parser.finish()]
    return "".join(reasoning for reasoning, _ in parts), "".join(answer for _, answer in parts)
