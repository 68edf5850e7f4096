"""Bodies and answers of `/v1/rerank`, `/classify` and vLLM's `/v1/score`: what the model says of whole texts.

Sources: Jina's and Cohere's rerank APIs, vLLM's pooling APIs, llama.cpp's server, Text Embeddings Inference.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from ...protocol.core import ModelInfo, RequestOptions
from ...protocol.errors import RequestError
from ...tokenizer.encoder import EncodedTexts
from ..core.client import new_rid
from ..text.generation import Generator
from ..text.named_fields import name_prompt_field
from ..text.relevance import Labelled, RelevanceModel
from .bodies import Body, Many, Priority, RequestBody, Text, TokenIds, described, example
from .fields import require_model
from .usage import Usage

MAX_TEXTS = 1024


class DocumentText(Body):
    """Cohere's form of a document."""

    text: Text


Documents = Annotated[Many[Text | DocumentText], described(minItems=1, maxItems=MAX_TEXTS)]


class ScoredBody(RequestBody):
    """Fields of all routes that read labels. `use_activation` false: logits instead of probabilities."""

    model: Text | None = None
    use_activation: bool = True
    priority: Priority = 0
    cache_salt: Text = ""
    user: Text | None = None

    def options(self, info: ModelInfo) -> RequestOptions:
        """Return what the core is asked besides tokens. Raises NotFoundError for another model."""
        return RequestOptions(
            namespace=self.cache_salt, priority=self.priority, adapter=require_model(info, self.model)
        )


class RerankBody(ScoredBody):
    """A query, and documents to order by it: `documents`, or `texts` as Text Embeddings Inference names them.

    `return_documents` is of Jina and Cohere; `return_text`, `raw_scores` and `truncate` are of TEI's form.
    """

    exactly_one = (("documents", "texts"),)
    model_config = example({"query": "What is a panda?", "documents": ["hi", "The panda is a bear."], "top_n": 1})
    query: Text
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Annotated[int, Field(ge=0)] | None = None  # 0, as None: all
    return_documents: bool = True
    return_text: bool = False
    raw_scores: bool = False
    instruction: Text | None = None

    def contents(self) -> list[str]:
        """Return the documents. Raises RequestError for none, and for both names."""
        if (self.documents is None) == (self.texts is None):
            raise RequestError("give either documents or texts", param="documents")
        return texts_of(self.documents or self.texts or [], "documents" if self.texts is None else "texts")


class ClassifyBody(ScoredBody):
    model_config = example({"input": ["A text to classify."]})
    input: Text | Many[Text] | TokenIds | Many[TokenIds]
    add_special_tokens: bool = True

    def inputs(self) -> list[Any]:
        """Return the texts, or their token ids. Raises RequestError for none, and for too many."""
        is_single = isinstance(self.input, str) or (self.input and isinstance(self.input[0], int))
        inputs: list[Any] = [self.input] if is_single else [*self.input]
        if not 1 <= len(inputs) <= MAX_TEXTS or not all(inputs):
            raise RequestError(f"give 1 to {MAX_TEXTS} inputs, none of them empty", param="input")
        return inputs


def texts_of(given: Any, param: str) -> list[str]:
    """Return one text or several. Raises RequestError for none, and for too many."""
    items = [given] if isinstance(given, str | DocumentText) else given
    if not 1 <= len(items) <= MAX_TEXTS:
        raise RequestError(f"give 1 to {MAX_TEXTS} texts, got {len(items)}", param=param)
    return [item.text if isinstance(item, DocumentText) else item for item in items]


class TextPairs(NamedTuple):
    """Texts to compare, one with each or pairwise, and the fields that gave them."""

    first: list[str]
    second: list[str]
    fields: tuple[str, str]

    def matched(self) -> list[tuple[str, str]]:
        """Return the pairs. Raises RequestError for two lists of different lengths."""
        if len(self.first) == 1:
            return [(self.first[0], text) for text in self.second]
        if len(self.first) != len(self.second):
            raise RequestError(
                f"{self.fields[0]} has {len(self.first)} texts and {self.fields[1]} {len(self.second)}: give one and "
                "any number, or as many",
                param=self.fields[1],
            )
        return list(zip(self.first, self.second, strict=True))


