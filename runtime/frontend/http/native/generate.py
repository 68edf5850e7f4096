"""`/generate` and `/abort_request`. Source: SGLang's native API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ....protocol.errors import RequestError
from ...api.bodies import AbortBody, GenerateBody, SessionParams
from ...api.generate import GenerateAnswers
from ...core.client import new_rid
from ...core.frontend_peers import FrontendPeers
from ...core.tenant import current_tenant
from ...text.generation import Generator
from ..middleware.auth import require_admin
from ..scope import SCOPE_API_KEY
from ..transport.body_route import BodyRoute
from ..transport.streaming import STREAM_RESPONSES, EventStream, cancel_on_disconnect, json_response
from .sessions import SessionStore


@dataclass(frozen=True)
class SessionTurn:
    """A request of a session. `body` has the whole prompt, of which `num_before` tokens are of earlier requests."""

    key: str | None
    params: SessionParams
    body: GenerateBody
    num_before: int


class NativeApi:
    """Routes of native requests."""

    def __init__(self, generator: Generator, peers: FrontendPeers, sessions: SessionStore | None = None) -> None:
        """`sessions` are needed for `session_params`."""
        self._generator = generator
        self._answers = GenerateAnswers(generator)
        self._sessions = sessions
        self._peers = peers
        peers.on("abort", self._abort_here)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        for method in ("POST", "PUT"):  # one route each, so that operation ids are unique
            router.add_api_route(
                "/generate", self.generate, methods=[method], response_model=None, responses=STREAM_RESPONSES
            )
        router.add_api_route(
            "/abort_request", self.abort, methods=["POST"], response_model=None, response_class=Response
        )
        return router

    async def generate(self, body: GenerateBody, request: Request) -> Response:
        """Continue `text` or `input_ids`, one or a batch, as a whole or as a stream."""
        self._generator.core.require_info()
        turn = None
        if body.session_params is not None:
            turn = await self._begin_turn(request.scope[SCOPE_API_KEY], body, body.session_params)
            body = turn.body
        if body.stream:
            values = self._answers.stream(body) if turn is None else self._record_stream(turn)
            return EventStream(await cancel_on_disconnect(request, anext(values)), values)
        answers = await cancel_on_disconnect(request, self._answers.answers(body))
        if turn is not None:
            await self._record(turn, answers[0])
        return json_response(answers if body.is_batch or len(answers) > 1 else answers[0])

    async def abort(self, body: AbortBody, request: Request) -> Response:
        """Abort the requests named `rid`, or all, which needs an admin key. They return their output so far."""
        if body.abort_all:
            require_admin(request, "aborting all requests")
        tenant = current_tenant.get()
        about = None if body.abort_all else json.dumps([body.rid or "", tenant.key, tenant.is_admin])
        await self._abort_here(about)
        await self._peers.ask("abort", about, bool)
        return Response(status_code=200)

    async def _abort_here(self, about: str | None) -> bool:
        """Abort this frontend's requests of the given id that the asking key may end, or all when None."""
        if about is None:
            self._generator.core.abort(None)
            return True
        rid, key, is_admin = json.loads(about)
        return self._generator.abort(rid, key, any_key=is_admin)

    async def _begin_turn(self, key: str | None, body: GenerateBody, params: SessionParams) -> SessionTurn:
        """Put the tokens that a request of a session continues before its own. Raises RequestError."""
        assert self._sessions is not None
        prompts = body.prompts()
        if len(prompts) != 1 or isinstance(body.sampling_params, list) or body.sampling_params.n != 1:
            raise RequestError("a request of a session has one prompt and one output", param="session_params")
        if body.image_data:
            raise RequestError("a request of a session has no images: send the whole prompt", param="image_data")
        own = await self._answers.tokens(prompts[0])
        before = await self._sessions.begin(key, params)
        if before and own[:1] == [self._generator.tokenizer.bos_id]:
            own = own[1:]
        rid = body.rid[0] if isinstance(body.rid, list) else body.rid
        whole = {"text": None, "input_ids": [*before, *own], "rid": new_rid() if rid is None else rid}
        return SessionTurn(key, params, body.model_copy(update=whole), len(before))

    async def _record_stream(self, turn: SessionTurn) -> AsyncGenerator[dict[str, Any]]:
        """Yield a stream of a session; the session knows the request before the client has its end."""
        async with aclosing(self._answers.stream(turn.body)) as values:
            async for value in values:
                if value["meta_info"]["finish_reason"] is not None:
                    await self._record(turn, value)
                yield value

    async def _record(self, turn: SessionTurn, answer: dict[str, Any]) -> None:
        assert self._sessions is not None
        prompt: list[int] = turn.body.input_ids  # type: ignore[assignment]
        tokens = [*prompt, *answer["output_ids"]]
        await self._sessions.record(
            turn.key, turn.params, answer["meta_info"]["id"], tokens, len(prompt), turn.num_before
        )
