"""`/programs`: plays a program's operations and streams their answers. Keeps nothing after the request."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import suppress
from email.message import Message
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ....programs.interpreter import ProgramInterpreter
from ....programs.running_program import StateProgress
from ....protocol import wire
from ....protocol.errors import RequestError
from ....protocol.session import (
    Append,
    Ask,
    Delta,
    Done,
    Failed,
    Fork,
    Generated,
    Lost,
    Open,
    Play,
    RoleBegin,
    RoleEnd,
)
from ....tokenizer.chat_template import ChatTemplate
from ...programs.content import TokenContent
from ...programs.executor import TokenExecutor
from ...programs.roles import ChatState
from ...text.generation import Generator
from ...text.offload import CancellationToken, offload
from ..transport.streaming import ClientDisconnectedError, EventStream, cancel_on_disconnect

PATH = "/programs"
MAX_BODY_BYTES = 8 << 20  # reading more would keep the event loop from its other tasks
MAX_STATES = 1024  # of one request; each holds its token ids
MAX_OPERATIONS = 1 << 14  # of one request
MAX_ROLES = 512  # messages begun in one request: the template renders all earlier ones for each
FEW_ROLES = 32  # so many are rendered in the event loop
KEEP_ALIVE_SECONDS = 15.0  # a stream without answers sends an empty event: proxies close silent connections

_PLACE = re.compile(r" - at `\$\.?(.*?)`$")  # where msgspec says that a body is wrong
_Answer = Done | Failed | Delta | Lost

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
    request appends to these states. `extra_key` separates cached prefixes, as in `/generate`.
    """

    messages: list[Open | Append]
    complete: bool = False
    known: dict[int, int] = {}
    extra_key: str | None = None

    @property
    def num_operations(self) -> int:
        return sum(len(message.operations) for message in self.messages if isinstance(message, Append))


def program_schemas() -> dict[str, Any]:
    """Return the JSON Schemas of the body and its parts, by name, for the OpenAPI document."""
    _, schemas = msgspec.json.schema_components([ProgramBody], ref_template="#/components/schemas/{name}")
    schemas["ProgramBody"]["examples"] = [EXAMPLE]
    return schemas


class AnswerQueue:
    """Answers that wait for their reader. The deltas of one operation are joined meanwhile, so that a slow reader's
    queue holds no more than the answers' content."""

    def __init__(self) -> None:
        self._answers: list[_Answer] = []
        self._deltas: dict[tuple[int, int], int] = {}  # the index of an operation's delta
        self._arrived = asyncio.Event()

    def add(self, answer: _Answer) -> None:
        self._arrived.set()
        if isinstance(answer, Delta):
            key = answer.state, answer.op
            index = self._deltas.setdefault(key, len(self._answers))
            if index < len(self._answers):
                self._answers[index] = _joined(self._answers[index], answer)
                return
        self._answers.append(answer)

    async def take(self, seconds: float) -> list[_Answer]:
        """Wait for answers and return them all; none after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return []
        answers, self._answers = self._answers, []
        self._deltas.clear()
        self._arrived.clear()
        return answers


class ProgramsApi:
    """Route of programs."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"])
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
        return router

    async def play(self, request: Request) -> Response:
        """Play the operations of a program's states; stream an answer to each, in order within its state."""
        info = self._generator.core.require_info()
        body = await _read(request)
        num_roles = _check(body, info.context_length)
        if num_roles > FEW_ROLES and (template := self._generator.tokenizer.chat) is not None:
            await cancel_on_disconnect(request, offload(partial(_render_roles, template, body)))
        values = self._play(body)
        return EventStream(await cancel_on_disconnect(request, anext(values)), values)

    async def _play(self, body: ProgramBody) -> AsyncGenerator[dict[str, list[_Answer]]]:
        """Yield the answers. Raises RequestError for messages that contradict each other."""
        name = f"http:{uuid.uuid4().hex}"
        core = self._generator.core
        queue = AnswerQueue()

        def open_executor(state: StateProgress) -> TokenExecutor:
            content = TokenContent(self._generator.tokenizer, self._generator.encoder)
            return TokenExecutor(self._generator, state, name, content, namespace=body.extra_key or "")

        interpreter = ProgramInterpreter(
            queue.add,
            open_executor,
            asyncio.get_running_loop().call_later,
            states_ended=lambda program, states: core.end_states(name, states),
            max_states=MAX_STATES,
        )
        num_left = body.num_operations
        try:
            interpreter.receive(Play([*body.messages], body.complete))
            interpreter.run()
            while True:
                answers = await queue.take(KEEP_ALIVE_SECONDS) if num_left else []
                num_left -= sum(isinstance(answer, Done | Failed) for answer in answers)
                new = [answer for answer in answers if not _is_known(answer, body.known)]
                if new or not answers:
                    yield {"answers": new}
                if num_left <= 0 or not interpreter.num_programs:  # a spent budget ends the program
                    return
        finally:
            interpreter.close_all()


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


def _is_known(answer: _Answer, known: dict[int, int]) -> bool:
    return isinstance(answer, Done) and answer.op < known.get(answer.state, 0)


def _joined(first: Any, second: Delta) -> Delta:
    assert isinstance(first, Delta)
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = [*(first.logprobs or ()), *(second.logprobs or ())]
    return Delta(first.state, first.op, first.text + second.text, [*first.ids, *second.ids], logprobs)
