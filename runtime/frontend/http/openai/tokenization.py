"""Tokenise and detokenise texts, in the dialects of vLLM and SGLang, and describe the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError
from ...api.bodies import MAX_BATCH, Many, RequestBody, Text, TokenIds, example
from ...api.chat_messages import Messages as ChatMessages
from ...api.chat_messages import TemplateFields, template_messages
from ...api.fields import require_model
from ...api.tool_fields import Tool
from ...chat.renderer import MessageRenderer
from ...text.encoding import PromptSegment, TokenLimit
from ...text.generation import Generator
from ...text.offload import CancellationToken, offload_if_large
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response

MAX_TOKENIZED = 1 << 16  # per text or chat; the context length if that is more


class TokenizeBody(RequestBody, TemplateFields):
    """Texts or a chat."""

    exactly_one = (("prompt", "messages"),)
    model_config = example({"prompt": "The capital of France is"})
    model: Text | None = None
    prompt: Text | Many[Text] | None = None
    messages: ChatMessages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    tools: Many[Tool] = Field(default_factory=list)


class TemplateBody(RequestBody, TemplateFields):
    """A chat to render."""

    model_config = example({"messages": [{"role": "user", "content": "Hello"}]})
    model: Text | None = None
    messages: ChatMessages
    tools: Many[Tool] = Field(default_factory=list)


class DetokenizeBody(RequestBody):
    model_config = example({"tokens": [100, 101, 102]})
    model: Text | None = None
    tokens: TokenIds | Many[TokenIds]
    skip_special_tokens: bool = True


class TokenizationApi:
    """Routes of the tokenizer."""

    def __init__(self, generator: Generator, renderer: MessageRenderer) -> None:
        self._generator = generator
        self._messages = renderer

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["tokens"], route_class=BodyRoute)
        for prefix in ("", "/v1"):
            router.add_api_route(f"{prefix}/tokenize", self.tokenize, methods=["POST"], response_model=None)
            router.add_api_route(f"{prefix}/detokenize", self.detokenize, methods=["POST"], response_model=None)
        router.add_api_route("/apply-template", self.apply_template, methods=["POST"], response_model=None)
        router.add_api_route("/tokenizer_info", self.info, methods=["GET"], response_model=None)
        return router

    async def tokenize(self, body: TokenizeBody, request: Request) -> Response:
        """Return the token ids of a text, of several texts, or of a chat. A text may have 65,536 tokens, or the length
        of the context if that is more.
        """
        info = self._require(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("give either prompt or messages", param="messages" if body.prompt else "prompt")
        texts = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        if len(texts) > MAX_BATCH:
            raise RequestError(f"give at most {MAX_BATCH} texts, got {len(texts)}", param="prompt")
        most = max(info.context_length, MAX_TOKENIZED)
        bound = TokenLimit(most, "messages" if body.prompt is None else "prompt", route="/tokenize")
        ids = await cancel_on_disconnect(request, self._all_token_ids(body, texts, bound))
        names = [[self._token_text(token) for token in part] for part in ids] if body.return_token_strs else None
        single = not isinstance(body.prompt, list)
        counts = [len(part) for part in ids]
        return json_response(
            {
                "tokens": ids[0] if single else ids,
                "count": counts[0] if single else counts,
                "max_model_len": info.context_length,
                **({} if names is None else {"token_strs": names[0] if single else names}),
            }
        )

    async def apply_template(self, body: TemplateBody, request: Request) -> Response:
        """Return a chat as the text that the model continues, by its chat template. As llama-server does."""
        info = self._require(body.model)
        bound = TokenLimit(max(info.context_length, MAX_TOKENIZED), "messages", route="/apply-template")
        segments = await cancel_on_disconnect(request, self._render(body, body.messages, bound))
        return json_response({"prompt": "".join(segment.text for segment in segments)})

    async def detokenize(self, body: DetokenizeBody, request: Request) -> Response:
        """Return the text of token ids, or of several lists of them."""
        info = self._require(body.model)
        single = not (body.tokens and isinstance(body.tokens[0], list))
        lists: list[Any] = [body.tokens] if single else body.tokens
        decode = self._generator.tokenizer.decode_sequence

        def decode_all(cancellation: CancellationToken) -> list[str]:
            texts = []
            for ids in lists:
                cancellation.check()
                wrong = next((token for token in ids if token >= info.vocab_size), None)
                if wrong is not None:
                    raise RequestError(
                        f"token id {wrong} is not in the vocabulary of {info.vocab_size} tokens", param="tokens"
                    )
                texts.append(decode(ids, skip_special_tokens=body.skip_special_tokens))
            return texts

        texts = await cancel_on_disconnect(request, offload_if_large(decode_all, lists))
        text = texts[0] if single else texts
        return json_response({"text": text, "prompt": text})

    async def info(self) -> Response:
        """Return the tokenizer's configuration, chat template and special tokens."""
        info = self._require(None)
        tokenizer = self._generator.tokenizer
        names = {token: name for name, token in tokenizer.special_ids.items()}
        facts: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": names.get(-1 if tokenizer.bos_id is None else tokenizer.bos_id),
            "eos_token": names.get(tokenizer.eos_ids[0]) if tokenizer.eos_ids else None,
            "add_bos_token": tokenizer.adds_bos,
            "model_max_length": info.context_length,
            "vocab_size": tokenizer.vocab_size,
            "chat_template": None if tokenizer.chat is None else tokenizer.chat.source,
        }
        return json_response(facts | _checkpoint_config(Path(info.path)))

    def _require(self, model: str | None) -> ModelInfo:
        info = self._generator.core.require_info()
        require_model(info, model)
        return info

    async def _all_token_ids(
        self, body: TokenizeBody, texts: Sequence[str | None], bound: TokenLimit
    ) -> list[list[int]]:
        return [await self._token_ids(body, text, bound) for text in texts]

    async def _token_ids(self, body: TokenizeBody, text: str | None, bound: TokenLimit) -> list[int]:
        encoder = self._generator.encoder
        if text is not None:
            return await encoder.encode_prompt(text, with_bos=body.add_special_tokens, bound=bound)
        segments = await self._render(body, body.messages or [], bound)
        return await encoder.encode_async(segments, at_start=True, bound=bound)

    async def _render(
        self, body: TokenizeBody | TemplateBody, messages: ChatMessages, bound: TokenLimit
    ) -> list[PromptSegment]:
        return await self._messages.render_aside(
            self._generator.encoder,
            await offload_if_large(lambda _: template_messages(messages), messages),
            body.rendering(),
            bound=bound,
            tools=[tool.sent for tool in body.tools],
        )

    def _token_text(self, token: int) -> str:
        return self._generator.tokenizer.decode([token], skip_special_tokens=False)


def _checkpoint_config(folder: Path) -> dict[str, Any]:
    """Read the checkpoint's tokenizer configuration; empty when its files are not readable here."""
    facts: dict[str, Any] = {}
    if (path := folder / "tokenizer_config.json").is_file():
        facts |= json.loads(path.read_text("utf-8"))
    if (path := folder / "chat_template.jinja").is_file():
        facts["chat_template"] = path.read_text("utf-8")
    return facts
