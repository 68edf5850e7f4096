"""What a row's result means for its request: the next token, whether it ends the output, what to tell the client."""

from __future__ import annotations

from ...constrained.errors import GrammarError
from ..protocol.core import Finish, Tokens
from ..protocol.sampling import TokenLogprob
from .masks import too_hard
from .plan import Row, RowResult
from .request import Request
from .vocabulary import VocabularyFacts


def advance(request: Request, row: Row, result: RowResult, vocabulary: VocabularyFacts) -> Tokens | None:
    """Take over the result of a row that has been computed. None while the prompt is not done. Raises
    RequestError when its grammar cannot be followed any further."""
    request.num_computed += len(row.tokens)
    assert len(result.scores) == (0 if row.score is None else len(row.score.targets))
    request.take_scores(result.scores)
    if request.pool is not None and row.pool_from is not None:
        assert result.pooled is not None
        request.pool.add(result.pooled, request.num_computed)
    if row.sample is None:
        return None if request.num_uncomputed or request.awaits_grammar else prompt_answer(request)
    token = result.token
    assert token is not None
    assert 0 <= token < vocabulary.vocab_size
    finish = request.stops.feed(token, request.num_output)
    request.tokens.append(token)
    if request.matcher is not None and token not in vocabulary.eos_ids:
        try:
            accepted = request.matcher.accept(token)
        except GrammarError as error:
            raise too_hard(error) from None
        assert accepted, f"token {token} was sampled against its mask"
    if finish is None and not request.wants_tokens:
        finish = Finish("length")
    logprobs = None
    if request.message.logprobs is not None:
        assert result.logprob is not None
        logprobs = [*request.forced_scores, result.logprob]
        request.forced_scores.clear()
    ids = request.tokens[request.num_prompt + request.num_sent :]
    request.num_sent = request.num_output
    return _tokens(request, ids, finish, logprobs=logprobs)


def prompt_answer(request: Request) -> Tokens:
    """The whole answer to a request that wants no tokens."""
    logprobs: list[TokenLogprob] | None = None if request.message.logprobs is None else []
    embedding = None if request.pool is None else request.pool.embedding()
    return _tokens(request, [], Finish("length"), logprobs=logprobs, embedding=embedding)


def abort_answer(request: Request) -> Tokens:
    return Tokens(
        rid=request.rid,
        ids=[],
        num_cached=request.num_cached or 0,
        finish=Finish("abort"),
        num_retractions=request.num_retractions,
    )


def _tokens(
    request: Request,
    ids: list[int],
    finish: Finish | None,
    *,
    logprobs: list[TokenLogprob] | None,
    embedding: bytes | None = None,
) -> Tokens:
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
        embedding=embedding,
        num_retractions=request.num_retractions,
    )
