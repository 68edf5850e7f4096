"""Render chat templates that requests bring, in processes that can be killed (../../tokenizer/template_process.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...protocol.errors import RequestError
from ...tokenizer.template_process import RenderAnswer, RenderRequest
from ..text.child_pool import ChildPool, LimitExceededError

MAX_PROCESSES = 2
MAX_TEMPLATE_CHARACTERS = 1 << 18
WALL_SECONDS = 30.0
_MAX_RENDERINGS = 1000


class RequestTemplates:
    """Renders templates of requests, in up to MAX_PROCESSES processes that start when they are needed."""

    def __init__(self) -> None:
        self._pool = ChildPool(
            "ramiform.runtime.tokenizer.template_process",
            most=MAX_PROCESSES,
            purpose="renders the chat template",
            wall_seconds=WALL_SECONDS,
            max_answers=_MAX_RENDERINGS,
        )

    async def render(self, source: str, names: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
        """Render with `arguments` of `ChatTemplate.render`; `names` are variables such as `bos_token`.

        Raises RequestError for a template that is too large, no Jinja, refuses the messages, or exceeds its limits.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise RequestError(
                f"chat_template has {len(source)} characters, the most are {MAX_TEMPLATE_CHARACTERS}",
                param="chat_template",
            )
        # A JsonText is a text there: nobody knows what the template takes.
        request = msgspec.msgpack.encode(RenderRequest(source, dict(names), dict(arguments)), enc_hook=str)
        try:
            answer = msgspec.msgpack.decode(await self._pool.ask(request), type=RenderAnswer)
        except LimitExceededError:
            raise RequestError("the chat template exceeds its limit of time or memory", param="chat_template") from None
        if answer.error is not None:
            raise RequestError(answer.error, param=answer.param)
        return answer.text
