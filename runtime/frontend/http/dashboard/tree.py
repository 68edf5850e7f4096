"""Routes of the radix tree's view. The core answers with sizes and token ids; texts are made here, for who may read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ....protocol.errors import RequestError
from ....protocol.tree import MAX_CONTENT_TOKENS, MAX_TREE_NODES
from ...api.validation import NotFoundError
from ...core.tenant import is_own_namespace
from ...text.generation import Generator
from ..transport.streaming import json_response
from .access import PageAccess, Viewer


class TreeApi:
    """The tree as a whole, and single nodes."""

    def __init__(self, generator: Generator, access: PageAccess) -> None:
        self._generator = generator
        self._access = access

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["page"])
        router.add_api_route("/v1/ramiform/tree", self.tree, methods=["GET"], response_model=None)
        router.add_api_route("/v1/ramiform/tree/{node}", self.node, methods=["GET"], response_model=None)
        return router

    async def tree(
        self, root: int | None = None, limit: Annotated[int, Query(ge=1, le=MAX_TREE_NODES)] = 2000
    ) -> Response:
        """Return the radix tree's nodes: those in use and the largest, with the nodes above them."""
        self._generator.core.require_info()
        try:
            return json_response(await self._generator.core.tree(root=root, limit=limit))
        except RequestError as error:
            raise _not_found(error) from None

    async def node(self, node: int, request: Request) -> Response:
        """Return one node, and its text for those who may read it."""
        self._generator.core.require_info()
        try:
            content = await self._generator.core.tree_node(node)
        except RequestError as error:
            raise _not_found(error) from None
        text = None
        if self._access.reads_tree(Viewer.of(request), is_own=is_own_namespace(content.namespace)):
            text = self._generator.tokenizer.decode(content.ids, skip_special_tokens=False)
        return json_response(
            {
                "id": content.id,
                "tokens": content.tokens,
                "depth_tokens": content.depth_tokens,
                "text": text,
                "cut": content.tokens > MAX_CONTENT_TOKENS,
                "program": content.program,
                "hits": content.hits,
                "used_ago": content.used,
                "state": content.state,
            }
        )


def _not_found(error: RequestError) -> RequestError:
    return NotFoundError(str(error), param=error.param, code=error.code) if error.code == "not_found" else error
