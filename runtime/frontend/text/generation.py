"""Generates text for prompts of token ids: submits requests to the core and detokenizes its tokens."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import TracebackType
from typing import NamedTuple

import msgspec

from ....constrained.errors import GrammarError
from ....constrained.regex.search import Search, search
from ...protocol.core import ClientSession, Finish, Generate, RequestOptions, Tokens
from ...protocol.errors import BusyError, ErrorInfo, RamiformError, RequestError
from ...protocol.sampling import SamplingParams, TokenLogprob
from ...protocol.session import Sequence
from ...tokenizer.detokenize import Detokenizer, cut
from ...tokenizer.interface import Tokenizer
from ..core.client import CoreClient, new_rid
from ..core.sessions import ClientSessions, SessionId
from ..core.tenant import current_tenant
from ..records.log import ProgramLog
from ..records.request import begin_sample
from .breakers import breaker_sequences
from .encoding import Encoder
from .pictures import Pictures

MAX_SAMPLES = 256


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids to continue, and how. A missing seed is drawn. The first of several samples carries the soft pins.

    `options` go to the core as they are. `name` is the client's id of the request, by which `Generator.abort` ends it.
    """

    tokens: list[int]
    sampling: SamplingParams
    options: RequestOptions = field(default_factory=RequestOptions)
    session: SessionId | None = None  # as the client names it
    name: str | None = None

    @property
    def num_image_tokens(self) -> int:
        """Number of tokens that stand for images."""
        return sum(picture.num_features for picture in self.options.pictures)


class Piece(NamedTuple):
    """Text that an output has grown by. Pieces add up to the text and the ids of the finished sequence."""

    text: str
    ids: list[int]
    logprobs: list[TokenLogprob] | None


@dataclass(frozen=True)
class FinishedSample:
    """A finished output: the sequence without its stop, and all ids that the model generated.

    `leftover` is text that the kept ids lack because a stop string cut a token.
    """

    sequence: Sequence
    output_ids: list[int]
    leftover: str


