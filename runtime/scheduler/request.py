"""A live request: its message and its progress."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from ...constrained.backends import OutputMatcher
from ...constrained.errors import GrammarError
from ...radix.cache import Lease
from ..protocol.core import BACKGROUND_PRIORITY, Generate, Timings, Tokens
from ..protocol.errors import RequestError, context_exceeded
from ..protocol.pictures import check_pictures
from ..protocol.sampling import DEFAULT_VERSION, DrawParams, TokenLogprob
from .drafts.acceptance import Acceptance
from .drafts.copies import PromptCopies
from .drafts.lookahead import Lookahead
from .drafts.ngram import NgramIndex
from .drafts.tree import DraftTree
from .embedding_pooling import EmbeddingPooling
from .interfaces import VocabularyInfo
from .plan import Sample
from .rope_switch import RopeSwitch, namespace_at
from .rows.pictures import whole_chunk, with_ids
from .rows.repeats import Repeats, repeats_of
from .rows.route_record import RouteRecord
from .rows.token_rules import TokenRules, token_rules
from .stops import StopRules

_SESSION = "client "  # begins the ids of sessions that clients have named
MAX_PROMPT_LOGPROBS = 3 << 20  # 20 bytes each at most; a message holds 64 MiB


def length_limit(
    message: Generate, *, vocab_size: int, context_length: int, num_slots: int, reads_pictures: bool = True
) -> int:
    """Return the maximum length of the request, prompt and output together, within the context and the KV pool.

    Raises RequestError if the request cannot run at all.
    """
    params = message.sampling
    num_prompt = len(message.tokens)
    if num_prompt == 0:
        raise RequestError("the prompt is empty: there is no token to continue", param="prompt", code="empty_prompt")
    _check_token_ids(message.tokens, vocab_size, "prompt")
    _check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    _check_token_ids(params.logit_bias, vocab_size, "logit_bias")
    _check_token_ids(params.allowed_token_ids, vocab_size, "allowed_token_ids")
    for sequence in message.banned:
        _check_token_ids(sequence, vocab_size, "bad_words")
    for sequence in message.breakers:
        _check_token_ids(sequence, vocab_size, "dry_sequence_breakers")
    if not 0 <= message.continued < num_prompt:
        raise RequestError(
            f"continued_tokens must be less than the prompt's {num_prompt} tokens, got {message.continued}",
            param="continued_tokens",
        )
    if message.pictures and not reads_pictures:
        raise RequestError("this runtime reads text only: images need picture_bytes", param="images")
    check_pictures(message.pictures, num_prompt)
    last = message.pictures[-1] if message.pictures else None
    if last is not None and last.attends_both_ways and last.end == num_prompt and params.max_new_tokens:
        raise RequestError("the prompt ends in an image: a text has to follow it", param="images")
    if params.seed is None and not params.greedy:
        raise RequestError("sampling needs a seed", param="seed")
    if message.pooling in ("head", "first") or message.token_types:
        raise RequestError("this model is a decoder: it pools states by last or mean", param="pooling")
    if message.pooling is not None and params.max_new_tokens:
        raise RequestError("an embedding is of a prompt: max_new_tokens must be 0", param="max_new_tokens")
    if num_prompt > context_length:
        raise context_exceeded(context_length, num_prompt)
    most = min(context_length, num_slots)  # a KV pool smaller than the model's context limits the context
    if num_prompt + (num_new := min(1, params.max_new_tokens)) > most:
        raise context_exceeded(most, num_prompt, num_new)
    if message.logprobs is not None:
        _check_token_ids(message.logprobs.of, vocab_size, "token_ids_logprob")
    if message.logprobs is not None and message.logprobs.prompt_from is not None:
        num_each = 1 + message.logprobs.num_top + len(message.logprobs.of)
        num_listed = max(0, num_prompt - message.logprobs.prompt_from) * num_each
        if num_listed > MAX_PROMPT_LOGPROBS:
            raise RequestError(
                f"{num_listed} log-probabilities of the prompt, with alternatives; "
                f"at most {MAX_PROMPT_LOGPROBS} fit an answer",
                param="logprob_start_len",
                code="too_long",
            )
    return min(num_prompt + params.max_new_tokens, most)


def _check_token_ids(ids: Collection[int], vocab_size: int, param: str) -> None:
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    wrong = next(token for token in ids if not 0 <= token < vocab_size)
    raise RequestError(f"token id {wrong} is not in the vocabulary of {vocab_size} tokens", param=param)


RequestPhase = Literal["queue", "grammar", "prefill", "decode", "retracted", "transfer"]


class RequestClock:
    """The time of a request by phase, in seconds. It is in one phase at any time, at first in the queue."""

    __slots__ = ("_answered_at", "_phase", "_seconds", "_since")

    def __init__(self, arrived: float) -> None:
        self._phase: RequestPhase = "queue"
        self._since = arrived
        self._seconds: dict[RequestPhase, float] = {}
        self._answered_at: float | None = None

    def wait(self, phase: Literal["queue", "grammar", "retracted", "transfer"], now: float) -> None:
        """Note that the request waits from now on, and for what."""
        self._enter(phase, now)

    def run(self, now: float) -> None:
        """Note that the request is computed from now on."""
        self._enter("prefill" if self._answered_at is None else "decode", now)

    def answer(self, now: float) -> None:
        """Note a token; with the first one the prefill ends."""
        if self._answered_at is None:
            self._answered_at = now
            self._enter("decode", now)

    def since_first(self, now: float) -> float:
        """Return the seconds since the first token; 0 without one."""
        return 0.0 if self._answered_at is None else now - self._answered_at

    def timed(self, last: Tokens, now: float) -> Tokens:
        """Return the last message of a request that ends now, with its times."""
        return replace(last, timings=self.timings(now), since_first=self.since_first(now))

    def timings(self, now: float) -> Timings:
        """Return the timings of a request that ends now."""
        seconds = {**self._seconds, self._phase: self._seconds.get(self._phase, 0.0) + now - self._since}
        return Timings(
            queue=seconds.get("queue", 0.0),
            prefill=seconds.get("prefill", 0.0),
            decode=seconds.get("decode", 0.0),
            grammar=seconds.get("grammar", 0.0),
            retracted=seconds.get("retracted", 0.0),
            transfer=seconds.get("transfer", 0.0),
        )

    def _enter(self, phase: RequestPhase, now: float) -> None:
        if phase != self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._since
            self._phase, self._since = phase, now


@dataclass(eq=False, slots=True)  # with slots, because each step reads and writes dozens of fields
class Request:
    """State of a request. It runs while it has a lease.

    # [0, num_computed)              computed, results received
    # [num_computed, next_position)  in flight
    # [next_position, ...)           for the next plan
    """

    message: Generate
    owner: bytes
    serial: int  # in order of arrival
    rank: int  # serial of its program's first request, or its own
    end: int  # maximum length of `tokens`
    stops: StopRules
    tokens: list[int]  # the prompt, then the output so far
    known_prompt: list[int] | None = None  # as the cache knows it; None: there are no pictures in it
    rope: RopeSwitch | None = None  # of a model whose angles change with the length
    rules: TokenRules | None = None  # None: every token may follow
    repeats: Repeats | None = None  # of DRY
    clock: RequestClock = field(default_factory=lambda: RequestClock(0.0))
    matcher: OutputMatcher | None = None
    awaits_grammar: bool = False  # until it is compiled, all but the last token may be computed
    awaits_mask: bool = False  # likewise, until the grammar has said what may follow
    unaccepted: int | None = None  # token that the grammar has still to accept
    # Number of tokens; the mask and the temperature of the one after them.
    mask: tuple[int, bytes | None, float | None] | None = None
    jump_due: bool = False  # the text that is forced after `tokens` has still to be appended
    continued_due: bool = False  # the grammar has still to follow the continued tokens of the prompt
    forced_rest: list[int] = field(default_factory=list)  # forced ids after those, still to be appended
    lease: Lease | None = None
    num_computed: int = 0
    num_cached: int | None = None  # prompt tokens reused at the first start
    num_retractions: int = 0
    num_passes: int = 0  # forwards that returned output tokens
    first_step: int = 0  # by the count of `Drafting`; reset when it starts again
    draft: DraftTree | None = None  # the engine's draft after `tokens`
    accepted_lengths: list[int] = field(default_factory=list)  # verifications that accepted 0, 1, 2, ... tokens
    num_guessed: int = 0  # draft tokens that were verified
    acceptance: Acceptance = field(default_factory=Acceptance)  # of its drafts
    ngrams: NgramIndex | None = None  # for `--speculative ngram`
    copies: PromptCopies | None = None  # for constrained texts, with sources that need no model
    lookahead: Lookahead | None = None  # for `--speculative lookahead`
    next_lookup: int = 2  # number of output tokens at which a draft is next looked for in texts
    lookup_interval: int = 1  # output tokens from that lookup to the next, if it is of no use
    prompt_scores: list[TokenLogprob] = field(default_factory=list)
    pooling: EmbeddingPooling | None = None
    routes: RouteRecord | None = None  # of its tokens' experts, if it wants them
    answered: bool = False  # the client has the first tokens and the prompt's log-probabilities
    num_sent: int = 0  # output tokens sent to the client
    num_settled: int = 0  # output tokens that may be sent; later ones were forced and go with the next
    output_scores: list[TokenLogprob] = field(default_factory=list)  # of output tokens after `num_sent`
    fork_positions: set[int] = field(default_factory=set)  # where requests that wait for its tokens leave them
    num_in_flight: int = 0  # tokens after `num_computed` that plans in flight compute
    token_in_flight: bool = False  # a plan in flight samples the token after `tokens`
    leaving: bool = False  # ended, but plans in flight may still write its pages
    widened_end: int = 0  # position up to which its rows are `widened`, or 0; decided at its first start, and kept
    poisoned: bool = False  # its keys and values may be wrong, or of several weights: nobody may reuse them
    weights_mark: str = ""  # of the weights that compute it, in the namespace of its prefixes
    weights_version: str = DEFAULT_VERSION  # of the weights that sample its next token
    counted: bool = False  # the counters include its prompt
    session: str | None = None  # of a request without a program: named by the client, or recognised once it has started
    session_state: int | None = None  # of a session that the client named, once the request has started
    rid: str = field(init=False)
    num_prompt: int = field(init=False)
    sample: Sample = field(init=False)  # of every token, without its draw, the penalties and DRY
    samples_alike: bool = field(init=False)  # True: it has none of these

    def __post_init__(self) -> None:
        self.rid = self.message.rid
        self.num_prompt = len(self.message.tokens)
        params, logprobs = self.message.sampling, self.message.logprobs
        self.samples_alike = params.seed is None and not params.penalised and self.repeats is None
        self.sample = Sample(
            **{name: getattr(params, name) for name in DrawParams.__struct_fields__},
            draw=0,
            logit_bias=params.logit_bias,
            num_top_logprobs=None if logprobs is None else logprobs.num_top,
            logprobs_of=() if logprobs is None else logprobs.of,
            logprob_details=logprobs is not None and logprobs.details,
        )

    @property
    def program_id(self) -> str | None:
        """Id of the request's program, or of the session recognised; frontends number theirs independently."""
        program = self.message.program
        return self.session if program is None else program_id(self.owner, program)

    @property
    def is_background(self) -> bool:
        """True if nobody waits for the answer."""
        return self.message.priority <= BACKGROUND_PRIORITY

    @property
    def rope_length(self) -> int:
        """The `RopeSwitch.length` of the tokens."""
        return 0 if self.rope is None else self.rope.length(self.num_prompt, len(self.tokens))

    @property
    def namespace(self) -> str:
        """The namespace of the prefixes that it can share."""
        own = self.message.namespace + self.weights_mark
        return own if self.rope is None else namespace_at(own, self.rope_length)

    @property
    def cache_tokens(self) -> list[int]:
        """The tokens as the cache knows them: not to be changed."""
        return self.tokens if self.known_prompt is None else self.known_prompt + self.tokens[self.num_prompt :]

    @property
    def planned_end(self) -> int:
        """Length that `tokens` may reach before the request ends or has to be computed again."""
        switch = None if self.rope is None else self.rope.end(len(self.tokens))
        return self.end if switch is None else min(self.end, switch)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def output_start(self) -> int:
        """Position at which the output begins for its rules; continued tokens of the prompt belong to it."""
        return self.num_prompt - self.message.continued

    @property
    def recent_output(self) -> list[int]:
        """The end of the output, as far as the token rules look at it."""
        num = 0 if self.rules is None else self.rules.num_context
        return self.tokens[max(self.output_start, len(self.tokens) - num) :] if num else []

    @property
    def num_uncomputed(self) -> int:
        """Tokens that can be computed now. The last one's logits are useless before its mask is known."""
        return len(self.tokens) - self.num_computed - self.is_held

    @property
    def is_held(self) -> bool:
        """True while no token can be sampled: its mask is not known."""
        return self.awaits_grammar or self.awaits_mask

    @property
    def next_position(self) -> int:
        """Position of the first token that no plan computes yet."""
        return self.num_computed + self.num_in_flight

    @property
    def num_unplanned(self) -> int:
        """Tokens that a plan can compute now.

        With a plan in flight, scores and sums are known only when its result is there, and an output may end before its
        limit.
        """
        if not self.num_in_flight:
            return self.num_uncomputed
        if self.pooling is not None or self.next_scored is not None:
            return 0
        if self.token_in_flight:
            return int(len(self.tokens) + 1 < self.planned_end)
        return self.num_uncomputed - self.num_in_flight

    @property
    def num_unconditional(self) -> int:
        """Number of tokens that a plan can sample in turn: each depends on those before it by the model alone."""
        message = self.message
        depends = message.sampling.penalised or self.repeats is not None or self.rules is not None
        if depends or message.logprobs is not None or self.pooling is not None or self.routes is not None:
            return 1
        if self.matcher is not None or self.stops.suppressed(self.num_output):
            return 1
        return self.planned_end - len(self.tokens)

    def whole_chunk(self, num_tokens: int, first: int | None = None) -> int:
        """Return how many of the next `num_tokens` tokens, from position `first` on (None: the next one), one chunk
        can have: more only where it begins with a picture that has to be computed at once, and none after the last
        widened one."""
        if first is None:
            first = self.next_position
        if first < self.widened_end:
            num_tokens = min(num_tokens, self.widened_end - first)
        return num_tokens if self.known_prompt is None else whole_chunk(self.message.pictures, first, num_tokens)

    def decide_widening(self, widened_from: int, num_matched: int) -> None:
        """Decide, at the first start, which rows are `widened`: all of a prompt with so many tokens or more to compute,
        and of the text that is forced before the first sampled token, whenever the grammar says so."""
        if self.num_cached is None:
            is_long = 0 < widened_from <= self.num_prompt - num_matched
            self.widened_end = len(self.tokens) if is_long else 0

    @property
    def seniority(self) -> tuple[int, int]:
        """Sort key, smaller first: higher priority, then earlier arrival. Unique per request."""
        return -self.message.priority, self.serial

    @property
    def wants_tokens(self) -> bool:
        return len(self.tokens) < self.end

    @property
    def next_scored(self) -> int | None:
        """Position of the first known token whose log-probability is pending: the prompt's, if requested, then forced
        tokens'."""
        if self.message.logprobs is None:
            return None
        if self._num_unscored:
            return self.num_prompt - self._num_unscored
        position = self.num_prompt + self.num_sent + len(self.output_scores)
        return position if position < len(self.tokens) else None

    @property
    def _num_unscored(self) -> int:
        """Number of prompt tokens whose log-probability is pending; position 0 has none."""
        logprobs = self.message.logprobs
        if logprobs is None or logprobs.prompt_from is None:
            return 0
        return max(0, self.num_prompt - max(logprobs.prompt_from, 1) - len(self.prompt_scores))

    @property
    def reuse_limit(self) -> int:
        """Maximum number of tokens to take from the cache: those whose logits are not needed."""
        # The last token's logits give the next token; a scored token needs those of its predecessor.
        limit = len(self.tokens) - (self.wants_tokens or self.routes is not None)  # a row brings cached tokens' experts
        if self.pooling is not None:
            limit = min(limit, self.pooling.next_position)
        return limit if self.next_scored is None else min(limit, self.next_scored - 1)

    def take_scores(self, scores: list[TokenLogprob]) -> None:
        """Append log-probabilities of the tokens from `next_scored` on, in order."""
        num_prompt = min(self._num_unscored, len(scores))
        self.prompt_scores += scores[:num_prompt]
        self.output_scores += scores[num_prompt:]

    def note_cached(self, num_tokens: int) -> None:
        """Record the number of cached tokens, at the first start only: that is what the client sees."""
        if self.num_cached is None:
            self.num_cached = min(num_tokens, self.num_prompt)

    def record_accepted(self, num_right: int, num_guessed: int) -> None:
        """Count a verification that accepted `num_right` of `num_guessed` draft tokens."""
        self.num_guessed += num_guessed
        self.accepted_lengths += [0] * (num_right + 1 - len(self.accepted_lengths))
        self.accepted_lengths[num_right] += 1

    def prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """Return the prompt's log-probabilities as `Tokens` carries them. Call when all are there."""
        logprobs = self.message.logprobs
        if logprobs is None or logprobs.prompt_from is None:
            return None
        assert self._num_unscored == 0
        scores = self.prompt_scores
        if logprobs.details:  # a prompt's tokens were not chosen under the request's rules
            scores = [replace(score, details=None) for score in scores]
        return [None, *scores] if logprobs.prompt_from == 0 else list(scores)


