"""A make-believe engine whose KV is what was written to it, and the sequential run that every schedule must equal.

The engine's "model" is a pure function of the whole history that it reads from the pages, so a wrong page table, a
copy too few or a page freed too early gives another output, or trips an assertion at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from ramify.radix.cache import Lease, PrefixCache
from ramify.radix.invariants import check_invariants
from ramify.runtime.pipeline import Pipeline
from ramify.runtime.protocol.config import CoreConfig, EvictionName, OrderName
from ramify.runtime.protocol.core import Abort, Finish, FromCore, Generate, RequestFailed, Tokens
from ramify.runtime.protocol.sampling import Constraint, LogprobParams, SamplingParams, TokenLogprob
from ramify.runtime.scheduler.plan import PENDING, ForwardPlan, ForwardResult, Row, RowResult, SamplingPlan
from ramify.runtime.scheduler.retokenise import Retokenise
from ramify.runtime.scheduler.sampling_draw import draw
from ramify.runtime.scheduler.scheduler import Scheduler
from ramify.runtime.scheduler.vocabulary import VocabularyFacts
from ramify.runtime.speculation.tree import DraftTree

EOS = 0
SPECIAL = 1
# Half characters, a stop string in pieces, whole words.
TOKEN_BYTES: list[bytes | None] = [
    None,
    None,
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"\xc3",
    b"\xa9",
    b"\n",
    b"Stop",
    b" ",
    b"c" * 5,
]
VOCABULARY = VocabularyFacts(len(TOKEN_BYTES), TOKEN_BYTES, frozenset({EOS}))


def number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def choose(history: Sequence[int], allowed: Iterable[int], how: object) -> int:
    """The make-believe model and sampler."""
    candidates = sorted(allowed)
    return candidates[number(tuple(history), how) % len(candidates)]


def logprob(history: Sequence[int], token: int, num_top: int, of: Sequence[int] = ()) -> TokenLogprob:
    top = [(-float(i), number(tuple(history), i) % VOCABULARY.vocab_size) for i in range(num_top)]
    values = [-(number(tuple(history), each) % 1000) / 100 for each in (token, *of)]
    return TokenLogprob(values[0], token, top, values[1:])


def hidden(history: Sequence[int]) -> np.ndarray:
    """The make-believe hidden state of the last token: whole numbers, so that sums are exact in any order."""
    return np.array([number(tuple(history), "hidden", i) % 1000 for i in range(3)], dtype="<f4")


def retokenise(before: Sequence[int], data: bytes) -> list[int]:
    """A tokenizer that takes the longest token, and never the seam into account."""
    ids = []
    while data:
        fitting = [t for t, text in enumerate(TOKEN_BYTES) if text and data.startswith(text)]
        token = max(fitting, key=lambda t: len(TOKEN_BYTES[t] or b""))
        ids.append(token)
        data = data[len(TOKEN_BYTES[token] or b"") :]
    return ids


class FakeEngine:
    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.kv: dict[int, tuple[int, ...]] = {}  # slot -> the sequence up to and with its token
        self.num_computed = 0
        self.now = 0.0  # seconds, made up
        self.num_in_flight = 0
        self.open = False  # the plan launched last has not been told all that it samples
        self.sampled: list[tuple[str, int | None]] = []  # by row of the plan that sampled last

    def slots(self, row: Row) -> list[int]:
        end = row.first_position + len(row.tokens)
        assert len(row.pages) == -(-end // self.page_size)
        return [row.pages[p // self.page_size] * self.page_size + p % self.page_size for p in range(end)]

    def tokens(self, row: Row) -> list[int]:
        if row.follows is None:
            assert PENDING not in row.tokens
            return row.tokens[: row.num_committed]
        assert row.tokens == [PENDING]
        assert row.sample is row.mask is row.score is row.pool_from is row.parents is row.draft is None
        followed, token = self.sampled[row.follows]
        assert followed == row.rid, "another request's token"
        assert token is not None, "nothing was sampled there"
        return [token]

    def launch(self, plan: ForwardPlan) -> FakeLaunched:
        """As on a stream: copies and keys are in place before the next plan's, whenever that is launched."""
        assert self.num_in_flight < 2, "one plan is in flight at most while the next one is launched"
        assert not (self.num_in_flight and self.open), "the plan before was never told what to sample"
        for copy in plan.copies:
            for offset in range(copy.num_tokens):
                self.kv[copy.target * self.page_size + offset] = self.kv[copy.source * self.page_size + offset]
        histories, written = [], []
        for row in plan.rows:
            slots = self.slots(row)
            past, new = slots[: row.first_position], slots[row.first_position :]
            history = self.kv[past[-1]] if past else ()
            assert len(history) == row.first_position
            assert all(self.kv[slot] == history[: p + 1] for p, slot in enumerate(past)), "a page holds something else"
            histories.append((*history, *self.tokens(row)))
            written.append(new)
        assert len({row.rid for row in plan.rows}) == len(plan.rows)
        assert len({slot for new in written for slot in new}) == plan.num_tokens, "two rows write to one slot"
        for row, history, new in zip(plan.rows, histories, written, strict=True):
            for offset, slot in enumerate(new[: row.num_committed]):
                self.kv[slot] = history[: row.first_position + offset + 1]
            for slot in new[row.num_committed :]:
                self.kv[slot] = (-1,)  # a guess's: nobody may read it
        self.num_computed += plan.num_tokens
        self.num_in_flight += 1
        self.open = plan.is_open
        launched = FakeLaunched(self, plan, histories, written)
        if not self.open:
            launched.decide(plan.rows)
        return launched

    def draft(self, row: Row, history: tuple[int, ...]) -> DraftTree | None:
        """Any tree at all of the shape wanted, part of it right more often than not."""
        if row.draft is None or number(history, "none") % 5 == 0:
            return None
        tokens: list[int] = []
        parents: list[int] = []
        depth = [0]
        for node in range(1 + number(history, "size") % row.draft.num_tokens):
            parent = number(history, node, "parent") % (node + 1) - 1
            siblings = {tokens[other] for other in range(node) if parents[other] == parent}
            token = number(history, node, "token") % VOCABULARY.vocab_size
            if token in siblings or len(siblings) == row.draft.top_k or depth[parent + 1] == row.draft.steps:
                break
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent + 1] + 1)
        return DraftTree(tokens, parents, [-0.1 * d for d in depth[1:]]) if tokens else None

    def result(self, row: Row, history: tuple[int, ...]) -> RowResult:
        scores = []
        if row.score is not None:
            for i, target in enumerate(row.score.targets):
                before = history[: row.first_position + row.score.first + i + 1]
                scores.append(logprob(before, target, row.score.num_top, row.score.of))
        pooled = None
        if row.pool_from is not None:
            ends = range(row.first_position + row.pool_from, len(history))
            assert ends, "nothing to pool"
            pooled = sum((hidden(history[: end + 1]) for end in ends), np.zeros(3, "<f4")).tobytes()
        if row.sample is None:
            return RowResult(scores=scores, pooled=pooled)
        sample, mask, node = row.sample, row.mask, -1
        penalties, wanted = sample.penalties, sample.num_top_logprobs
        if penalties is not None:
            assert (*penalties.prompt, *penalties.output) == history
        guesses = row.tokens[row.num_committed :]
        assert len(guesses) == len(row.nodes) == len(row.parents or ())
        children = {edge: n for n, edge in enumerate(zip(row.parents or (), guesses, strict=True))}
        assert len(children) == len(guesses), "siblings of the same token"
        token_draw, tokens, logprobs = sample.draw, [], []
        while True:
            allowed: Iterable[int] = range(VOCABULARY.vocab_size)
            if mask is not None:
                words = np.frombuffer(mask, "<i4")
                allowed = [t for t in allowed if words[t // 32] >> (t % 32) & 1]
            num_output = None if penalties is None else len(penalties.output) + len(tokens)
            token = choose(history, allowed, (sample.temperature, token_draw, num_output))
            logprobs += [] if wanted is None else [logprob(history, token, wanted, sample.logprobs_of)]
            tokens.append(token)
            history = (*history, token)
            if (node, token) not in children:
                break
            node = children[node, token]
            mask, token_draw = row.nodes[node].mask, row.nodes[node].draw
        return RowResult(tokens=tokens, logprobs=logprobs, scores=scores, draft=self.draft(row, history))


class FakeLaunched:
    """What is computed, up to the sampling."""

    def __init__(
        self, engine: FakeEngine, plan: ForwardPlan, histories: list[tuple[int, ...]], written: list[list[int]]
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.histories = histories
        self.written = written
        self.results: list[RowResult] = []

    def sample(self, sampling: SamplingPlan) -> None:
        assert self.engine.open
        assert sampling.step == self.plan.step
        to_come = iter(sampling.rows)
        rows = []
        for row in self.plan.rows:
            if row.follows is None:
                rows.append(row)
            elif (own := next(to_come)) is None:
                rows.append(msgspec.structs.replace(row, tokens=self.engine.tokens(row), follows=None))
            else:
                rows.append(msgspec.structs.replace(row, sample=own.sample, mask=own.mask))
        assert next(to_come, None) is None
        self.decide(rows)

    def decide(self, rows: Sequence[Row]) -> None:
        self.engine.open = False
        for row, history, new in zip(rows, self.histories, self.written, strict=True):
            result = self.engine.result(row, history)
            for offset in range(len(result.tokens) - 1):  # what proved right is moved to the front
                right = (*history, *result.tokens[: offset + 1])
                self.engine.kv[new[row.num_committed + offset]] = right
            self.results.append(result)
        self.engine.sampled = [(row.rid, result.token) for row, result in zip(rows, self.results, strict=True)]

    def wait(self) -> ForwardResult:
        self.engine.num_in_flight -= 1
        self.engine.now += 1e-3 * (10 + self.plan.num_tokens + number(self.plan.step) % 5)
        return ForwardResult(step=self.plan.step, rows=self.results)


class FakeMatcher:
    """A finite language of token sequences."""

    def __init__(self, language: list[list[int]]) -> None:
        self.language = language
        self.accepted: list[int] = []

    def next_tokens(self) -> set[int]:
        return next_in(self.language, self.accepted)

    def mask(self, out: Any) -> None:
        out[:] = 0
        for token in self.next_tokens():
            out[token // 32] |= 1 << token % 32

    def accept(self, token: int) -> bool:
        if token not in self.next_tokens() - {EOS}:
            return False
        self.accepted.append(token)
        return True

    def rollback(self, num_tokens: int) -> None:
        del self.accepted[len(self.accepted) - num_tokens :]

    def is_accepting(self) -> bool:
        return self.accepted in self.language

    def forced(self) -> bytes:
        """Token after token as long as there is one only, as bytes."""
        prefix, data = list(self.accepted), b""
        while len(following := next_in(self.language, prefix)) == 1 and EOS not in following:
            (token,) = following
            if (text := TOKEN_BYTES[token]) is None:
                break
            prefix.append(token)
            data += text
        return data


def next_in(language: list[list[int]], prefix: list[int]) -> set[int]:
    n = len(prefix)
    following = {s[n] for s in language if len(s) > n and s[:n] == prefix}
    return following | ({EOS} if prefix in language else set())


@dataclass
class FakeGrammar:
    language: list[list[int]]

    def matcher(self) -> FakeMatcher:
        return FakeMatcher(self.language)


@dataclass
class FakeGrammars:
    """Compiles when told to."""

    pending: list[tuple[Future[Any], Constraint]] = field(default_factory=list)

    def get(self, constraint: Constraint) -> Future[Any]:
        future: Future[Any] = Future()
        self.pending.append((future, constraint))
        return future

    def compile(self) -> None:
        for future, constraint in self.pending:
            future.set_result(FakeGrammar(json.loads(constraint.source)))
        self.pending.clear()


class WatchedCache(PrefixCache):
    """Knows its live leases, and checks itself after every operation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.leases: list[Lease] = []

    def check(self) -> None:
        check_invariants(self, self.leases)

    def acquire(self, *args: Any, **kwargs: Any) -> Lease | None:
        lease = super().acquire(*args, **kwargs)
        if lease is not None:
            self.leases.append(lease)
        self.check()
        return lease

    def release(self, lease: Lease, tokens: Sequence[int]) -> None:
        super().release(lease, tokens)
        self.leases.remove(lease)
        self.check()


@dataclass
class Answer:
    """All that came for one request."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    embedding: list[float] | None = None
    finish: Finish | None = None
    num_cached: int | None = None
    num_retractions: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    num_messages: int = 0
    error: Any = None

    @property
    def over(self) -> bool:
        return self.finish is not None or self.error is not None


class Runtime:
    """Scheduler and engine, one step at a time, everything checked in between."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        budget: int = 32,
        max_running: int = 8,
        max_waiting: int = 100,
        cache: bool = True,
        context_length: int = 200,
        order: OrderName = "program",
        eviction: EvictionName = "program",
        num_host_pages: int = 0,
        grammars: Any = None,
        jump_forward: bool = True,
        retokenise: Retokenise = retokenise,
        ahead: bool = False,
        **speculative: Any,
    ) -> None:
        self.cache = WatchedCache(num_pages, page_size, cache, num_host_pages=num_host_pages, strategy=eviction)
        self.engine = FakeEngine(page_size)
        self.retokenise = retokenise
        self.grammars = grammars or FakeGrammars()
        self.config = CoreConfig(
            prefill_budget=budget,
            max_running=max_running,
            max_waiting=max_waiting,
            order=order,
            eviction=eviction,
            jump_forward=jump_forward,
            **speculative,
        )
        self.scheduler = Scheduler(
            self.config,
            cache=self.cache,
            vocabulary=VOCABULARY,
            grammars=self.grammars,
            context_length=context_length,
            retokenise=lambda before, data: self.retokenise(before, data),
        )
        self.pipeline = Pipeline(self, self.scheduler, ahead=ahead, clock=lambda: self.engine.now)
        self.launched: list[FakeLaunched] = []
        self.num_waited = 0
        self.aborts_in_flight: Sequence[str] = ()
        self.answers: dict[str, Answer] = {}
        self.plans: list[ForwardPlan] = []
        self.replies: list[FromCore] = []

    def add(self, *messages: Generate, owner: bytes = b"") -> None:
        for message in messages:
            self.answers[message.rid] = Answer()
            self.take(self.scheduler.handle(message, 0.0, owner))

    def abort(self, rid: str | None, owner: bytes = b"") -> None:
        self.take(self.scheduler.handle(Abort(rid), 0.0, owner))
        self.cache.check()

    def step(self, aborts_in_flight: Sequence[str] = ()) -> bool:
        """Returns whether something was computed."""
        num_plans, num_waited = len(self.plans), self.num_waited
        self.aborts_in_flight = aborts_in_flight
        for answers in self.pipeline.turn():
            self.cache.check()
            self.take(answers)
        if self.scheduler.idle:
            assert not self.cache.leases
            assert self.cache.num_free + self.cache.num_cached == self.cache.num_pages
        return len(self.plans) > num_plans or self.num_waited > num_waited

    def launch(self, plan: ForwardPlan) -> Runtime:
        """As an engine that is watched."""
        assert 0 < plan.num_tokens <= self.config.prefill_budget
        assert len(plan.rows) <= self.config.max_running
        self.plans.append(plan)
        self.launched.append(self.engine.launch(plan))
        return self

    def sample(self, sampling: SamplingPlan) -> None:
        self.launched[-1].sample(sampling)

    def wait(self) -> ForwardResult:
        for rid in self.aborts_in_flight:
            self.abort(rid)
        self.num_waited += 1
        return self.launched[self.num_waited - 1].wait()

    def finish(self) -> None:
        """Run until idle. Each step must move something: there is nothing to wait for."""
        while not self.scheduler.idle or self.scheduler.pending_grammars:
            self.grammars.compile()
            self.progress()

    def progress(self) -> None:
        over = sum(answer.over for answer in self.answers.values())
        assert self.step() or sum(answer.over for answer in self.answers.values()) > over or self.scheduler.idle

    def take(self, messages: list[FromCore]) -> None:
        for message in messages:
            match message:
                case Tokens():
                    self.take_tokens(self.answers[message.rid], message)
                case RequestFailed(rid=rid, error=error):
                    assert not self.answers[rid].over
                    self.answers[rid].error = error
                case _:
                    self.replies.append(message)

    def take_tokens(self, answer: Answer, message: Tokens) -> None:
        assert not answer.over, "tokens after the end"
        answer.num_messages += 1
        answer.ids += message.ids
        answer.finish = message.finish
        if message.logprobs is not None:
            assert len(message.logprobs) == len(message.ids)
            answer.logprobs = (answer.logprobs or []) + message.logprobs
        if message.prompt_logprobs is not None:
            assert answer.num_messages == 1, "the prompt's come with the first tokens"
            answer.prompt_logprobs = message.prompt_logprobs
        if message.embedding is not None:
            assert message.finish is not None
            answer.embedding = np.frombuffer(message.embedding, "<f4").tolist()
        assert answer.num_cached in (None, message.num_cached)
        answer.num_cached = message.num_cached
        answer.num_retractions = message.num_retractions
        answer.accepted_lengths = list(message.accepted_lengths)  # as of now: it will be sent


def generate(rid: str, tokens: Sequence[int], **params: Any) -> Generate:
    """A request; what is no field of Generate is a sampling parameter."""
    names = ("priority", "namespace", "program", "claims", "outlook", "pooling", "in_bulk")
    fields = {name: params.pop(name) for name in names if name in params}
    logprobs = params.pop("logprobs", None)
    params = {"temperature": 0.0, "max_new_tokens": 8, "seed": 7, **params}
    return Generate(rid=rid, tokens=list(tokens), sampling=SamplingParams(**params), logprobs=logprobs, **fields)


def language_of(params: SamplingParams) -> list[list[int]] | None:
    return None if params.constraint is None else json.loads(params.constraint.source)


def sequential(message: Generate, *, context_length: int = 200, num_slots: int = 1 << 30) -> Answer:
    """What the request gives alone, in a loop that knows nothing of pages, chunks or increments."""
    params = message.sampling
    prompt = list(message.tokens)
    answer = Answer(finish=Finish("length"))
    num_top, of = (0, ()) if message.logprobs is None else (message.logprobs.num_top, message.logprobs.of)
    if message.logprobs is not None:
        answer.logprobs = []
        start = message.logprobs.prompt_from
        if start is not None:
            positions = range(start, len(prompt))
            answer.prompt_logprobs = [logprob(prompt[:p], prompt[p], num_top, of) if p else None for p in positions]
    if message.pooling is not None:
        states = [hidden(prompt[: place + 1]) for place in range(len(prompt))]
        pooled = sum(states, np.zeros(3, "<f4")) / len(states) if message.pooling == "mean" else states[-1]
        answer.embedding = pooled.astype("<f4").tolist()
    language = language_of(params)
    eos = set() if params.ignore_eos else {EOS}
    while len(answer.ids) < params.max_new_tokens and len(prompt) + len(answer.ids) < min(context_length, num_slots):
        history = prompt + answer.ids
        young = len(answer.ids) < params.min_new_tokens
        base = set(range(VOCABULARY.vocab_size)) if language is None else next_in(language, answer.ids)
        avoided = eos | set(params.stop_token_ids) if young else set()
        avoided |= {EOS} if language is not None and params.ignore_eos else set()
        how = (
            params.temperature,
            0 if params.seed is None else draw(params.seed, len(history)),
            len(answer.ids) if params.penalised else None,
        )
        token = choose(history, base - avoided or base, how)
        if answer.logprobs is not None:
            answer.logprobs.append(logprob(history, token, num_top, of))
        answer.ids.append(token)
        if language is not None and token == EOS:
            answer.finish = Finish("stop", EOS)
            return answer
        if young:
            continue
        if token in eos | set(params.stop_token_ids):
            answer.finish = Finish("stop", token)
            return answer
        stop = first_stop(answer.ids, params)
        if stop is not None:
            answer.finish = Finish("stop", stop)
            return answer
    return answer


def first_stop(ids: list[int], params: SamplingParams) -> str | None:
    """The stop string or match that ends first in the last token, searched in the whole output."""
    between = b"" if params.skip_special_tokens else b"\xff"
    pieces = [between if TOKEN_BYTES[t] is None else TOKEN_BYTES[t] or b"" for t in ids]
    text = b"".join(pieces)
    for end in range(len(text) - len(pieces[-1]) + 1, len(text) + 1):
        ending = [stop for stop in params.stop if text[:end].endswith(stop.encode())]
        ending += [
            found
            for start in range(end)
            if (found := _text(text[start:end])) and any(re.fullmatch(p, found) for p in params.stop_regex)
        ]
        if ending:
            return max(ending, key=lambda stop: len(stop.encode()))
    return None


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def assert_equal(answer: Answer, expected: Answer) -> None:
    assert answer.error is None
    assert (answer.ids, answer.finish) == (expected.ids, expected.finish)
    assert answer.logprobs == expected.logprobs
    assert answer.prompt_logprobs == expected.prompt_logprobs
    assert answer.embedding == expected.embedding


__all__ = [
    "EOS",
    "SPECIAL",
    "TOKEN_BYTES",
    "VOCABULARY",
    "Answer",
    "Constraint",
    "FakeMatcher",
    "LogprobParams",
    "Runtime",
    "assert_equal",
    "generate",
    "language_of",
    "sequential",
]
