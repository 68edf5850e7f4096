"""`/v1/score`, `/v1/rerank` and `/classify`: what the model says of given texts, without generating any."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...api.relevance import ClassifyBody, RerankBody
from ...api.score import ScoreAnswers, ScoreBody
from ...text.generation import Generator
from ...text.relevance import RelevanceModel
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response

# Of vLLM, Cohere's second version, and llama-server.
RERANK_ALIASES = ("/rerank", "/v2/rerank", "/reranking", "/v1/reranking")


class ScoreApi:
    """Routes for scores of continuations and of pairs of texts, and for labels."""

    def __init__(self, generator: Generator, relevance: RelevanceModel) -> None:
        self.answers = ScoreAnswers(generator, relevance)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["ramiform"], route_class=BodyRoute)
        routes = (("score", self.create, ["/score"]), ("rerank", self.rerank, RERANK_ALIASES))
        for name, endpoint, aliases in (*routes, ("classify", self.classify, ["/classify"])):
            for path in (f"/v1/{name}", *aliases):
                shown = path not in aliases
                router.add_api_route(path, endpoint, methods=["POST"], response_model=None, include_in_schema=shown)
        return router

    async def create(self, body: ScoreBody, request: Request) -> Response:
        """Return the log-probability of each continuation and of its tokens, or the score of each pair of texts. The
        prompt is computed once."""
        return json_response(await cancel_on_disconnect(request, self.answers.answer(body)))

    async def rerank(self, body: RerankBody, request: Request) -> Response:
        """Order documents by their relevance to a query. Needs a reranker, or a model with a head of one label."""
        return json_response(await cancel_on_disconnect(request, self.answers.relevance.rerank(body)))

    async def classify(self, body: ClassifyBody, request: Request) -> Response:
        """Return the probabilities of a text's labels. Needs a model with a classification head, or a reranker."""
        return json_response(await cancel_on_disconnect(request, self.answers.relevance.classify(body)))