class SampleStream:
    """One output that is being generated: iterate over its pieces, or await its `result`."""

    def __init__(
        self,
        generator: Generator,
        prompt: Prompt,
        sampling: SamplingParams,
        patterns: Search,
        *,
        banned: Collection[list[int]],
        breakers: Collection[list[int]],
    ) -> None:
        self.output_ids: list[int] = []  # so far, including the stop token
        self.num_cached = 0
        self.weight_versions: list[tuple[str, int]] = []  # of weights, with the number of tokens that they sampled
        self.logprobs: list[TokenLogprob] | None = None if prompt.options.logprobs is None else []
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.generated: FinishedSample | None = None  # None until the last piece
        self._num_prompt = len(prompt.tokens)
        self._tokenizer = generator.tokenizer
        self._sampling = sampling
        self._detokenizer = Detokenizer(
            generator.tokenizer,
            () if sampling.no_stop_trim else sampling.stop,
            None if sampling.no_stop_trim or not sampling.stop_regex else patterns.scan(),
            skip_special_tokens=sampling.skip_special_tokens,
        )
        self._continued = prompt.tokens[len(prompt.tokens) - prompt.options.continued :]
        self._detokenizer.skip(self._continued)
        self._texts: list[str] = []
        self._num_ids_given = 0
        self._began = time.monotonic()
        self.first_at: float | None = (
            None  # moment of the first token; at the end of the output, as the core measured it
        )
        self._core = generator.core
        self._rid = new_rid()
        self._name = None if prompt.name is None else (current_tenant.get().key, prompt.name)
        self._named = generator.named
        self._answer = self._core.submit(
            Generate.of(
                prompt.options,
                rid=self._rid,
                tokens=prompt.tokens,
                sampling=sampling,
                session=None if prompt.session is None else generator.core_session(prompt.session),
                banned=banned,
                breakers=breakers,
            )
        )
        if self._name is not None:
            self._named[self._name].add(self)
        is_recorded = generator.log is not None and prompt.options.program is None  # programs have records of their own
        self._record = None
        if is_recorded:
            self._record = begin_sample(generator.log, prompt.tokens, sampling, self._began, prompt.options.pictures)

    async def result(self) -> FinishedSample:
        """Wait for the end and return the output. Raises RamiformError when the request failed."""
        async for _ in self:
            pass
        assert self.generated is not None
        return self.generated

    def __aiter__(self) -> SampleStream:
        return self

    async def __anext__(self) -> Piece:
        if self._record is None:
            return self._take(await anext(self._answer))
        try:
            piece = self._take(await anext(self._answer))
        except RamiformError as error:
            self._record.fail(ErrorInfo.of(error))
            raise
        self._record.first_text = self._answer.first_seen
        if self.generated is not None:
            self._record.finish(self.generated.sequence)
        return piece

    def close(self) -> None:
        """Abort the request unless it is over."""
        self._answer.close()
        self._forget()
        if self._record is not None:
            self._record.close()

    def note_turn_ended(self, waits_for: str) -> None:
        """Say, once the output has ended, what its conversation waits for: a tool's name, or "user"."""
        self._core.note_turn_ended(self._rid, waits_for)

    def abort(self) -> None:
        """End the output early; its reader gets the text so far, with a finish of type "abort"."""
        self._core.abort(self._rid)

    def _take(self, tokens: Tokens) -> Piece:
        self.output_ids += tokens.ids
        self._note_version(tokens.weight_version, len(tokens.ids))
        if self.output_ids and (self.first_at is None or tokens.timings is not None):
            came = max(self._began, time.monotonic() - tokens.since_first)  # an output in bulk comes with its end
            self.first_at = came if self.first_at is None else min(self.first_at, came)
        self.num_cached = tokens.num_cached
        if self.logprobs is not None:
            self.logprobs += tokens.logprobs or []
        if tokens.prompt_logprobs is not None:
            self.prompt_logprobs = tokens.prompt_logprobs
        if tokens.finish is None:
            text = self._detokenizer.add(tokens.ids)
            # While a part of their text is held back, no further ids are given.
            num_ids = self._num_ids_given if self._detokenizer.holds_back else len(self.output_ids)
        else:
            text, num_ids, leftover = self._end(tokens.ids, tokens.finish)
        self._texts.append(text)
        if tokens.finish is not None:
            self._forget()
            self.generated = self._finished(tokens, tokens.finish, num_ids, leftover)
        start, self._num_ids_given = self._num_ids_given, num_ids
        logprobs = None if self.logprobs is None else self.logprobs[start:num_ids]
        return Piece(text, self.output_ids[start:num_ids], logprobs)

    def _note_version(self, version: str, num_tokens: int) -> None:
        """Count tokens that weights of a version sampled."""
        last, count = self.weight_versions[-1] if self.weight_versions else (version, 0)
        if last == version:
            self.weight_versions[-1:] = [(version, count + num_tokens)]
        elif num_tokens:
            self.weight_versions.append((version, num_tokens))

    def _forget(self) -> None:
        """Remove the output from those that can be aborted by name."""
        if self._name is not None and (samples := self._named.get(self._name)) is not None:
            samples.discard(self)
            if not samples:
                del self._named[self._name]

    def _end(self, ids: list[int], finish: Finish) -> tuple[str, int, str]:
        """Return the rest of the text, the number of kept ids, and the text that these ids lack."""
        match finish.matched:
            case str(stop):
                skip, keeps = self._sampling.skip_special_tokens, self._sampling.no_stop_trim
                whole = [*self._continued, *self.output_ids]
                place = cut(self._tokenizer, whole, stop, skip_special_tokens=skip, keeps_stop=keeps)
                num_ids = place.num_whole - len(self._continued)  # negative if the cut lies in the continued ids
                behind = place.num_behind if keeps else 0
                rest = self._detokenizer.finish(ids, stop=None if keeps else stop, num_behind=behind)
                return rest, max(0, num_ids), place.leftover if num_ids >= 0 else ""
            case int() if not self._sampling.no_stop_trim:
                return self._detokenizer.finish(ids[:-1]), len(self.output_ids) - 1, ""
            case _:
                return self._detokenizer.finish(ids), len(self.output_ids), ""

    def _finished(self, last: Tokens, finish: Finish, num_ids: int, leftover: str) -> FinishedSample:
        num_logprobs = len(self.output_ids) if isinstance(finish.matched, int) else num_ids
        sequence = Sequence(
            text="".join(self._texts),
            ids=self.output_ids[:num_ids],
            prompt_tokens=self._num_prompt,
            completion_tokens=len(self.output_ids),
            cached_tokens=self.num_cached,
            finish=finish,
            logprobs=None if self.logprobs is None else self.logprobs[:num_logprobs],
            prompt_logprobs=self.prompt_logprobs,
            seconds=time.monotonic() - self._began,
            num_retractions=last.num_retractions,
            num_passes=last.num_passes,
            accepted_lengths=last.accepted_lengths,
            num_guessed=last.num_guessed,
            timings=last.timings,
            weight_versions=self.weight_versions,
            routes=last.routes,
        )
        return FinishedSample(sequence, self.output_ids, leftover)


