"""The native API's smaller routes: health, facts, the cache, and the tokenizer. Source: SGLang's native API."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from ...protocol.errors import RequestError
from ...protocol.sampling import SamplingParams
from ..generation import Generator, Prompt
from ..segments import Segment
from .bodies import DetokenizeBody, TokenizeBody
from .connection import json_response, unless_client_leaves


class AdminApi:
    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._core = generator.core

    @property
    def router(self) -> APIRouter:
        router = APIRouter()
        for path, endpoint, methods in (
            ("/health", self.health, ["GET"]),
            ("/health_generate", self.health_generate, ["GET"]),
            ("/get_model_info", self.model_info, ["GET"]),
            ("/model_info", self.model_info, ["GET"]),
            ("/get_server_info", self.server_info, ["GET"]),
            ("/server_info", self.server_info, ["GET"]),
            ("/flush_cache", self.flush_cache, ["GET", "POST"]),
            ("/tokenize", self.tokenize, ["POST"]),
            ("/detokenize", self.detokenize, ["POST"]),
        ):
            for method in methods:  # one route each, so that each has an operation id of its own
                router.add_api_route(path, endpoint, methods=[method], response_model=None)
        return router

    async def health(self) -> Response:
        """200 once the model is loaded, 503 before and after."""
        self._core.require_info()
        return Response(status_code=200)

    async def health_generate(self, request: Request) -> Response:
        """200 when a token could be generated."""
        self._core.require_info()
        tokenizer = self._generator.tokenizer
        token = 0 if tokenizer.bos_id is None else tokenizer.bos_id
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
        with self._generator.start(Prompt(tokens=[token], sampling=sampling, priority=1)) as samples:
            await unless_client_leaves(request, samples[0].result())
        return Response(status_code=200)

    async def model_info(self) -> Response:
        """What is served."""
        info = self._core.require_info()
        return json_response(
            {
                "model_path": info.path,
                "tokenizer_path": info.path,
                "is_generation": True,
                **msgspec.structs.asdict(info),
            }
        )

    async def server_info(self) -> Response:
        """What is served, how much fits, and the load right now."""
        info = self._core.require_info()
        stats = await self._core.stats()
        facts: dict[str, Any] = {"model_path": info.path, "max_total_num_tokens": info.num_slots}
        shares = {"cache_hit_rate": stats.cache_hit_rate, "kv_use": stats.kv_use}
        return json_response({**facts, **msgspec.structs.asdict(info), **msgspec.structs.asdict(stats), **shares})

    async def flush_cache(self) -> Response:
        """Forget every cached prefix that nothing uses."""
        self._core.require_info()
        await self._core.flush_cache()
        return PlainTextResponse("The cache is flushed.\n")

    async def tokenize(self, body: TokenizeBody) -> Response:
        """The ids of a text, or of each of several."""
        info = self._core.require_info()
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        ids = [await self._encode(text, body.add_special_tokens) for text in texts]
        counts = [len(part) for part in ids]
        single = isinstance(body.prompt, str)
        return json_response(
            {
                "tokens": ids[0] if single else ids,
                "count": counts[0] if single else counts,
                "max_model_len": info.context_length,
            }
        )

    async def detokenize(self, body: DetokenizeBody) -> Response:
        """The text of ids, or of each of several lists of them."""
        info = self._core.require_info()
        single = not (body.tokens and isinstance(body.tokens[0], list))
        lists: list[Any] = [body.tokens] if single else body.tokens
        for ids in lists:
            wrong = next((token for token in ids if token >= info.vocab_size), None)
            if wrong is not None:
                raise RequestError(
                    f"token id {wrong} is not in the vocabulary of {info.vocab_size} tokens", param="tokens"
                )
        texts = [self._generator.tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens) for ids in lists]
        return json_response({"text": texts[0] if single else texts})

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if not add_special_tokens:
            return self._generator.tokenizer.encode(text)
        return await self._generator.encoder.encode_aside([Segment(text, trusted=True)], at_start=True)
