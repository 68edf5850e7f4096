"""Frontend <-> core: requests as token ids one way, tokens the other. Knows no text, no programs' operations."""

from __future__ import annotations

from typing import Literal

import msgspec

from .errors import ErrorInfo
from .metrics import CoreMetrics
from .sampling import LogprobParams, SamplingParams, TokenLogprob


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the core serves, as every other process needs to know it."""

    name: str  # the served name
    path: str
    architecture: str
    num_parameters: int
    vocab_size: int
    context_length: int  # tokens, prompt and output together
    dtype: str
    kv_dtype: str = "auto"  # of keys and values, as `--kv-dtype` names it
    kv_scales: str = "none"  # where those of eight-bit keys and values come from
    device: str
    page_size: int
    num_pages: int
    num_host_pages: int = 0  # hold KV that the pool has no room for
    version: str

    @property
    def num_slots(self) -> int:
        """Tokens whose KV fits at once."""
        return self.page_size * self.num_pages

    @property
    def max_request_tokens(self) -> int:
        """Tokens that a request may have at most, prompt and output together."""
        return min(self.context_length, self.num_slots)


# Frontend -> core


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """A frontend's first message. Answered by `CoreReady` once the model is loaded, or by `CoreFailed`."""


class SoftPin(msgspec.Struct, frozen=True):
    """A state of the request's program will ask for the request's first `num_tokens` tokens again; None: for all of
    them, the output too. It replaces the state's earlier claim. A hint: a wrong one costs time, never a token."""

    state: int
    num_tokens: int | None = None


class ProgramProgress(msgspec.Struct, frozen=True):
    """What is still to come of the request's program, as far as is known: so many generations beside or after this one,
    and so many branches that were forked together, of which the state that asks is one (1: it is no branch)."""

    num_generations: int
    width: int = 1
    complete: bool = False  # these are all


Pooling = Literal["last", "mean"]


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Continue `tokens`. `max_new_tokens=0` computes only what is asked of the prompt: its log-probabilities, or an
    embedding, which is the final hidden state of its last token or the mean of all tokens'. `in_bulk`: nobody reads
    along, so that tokens may come many at a time; the first comes at once.

    `namespace` separates caches: nothing is shared across namespaces. `program` names the program the request is a
    part of, so that the scheduler can keep its branches together; `claims` say what of the prompt the program needs
    again, so that the cache can keep it; `outlook` says how far the program is from its end.
    """

    rid: str
    tokens: list[int]
    sampling: SamplingParams  # seed is set
    logprobs: LogprobParams | None = None
    pooling: Pooling | None = None  # an embedding is wanted
    priority: int = 0  # higher goes first
    namespace: str = ""
    program: str | None = None
    claims: list[SoftPin] = []
    outlook: ProgramProgress | None = None
    in_bulk: bool = False


class EndStates(msgspec.Struct, frozen=True, tag="end_states"):
    """States of a program will ask for nothing more; all of them, and the program is over, when `states` is None."""

    program: str
    states: list[int] | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request, or all of the sender's when `rid` is None. Each is answered with a finish of type "abort"."""

    rid: str | None = None


class FlushCache(msgspec.Struct, frozen=True, tag="flush"):
    """Forget every cached prefix that no running request uses. Answered by `CoreReply`."""

    call: int


class GetStats(msgspec.Struct, frozen=True, tag="stats"):
    """Answered by `CoreReply` with a `CoreStats`."""

    call: int


ToCore = Attach | Generate | EndStates | Abort | FlushCache | GetStats

# Core -> frontend


class Finish(msgspec.Struct, frozen=True):
    """Why a request ended. `matched` is the stop string or the stop token's id."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request's time in the core went, in seconds: waiting for a place (its grammar's compilation too),
    computing up to the first token, and from there to the end."""

    queue: float
    prefill: float
    decode: float


class Tokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokens"):
    """New output tokens of one request; the last one carries `finish`.

    A stop token is the last id of `ids`; so is the token in which a stop string ended. `logprobs` has one entry per id
    when asked for. `prompt_logprobs` comes whole, with the first tokens: one entry for each prompt position in
    [prompt_from, len(prompt)), None for position 0. `embedding` comes with the finish: float32, little-endian, as long
    as the model's hidden states, of any length as a vector.
    """

    rid: str
    ids: list[int]
    num_cached: int  # prompt tokens whose KV was reused
    finish: Finish | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    embedding: bytes | None = None
    num_retractions: int = 0
    num_passes: int = 0  # forwards that gave output tokens: fewer than those where guesses proved right
    accepted_lengths: list[int] = []  # with the finish: how many verifications accepted 0, 1, 2, ... guesses
    timings: Timings | None = None  # with the finish, unless it was aborted


class RequestFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The request is over without an answer."""

    rid: str
    error: ErrorInfo


class Answers(msgspec.Struct, frozen=True, tag="answers"):
    """What one step brought to several requests of one frontend, in their order."""

    answers: list[Tokens | RequestFailed]


class CoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot; counters are totals since start."""

    num_running: int
    num_waiting: int
    num_pages: int
    num_free_pages: int
    num_cached_pages: int
    num_steps: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_forced_tokens: int = 0  # of those, appended without asking the model
    num_retractions: int
    num_evicted_pages: int
    num_held_pages: int = 0  # that no eviction can free: running requests hold them
    num_host_cached_pages: int = 0
    num_demoted_pages: int = 0  # copied to the host when the pool had no room
    num_promoted_pages: int = 0  # and back
    num_guessed_tokens: int = 0  # draft tokens that were verified
    num_accepted_tokens: int = 0  # those that proved right
    accepted_lengths: list[int] = []  # how many verifications accepted 0, 1, 2, ... of their guesses

    @property
    def cache_hit_rate(self) -> float:
        """The share of prompt tokens that were not computed."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def kv_use(self) -> float:
        """The share of the pool's pages that are in use: those that running requests hold, and what is cached."""
        return 1 - self.num_free_pages / self.num_pages if self.num_pages else 0.0


class CoreReply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to the call of that number."""

    call: int
    stats: CoreStats | None = None
    measures: CoreMetrics | None = None  # beside the stats
    error: ErrorInfo | None = None


class CoreReady(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded; requests are welcome. The answer to `Attach`."""

    info: ModelInfo


class CoreFailed(msgspec.Struct, frozen=True, tag="core_failed"):
    """The core could not start, or dies. The last message it sends."""

    error: ErrorInfo


FromCore = Tokens | RequestFailed | Answers | CoreReply | CoreReady | CoreFailed