def program_id(owner: bytes, program: str) -> str:
    """Return the id of a program across frontends."""
    return f"{owner.hex()}/{program}"


def program_name(id: str) -> str:
    """Return the name that a program's frontend gave it; for a session its id."""
    return id if id.startswith(_SESSION) else id.partition("/")[2] or id


def session_id(name: str) -> str:
    """Return the id of a client's session among programs."""
    return f"{_SESSION}{name}"


def make_request(
    message: Generate,
    owner: bytes,
    now: float,
    *,
    serial: int,
    end: int,
    rank: Callable[[Generate, bytes, int], int],
    vocabulary: VocabularyInfo,
    rope: RopeSwitch | None = None,
) -> Request:
    """Make the request of a message, whose output ends before position `end`. `rank` is called if it can be made.

    Raises RequestError when a stop rule is wrong, or the namespace is not one for a model with `rope`.
    """
    if rope is not None:
        namespace_at(message.namespace, 0)
    try:
        stops = StopRules(message.sampling, vocabulary)
        stops.follow(message.tokens, len(message.tokens) - message.continued)
    except GrammarError as error:
        raise RequestError(str(error), param="stop_regex") from None
    return Request(
        message=message,
        owner=owner,
        serial=serial,
        rank=rank(message, owner, serial),
        end=end,
        known_prompt=with_ids(message.tokens, message.pictures) if message.pictures else None,
        rope=rope,
        stops=stops,
        tokens=list(message.tokens),
        rules=token_rules(message, vocabulary.vocab_size),
        repeats=repeats_of(message),
        clock=RequestClock(now),
        pooling=None if message.pooling is None else EmbeddingPooling(message.pooling, len(message.tokens)),
        session=None if message.session is None else session_id(message.session.name),
    )