class RelevanceAnswers:
    """Answers requests for the order of documents, scores of pairs, and labels."""

    def __init__(self, generator: Generator, model: RelevanceModel) -> None:
        self._generator = generator
        self._model = model

    async def rerank(self, body: RerankBody) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the documents, best first. Raises RamiformError."""
        info = self._generator.core.require_info()
        is_tei, contents = body.texts is not None, body.contents()
        options, is_raw = body.options(info), body.raw_scores or not body.use_activation
        param = "texts" if is_tei else "documents"
        found = await self._of_pairs([(body.query, text) for text in contents], options, body.instruction, param)
        scores = [_score(each, raw=is_raw) for each in found]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
        if is_tei:
            return [
                {"index": index, "score": scores[index], **({"text": contents[index]} if body.return_text else {})}
                for index in order
            ]
        results = [
            {
                "index": index,
                "relevance_score": scores[index],
                **({"document": {"text": contents[index]}} if body.return_documents else {}),
            }
            for index in order
        ]
        head = {"id": f"rerank-{new_rid()}", "object": "list", "model": options.adapter or info.name}
        return {**head, "results": results, "usage": _usage(found)}

    async def score(
        self, pairs: TextPairs, options: RequestOptions, *, raw: bool, instruction: str | None
    ) -> dict[str, Any]:
        """Return the score of each pair, in vLLM's form. Raises RamiformError."""
        info = self._generator.core.require_info()
        found = await self._of_pairs(pairs.matched(), options, instruction, pairs.fields[1])
        data = [{"index": index, "object": "score", "score": _score(each, raw=raw)} for index, each in enumerate(found)]
        return {**_head("score", options.adapter or info.name), "data": data, "usage": _usage(found)}

    async def classify(self, body: ClassifyBody) -> dict[str, Any]:
        """Return the probabilities of the labels of each text, in vLLM's form. Raises RamiformError."""
        info = self._generator.core.require_info()
        options, labels, encoder = body.options(info), self._model.labels, self._generator.encoder
        prompts = [
            given
            if isinstance(given, list)
            else await encoder.encode_prompt(given, with_bos=body.add_special_tokens, param="input")
            for given in body.inputs()
        ]
        with name_prompt_field("input"):
            found = await self._model.logits([EncodedTexts(ids, []) for ids in prompts], options)
        data = []
        for index, each in enumerate(found):
            probs = each.probabilities(independent=self._model.independent) if body.use_activation else each.logits
            best = max(range(len(probs)), key=probs.__getitem__)
            data.append({"index": index, "label": labels[best], "probs": probs, "num_classes": len(probs)})
        return {**_head("classify", options.adapter or info.name), "data": data, "usage": _usage(found)}

    async def _of_pairs(
        self, pairs: Sequence[tuple[str, str]], options: RequestOptions, instruction: str | None, param: str
    ) -> list[Labelled]:
        self._model.check_pairs()
        prompts = [await self._model.pair(first, second, instruction, param) for first, second in pairs]
        with name_prompt_field(param):
            return await self._model.logits(prompts, options)


def _score(found: Labelled, *, raw: bool) -> float:
    """Return the score of a pair: of a head's one label, or of the first of two tokens against the second."""
    if not raw:
        return found.probabilities(independent=False)[0]
    return found.logits[0] - sum(found.logits[1:])


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{kind}-{new_rid()}", "object": "list", "created": int(time.time()), "model": model}


def _usage(found: Sequence[Labelled]) -> dict[str, Any]:
    num_prompt, num_cached = sum(each.tokens for each in found), sum(each.cached for each in found)
    return Usage(prompt=num_prompt, completion=0, cached=num_cached).as_json()
