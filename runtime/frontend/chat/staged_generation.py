"""An answer in steps: each is one request to the core, whose prompt is the last one's tokens and more.

What a step generates can be kept, text of ours written behind it, and the next step begun under other rules; nothing is
computed twice. Knows tokens; nothing of thinking or of calls.
"""

from __future__ import annotations

import msgspec

from ...protocol.core import Finish
from ...protocol.sampling import Constraint, SamplingParams
from ..text.encoding import PromptSegment
from ..text.generation import Generator, Prompt, SampleStream
from .request import ChatRequest


class StagedGeneration:
    """`sample` is the running step's, once `begin` was called. `close` at the end."""

    sample: SampleStream

    def __init__(self, generator: Generator, ask: ChatRequest, seed: int, *, skip_special_tokens: bool) -> None:
        self._generator = generator
        self._ask = ask
        self._seed = seed
        self._skip_special_tokens = skip_special_tokens
        self._num_steps = 0
        self._tokens = ask.tokens  # the step's prompt
        self._counted = False  # whether the step's output is in the prompt already, or does not count
        self._first_cached: int | None = None

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt as the client gave it."""
        cached = self.sample.num_cached if self._first_cached is None else self._first_cached
        return min(cached, len(self._ask.tokens))

    @property
    def num_completion_tokens(self) -> int:
        """All that follows the client's prompt and stayed, what was written for the model included."""
        written = len(self._tokens) - len(self._ask.tokens)
        return written if self._counted else written + len(self.sample.output_ids)

    @property
    def room(self) -> int:
        """How many tokens the answer may still have."""
        return self._ask.sampling.max_new_tokens - (len(self._tokens) - len(self._ask.tokens))

    @property
    def ended(self) -> Finish:
        """How the step did."""
        generated = self.sample.generated
        assert generated is not None
        return generated.sequence.finish

    def ended_at(self, mark: str) -> bool:
        """Whether it did so at one of the marks that it was to go to."""
        special = self._generator.tokenizer.special_ids.get(mark)
        return self.ended.type == "stop" and self.ended.matched in ((mark,) if special is None else (mark, special))

    def ended_by_wish(self, *marks: str) -> bool:
        """Whether a stop of the client's ended it: neither one of `marks` nor an end of sequence."""
        asked, matched = self._ask.sampling, self.ended.matched
        if matched in (*asked.stop, *asked.stop_token_ids):
            return True
        return isinstance(matched, str) and not any(map(self.ended_at, marks))

    def begin(self, text: str, sampling: SamplingParams) -> None:
        """Go on after `text`, which is ours."""
        self.write(text)
        ask = self._ask
        room = max(0, min(self.room, sampling.max_new_tokens))
        least = sampling.min_new_tokens - (len(self._tokens) - len(ask.tokens))
        sampling = msgspec.structs.replace(
            sampling,
            max_new_tokens=room,
            min_new_tokens=min(room, max(0, least)),
            seed=_wrapped(self._seed ^ self._num_steps << 32),  # steps of one answer must not draw alike
            skip_special_tokens=self._skip_special_tokens,
        )
        if self._num_steps:
            self._first_cached = self.num_cached_tokens
        self._num_steps += 1
        self._counted = False
        prompt = Prompt(
            tokens=self._tokens,
            sampling=sampling,
            logprobs=ask.logprobs,
            priority=ask.priority,
            namespace=ask.namespace,
            # Where parts of an answer are told apart, their tokens are counted piece by piece.
            in_bulk=ask.in_bulk and not (ask.thinks or ask.thinking or ask.calling is not None),
        )
        self.sample = self._generator.start(prompt)[0]

    def write(self, text: str, *, trusted: bool = True) -> None:
        if text:
            self._tokens = [*self._tokens, *self._encoded(text, trusted=trusted)]

    def size(self, mark: str) -> int:
        """How many tokens `mark` has."""
        return len(self._encoded(mark, trusted=True))

    def _encoded(self, text: str, *, trusted: bool) -> list[int]:
        return self._generator.encoder.encode([PromptSegment(text, trusted=trusted)], at_start=False)

    def keep(self) -> None:
        """What the step has generated, without its stop, becomes a part of the prompt."""
        generated = self.sample.generated
        assert generated is not None
        self._tokens = [*self._tokens, *generated.sequence.ids]
        self._counted = True
        self.write(generated.leftover, trusted=False)

    def drop(self) -> None:
        """What the step has generated is no part of the answer."""
        self._counted = True

    def close(self) -> None:
        self.sample.close()

    # Rules for a step

    def held_to(self, constraint: Constraint) -> SamplingParams:
        """Nothing but the constraint ends it: a stop string in the arguments would leave half of them."""
        return msgspec.structs.replace(
            self._ask.sampling,
            constraint=constraint,
            stop=(),
            stop_regex=(),
            stop_token_ids=(),
            ignore_eos=False,
            min_new_tokens=0,
            no_stop_trim=False,
        )

    def until(self, *marks: str | None) -> SamplingParams:
        """Free, up to one of `marks`."""
        sampling = self._ask.sampling
        special = self._generator.tokenizer.special_ids
        return msgspec.structs.replace(
            sampling,
            constraint=None,
            stop=(*sampling.stop, *(mark for mark in marks if mark is not None and mark not in special)),
            stop_token_ids=(*sampling.stop_token_ids, *(special[mark] for mark in marks if mark in special)),
            no_stop_trim=False,
        )


def with_token_limit(sampling: SamplingParams, num_tokens: int) -> SamplingParams:
    most = min(num_tokens, sampling.max_new_tokens)
    least = min(most, sampling.min_new_tokens)
    return msgspec.structs.replace(sampling, max_new_tokens=most, min_new_tokens=least)


def _wrapped(seed: int) -> int:
    """As the 64-bit number that it is."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
