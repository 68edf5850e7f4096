"""Generate an answer in stages. Each stage is one request to the core, whose prompt extends the previous one.

A stage's output can be kept, text can be appended to it, and the next stage can run under other rules. The prefix cache
spares recomputation.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ...protocol.core import Finish
from ...protocol.sampling import Constraint, SamplingParams, TokenLogprob
from ...protocol.session import Sequence
from ...tokenizer.interface import Tokenizer
from ..text.encoding import PromptSegment
from ..text.generation import Generator, SampleStream
from .request import ChatRequest


class StagedGeneration:
    """Runs the stages of one answer. `begin` sets `sample` to the current stage's. Call `close` at the end."""

    sample: SampleStream

    def __init__(self, generator: Generator, request: ChatRequest, seed: int, *, skip_special_tokens: bool) -> None:
        self._generator = generator
        self._prompt = request.prompt
        if request.has_parts:  # to count their tokens
            self._prompt = replace(self._prompt, options=self._prompt.options.in_small_pieces())
        self._sampling = request.prompt.sampling
        self._seed = seed
        self._skip_special_tokens = skip_special_tokens
        self._num_stages = 0
        self._tokens = request.prompt.tokens  # prompt of the current stage
        self._is_counted = False  # the stage's output is in the prompt already, or discarded
        self._first_cached: int | None = None
        self._samples: list[SampleStream] = []

    @property
    def tokenizer(self) -> Tokenizer:
        return self._generator.tokenizer

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the client's prompt taken from the cache."""
        cached = self.sample.num_cached if self._first_cached is None else self._first_cached
        return min(cached, len(self._prompt.tokens))

    @property
    def first_at(self) -> float | None:
        """Moment of the answer's first token."""
        return self._samples[0].first_at if self._samples else None

    @property
    def num_completion_tokens(self) -> int:
        """Tokens after the client's prompt that were kept, appended text included."""
        return self._num_appended if self._is_counted else self._num_appended + len(self.sample.output_ids)

    @property
    def tokens(self) -> list[int]:
        """Token ids of the client's prompt and of the answer so far."""
        return self._tokens if self._is_counted else [*self._tokens, *self.sample.output_ids]

    @property
    def said(self) -> list[int]:
        """Token ids after the client's prompt that belong to the answer so far, without a stop."""
        generated = self.sample.generated
        output = self.sample.output_ids if generated is None else generated.sequence.ids
        return [*self._tokens[len(self._prompt.tokens) :], *([] if self._is_counted else output)]

    @property
    def sequences(self) -> list[Sequence]:
        """Outputs of the stages that have ended."""
        return [sample.generated.sequence for sample in self._samples if sample.generated is not None]

    @property
    def prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """Log-probabilities of the client's prompt, if they were requested."""
        values = self._samples[0].prompt_logprobs if self._samples else None
        return None if values is None else values[: len(self._prompt.tokens)]

    @property
    def num_tokens_unused(self) -> int:
        """Number of tokens that the answer may still have after the current stage."""
        return self._sampling.max_new_tokens - self.num_completion_tokens

    @property
    def num_tokens_left(self) -> int:
        """Number of tokens that the answer may still have."""
        return self._sampling.max_new_tokens - self._num_appended

    @property
    def _num_appended(self) -> int:
        return len(self._tokens) - len(self._prompt.tokens)

    @property
    def finish(self) -> Finish:
        """Finish of the current stage."""
        generated = self.sample.generated
        assert generated is not None
        return generated.sequence.finish

    def stopped_at(self, marker: str) -> bool:
        """Return True if the stage stopped at `marker`."""
        special = self._generator.tokenizer.special_ids.get(marker)
        stops = (marker,) if special is None else (marker, special)
        return self.finish.type == "stop" and self.finish.matched in stops

    def stopped_by_client(self, *markers: str) -> bool:
        """Return True if a stop of the client's request ended it: neither one of `markers` nor an end of sequence."""
        matched = self.finish.matched
        if matched in (*self._sampling.stop, *self._sampling.stop_token_ids):
            return True
        return isinstance(matched, str) and not any(map(self.stopped_at, markers))

    def begin(self, text: str, sampling: SamplingParams) -> None:
        """Append `text` and begin a stage."""
        self.append(text)
        room = max(0, min(self.num_tokens_left, sampling.max_new_tokens))
        sampling = msgspec.structs.replace(
            sampling,
            max_new_tokens=room,
            min_new_tokens=min(room, max(0, sampling.min_new_tokens - self._num_appended)),
            # Stages of one answer need different random draws.
            seed=_wrap_int64(self._seed ^ self._num_stages << 32),
            skip_special_tokens=self._skip_special_tokens,
        )
        if self._num_stages:
            self._first_cached = self.num_cached_tokens
        self._num_stages += 1
        self._is_counted = False
        self.sample = self._generator.start(replace(self._prompt, tokens=self._tokens, sampling=sampling))[0]
        self._samples.append(self.sample)
        if len(self._samples) == 1:
            options = self._prompt.options
            if options.logprobs is not None:  # the prompt's are known now
                logprobs = msgspec.structs.replace(options.logprobs, prompt_from=None)
                self._prompt = replace(self._prompt, options=msgspec.structs.replace(options, logprobs=logprobs))

    def append(self, text: str, *, trusted: bool = True) -> None:
        """Append text to the prompt; only trusted text may contain special tokens."""
        if text:
            self._tokens = [*self._tokens, *self._encode(text, trusted=trusted)]

    def num_tokens(self, marker: str) -> int:
        """Return the number of tokens of `marker`."""
        return len(self._encode(marker, trusted=True))

    def _encode(self, text: str, *, trusted: bool) -> list[int]:
        return self._generator.encoder.encode([PromptSegment(text, trusted=trusted)], at_start=False)

    def keep(self) -> None:
        """Append the stage's output, without its stop, to the prompt."""
        generated = self.sample.generated
        assert generated is not None
        self._tokens = [*self._tokens, *generated.sequence.ids]
        self._is_counted = True
        self.append(generated.leftover, trusted=False)

    def discard(self) -> None:
        """Discard the stage's output."""
        self._is_counted = True

    def close(self) -> None:
        """Abort the current stage unless it has ended."""
        self.sample.close()

    # Sampling of a stage

    def constrained(self, constraint: Constraint) -> SamplingParams:
        """Return sampling that only the constraint ends. A stop string inside arguments would cut them."""
        return msgspec.structs.replace(
            self._sampling,
            constraint=constraint,
            stop=(),
            stop_regex=(),
            stop_token_ids=(),
            ignore_eos=False,
            min_new_tokens=0,
            no_stop_trim=False,
        )

    def until(self, *markers: str | None) -> SamplingParams:
        """Return unconstrained sampling that stops at one of `markers`."""
        sampling = self._sampling
        special = self._generator.tokenizer.special_ids
        return msgspec.structs.replace(
            sampling,
            constraint=None,
            stop=(*sampling.stop, *(marker for marker in markers if marker is not None and marker not in special)),
            stop_token_ids=(*sampling.stop_token_ids, *(special[marker] for marker in markers if marker in special)),
            no_stop_trim=False,
        )


def with_token_limit(sampling: SamplingParams, num_tokens: int) -> SamplingParams:
    """Return `sampling` with at most `num_tokens` new tokens."""
    most = min(num_tokens, sampling.max_new_tokens)
    least = min(most, sampling.min_new_tokens)
    return msgspec.structs.replace(sampling, max_new_tokens=most, min_new_tokens=least)


def _wrap_int64(seed: int) -> int:
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