class SampleStreams:
    """The outputs of one prompt. Leaving the `with` block aborts those that still run."""

    def __init__(self, samples: list[SampleStream]) -> None:
        self._samples = samples

    def __getitem__(self, index: int) -> SampleStream:
        return self._samples[index]

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[SampleStream]:
        return iter(self._samples)

    def __enter__(self) -> SampleStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sample in self._samples:
            sample.close()


class Generator:
    """Starts samples of prompts. With `log` they are recorded, except those of programs. `pictures` reads images."""

    def __init__(
        self,
        core: CoreClient,
        tokenizer: Tokenizer,
        log: ProgramLog | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        self.core = core
        self._pictures = pictures
        self.log = log
        self.tokenizer = tokenizer
        self.encoder = Encoder(tokenizer, core.max_request_tokens)
        self.sessions = ClientSessions(core.end_session)
        self._breakers = lru_cache(16)(partial(breaker_sequences, tokenizer))  # each looks at the whole vocabulary
        # Running samples, by API key and the client's id.
        self.named: defaultdict[tuple[str | None, str], set[SampleStream]] = defaultdict(set)

    def pictures(self, param: str) -> Pictures:
        """Return what prepares images. Raises RequestError, naming `param`, for a model that reads text only."""
        if self._pictures is None or not self.core.require_info().reads_pictures:
            raise RequestError(f"{param}: this model reads text only", param=param)
        return self._pictures

    def abort(self, name: str, key: str | None, *, any_key: bool = False) -> bool:
        """End the outputs of an API key's request `name` early, or of all keys'. Returns False if there are none."""
        keys = [owned for owned in self.named if owned[1] == name] if any_key else [(key, name)]
        samples = [sample for owned in keys for sample in self.named.get(owned, ())]
        for sample in samples:
            sample.abort()
        return bool(samples)

    def core_session(self, session: SessionId) -> ClientSession:
        """Return a client's session as the core knows it."""
        return ClientSession(self.sessions.note(session), session.is_shared)

    def check_generates(self) -> None:
        """Raise RequestError for a model that continues no texts."""
        if not (info := self.core.require_info()).generates:
            does = "classifies" if info.is_classifier else "embeds"
            raise RequestError(f"the served model {does} texts and generates none", code="not_supported")

    def start(self, prompt: Prompt, n: int = 1) -> SampleStreams:
        """Submit `n` samples together; sample i has seed + i.

        Raises RequestError for an invalid prompt, BusyError without memory for its patterns, RuntimeFailed when the
        core is gone.
        """
        if not 1 <= n <= MAX_SAMPLES:
            raise RequestError(f"n must be between 1 and {MAX_SAMPLES}, got {n}", param="n")
        self.check_generates()
        seed = secrets.randbits(63) if prompt.sampling.seed is None else prompt.sampling.seed
        try:
            patterns = search(prompt.sampling.stop_regex)
        except GrammarError as error:
            raise RequestError(str(error), param="stop_regex") from None
        except (ImportError, OSError, MemoryError) as error:  # the first pattern loads libraries
            raise BusyError(f"no memory is left to compile stop_regex: {error}") from None
        banned = banned_sequences(self.tokenizer, prompt.sampling.bad_words)
        breakers = self._breakers(prompt.sampling.dry_sequence_breakers) if prompt.sampling.avoids_repeats else ()
        others = prompt
        if n > 1 and prompt.options.soft_pins:
            others = replace(prompt, options=msgspec.structs.replace(prompt.options, soft_pins=[]))
        return SampleStreams(
            [
                SampleStream(
                    self,
                    others if i else prompt,
                    _seeded(prompt.sampling, seed + i),
                    patterns,
                    banned=banned,
                    breakers=breakers,
                )
                for i in range(n)
            ]
        )


def banned_sequences(tokenizer: Tokenizer, words: Collection[str]) -> list[list[int]]:
    """Return the token sequences of `words`, each as it begins a text and as it follows a space."""
    if not words:
        return []
    variants = [text for word in words for text in (word, f" {word}")]
    encoded = [tuple(tokenizer.encode(text, parse_special=False, continues=True)) for text in variants]
    return [list(ids) for ids in dict.fromkeys(encoded) if ids]


def _seeded(sampling: SamplingParams, seed: int) -> SamplingParams:
    seeded = copy(sampling)
    # Wraps around like the 64-bit number that it is. Not by `replace`, which would check every other value again.
    msgspec.structs.force_setattr(seeded, "seed", (seed + (1 << 63)) % (1 << 64) - (1 << 63))
    return seeded
