"""The table of sampling parameters, and sampling values that are validated when they are built.

Every field of `SamplingParams` is a row of the table. The bodies of the HTTP APIs, the arguments of `gen` and `run`,
the plan's draw and the requests to other servers derive from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from .errors import RequestError

ConstraintKind = Literal["regex", "json_schema", "choices", "substring", "grammar", "structural_tag", "tool_input"]
PropertyOrder = Literal["any", "schema"]
AdditionalProperties = Literal["closed", "schema"]
JsonWhitespace = Literal["compact", "bounded", "spaced", "any"]
DEFAULT_NUMBER_DIGITS = 20  # of numbers in JSON, before the point and after it: int64 and uint64 fit
Api = Literal["gen", "native", "openai"]
Dialect = Literal["openai", "sglang", "vllm"]
Stage = Literal["limit", "draw", "logits", "stop", "text"]
MAX_STOPS = 64
MAX_STOP_REGEX = 4096  # characters
MAX_BAD_WORDS = 128
MAX_BAD_WORD = 256  # characters
MAX_BREAKERS = 64
MAX_BREAKER = 40  # characters
MAX_TOP_LOGPROBS = 64
MAX_ASKED_LOGPROBS = 1024

_EVERYWHERE: tuple[Dialect, ...] = ("openai", "sglang", "vllm")
_EXTENSION: tuple[Dialect, ...] = ("sglang", "vllm")


@dataclass(frozen=True)
class ParameterSpec:
    """Facts of a sampling parameter beyond the name, type and default of its field.

    `minimum` and `maximum` are inclusive unless `exclusive_minimum`; of a mapping they bound the values. `off` is the
    number that `gen` and the HTTP APIs write for None. `names` are the API's own names where they differ from the
    field's; None: the API does not have the parameter under one name. `dialects` are the remote servers that take it.
    """

    stage: Stage
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    off: int | None = None
    names: Mapping[Api, str | None] = field(default_factory=dict)
    dialects: tuple[Dialect, ...] = _EVERYWHERE


@dataclass(frozen=True, kw_only=True)
class Parameter(ParameterSpec):
    """A row of the table."""

    name: str
    type: Any
    default: Any

    def name_in(self, api: Api) -> str | None:
        """Return the parameter's name in an API, None where the API does not have it."""
        return self.names.get(api, self.name)

    @property
    def values(self) -> str:
        """Describe the type and the range of the values."""
        kind = (str(self.type) if get_args(self.type) else self.type.__name__).removesuffix(" | None")
        if self.minimum is None:
            return kind
        lowest = f"above {self.minimum:g}" if self.exclusive_minimum else f"from {self.minimum:g}"
        highest = "" if self.maximum is None or self.maximum >= 1 << 31 else f" to {self.maximum:g}"
        return kind if self.minimum < -(1 << 31) else f"{kind} {lowest}{highest}"

    def check(self, value: Any) -> None:
        """Raise RequestError, naming the parameter, for a value out of range."""
        if self.minimum is None or self.maximum is None or value is None:
            return
        if isinstance(value, dict):
            for key, each in value.items():
                if key < 0 or not self.minimum <= each <= self.maximum:
                    raise RequestError(
                        f"{self.name} must map token ids to values in [{self.minimum:g}, {self.maximum:g}], "
                        f"got {key}: {each}",
                        param=self.name,
                    )
        elif self.exclusive_minimum:
            if not self.minimum < value <= self.maximum:
                raise RequestError(
                    f"{self.name} must be in ({self.minimum:g}, {self.maximum:g}], got {value}", param=self.name
                )
        else:
            check_range(self.name, value, self.minimum, self.maximum)


class Constraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constraint on the output.

    `source` is the user's text: a pattern, a JSON schema as JSON text (key order kept), a JSON list of choices, a text
    to quote, a grammar. For "tool_input" it is the JSON of a string's grammar: `before`, `syntax` ("lark" or "regex"),
    `definition` and `after`. `order` is that of the properties of JSON objects: any, or the schema's.
    `additional_properties` is for object schemas that list members and do not mention others: "closed" allows no
    others, "schema" any others, as JSON Schema does. `number_digits` are the digits that a number of JSON may have
    before the point, and after it, beyond what its schema's bounds need; 0 is no limit. `whitespace` is that of JSON.
    None is the server's default. The output begins with `lead`, and the constrained text stands behind it.
    """

    kind: ConstraintKind
    source: str
    order: PropertyOrder = "any"
    additional_properties: AdditionalProperties | None = None
    number_digits: Annotated[int, msgspec.Meta(ge=0)] | None = None
    whitespace: JsonWhitespace | None = None
    lead: str = ""


class DrawParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the draw of a token from its logits. Temperature 0 is greedy."""

    temperature: Annotated[float, ParameterSpec("draw", "divides the logits; 0 is greedy", 0.0, 100.0)] = 1.0
    top_n_sigma: Annotated[
        float,
        ParameterSpec(
            "draw",
            "only tokens with a logit at most this many standard deviations below the best; 0 or less: all",
            -1.0,
            1 << 31,
            dialects=(),
        ),
    ] = 0.0
    top_k: Annotated[
        int | None,
        ParameterSpec("draw", "only the k likeliest tokens; -1: all", 1, 1 << 31, off=-1, dialects=_EXTENSION),
    ] = None
    top_p: Annotated[
        float,
        ParameterSpec(
            "draw",
            "only the fewest likeliest tokens that hold this probability together",
            0.0,
            1.0,
            exclusive_minimum=True,
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        ParameterSpec(
            "draw",
            "only tokens of at least this fraction of the likeliest one's probability",
            0.0,
            1.0,
            dialects=_EXTENSION,
        ),
    ] = 0.0
    typical_p: Annotated[
        float,
        ParameterSpec(
            "draw",
            "only the tokens of surprise nearest the entropy that hold this probability together",
            0.0,
            1.0,
            exclusive_minimum=True,
            dialects=(),
        ),
    ] = 1.0
    xtc_probability: Annotated[
        float,
        ParameterSpec("draw", "how often all tokens above `xtc_threshold` but the last go", 0.0, 1.0, dialects=()),
    ] = 0.0
    xtc_threshold: Annotated[
        float, ParameterSpec("draw", "probability from which tokens go; above 0.5: none", 0.0, 1.0, dialects=())
    ] = 0.1
    dynatemp_range: Annotated[
        float,
        ParameterSpec(
            "draw",
            "how far the temperature moves down and up with the entropy of what the filters leave",
            0.0,
            100.0,
            dialects=(),
        ),
    ] = 0.0
    dynatemp_exponent: Annotated[
        float, ParameterSpec("draw", "power of the entropy's share in `dynatemp_range`", 0.0, 100.0, dialects=())
    ] = 1.0

    @property
    def is_plain_draw(self) -> bool:
        """True if all fields have their defaults: a token is drawn from the softmax of its logits."""
        return all(getattr(self, name) == value for name, value in _PLAIN_DRAW)


_PLAIN_DRAW = tuple((field.name, field.default) for field in msgspec.structs.fields(DrawParams))


class SamplingParams(DrawParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sampling parameters of a request. `None` switches a filter off.

    Raises RequestError naming the first parameter that is out of range.
    """

    # OpenAI's routes have limits of their own.
    max_new_tokens: Annotated[
        int,
        ParameterSpec(
            "limit", "largest number of tokens to generate", 0, 1 << 31, names={"gen": "max_tokens", "openai": None}
        ),
    ] = 128
    min_new_tokens: Annotated[
        int,
        ParameterSpec(
            "limit",
            "end tokens and stop rules are ignored before this many tokens",
            0,
            names={"gen": "min_tokens", "openai": "min_tokens"},
            dialects=_EXTENSION,
        ),
    ] = 0
    frequency_penalty: Annotated[
        float, ParameterSpec("logits", "subtracted once per occurrence in the output", -2.0, 2.0)
    ] = 0.0
    presence_penalty: Annotated[float, ParameterSpec("logits", "subtracted once if in the output", -2.0, 2.0)] = 0.0
    # Not down to 0: a logit divided by it must stay finite, or nothing can be drawn.
    repetition_penalty: Annotated[
        float,
        ParameterSpec(
            "logits",
            "divides positive logits, multiplies negative ones, of tokens in prompt or output",
            0.01,
            10.0,
            dialects=_EXTENSION,
        ),
    ] = 1.0
    dry_multiplier: Annotated[
        float,
        ParameterSpec(
            "logits",
            "DRY: what tokens lose that go on with a repetition, at its allowed length",
            0.0,
            100.0,
            dialects=(),
        ),
    ] = 0.0
    dry_base: Annotated[
        float, ParameterSpec("logits", "DRY: factor for each further repeated token", 1.0, 100.0, dialects=())
    ] = 1.75
    dry_allowed_length: Annotated[
        int, ParameterSpec("logits", "DRY: repeated tokens from which it acts", 0, 1 << 31, dialects=())
    ] = 2
    dry_penalty_last_n: Annotated[
        int | None,
        ParameterSpec(
            "logits",
            "DRY: last tokens, prompt and output, in which it looks; -1: all, 0: off",
            0,
            1 << 31,
            off=-1,
            dialects=(),
        ),
    ] = None
    dry_sequence_breakers: Annotated[
        tuple[str, ...], ParameterSpec("logits", "DRY: texts that no repetition goes beyond", dialects=())
    ] = ("\n", ":", '"', "*")
    logit_bias: Annotated[
        dict[int, float], ParameterSpec("logits", "added to the logits of tokens, by id", -100.0, 100.0)
    ] = {}
    bad_words: Annotated[
        tuple[str, ...],
        ParameterSpec(
            "logits", "words whose tokens, with or without a space before, are never completed", dialects=("vllm",)
        ),
    ] = ()
    allowed_token_ids: Annotated[
        tuple[int, ...],
        ParameterSpec("logits", "the only tokens that may be generated; none: all", dialects=("vllm",)),
    ] = ()
    seed: Annotated[
        int | None,
        ParameterSpec(
            "draw",
            "seed of the draws, which other requests do not affect; None: a random seed",
            -(1 << 63),
            (1 << 63) - 1,
            names={"native": "sampling_seed"},
        ),
    ] = None
    stop: Annotated[tuple[str, ...], ParameterSpec("stop", "strings before which the text ends")] = ()
    stop_regex: Annotated[
        tuple[str, ...], ParameterSpec("stop", "Python patterns before whose match the text ends", dialects=())
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...], ParameterSpec("stop", "tokens that end the text", dialects=_EXTENSION)
    ] = ()
    ignore_eos: Annotated[bool, ParameterSpec("stop", "go on after the model's end token", dialects=_EXTENSION)] = False
    skip_special_tokens: Annotated[
        bool, ParameterSpec("text", "leave special tokens out of the text", names={"gen": None}, dialects=_EXTENSION)
    ] = True
    no_stop_trim: Annotated[
        bool,
        ParameterSpec(
            "text",
            "keep the matched text, or the stop token's text, in the text",
            names={"gen": None},
            dialects=("sglang",),
        ),
    ] = False
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for name, lowest, highest in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not lowest <= value <= highest:
                PARAMETERS[name].check(value)
        if self.logit_bias:
            PARAMETERS["logit_bias"].check(self.logit_bias)
        check_range("min_new_tokens", self.min_new_tokens, 0, self.max_new_tokens)
        if self.stop and (len(self.stop) > MAX_STOPS or any(not s for s in self.stop)):
            raise RequestError(f"stop must be at most {MAX_STOPS} non-empty strings, got {self.stop!r}", param="stop")
        if self.stop_regex and (
            len(self.stop_regex) > MAX_STOPS or any(not 0 < len(p) <= MAX_STOP_REGEX for p in self.stop_regex)
        ):
            shown = [pattern[:80] for pattern in self.stop_regex[: MAX_STOPS + 1]]
            raise RequestError(
                f"stop_regex must be at most {MAX_STOPS} patterns of 1 to {MAX_STOP_REGEX} characters, got {shown!r}",
                param="stop_regex",
            )

        if self.bad_words and (
            len(self.bad_words) > MAX_BAD_WORDS or any(not 0 < len(w) <= MAX_BAD_WORD for w in self.bad_words)
        ):
            words = [word[:80] for word in self.bad_words[: MAX_BAD_WORDS + 1]]
            raise RequestError(
                f"bad_words must be at most {MAX_BAD_WORDS} words of 1 to {MAX_BAD_WORD} characters, got {words!r}",
                param="bad_words",
            )
        if len(self.dry_sequence_breakers) > MAX_BREAKERS or any(
            not 0 < len(text) <= MAX_BREAKER for text in self.dry_sequence_breakers
        ):
            breakers = [text[: MAX_BREAKER + 1] for text in self.dry_sequence_breakers[: MAX_BREAKERS + 1]]
            raise RequestError(
                f"dry_sequence_breakers must be at most {MAX_BREAKERS} texts of 1 to {MAX_BREAKER} characters, "
                f"got {breakers!r}",
                param="dry_sequence_breakers",
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def avoids_repeats(self) -> bool:
        """True if DRY acts."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0


class LogprobParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Log-probabilities to return: of the model's own distribution, before temperature, penalties and masks.

    `num_top` is the number of alternatives to list at each position. `prompt_from` is the first prompt position to
    return, where position 0 has none; None: output tokens only. `of` are tokens to return at every position. With
    `details`, output tokens have `TokenDetails`.
    """

    num_top: int = 0
    prompt_from: int | None = None
    of: tuple[int, ...] = ()
    details: bool = False

    def __post_init__(self) -> None:
        check_range("top_logprobs", self.num_top, 0, MAX_TOP_LOGPROBS)
        if len(self.of) > MAX_ASKED_LOGPROBS:
            raise RequestError(
                f"log-probabilities of at most {MAX_ASKED_LOGPROBS} tokens, got {len(self.of)}",
                param="token_ids_logprob",
            )
        if self.prompt_from is not None:
            check_range("logprob_start_len", self.prompt_from, 0, 1 << 31)


Origin = Literal["sampled", "forced", "accepted"]


class TokenDetails(msgspec.Struct, frozen=True, array_like=True):
    """Effect of the request's rules on the model's distribution at an output token.

    The masked distribution is the model's after logit bias, penalties, token rules and the grammar's mask, at
    temperature 1. `allowed_mass` is the model's probability of all allowed tokens; `num_allowed` their number, None
    where no mask applied. `entropy` is that of the model's distribution, in nats. `origin`: the token was sampled,
    appended because the grammar forced it, or accepted as a guess. `top` and `of` are parallel to those of the
    TokenLogprob: masked log-probabilities, None for tokens that were not allowed. `drawn_logprob` is that of the
    distribution from which the token was drawn: the masked one after temperature and filters; 0 at temperature 0, and
    where the token had to come.
    """

    masked_logprob: float
    allowed_mass: float
    num_allowed: int | None
    entropy: float
    origin: Origin
    top: list[float | None] = []
    of: list[float | None] = []
    drawn_logprob: float = 0.0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithm of p(id | all tokens before it).

    `top` has the likeliest tokens as (logprob, id), best first; `of` the log-probabilities of `LogprobParams.of`.
    """

    logprob: float
    id: int
    top: list[tuple[float, int]] = []
    of: list[float] = []
    details: TokenDetails | None = None  # of an output token, if requested


def forced_details(value: TokenLogprob, asked: Sequence[int], entropy: float) -> TokenDetails:
    """Return the details of a token that had to come: its mask had one token. `asked` are the ids of `value.of`."""

    def masked(token: int) -> float | None:
        return 0.0 if token == value.id else None

    top = [masked(token) for _, token in value.top]
    return TokenDetails(0.0, math.exp(value.logprob), 1, entropy, "forced", top, [masked(token) for token in asked])


def check_range(param: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or math.isnan(value):
        raise RequestError(f"{param} must be between {low} and {high}, got {value}", param=param)


def _table() -> dict[str, Parameter]:
    rows = []
    for each in msgspec.structs.fields(SamplingParams):
        if get_origin(each.type) is Annotated:
            kind, spec = get_args(each.type)
            default = each.default_factory() if each.default is msgspec.NODEFAULT else each.default
            rows.append(Parameter(name=each.name, type=kind, default=default, **vars(spec)))
    return {row.name: row for row in sorted(rows, key=lambda row: row.stage != "limit")}


PARAMETERS = _table()  # limits first, since requests are refused for those first
_BOUNDS = tuple(
    (row.name, math.nextafter(row.minimum, math.inf) if row.exclusive_minimum else row.minimum, row.maximum)
    for row in PARAMETERS.values()
    if row.minimum is not None and row.maximum is not None and row.name != "logit_bias"
)


# The weights that tokens are sampled with

DEFAULT_VERSION = "default"  # of the weights that a model was loaded with

# What becomes of running requests when the weights change: they are aborted; finish first, while others wait; lose
# their keys and values, and go on from their tokens; or go on with all that they have.
RunningRequests = Literal["abort", "finish", "retract", "keep"]


class UpdateWeights(msgspec.Struct, frozen=True, tag="update_weights"):
    """Serve the weights in `path`, of the core's machine, from now on, as `version`; None: by a number. Answered by
    `CoreReply`, with the version."""

    call: int
    path: str
    running: RunningRequests
    version: str | None = None


# What a runtime that sleeps has given back: the model's weights; keys, values and recurrent states.
MemoryTag = Literal["weights", "kv_cache"]
ASLEEP = "asleep"  # code of the error that requests get meanwhile


class ReleaseMemory(msgspec.Struct, frozen=True, tag="release_memory"):
    """Give memory back to the system, once running requests have made room, and answer no requests until all of it is
    taken again. Answered by `CoreReply`."""

    call: int
    tags: list[MemoryTag]
    running: RunningRequests


class ResumeMemory(msgspec.Struct, frozen=True, tag="resume_memory"):
    """Take memory again: weights are loaded from where they came. Answered by `CoreReply`."""

    call: int
    tags: list[MemoryTag]


class InitWeightsGroup(msgspec.Struct, frozen=True, tag="init_weights_group"):
    """Join a trainer's group, whose store is at `address`. The core's ranks are those from `rank_offset` on of
    `world_size`. Answered by `CoreReply`."""

    call: int
    group: str
    address: str
    port: int
    rank_offset: int
    world_size: int


class ReceiveWeights(msgspec.Struct, frozen=True, tag="receive_weights"):
    """Serve tensors that a trainer broadcasts over a group, in this order. Answered as `UpdateWeights`."""

    call: int
    group: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    running: RunningRequests
    version: str | None = None


class LeaveWeightsGroup(msgspec.Struct, frozen=True, tag="leave_weights_group"):
    """Leave a trainer's group. Answered by `CoreReply`."""

    call: int
    group: str


class WeightsChanged(msgspec.Struct, frozen=True, tag="weights"):
    """The version of the weights that serve now; to every frontend."""

    version: str
