"""Ollama's routes about the served model and its embeddings, and refusals of those that manage models."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ....protocol.core import ModelInfo, RequestOptions
from ....protocol.errors import RequestError
from ...api.embeddings import MAX_INPUTS, checkpoint_pooling
from ...chat.service import ChatService
from ...text.embedding import Embedded, embed, l2_normalised
from ...text.encoding import TokenLimit
from ...text.named_fields import name_prompt_field
from ..dialects import OLLAMA
from ..transport.body_route import BodyRoute
from ..transport.streaming import EventStream, cancel_on_disconnect, json_response
from .body import OllamaEmbedBody, OllamaEmbeddingsBody, OllamaPullBody, OllamaShowBody
from .routes import OLLAMA_RESPONSES, OLLAMA_STREAM_RESPONSES, require_ollama_model, timestamp

API_VERSION = "0.12.6"  # of Ollama, whose API this follows: clients compare it with what they need
MAX_TRUNCATED_TOKENS = 65_536  # of a text of which the first ones are embedded
MANAGEMENT = {
    "create": "POST",
    "copy": "POST",
    "push": "POST",
    "delete": "DELETE",
    "blobs/{digest}": "POST",
}
_QUANTIZATION = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_FAR_FUTURE = "2318-01-01T00:00:00Z"  # Ollama's own time for a model that never expires


class OllamaModelsApi:
    """Routes that describe the served model in Ollama's API."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._generator = service.generator
        self._core = service.generator.core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["ollama"], route_class=BodyRoute)
        for path, read in (("version", self.version), ("tags", self.tags), ("ps", self.running)):
            router.add_api_route(f"/api/{path}", read, methods=["GET"], response_model=None, responses=OLLAMA_RESPONSES)
            router.add_api_route(f"/api/{path}", read, methods=["HEAD"], include_in_schema=False, response_model=None)
        for path, ask in (("show", self.show), ("embed", self.embed), ("embeddings", self.embeddings)):
            router.add_api_route(f"/api/{path}", ask, methods=["POST"], response_model=None, responses=OLLAMA_RESPONSES)
        router.add_api_route(
            "/api/pull", self.pull, methods=["POST"], response_model=None, responses=OLLAMA_STREAM_RESPONSES
        )
        for path, method in MANAGEMENT.items():
            router.add_api_route(
                f"/api/{path}", self.manage, methods=[method], include_in_schema=False, response_model=None
            )
        return router

    async def version(self) -> Response:
        """Return the version of Ollama whose API is served."""
        return json_response({"version": API_VERSION})

    async def tags(self) -> Response:
        """List the served model under each of its names, then its LoRA adapters."""
        info = self._core.require_info()
        models = [_entry(info) | {"name": name, "model": name} for name in info.names]
        details = _details(info) | {"parent_model": info.name}
        for each in info.adapters:
            own = {"name": each.name, "model": each.name, "digest": each.digest, "details": details}
            models.append(_entry(info) | own)
        return json_response({"models": models})

    async def running(self) -> Response:
        """List the served model, which is always loaded."""
        info = self._core.require_info()
        entry = _entry(info)
        del entry["modified_at"]
        on_gpu = entry["size"] if info.device != "cpu" else 0
        held = {"expires_at": _FAR_FUTURE, "size_vram": on_gpu, "context_length": info.context_length}
        return json_response({"models": [entry | held]})

    async def show(self, body: OllamaShowBody) -> Response:
        """Describe the served model: its template, sizes and capabilities."""
        info = self._core.require_info()
        require_ollama_model(info, body)
        chat = self._generator.tokenizer.chat
        template = "" if chat is None else chat.source
        capabilities = ["completion", "embedding"]
        if "tools" in template:
            capabilities.append("tools")
        if self._service.can_reason:
            capabilities.append("thinking")
        family = _details(info)["family"]
        return json_response(
            {
                "modelfile": f"FROM {info.name}",
                "parameters": "",
                "template": template,
                "details": _details(info),
                "model_info": {
                    "general.architecture": family,
                    "general.parameter_count": info.num_parameters,
                    f"{family}.context_length": info.context_length,
                    f"{family}.vocab_size": info.vocab_size,
                },
                "capabilities": capabilities,
                "modified_at": _entry(info)["modified_at"],
            }
        )

    async def embed(self, body: OllamaEmbedBody, request: Request) -> Response:
        """Return the vector of each input, of length 1."""
        began = time.monotonic_ns()
        info = self._core.require_info()
        model, adapter = require_ollama_model(info, body)
        inputs = [body.input] if isinstance(body.input, str) else body.input
        if not 1 <= len(inputs) <= MAX_INPUTS:
            raise RequestError(f"give 1 to {MAX_INPUTS} inputs", param="input")
        embedded = await cancel_on_disconnect(
            request, self._embed(inputs, info, "input", adapter, truncate=body.truncate)
        )
        size = len(embedded[0].values)
        if body.dimensions not in (None, size):
            raise RequestError(f"the model's embeddings have {size} dimensions, and no others", param="dimensions")
        return json_response(
            {
                "model": model,
                "embeddings": [l2_normalised(each.values).tolist() for each in embedded],
                "total_duration": time.monotonic_ns() - began,
                "load_duration": 0,
                "prompt_eval_count": sum(each.prompt_tokens for each in embedded),
            }
        )

    async def embeddings(self, body: OllamaEmbeddingsBody, request: Request) -> Response:
        """Return the vector of one prompt, of any length. Newer clients ask `/api/embed`."""
        info = self._core.require_info()
        _, adapter = require_ollama_model(info, body)
        [embedded] = await cancel_on_disconnect(
            request, self._embed([body.prompt], info, "prompt", adapter, truncate=True)
        )
        return json_response({"embedding": embedded.values.tolist()})

    async def _embed(
        self, texts: list[str], info: ModelInfo, param: str, adapter: str | None, *, truncate: bool
    ) -> list[Embedded]:
        encoder = self._generator.encoder
        pooling = checkpoint_pooling(info)
        bound = TokenLimit(max(MAX_TRUNCATED_TOKENS, info.max_request_tokens), param, 0) if truncate else None
        prompts = [await encoder.encode_prompt(text, param=param, bound=bound) for text in texts]
        if truncate:
            prompts = [_truncated(ids, info) for ids in prompts]
        if not all(prompts):
            raise RequestError(f"{param} must not be empty", param=param)
        with name_prompt_field(param):
            return await embed(self._core, prompts, pooling, RequestOptions(adapter=adapter))

    async def pull(self, body: OllamaPullBody) -> Response:
        """Answer that the served model is there. Raises NotFoundError for another model."""
        require_ollama_model(self._core.require_info(), body)
        answer = {"status": "success"}
        if not body.stream:
            return json_response(answer)
        return EventStream(answer, _nothing(), dialect=OLLAMA)

    async def manage(self, request: Request) -> Response:
        """Refuse to change which models there are."""
        raise HTTPException(
            501, f"{request.url.path} manages models, and this server serves one: start it with `ramiform serve MODEL`"
        )


