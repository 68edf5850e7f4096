"""`/programs`: plays a program's operations and streams their answers. Keeps nothing after the request."""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from email.message import Message
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ....protocol import wire
from ....protocol.errors import RequestError
from ....protocol.session import (
    Append,
    Ask,
    Done,
    Fork,
    Gen,
    Generated,
    Open,
    Play,
    RoleBegin,
    RoleEnd,
)
from ....tokenizer.chat_template import ChatTemplate
from ...api.bodies import Body, Many, Text, described, example
from ...core.frontend_peers import FrontendPeers
from ...programs.play import Answer, ProgramPlay
from ...programs.roles import ChatState
from ...records.log import Owner
from ...records.recorder import ProgramRecorder, RecordedRuns
from ...text.generation import Generator
from ...text.offload import CancellationToken, offload
from ..scope import SCOPE_API_KEY
from ..transport.body_route import BodyRoute
from ..transport.streaming import ClientDisconnectedError, EventStream, cancel_on_disconnect

PATH = "/programs"
MAX_BODY_BYTES = 8 << 20  # reading more would keep the event loop from its other tasks
MAX_REQUEST_STATES = 1024  # of one request; each holds its token ids
MAX_OPERATIONS = 1 << 14  # of one request
MAX_ROLES = 512  # messages begun in one request: the template renders all earlier ones for each
MAX_RID = 200  # characters
FEW_ROLES = 32  # so many are rendered in the event loop
EMPTY_EVENT_SECONDS = 15.0  # a stream without answers sends an empty event: proxies close silent connections

_PLACE = re.compile(r" - at `\$\.?(.*?)`$")  # where msgspec says that a body is wrong

EXAMPLE = {
    "messages": [
        {"type": "open", "state": 1, "program": 1},
        {
            "type": "append",
            "state": 1,
            "first": 0,
            "operations": [
                {"type": "role_begin", "role": "user"},
                {"type": "text", "text": "What is the capital of France?"},
                {"type": "role_end"},
                {"type": "role_begin", "role": "assistant"},
                {"type": "gen", "sampling": {"temperature": 0, "max_new_tokens": 8, "stop": ["\n"]}},
                {"type": "role_end"},
            ],
        },
    ]
}


class ProgramBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `/programs`: the messages of one program. Its states are empty when they are opened.

    What an earlier request answered is given again, a generated text by the operation `generated`. `known` has, by
    state, how many of its first operations were answered before: their answers are left out. `complete`: no later
    request appends to these states. `extra_key` separates cached prefixes, as in `/generate`. `/programs/close` finds
    the request by `rid`, the client's name of it. Requests with the same `run` are one program in the server's records.
    """

    messages: list[Open | Append]
    complete: bool = False
    known: dict[int, int] = {}
    extra_key: str | None = None
    rid: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_RID)] | None = None
    run: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_RID)] | None = None

    @property
    def num_operations(self) -> int:
        return sum(len(message.operations) for message in self.messages if isinstance(message, Append))


def program_schemas() -> dict[str, Any]:
    """Return the JSON Schemas of the body and its parts, by name, for the OpenAPI document."""
    _, schemas = msgspec.json.schema_components([ProgramBody], ref_template="#/components/schemas/{name}")
    schemas["ProgramBody"]["examples"] = [EXAMPLE]
    return schemas


class CloseBody(Body):
    """Body of `/programs/close`."""

    model_config = example({"rid": "my-program-7", "states": [2, 3]})
    rid: Annotated[Text, described(maxLength=MAX_RID)]
    states: Annotated[Many[int], described(maxItems=MAX_REQUEST_STATES)]


class ProgramsApi:
    """Routes of programs. A running program is known by its API key and the client's `rid`."""

    def __init__(self, generator: Generator, peers: FrontendPeers) -> None:
        self._generator = generator
        self._peers = peers
        peers.on("close_states", self._close_asked)
        self._running: dict[tuple[str | None, str], ProgramPlay] = {}
        self._runs = RecordedRuns()

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ProgramBody"}}}}
        router.add_api_route(
            PATH,
            self.play,
            methods=["POST"],
            response_model=None,
            response_class=Response,
            openapi_extra={"requestBody": {"required": True, **body}},
            responses={
                200: {
                    "description": "Server-sent events that end with `[DONE]`.",
                    "content": {"text/event-stream": {}},
                }
            },
        )
        router.add_api_route(
            f"{PATH}/close", self.close, methods=["POST"], response_model=None, response_class=Response
        )
        return router

    async def play(self, request: Request) -> Response:
        """Play the operations of a program's states; stream an answer to each, in order within its state."""
        info = self._generator.core.require_info()
        body = await _read(request)
        num_roles = _check(body, info.context_length)
        if num_roles > FEW_ROLES and (template := self._generator.tokenizer.chat) is not None:
            await cancel_on_disconnect(request, offload(partial(_render_roles, template, body)))
        rid = uuid.uuid4().hex if body.rid is None else body.rid
        key = request.scope[SCOPE_API_KEY], rid
        values = self._answers(key, body)
        return EventStream(await cancel_on_disconnect(request, anext(values)), values)

    async def close(self, body: CloseBody, request: Request) -> Response:
        """Close states of a running program: abort what only they need, and answer no more of their operations."""
        key = request.scope[SCOPE_API_KEY]
        if not await self._close_here(key, body.rid, body.states):
            about = json.dumps([key, body.rid, body.states])
            await self._peers.ask("close_states", about, bool)
        return Response(status_code=200)

    async def _close_asked(self, about: str | None) -> bool:
        """Close states that another frontend was asked to close."""
        return about is not None and await self._close_here(*json.loads(about))

    async def _close_here(self, key: str | None, rid: str, states: list[int]) -> bool:
        """Close states if the program runs in this process; return True then."""
        play = self._running.get((key, rid))
        if play is not None:
            play.close(states)
        return play is not None

    def _recorder(self, api_key: str | None, body: ProgramBody, name: str) -> ProgramRecorder | None:
        if self._generator.log is None:
            return None
        owner = Owner("http", api_key)
        run = None if body.run is None else self._runs.find(owner, body.run)
        known = None if run is None else body.known
        return ProgramRecorder(self._generator.log, owner, run=run, known=known, name_of=lambda _: name)

    async def _answers(self, key: tuple[str | None, str], body: ProgramBody) -> AsyncGenerator[dict[str, list[Answer]]]:
        """Yield the events. Raises RequestError for messages that contradict each other, and for a `rid` in use."""
        if key in self._running:
            raise RequestError(f"a program with rid {key[1]!r} is running", param="rid")
        name = f"http:{uuid.uuid4().hex}"
        messages = Play([*body.messages], body.complete)
        namespace = body.extra_key or ""
        play = self._running[key] = ProgramPlay(
            self._generator,
            name,
            messages,
            max_states=MAX_REQUEST_STATES,
            namespace=namespace,
            recorder=self._recorder(key[0], body, name),
        )
        values = play.answers(EMPTY_EVENT_SECONDS)
        is_first = True
        try:
            async with aclosing(values):
                async for answers in values:
                    new = [answer for answer in answers if not _is_known(answer, body.known)]
                    if new or not answers:
                        is_first = False
                        yield {"answers": new}
            if is_first:
                yield {"answers": []}
        finally:
            del self._running[key]


