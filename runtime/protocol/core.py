"""Messages between frontend and core: requests as token ids one way, tokens the other."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Literal, Self

import msgspec

from .errors import ErrorInfo
from .metrics import CoreMetrics
from .pictures import Picture
from .sampling import (
    DEFAULT_VERSION,
    InitWeightsGroup,
    LeaveWeightsGroup,
    LogprobParams,
    MemoryTag,
    ReceiveWeights,
    ReleaseMemory,
    ResumeMemory,
    SamplingParams,
    TokenLogprob,
    UpdateWeights,
    WeightsChanged,
)
from .tree import GetTree, GetTreeNode, NodeContent, TreeMessage


class AdapterInfo(msgspec.Struct, frozen=True):
    """A LoRA adapter that requests may name."""

    name: str
    path: str
    rank: int
    digest: str  # of its weights


Pooling = Literal["last", "mean"]
EncoderOutput = Literal["head", "first", "mean", "last"]  # the head's logits, or states, pooled to an embedding


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the served model for the other processes."""

    name: str  # the served name
    aliases: tuple[str, ...] = ()  # further names that requests may use
    path: str
    revision: str | None = None  # commit, of a model of the Hugging Face Hub
    architecture: str
    num_parameters: int
    vocab_size: int
    context_length: int  # tokens, prompt and output together
    dtype: str
    quantisation: str | None = None  # of the weights: a GGUF file's type, or the kind of a layer's; None: as dtype says
    kv_dtype: str = "auto"  # of keys and values, as `--kv-dtype` names it
    kv_scales: str = "none"  # source of the scales of eight-bit keys and values
    device: str
    page_size: int
    num_pages: int
    num_host_pages: int = 0  # host pages for KV that the pool has no room for
    kv_bytes: int = 0  # of the KV pool
    max_running: int = 0  # requests computed at once
    num_state_slots: int = 0  # of recurrent states, of models with recurrent layers
    state_bytes: int = 0  # of all of them
    num_window_pages: int = 0  # of layers with a sliding window; 0: pages hold the keys and values of all layers
    window: int = 0  # tokens that these layers attend to
    num_sinks: int = 0  # first tokens that they always attend to
    streaming_window: int = 0  # tokens of a rolling window, which approximates the model; 0: attention is its own
    reads_pictures: bool = False  # requests may have pictures
    widened_from: int = 0  # tokens of a prompt from which on layers widen weights of codes for it; 0: never
    route_shape: tuple[int, int] | None = None  # layers, and experts of a token in each; None: they are not recorded
    version: str
    is_classifier: bool = False  # the checkpoint ends in a classification head: it generates no text
    encoder: EncoderOutput | None = None  # what an encoder is made for, which keeps no KV; None: it is a decoder
    labels: tuple[str, ...] = ()  # of an encoder's head, in the order of their logits
    independent_labels: bool = False  # several of them may hold together
    adapters: tuple[AdapterInfo, ...] = ()  # those loaded now
    weight_version: str = DEFAULT_VERSION  # as the last update named it

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use, the served name first."""
        return (self.name, *self.aliases)

    @property
    def num_slots(self) -> int:
        """Number of tokens whose KV fits at once."""
        return self.page_size * self.num_pages

    @property
    def max_request_tokens(self) -> int:
        """Maximum number of tokens of a request, prompt and output together."""
        return self.context_length if self.encoder is not None else min(self.context_length, self.num_slots)

    @property
    def generates(self) -> bool:
        """True if the model continues texts."""
        return not self.is_classifier and self.encoder is None


# Frontend -> core


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """First message of a frontend. Answered by `CoreReady` once the model is loaded, or by `CoreFailed`.

    `takes_sessions`: the frontend can go on with sessions that another runtime hands over (`TakeSessions`).
    """

    takes_sessions: bool = True


class SoftPin(msgspec.Struct, frozen=True):
    """A state of the request's program is expected to request the first `num_tokens` tokens again; None: the output
    too.

    It replaces the state's earlier soft pin. A hint: a wrong one costs time, but changes no token.
    """

    state: int
    num_tokens: int | None = None


class ClientSession(msgspec.Struct, frozen=True):
    """The session of an HTTP client: a program whose states are recognised by their growing prefixes.

    It is the same in all frontends. When `is_shared`, several conversations go by its name, and none replaces another.
    """

    name: str
    is_shared: bool = False


class Retention(msgspec.Struct, frozen=True):
    """A client asks to keep the first `num_tokens` tokens of the prompt for so many seconds after the request.

    A hint: such prefixes are evicted last. An account, which an API key has, may hold a part of the pool so.
    """

    num_tokens: int
    seconds: float
    account: str = ""


class ProgramProgress(msgspec.Struct, frozen=True):
    """Known future of the request's program: generations still to come, and the width of the fork that the state
    belongs to."""

    num_generations: int
    width: int = 1
    complete: bool = False  # no more generations will follow


BACKGROUND_PRIORITY = -1000  # of requests that nobody waits for, at most: rows of batches


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """State what a request asks of the core besides tokens and sampling.

    A body or a program makes this value, and it travels whole: a field declared here reaches the core by itself.
    `namespace` separates caches: nothing is shared across namespaces. `program` is the program that the request belongs
    to, for scheduling; `soft_pins` are for eviction, `progress` is the program's. Requests of clients may ask
    to `retain` prefixes of the prompt. The last `continued` tokens are output of an earlier request with the same
    sampling, which goes on: its grammar, stop rules, penalties and draws are those that the whole output would have.
    The numbers of new tokens count what comes after them. `adapter` is the name of a LoRA adapter. `pictures` are those
    of the prompt, in order.
    """

    logprobs: LogprobParams | None = None
    priority: int = 0  # higher goes first
    namespace: str = ""
    program: str | None = None
    # On the wire and in plan logs, these have the names of older versions.
    soft_pins: list[SoftPin] = msgspec.field(default_factory=list, name="claims")
    progress: ProgramProgress | None = msgspec.field(default=None, name="outlook")
    retain: list[Retention] = []
    in_bulk: bool = False  # nobody reads the stream: tokens may come many at a time
    continued: int = 0
    adapter: str | None = None  # None: the base alone
    pictures: list[Picture] = []
    routed_from: int | None = None  # first position whose experts come with the finish; None: none do

    def in_small_pieces(self) -> Self:
        """Return the options of an answer whose tokens are wanted as they come."""
        return msgspec.structs.replace(self, in_bulk=False)


class Generate(RequestOptions, frozen=True, kw_only=True, tag="generate"):
    """Continue `tokens`.

    `max_new_tokens=0` computes only what is requested of the prompt: its log-probabilities, or an embedding, which is
    the final hidden state of its last token or the mean over all tokens. Encoders have outputs of their own, and
    `token_types`, which say to which of two texts each token belongs (empty: the first). Requests of clients may have a
    `session` in place of a program. `banned` are the token sequences of `sampling.bad_words`: no output completes one.
    `breakers` are those of `sampling.dry_sequence_breakers`. The core replaces `adapter` by its number, and adds it to
    the namespace.
    """

    rid: str
    tokens: list[int]
    sampling: SamplingParams  # seed is set
    pooling: EncoderOutput | None = None  # an embedding, or labels' logits, are requested
    token_types: list[int] = []
    session: ClientSession | None = None
    banned: list[list[int]] = []
    breakers: list[list[int]] = []
    adapter_number: int = 0

    @classmethod
    def of(
        cls,
        options: RequestOptions,
        *,
        rid: str,
        tokens: list[int],
        sampling: SamplingParams,
        pooling: EncoderOutput | None = None,
        token_types: Sequence[int] = (),
        session: ClientSession | None = None,
        banned: Sequence[list[int]] = (),
        breakers: Sequence[list[int]] = (),
    ) -> Self:
        """Build a request with all of `options`."""
        return cls(
            rid=rid,
            tokens=tokens,
            sampling=sampling,
            pooling=pooling,
            token_types=[*token_types],
            session=session,
            banned=[*banned],
            breakers=[*breakers],
            **msgspec.structs.asdict(options),
        )


class EndStates(msgspec.Struct, frozen=True, tag="end_states"):
    """States of a program have ended; when `states` is None, the whole program.

    With `is_session`, `program` is the name of a client's session.
    """

    program: str
    states: list[int] | None = None
    is_session: bool = False


class TurnEnded(msgspec.Struct, frozen=True, tag="turn_ended"):
    """The output of a request that has ended was read: the program goes on after `waits_for`, a tool's name or "user".

    A hint, as soft pins are: gaps are learned by what is waited for. Sent after the request's finish.
    """

    rid: str
    waits_for: str


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request, or all of the sender's when `rid` is None. Each is answered with a finish of type "abort"."""

    rid: str | None = None