def _truncated(ids: list[int], info: ModelInfo) -> list[int]:
    """Return the first ids of a text, with an encoder's end mark behind them."""
    most = info.max_request_tokens
    if len(ids) <= most or info.encoder is None:
        return ids[:most]
    return [*ids[: most - 1], ids[-1]]


def _entry(info: ModelInfo) -> dict[str, Any]:
    """Return the model's entry in lists. `digest` identifies the files by name, size and revision."""
    path = Path(info.path)
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    sizes = {each.name: each.stat().st_size for each in files if each.exists()}
    digest = hashlib.sha256(repr((info.name, info.revision, sizes)).encode()).hexdigest()
    return {
        "name": info.name,
        "model": info.name,
        "modified_at": timestamp(path.stat().st_mtime if path.exists() else 0.0),
        "size": sum(sizes.values()),
        "digest": digest,
        "details": _details(info),
    }


def _details(info: ModelInfo) -> dict[str, Any]:
    family = info.architecture.removesuffix("ForCausalLM").lower()
    millions = info.num_parameters / 1e6
    return {
        "parent_model": "",
        "format": "gguf" if info.path.endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": f"{millions / 1000:.1f}B" if millions >= 1000 else f"{millions:.2f}M",
        "quantization_level": info.quantisation or _QUANTIZATION.get(info.dtype, info.dtype),
    }


async def _nothing() -> AsyncGenerator[dict[str, str]]:
    for each in list[dict[str, str]]():
        yield each
