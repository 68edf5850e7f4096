"""Choices methods of `select`: the three that the runtime implements, and the interface of a user's own.

Names and arguments are SGLang's. `protocol.choices` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ...runtime.protocol import choices as methods
from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError, did_you_mean
from ..operations.meta_info import meta_of_choice

TokenLogprobs = Sequence[Any]  # of one choice: (log-probability, token id, text or None) each


@dataclass(frozen=True)
class ChoicesDecision:
    """The result of a choices method: one of the choices, and further meta info of the variable."""

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesSamplingMethod:
    """Interface of choices methods; a user's own may be any callable that takes these keyword arguments.

    `requires_unconditional_logprobs`: it also needs the log-probabilities of the choices without context.
    """

    requires_unconditional_logprobs: bool = False

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[TokenLogprobs],
        output_token_logprobs: Sequence[TokenLogprobs],
        unconditional_token_logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> ChoicesDecision:
        """Decide between the choices.

        `input_token_logprobs` are those of each choice's tokens, `normalized_prompt_logprobs` their means. Nothing is
        generated, so `output_token_logprobs` is empty for each choice.
        """
        raise NotImplementedError


class BuiltInMethod(ChoicesSamplingMethod):
    """A method that the runtime implements, so it decides without a round trip. Called here it decides the same."""

    def __init__(self, name: session.ChoicesMethod) -> None:
        self.name: session.ChoicesMethod = name
        self.requires_unconditional_logprobs = name == "unconditional_likelihood_normalized"
        self.__name__ = name

    def __repr__(self) -> str:
        return f"<choices method {self.name}>"

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[TokenLogprobs],
        output_token_logprobs: Sequence[TokenLogprobs] = (),
        unconditional_token_logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> ChoicesDecision:
        scores = methods.scores(self.name, _values(input_token_logprobs), _values(unconditional_token_logprobs or []))
        return ChoicesDecision(choices[methods.decide(scores)], {"scores": scores})


token_length_normalized = BuiltInMethod("token_length_normalized")
greedy_token_selection = BuiltInMethod("greedy_token_selection")
unconditional_likelihood_normalized = BuiltInMethod("unconditional_likelihood_normalized")

_BY_NAME = {
    method.name: method
    for method in (token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized)
}
assert set(_BY_NAME) == set(get_args(session.ChoicesMethod))

Method = Callable[..., ChoicesDecision]


def method_of(given: Any) -> Method:
    """Return a method by its name, or a callable as it is. Raises RequestError for anything else."""
    if isinstance(given, str) and given in _BY_NAME:
        return _BY_NAME[given]
    if not callable(given):
        raise RequestError(
            f"choices_method must be a callable or one of {', '.join(_BY_NAME)}, got {given!r}"
            f"{did_you_mean(given, _BY_NAME)}",
            param="choices_method",
        )
    return given  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ChoiceCallback:
    """Callback that lets a user's own method decide on the scores that the runtime has computed."""

    choices: tuple[str, ...]
    method: Method
    meta: dict[str, Any]  # the variable's meta info, filled with the decision's

    def __call__(self, done: session.Done) -> str:
        assert done.choice is not None
        scored = meta_of_choice(done.choice)
        decision = self.method(
            choices=list(self.choices),
            normalized_prompt_logprobs=scored["normalized_prompt_logprobs"],
            input_token_logprobs=scored["input_token_logprobs"],
            output_token_logprobs=[[] for _ in self.choices],
            unconditional_token_logprobs=scored.get("unconditional_token_logprobs"),
        )
        if not isinstance(decision, ChoicesDecision) or decision.decision not in self.choices:
            raise RequestError(
                f"the choices method {self.method!r} must return a ChoicesDecision of one of {list(self.choices)}, "
                f"got {decision!r}",
                param="choices_method",
            )
        self.meta.update(decision.meta_info or {})
        self.meta["index"] = self.choices.index(decision.decision)
        return decision.decision


def _values(choices: Sequence[TokenLogprobs]) -> list[list[float]]:
    return [[entry[0] for entry in tokens] for tokens in choices]