class FlushCache(msgspec.Struct, frozen=True, tag="flush"):
    """Remove every cached prefix that no running request uses, and the outputs kept for drafts. Answered by
    `CoreReply`."""

    call: int


Hold = Literal["nothing", "waiting", "all"]


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Set what the core holds back: requests that wait to start, or all computing; "nothing" resumes. Answered by
    `CoreReply`."""

    call: int
    hold: Hold


class GetStats(msgspec.Struct, frozen=True, tag="stats"):
    """Request the statistics. Answered by `CoreReply` with a `CoreStats`."""

    call: int


class MovePrefixes(msgspec.Struct, frozen=True, tag="move"):
    """Copy cached prefixes, those used last first, to the runtime whose `transfer_bind` is `to`, as far as it has free
    pages; first `sessions`, which the other runtime's frontends understand. Answered by `CoreReply`."""

    call: int
    to: str
    sessions: bytes | None = None


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Load the LoRA adapter in the directory `path` under a name. Answered by `CoreReply`."""

    call: int
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Unload an adapter: running requests finish with it, new ones are refused. Answered by `CoreReply`."""

    call: int
    name: str


# Messages that `CoreReply` answers.
CoreCall = (
    FlushCache
    | Pause
    | GetStats
    | GetTree
    | GetTreeNode
    | MovePrefixes
    | LoadAdapter
    | UnloadAdapter
    | UpdateWeights
    | ReleaseMemory
    | ResumeMemory
    | InitWeightsGroup
    | ReceiveWeights
    | LeaveWeightsGroup
)
ToCore = Attach | Generate | EndStates | TurnEnded | Abort | CoreCall

