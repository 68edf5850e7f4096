"""Applies a row's result to its request: new tokens, the end of the output, the message to the client."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import numpy as np
from msgspec.structs import replace

from ...constrained.backends import OutputMatcher
from ...constrained.errors import GrammarError
from ..protocol.core import Finish, RoutedExperts, Tokens
from ..protocol.errors import ModelError, RequestError
from ..protocol.sampling import TokenLogprob, forced_details
from .interfaces import VocabularyInfo
from .plan import Row, RowResult
from .request import Request
from .rows.sampling_inputs import grammar_too_complex

BULK_TOKENS = 32  # tokens per message to the client of an `in_bulk` request


# The client's message, if there is one, and the error that ends the request after it, if there is one.
AppliedResult = tuple[Tokens | None, RequestError | ModelError | None]


def apply_result(
    request: Request,
    row: Row,
    result: RowResult,
    vocabulary: VocabularyInfo,
    follow: Callable[[Request, int | None, bool, bool], bool],
    forced_end: Callable[[Request, VocabularyInfo], int | None],
    verified: tuple[int, int] | None = None,
) -> AppliedResult:
    """Apply the result of a computed row, token by token, as if each had come alone. Its known tokens are counted.

    `follow` lets the grammar, if any, follow each, and appends the tokens that it forces. It is called with the token,
    None for an end of sequence; with True if the output goes on; and with True if the token is the result's last.
    `forced_end` gives the end of sequence where nothing else may follow. Tokens after the output's end are dropped, and
    those after a token for which `follow` returns False: they are sampled again. `verified` counts the right guesses of
    the row's draft, and all of them; None if it had none.
    """
    if request.routes is not None and row.routes_from is not None:
        request.routes.take(row.routes_from, result.routes)
    has_scores = row.score is not None or row.pool_from is not None
    if has_scores and (not_finite := _take_scores_and_pooling(request, row, result)) is not None:
        return None, not_finite
    if row.sample is None:
        return (None if request.num_uncomputed or request.is_held else prompt_answer(request)), None
    num_known = len(request.tokens)
    if request.matcher is not None:
        try:
            request.matcher.read_on()  # here: once the grammar follows the new tokens, a thread may have it
        except GrammarError as failure:
            return None, grammar_too_complex(failure)
    request.num_passes += 1
    if verified is not None:
        request.record_accepted(*verified)
    finish: Finish | None = None
    error: RequestError | ModelError | None = None
    position, num_done = num_known, num_known - request.num_prompt  # of the next token; up to the last sampled one
    last = len(result.tokens) - 1
    for index, token in enumerate(result.tokens):
        if position < len(request.tokens):
            if request.tokens[position] != token:
                break  # the text has been forced meanwhile, with other ids
            if request.message.logprobs is not None:
                _keep_logprob(request, result, index, forced=True)
        else:
            try:
                finish = _append_token(request, token, vocabulary)
                if request.message.logprobs is not None:  # before `follow`, which asks which known tokens lack theirs
                    _keep_logprob(request, result, index, forced=False)
                is_followed = request.matcher is None or follow(
                    request, None if token in vocabulary.eos_ids else token, finish is None, index == last
                )
            except RequestError as failure:
                error = failure
                break
            num_done = position + 1 - request.num_prompt
            if not is_followed:
                break
        position += 1
        # The KV of accepted tokens is computed; that of the last sampled token is not.
        request.num_computed += index < last
        if finish is not None:
            break
    else:
        if not result.is_finite:
            error = _not_finite(request)
    if finish is None and error is None and (end := forced_end(request, vocabulary)) is not None:
        finish = _append_token(request, end, vocabulary)
        num_done = len(request.tokens) - request.num_prompt
    if row.parents is None and last > 0:  # each token after the first took a decode step of its own
        request.num_passes += max(0, position - num_known - 1)
    if request.message.logprobs is not None and (scored := request.next_scored) is not None:
        request.num_computed = min(request.num_computed, scored - 1)  # the forced token's logits were not returned
    if error is not None:
        return _sampled_answer(request, num_done, finish), error
    return _answer(request, num_done, finish, vocabulary)


def end_output(request: Request, end: int, vocabulary: VocabularyInfo) -> AppliedResult:
    """Append the end of sequence that alone may follow, between steps; return as `apply_result`."""
    finish = _append_token(request, end, vocabulary)
    return _answer(request, len(request.tokens) - request.num_prompt, finish, vocabulary)


def _answer(request: Request, num_done: int, finish: Finish | None, vocabulary: VocabularyInfo) -> AppliedResult:
    """Return the message with the output's first `num_done` tokens, and with what was captured of an output that ends;
    with the error if that is too complex."""
    if finish is not None and request.matcher is not None:
        try:
            finish = _with_captures(request, request.matcher, finish, vocabulary)
        except GrammarError as failure:
            return _sampled_answer(request, num_done, None), grammar_too_complex(failure)
    return _sampled_answer(request, num_done, finish), None


def _with_captures(request: Request, matcher: OutputMatcher, finish: Finish, vocabulary: VocabularyInfo) -> Finish:
    """Return the finish with what the grammar captures of the output. Raises GrammarError if that is too complex."""
    if (captures := matcher.captures()) is None:
        return finish
    for token in request.tokens[request.output_start + matcher.num_accepted :]:  # the last, which nothing follows
        if token in vocabulary.eos_ids or not matcher.accept(token):
            break
        captures = matcher.captures() or []
    return replace(finish, captures=[(name, text.decode("utf-8", "replace")) for name, text in captures])


def _take_scores_and_pooling(request: Request, row: Row, result: RowResult) -> ModelError | None:
    """Give the request what was computed of known tokens; return the error if it is not finite."""
    assert len(result.scores) == (0 if row.score is None else len(row.score.targets))
    if result.scores:
        request.take_scores(result.scores)
        if any(isnan(score.logprob) for score in result.scores):
            return ModelError("the model's logits of the prompt or of forced text are not finite")
    if request.pooling is not None and row.pool_from is not None:
        assert result.pooled is not None
        if not np.isfinite(np.frombuffer(result.pooled, "<f4")).all():
            return ModelError("the model's hidden states of the prompt are not finite")
        request.pooling.add(result.pooled, request.num_computed)
    return None


def _not_finite(request: Request) -> ModelError:
    """Make the error for an output whose next token cannot be sampled."""
    text = f"the model's logits after {len(request.tokens)} tokens are NaN or infinite"
    if request.mask is None or request.mask[1] is None:
        return ModelError(f"{text}: no token can be chosen")
    num_allowed = int.from_bytes(request.mask[1], "little").bit_count()
    return ModelError(f"{text} for the {num_allowed} tokens allowed here: none can be chosen")


def _append_token(request: Request, token: int, vocabulary: VocabularyInfo) -> Finish | None:
    """Append an output token; return the finish if it is the last one."""
    assert 0 <= token < vocabulary.vocab_size
    num_known = len(request.tokens)
    finish = request.stops.feed(token, num_known - request.num_prompt)
    request.tokens.append(token)
    return Finish("length") if finish is None and num_known + 1 >= request.end else finish


def _keep_logprob(request: Request, result: RowResult, index: int, *, forced: bool) -> None:
    wanted = request.message.logprobs
    assert wanted is not None
    assert len(result.logprobs) == len(result.tokens)
    value = result.logprobs[index]
    if (details := value.details) is not None:
        if forced:
            details = forced_details(value, wanted.of, details.entropy)
        elif index + 1 < len(result.tokens):
            details = replace(details, origin="accepted")
        value = replace(value, details=details)
    request.output_scores.append(value)


def _sampled_answer(request: Request, num_done: int, finish: Finish | None) -> Tokens | None:
    """Return the message with the output's first `num_done` tokens, as far as the client lacks them; None to wait for
    more."""
    num_new = num_done - request.num_sent
    request.num_settled = num_done
    if not num_new or (finish is None and num_new < BULK_TOKENS and _is_in_bulk(request)):
        return None
    ids, logprobs = _take_settled(request)
    return _tokens_message(request, ids, finish, logprobs=logprobs)


def _is_in_bulk(request: Request) -> bool:
    """Return whether the client can wait for more tokens. Log-probabilities of the prompt are sent at once."""
    scored = request.message.logprobs
    return request.message.in_bulk and (request.answered or scored is None or scored.prompt_from is None)


def _take_settled(request: Request) -> tuple[list[int], list[TokenLogprob] | None]:
    """Take the settled tokens that the client lacks, with their log-probabilities if it asked for them."""
    first, last = request.num_sent, request.num_settled
    request.num_sent = last
    logprobs = None
    if request.message.logprobs is not None:
        logprobs, request.output_scores = request.output_scores[: last - first], request.output_scores[last - first :]
    return request.tokens[request.num_prompt + first : request.num_prompt + last], logprobs


def settled_answer(request: Request) -> Tokens | None:
    """Return the message with the settled tokens that the client lacks; None if there are none."""
    if request.num_settled <= request.num_sent:
        return None
    ids, logprobs = _take_settled(request)
    return _tokens_message(request, ids, None, logprobs=logprobs)


def prompt_answer(request: Request) -> Tokens:
    """Complete answer to a request that wants no tokens."""
    logprobs: list[TokenLogprob] | None = None if request.message.logprobs is None else []
    embedding = None if request.pooling is None else request.pooling.embedding()
    return _tokens_message(request, [], Finish("length"), logprobs=logprobs, embedding=embedding)


def abort_answer(request: Request) -> Tokens:
    ids, logprobs = _take_settled(request)
    return Tokens(
        rid=request.rid,
        ids=ids,
        logprobs=logprobs if ids else None,
        num_cached=request.num_cached or 0,
        finish=Finish("abort"),
        num_retractions=request.num_retractions,
        num_passes=request.num_passes,
        accepted_lengths=request.accepted_lengths,
        num_guessed=request.num_guessed,
        weight_version=request.weights_version,
        routes=_routes(request),
    )


def _routes(request: Request) -> RoutedExperts | None:
    return None if request.routes is None else request.routes.of(request.num_prompt + request.num_sent)


def _tokens_message(
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
        num_passes=request.num_passes,
        accepted_lengths=[] if finish is None else request.accepted_lengths,
        num_guessed=0 if finish is None else request.num_guessed,
        weight_version=request.weights_version,
        routes=None if finish is None else _routes(request),
    )
