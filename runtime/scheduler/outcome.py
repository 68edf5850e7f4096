"""What a row's result means for its request: the next token, whether it ends the output, what to tell the client."""

from __future__ import annotations

from dataclasses import dataclass

from ...constrained.errors import GrammarError
from ..protocol.core import Finish, Tokens
from ..protocol.errors import RequestError
from ..protocol.sampling import TokenLogprob
from .masks import too_hard
from .plan import Row, RowResult
from .request import Request
from .vocabulary import VocabularyFacts


@dataclass(frozen=True)
class Advance:
    """What the client is told: tokens, unless the prompt is not done; then perhaps that nothing can follow them."""

    answer: Tokens | None
    error: RequestError | None = None


def advance(request: Request, row: Row, result: RowResult, vocabulary: VocabularyFacts) -> Advance:
    """Take over the result of a row that has been computed. Tokens that come after the output's end are dropped."""
    request.num_computed += row.num_committed
    assert len(result.scores) == (0 if row.score is None else len(row.score.targets))
    request.prompt_scores.extend(result.scores)
    if row.sample is None:
        return Advance(None if request.num_uncomputed else prompt_answer(request))
    assert 1 <= len(result.tokens) <= 1 + len(row.nodes)
    request.num_passes += 1
    first, finish, error = len(request.tokens), None, None
    for token in result.tokens:
        assert 0 <= token < vocabulary.vocab_size
        try:
            finish = _take(request, token, vocabulary)
        except RequestError as failure:
            error = failure
        if finish is not None or error is not None:
            break
    ids = request.tokens[first:]
    # The KV of what proved right is there; the token that was sampled last is still to be computed.
    request.num_computed += min(len(ids), len(result.tokens) - 1)
    logprobs = None
    if request.message.logprobs is not None:
        assert len(result.logprobs) == len(result.tokens)
        logprobs = result.logprobs[: len(ids)]
    return Advance(_tokens(request, ids, finish, logprobs=logprobs) if ids else None, error)


def _take(request: Request, token: int, vocabulary: VocabularyFacts) -> Finish | None:
    """One more output token, and whether it is the last. Raises RequestError, and has not taken it, when the grammar
    cannot be followed that far."""
    if request.matcher is not None and token not in vocabulary.eos_ids:
        try:
            accepted = request.matcher.accept(token)
        except GrammarError as error:
            raise too_hard(error) from None
        assert accepted, f"token {token} was sampled against its mask"
    finish = request.stops.feed(token, request.num_output)
    request.tokens.append(token)
    return Finish("length") if finish is None and not request.wants_tokens else finish


def prompt_answer(request: Request) -> Tokens:
    """The whole answer to a request that wants no tokens."""
    return _tokens(request, [], Finish("length"), logprobs=None if request.message.logprobs is None else [])


def abort_answer(request: Request) -> Tokens:
    return Tokens(
        rid=request.rid,
        ids=[],
        num_cached=request.num_cached or 0,
        finish=Finish("abort"),
        num_retractions=request.num_retractions,
        num_passes=request.num_passes,
    )


def _tokens(request: Request, ids: list[int], finish: Finish | None, *, logprobs: list[TokenLogprob] | None) -> Tokens:
    assert request.num_cached is not None
    first = not request.answered
    request.answered = True
    return Tokens(
        rid=request.rid,
        ids=ids,
        num_cached=request.num_cached,
        finish=finish,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs() if first else None,
        num_retractions=request.num_retractions,
        num_passes=request.num_passes,
    )