# Core -> frontend


class Finish(msgspec.Struct, frozen=True):
    """Reason why a request ended. `matched` is the stop string or the stop token's id.

    `captures` are the names and texts of what the grammar captures, inner ones first; None if it captures nothing.
    """

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    captures: list[tuple[str, str]] | None = None

    @property
    def named_captures(self) -> dict[str, list[dict[str, str]]]:
        """The captures as a field of an answer; without one if the grammar captures nothing."""
        if self.captures is None:
            return {}
        return {"captures": [{"name": name, "text": text} for name, text in self.captures]}


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a request in the core, in seconds, by what it did: the parts add up to the whole.

    `queue`: waiting for its turn; `grammar`: waiting for its constraint, to be compiled or to say which tokens may
    follow; `prefill`: computing up to the first token; `decode`: from there on; `retracted`: waiting, after it had lost
    its pages, to go on; `transfer`: waiting for its prompt's pages from another runtime.
    """

    queue: float
    prefill: float
    decode: float
    grammar: float = 0.0
    retracted: float = 0.0
    transfer: float = 0.0

    @property
    def total(self) -> float:
        """Return the request's time in the core."""
        return self.queue + self.grammar + self.prefill + self.decode + self.retracted + self.transfer


class RoutedExperts(msgspec.Struct, frozen=True):
    """Experts of a sequence's tokens from position `first` on to the last but one, whose successor is the last token.

    `experts` are int16, little-endian, [tokens, num_layers, num_chosen], the best first in each layer. -1 stands in
    layers without a mixture, and for tokens that the request ended without computing.
    """

    first: int
    num_layers: int
    num_chosen: int
    experts: bytes

    def of_tokens(self) -> list[list[list[int]]]:
        """Return each token's experts, by layer."""
        values = array("h", self.experts)
        if sys.byteorder == "big":
            values.byteswap()
        K, size = self.num_chosen, self.num_layers * self.num_chosen
        return [
            [values[place : place + K].tolist() for place in range(start, start + size, K)]
            for start in range(0, len(values), size)
        ]


class Tokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokens"):
    """New output tokens of one request; the last message carries `finish`.

    A stop token is the last id of `ids`; so is the token in which a stop string ended. `logprobs` has one entry per id
    if requested. `prompt_logprobs` comes whole, with the first tokens: one entry per prompt position in [prompt_from,
    len(prompt)), None for position 0. `embedding` comes with the finish: float32, little-endian, of the hidden size,
    not normalised; an encoder's may be logits of its labels.
    """

    rid: str
    ids: list[int]
    num_cached: int  # prompt tokens whose KV was reused
    finish: Finish | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    embedding: bytes | None = None
    num_retractions: int = 0
    num_passes: int = 0  # forwards that returned output tokens: fewer than tokens with speculation
    accepted_lengths: list[int] = []  # with the finish: verifications that accepted 0, 1, 2, ... tokens
    num_guessed: int = 0  # with the finish: draft tokens that were verified
    timings: Timings | None = None  # with the finish, unless it was aborted
    since_first: float = 0.0  # with the timings: seconds since the first output token, waits included
    weight_version: str = DEFAULT_VERSION  # of the weights that these ids were sampled with
    routes: RoutedExperts | None = None  # with the finish, if requested


class RequestFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The request ended without an answer."""

    rid: str
    error: ErrorInfo


class Answers(msgspec.Struct, frozen=True, tag="answers"):
    """Answers of one step to several requests of one frontend, in order."""

    answers: list[Tokens | RequestFailed]


class SpeculationState(msgspec.Struct, frozen=True, kw_only=True):
    """Says if drafts are made and verified for batches of one kind of text and size, and why."""

    text: Literal["free", "constrained", "mixed"]  # whether grammars constrain the outputs
    num_rows: int  # requests at once, at most
    is_open: bool
    why: str
    gain: float  # tokens a second over those of plain decoding, lately; 0: not measured


class DiskStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the disk cache; counters are totals since start, in pages where they say nothing else."""

    num_pages: int  # that can be read
    num_bytes: int  # of its files
    max_bytes: int
    is_writer: bool  # False: another process of the machine writes
    has_failed: bool  # the disk was full, or did not take what was written: nothing more is written
    num_hit_tokens: int  # prompt tokens whose KV came from the disk
    num_ahead_tokens: int  # tokens whose KV was read before a request asked for them
    num_saved: int
    num_evicted: int  # removed for want of room
    num_damaged: int  # not served, because they are not what was written


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
    num_forced_tokens: int = 0  # output tokens appended by jump-forward
    num_retractions: int
    num_evicted_pages: int
    num_held_pages: int = 0  # held by running requests, so that eviction cannot free them
    num_host_cached_pages: int = 0
    num_demoted_pages: int = 0  # copied to the host when the pool had no room
    num_promoted_pages: int = 0  # and back
    num_guessed_tokens: int = 0  # draft tokens that were verified
    num_accepted_tokens: int = 0  # draft tokens that were accepted
    accepted_lengths: list[int] = []  # verifications that accepted 0, 1, 2, ... tokens
    draft_source: str = "off"
    speculation: list[SpeculationState] = []  # empty without a draft source, and with one that always drafts
    is_paused: bool = False
    released: list[MemoryTag] = []  # memory that the system has while the runtime sleeps
    num_fetched_tokens: int = 0  # prompt tokens whose KV came from prefill runtimes
    num_early_tokens: int = 0  # of these, those that came while later tokens of their prompt were computed
    num_checkpoints: int = 0  # recurrent states kept of cached prefixes
    num_kept_states: int = 0  # of these, all that were made
    num_evicted_states: int = 0  # and given away
    num_replayed_tokens: int = 0  # cached tokens that were computed again for want of a state
    num_held_window_pages: int = 0  # of layers with a sliding window, held by running requests
    num_lost_window_pages: int = 0  # that cached prefixes lost for want of room
    num_failed_fetches: int = 0  # prompts that were computed here for want of an answer
    disk: DiskStats | None = None  # None: there is no disk cache

    @property
    def cache_hit_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def kv_use(self) -> float:
        """Share of the pool's pages in use, by running requests or cached prefixes."""
        return 1 - self.num_free_pages / self.num_pages if self.num_pages else 0.0


class MovedPrefixes(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a `MovePrefixes`."""

    num_sequences: int  # cached sequences that the other runtime has now
    num_sent_tokens: int  # whose KV was sent; it had the others
    num_left: int  # sequences that it had no free pages for


class TakeSessions(msgspec.Struct, frozen=True, tag="sessions"):
    """Sessions that another runtime has handed over."""

    data: bytes


class AdaptersChanged(msgspec.Struct, frozen=True, tag="adapters"):
    """The adapters that are loaded now; to every frontend."""

    adapters: tuple[AdapterInfo, ...]


class CoreReply(msgspec.Struct, frozen=True, tag="reply"):
    """Answer to the call of that number."""

    call: int
    stats: CoreStats | None = None
    measures: CoreMetrics | None = None  # beside the stats
    tree: TreeMessage | None = None
    tree_node: NodeContent | None = None
    moved: MovedPrefixes | None = None
    weight_version: str | None = None
    error: ErrorInfo | None = None


class CoreReady(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded. Answer to `Attach`."""

    info: ModelInfo


class CoreFailed(msgspec.Struct, frozen=True, tag="core_failed"):
    """The core could not start, or dies. Its last message."""

    error: ErrorInfo


FromCore = (
    Tokens
    | RequestFailed
    | Answers
    | CoreReply
    | CoreReady
    | CoreFailed
    | TakeSessions
    | AdaptersChanged
    | WeightsChanged
)