async def _read(request: Request) -> ProgramBody:
    """Return the body. Raises RequestError, and ClientDisconnectedError."""
    if not _is_json(request.headers.get("content-type", "")):
        raise RequestError("the body must be JSON (Content-Type: application/json)")
    try:
        data = await request.body()
    except ClientDisconnect:
        raise ClientDisconnectedError from None
    if len(data) > MAX_BODY_BYTES:
        raise HTTPException(413, f"the body has {len(data)} bytes; of a program the most is {MAX_BODY_BYTES}")
    try:
        body: ProgramBody = wire.decode(msgspec.json.Decoder(ProgramBody), data)
    except RequestError as error:
        if error.param is not None:
            raise
        message = str(error).removeprefix("malformed message: ")
        place = _PLACE.search(message)
        param = place[1].replace("[...]", "") if place is not None else None
        raise RequestError(f"the body is wrong: {message}", param=param or None) from None
    return body


def _is_json(content_type: str) -> bool:
    message = Message()
    message["content-type"] = content_type
    kind = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (kind == "json" or kind.endswith("+json"))


def _check(body: ProgramBody, context_length: int) -> int:
    """Return the number of chat messages. Raises RequestError for what the request may not hold."""
    if body.num_operations > MAX_OPERATIONS:
        raise RequestError(
            f"messages hold {body.num_operations} operations; a request may have {MAX_OPERATIONS}", param="messages"
        )
    programs = {message.program for message in body.messages if isinstance(message, Open)}
    if len(programs) > 1:
        raise RequestError(f"a request plays one program, got {sorted(programs)[:8]}", param="program")
    num_roles = 0
    for message in body.messages:
        for operation in message.operations if isinstance(message, Append) else ():
            match operation:
                case Ask():
                    raise RequestError(
                        "an ask is answered by the client: end the request before it, and give its text in the next",
                        param="operations",
                        code="unsupported",
                    )
                case Gen(checked=True):
                    raise RequestError(
                        "the client checks what a gen generates: send it unchecked, and its text in the next request",
                        param="operations",
                        code="unsupported",
                    )
                case Generated(ids=ids) if len(ids) > context_length:
                    raise RequestError(
                        f"ids: {len(ids)} of one operation; the model's context has {context_length}", param="ids"
                    )
                case RoleBegin():
                    num_roles += 1
    if num_roles > MAX_ROLES:
        raise RequestError(
            f"messages begin {num_roles} chat messages; a request may have {MAX_ROLES}", param="messages"
        )
    return num_roles


def _render_roles(template: ChatTemplate, body: ProgramBody, cancellation: CancellationToken) -> None:
    """Render the texts around chat messages. They are cached, so that playing the program does not wait for them."""
    chats: dict[int, ChatState] = defaultdict(ChatState)
    for message in body.messages:
        for operation in message.operations if isinstance(message, Append) else ():
            cancellation.check()
            with suppress(RequestError):  # which the operation raises again when it is played
                match operation:
                    case RoleBegin(role=role):
                        chats[message.state], _ = chats[message.state].begin(template, role)
                    case RoleEnd():
                        chats[message.state], _ = chats[message.state].end(template)
                    case Fork(children=children):
                        chats.update(dict.fromkeys(children, chats[message.state]))


def _is_known(answer: Answer, known: dict[int, int]) -> bool:
    return isinstance(answer, Done) and answer.op < known.get(answer.state, 0)
