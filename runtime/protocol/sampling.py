"""What a request asks of the sampler. Values only: validated when built, by hand or from the wire."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from .errors import RequestError

ConstraintKind = Literal["regex", "json_schema", "choices", "grammar", "structural_tag"]
PropertyOrder = Literal["any", "schema"]
AdditionalProperties = Literal["closed", "schema"]
# What each parameter may be, both ends included; `top_p` is also above 0.
RANGES: dict[str, tuple[float, float]] = {
    "max_new_tokens": (0, 1 << 31),
    "temperature": (0.0, 100.0),
    "top_k": (1, 1 << 31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    # Not down to 0: a logit divided by it must stay finite, or nothing can be drawn.
    "repetition_penalty": (0.01, 10.0),
    "logit_bias": (-100.0, 100.0),  # of each token
    "seed": (-(1 << 63), (1 << 63) - 1),
}
MAX_STOPS = 64
MAX_STOP_REGEX = 4096  # characters
MAX_TOP_LOGPROBS = 64
MAX_ASKED_LOGPROBS = 1024


class Constraint(msgspec.Struct, frozen=True):
    """What the output must match. `source` is the user's text: a pattern, a JSON schema as JSON text (key order kept),
    a JSON list of choices, a grammar. `order` is that of the properties of JSON objects: any, or the schema's.
    `additional_properties` says how an object schema that lists members is read where it does not mention others:
    "closed" allows none, "schema" allows any, as JSON Schema does; None is the server's default."""

    kind: ConstraintKind
    source: str
    order: PropertyOrder = "any"
    additional_properties: AdditionalProperties | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drawn and when to stop. Temperature 0 is greedy. `None` switches a filter off.

    Raises RequestError naming the first parameter that is out of range.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0  # EOS, stop tokens, stop strings and patterns are ignored before this many tokens
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0  # subtracted once per occurrence in the output
    presence_penalty: float = 0.0  # subtracted once if in the output
    repetition_penalty: float = 1.0  # divides positive logits, multiplies negative ones, of tokens in prompt or output
    logit_bias: dict[int, float] = {}
    seed: int | None = None  # None: the frontend draws one
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()  # Python patterns; what they may say is known to who compiles them
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False  # keep the matched text, or stop token's text, in the text
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        _in_range("max_new_tokens", self.max_new_tokens)
        _range("min_new_tokens", self.min_new_tokens, 0, self.max_new_tokens)
        _in_range("temperature", self.temperature)
        if self.top_k is not None:
            _in_range("top_k", self.top_k)
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}", param="top_p")
        _in_range("min_p", self.min_p)
        _in_range("frequency_penalty", self.frequency_penalty)
        _in_range("presence_penalty", self.presence_penalty)
        _in_range("repetition_penalty", self.repetition_penalty)
        lowest, highest = RANGES["logit_bias"]
        for token, bias in self.logit_bias.items():
            if token < 0 or not lowest <= bias <= highest:
                raise RequestError(
                    f"logit_bias must map token ids to values in [-100, 100], got {token}: {bias}", param="logit_bias"
                )
        if self.seed is not None:
            _in_range("seed", self.seed)
        if len(self.stop) > MAX_STOPS or any(not s for s in self.stop):
            raise RequestError(f"stop must be at most {MAX_STOPS} non-empty strings, got {self.stop!r}", param="stop")
        if len(self.stop_regex) > MAX_STOPS or any(not 0 < len(p) <= MAX_STOP_REGEX for p in self.stop_regex):
            shown = [pattern[:80] for pattern in self.stop_regex[: MAX_STOPS + 1]]
            raise RequestError(
                f"stop_regex must be at most {MAX_STOPS} patterns of 1 to {MAX_STOP_REGEX} characters, got {shown!r}",
                param="stop_regex",
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)


class LogprobParams(msgspec.Struct, frozen=True, kw_only=True):
    """Which log-probabilities to return: of the model's own distribution, before temperature, penalties and masks.

    `num_top` is how many alternatives to list at each position; `prompt_from` is the first prompt position whose
    token's log-probability is wanted (position 0 has none), or None for output tokens only; `of` are tokens whose
    log-probability is wanted at each position, whatever comes there.
    """

    num_top: int = 0
    prompt_from: int | None = None
    of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _range("top_logprobs", self.num_top, 0, MAX_TOP_LOGPROBS)
        if len(self.of) > MAX_ASKED_LOGPROBS:
            raise RequestError(
                f"log-probabilities of at most {MAX_ASKED_LOGPROBS} tokens, got {len(self.of)}",
                param="token_ids_logprob",
            )
        if self.prompt_from is not None:
            _range("logprob_start_len", self.prompt_from, 0, 1 << 31)


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """log p(id | everything before it), natural log, the `num_top` likeliest (logprob, id), best first, and the
    log-probabilities of the tokens that were asked for, in their order."""

    logprob: float
    id: int
    top: list[tuple[float, int]] = []
    of: list[float] = []


def _in_range(param: str, value: float) -> None:
    _range(param, value, *RANGES[param])


def _range(param: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or math.isnan(value):
        raise RequestError(f"{param} must be between {low} and {high}, got {value}", param=param)
