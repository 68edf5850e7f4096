"""`/v1/score`: log-probabilities of given continuations of a prompt, or SGLang's probabilities of label tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...api.score import ScoreAnswers, ScoreBody
from ...text.generation import Generator
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response


class ScoreApi:
    """Route for scores of continuations."""

    def __init__(self, generator: Generator) -> None:
        self.answers = ScoreAnswers(generator)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["ramiform"], route_class=BodyRoute)
        router.add_api_route("/v1/score", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, body: ScoreBody, request: Request) -> Response:
        """Return the log-probability of each continuation and of its tokens. The prompt is computed once."""
        return json_response(await cancel_on_disconnect(request, self.answers.answer(body)))
