"""Answers of `/v1/score`: log-probabilities of continuations, SGLang's probabilities of label tokens, vLLM's scores of
pairs of texts."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Annotated, Any

from ...programs.common_prefix import common_prefix_length
from ...protocol.core import ModelInfo, RequestOptions
from ...protocol.errors import RequestError
from ...protocol.sampling import MAX_ASKED_LOGPROBS, LogprobParams, SamplingParams
from ..text.generation import Generator, Prompt
from ..text.relevance import RelevanceModel
from ..text.scoring import Continuation, Scored, score
from .bodies import Many, Text, TokenIds, described, example
from .fields import require_model
from .relevance import Documents, DocumentText, RelevanceAnswers, ScoredBody, TextPairs, texts_of
from .usage import Usage

MAX_CONTINUATIONS = 1024


Texts = Annotated[Many[Annotated[Text, described(minLength=1)]], described(minItems=1, maxItems=MAX_CONTINUATIONS)]
IdLists = Annotated[Many[Annotated[TokenIds, described(minItems=1)]], described(minItems=1, maxItems=MAX_CONTINUATIONS)]
_NULL = {"type": "null"}


_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))  # vLLM's names
Compared = Text | DocumentText | Documents


class ScoreBody(ScoredBody):
    """Continuations, texts after a text or token ids after token ids; a query, items and label tokens, as SGLang has
    it; or two texts, or lists of them, to compare, as vLLM has it. The fields tell which is meant."""

    model_config = example(
        {"prompt": "The capital of France is", "continuations": [" Paris", " Rome"]},
        oneOf=[
            {
                "required": ["prompt", "continuations"],
                "properties": {"prompt": {"not": _NULL}, "continuations": {"not": _NULL}, "items": _NULL},
            },
            {
                "required": ["query", "items", "label_token_ids"],
                "properties": {
                    "query": {"not": _NULL},
                    "items": {"not": _NULL},
                    "label_token_ids": {"not": _NULL},
                    "continuations": _NULL,
                },
            },
            *({"required": [*names], "properties": {name: {"not": _NULL} for name in names}} for names in _PAIRS),
        ],
    )
    prompt: Text | Annotated[TokenIds, described(minItems=1)] | None = None
    continuations: Texts | IdLists | None = None
    query: Text | Annotated[TokenIds, described(minItems=1)] | None = None
    items: Text | Texts | IdLists | None = None
    label_token_ids: Annotated[TokenIds, described(minItems=1, maxItems=MAX_ASKED_LOGPROBS)] | None = None
    apply_softmax: bool = False
    item_first: bool = False
    text_1: Compared | None = None
    text_2: Compared | None = None
    queries: Compared | None = None
    documents: Compared | None = None
    data_1: Compared | None = None
    data_2: Compared | None = None
    instruction: Text | None = None

    def pairs(self) -> TextPairs | None:
        """Return the texts to compare; None: the body has another form. Raises RequestError for a half of a pair, and
        for parts of several forms."""
        names = dict.fromkeys(name for pair in _PAIRS for name in pair if name != "items")
        given = [name for name in names if getattr(self, name) is not None]
        if not given:
            return None
        others = ("query", "label_token_ids", "prompt", "continuations")
        given += [name for name in ("items", *others) if getattr(self, name) is not None]
        fields = next((pair for pair in _PAIRS if set(pair) == set(given)), None)
        if fields is None:
            wanted = " or ".join(" and ".join(pair) for pair in _PAIRS)
            raise RequestError(f"to compare texts give {wanted}; got {' and '.join(given)}", param=given[0])
        first, second = (getattr(self, name) for name in fields)
        if any(isinstance(item, list) for item in [*(first if isinstance(first, list) else []), *second]):
            raise RequestError("texts are compared, not token ids", param=fields[1])
        return TextPairs(texts_of(first, fields[0]), texts_of(second, fields[1]), fields)

    @property
    def has_labels(self) -> bool:
        """Return True for the form with label tokens. Raises RequestError for neither form, or parts of both."""
        labelled = [name for name in ("query", "items", "label_token_ids") if getattr(self, name) is not None]
        plain = [name for name in ("prompt", "continuations") if getattr(self, name) is not None]
        if labelled and plain:
            raise RequestError(f"{labelled[0]} and {plain[0]} exclude one another", param=plain[0])
        if len(labelled) != 3 and len(plain) != 2:
            names = ("query", "items", "label_token_ids") if labelled else ("prompt", "continuations")
            missing = next(name for name in names if getattr(self, name) is None)
            raise RequestError(f"{missing} is missing", param=missing)
        return bool(labelled)


class ScoreAnswers:
    """Answers requests for scores."""

    def __init__(self, generator: Generator, relevance: RelevanceModel) -> None:
        self._generator = generator
        self.relevance = RelevanceAnswers(generator, relevance)

    async def answer(self, body: ScoreBody) -> dict[str, Any]:
        """Return the answer. Raises RamiformError."""
        info = self._generator.core.require_info()
        adapter = require_model(info, body.model)
        if (pairs := body.pairs()) is not None:
            options = body.options(info)
            return await self.relevance.score(pairs, options, raw=not body.use_activation, instruction=body.instruction)
        if body.has_labels:
            return await self._label_scores(body, info, adapter)
        if info.encoder is not None:
            raise RequestError(
                f"{info.architecture} is an encoder, in which no text continues another: give two texts to compare",
                param="continuations",
                code="not_supported",
            )
        batch = await self._batch(body)
        scored = await score(self._generator.core, batch, RequestOptions(namespace=body.cache_salt, adapter=adapter))
        num_prompt = sum(part.prompt_tokens for part in scored)
        return {
            "object": "list",
            "model": adapter or info.name,
            "data": [_score_entry(index, part) for index, part in enumerate(scored)],
            "usage": _usage(num_prompt, sum(part.cached_tokens for part in scored)),
        }

    async def _label_scores(self, body: ScoreBody, info: ModelInfo, adapter: str | None) -> dict[str, Any]:
        """Return the probability of each label token after each item: among all tokens, or by softmax among labels.

        Source: SGLang's scoring API. Raises RequestError.
        """
        labels = body.label_token_ids or []
        if not 1 <= len(labels) <= MAX_ASKED_LOGPROBS:
            raise RequestError(f"give 1 to {MAX_ASKED_LOGPROBS} label tokens", param="label_token_ids")
        if (unknown := max(labels)) >= info.vocab_size:
            raise RequestError(f"the vocabulary has no token {unknown}", param="label_token_ids")
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0, seed=0)
        options = RequestOptions(logprobs=LogprobParams(of=tuple(labels)), namespace=body.cache_salt, adapter=adapter)
        num_prompt = num_cached = 0
        scores = []
        with ExitStack() as stack:
            samples = [
                stack.enter_context(
                    self._generator.start(
                        Prompt(
                            tokens=tokens,
                            sampling=sampling,
                            options=options,
                        )
                    )
                )[0]
                for tokens in await self._label_prompts(body)
            ]
            for sample in samples:
                sequence = (await sample.result()).sequence
                assert sample.logprobs is not None
                values = [math.exp(value) for value in sample.logprobs[0].of]
                total = math.fsum(values) or 1.0
                scores.append([value / total for value in values] if body.apply_softmax else values)
                num_prompt += sequence.prompt_tokens
                num_cached += sequence.cached_tokens
        return {
            "object": "scoring",
            "model": adapter or info.name,
            "scores": scores,
            "usage": _usage(num_prompt, num_cached),
        }

    async def _label_prompts(self, body: ScoreBody) -> list[list[int]]:
        """Join the query with each item, as texts or as token ids. Raises RequestError."""
        items = [body.items] if isinstance(body.items, str) else body.items or []
        if not 1 <= len(items) <= MAX_CONTINUATIONS:
            raise RequestError(f"give 1 to {MAX_CONTINUATIONS} items", param="items")
        prompts = []
        for item in items:
            if isinstance(item, str) and isinstance(body.query, str):
                text = f"{item}{body.query}" if body.item_first else f"{body.query}{item}"
                prompts.append(await self._generator.encoder.encode_prompt(text, param="items"))
            elif isinstance(item, list) and isinstance(body.query, list):
                self._check_ids(body.query, "query")
                self._check_ids(item, "items")
                prompts.append([*item, *body.query] if body.item_first else [*body.query, *item])
            else:
                raise RequestError("items are texts beside a text, ids beside ids", param="items")
        return prompts

    async def _batch(self, body: ScoreBody) -> list[Continuation]:
        """Tokenise each continuation with the prompt. Its tokens begin after the longest prefix shared with the prompt
        alone.

        So a token that spans the boundary counts in full. Raises RequestError.
        """
        prompt, continuations = body.prompt, body.continuations
        assert prompt is not None
        assert continuations is not None
        if not 1 <= len(continuations) <= MAX_CONTINUATIONS:
            raise RequestError(f"give 1 to {MAX_CONTINUATIONS} continuations", param="continuations")
        batch = []
        bound = await self._generator.encoder.prompt_bound("prompt")
        alone = prompt if isinstance(prompt, list) else await self._token_ids(prompt)
        for continuation in continuations:
            if isinstance(continuation, str) != isinstance(prompt, str):
                raise RequestError("continuations are texts after a text, ids after ids", param="continuations")
            if isinstance(continuation, str):
                ids = await self._token_ids(f"{prompt}{continuation}")
                start = common_prefix_length(alone, ids)
            else:
                num_tokens = len(alone) + len(continuation)
                if bound is not None and num_tokens > bound.most:
                    raise bound.error(num_tokens)
                self._check_ids(continuation, "continuations")
                ids, start = [*alone, *continuation], len(alone)
            if len(ids) == start:
                raise RequestError(f"continuation {continuation!r} adds no token", param="continuations")
            if start == 0:
                raise RequestError("the first token of all has no probability: give a prompt", param="prompt")
            batch.append(Continuation(ids, start))
        return batch

    def _check_ids(self, ids: list[int], param: str) -> None:
        """Raise RequestError naming the field of ids that the model does not have."""
        vocab_size = self._generator.core.require_info().vocab_size
        if (unknown := next((token for token in ids if token >= vocab_size), None)) is not None:
            raise RequestError(f"token id {unknown} is not in the vocabulary of {vocab_size} tokens", param=param)

    async def _token_ids(self, text: str) -> list[int]:
        return await self._generator.encoder.encode_prompt(text)


def _usage(num_prompt: int, num_cached: int) -> dict[str, Any]:
    return Usage(prompt=num_prompt, completion=0, cached=num_cached).as_json()


def _score_entry(index: int, scored: Scored) -> dict[str, Any]:
    values = [token.logprob for token in scored.logprobs]
    total = math.fsum(values)
    return {
        "index": index,
        "logprob": total,
        "mean_logprob": total / len(values),
        "tokens": [token.id for token in scored.logprobs],
        "token_logprobs": values,
    }
