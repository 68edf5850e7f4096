"""When an output ends: stop strings across token seams, stop tokens, EOS. Knows one output; no queue, no pages."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.core import Finish
from ..protocol.sampling import SamplingParams
from .vocabulary import VocabularyFacts


class StopStrings:
    """Finds stop strings in a stream of bytes, wherever the pieces are cut.

    Bytes, not text: a token may hold half a character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [(stop, stop.encode()) for stop in stops]
        self._num_kept = max((len(pattern) for _, pattern in self._patterns), default=1) - 1
        self._tail = b""  # the last bytes in which a match may have begun

    def feed(self, data: bytes) -> str | None:
        """Go on by `data`. Returns as `find`."""
        found = self.find(data)
        window = self._tail + data
        self._tail = window[max(0, len(window) - self._num_kept) :]
        return found

    def find(self, data: bytes) -> str | None:
        """The stop string whose match ends first within `data`; of several that end there, the longest."""
        window = self._tail + data
        matches = []
        for stop, pattern in self._patterns:
            # A match that ended before `data` has been reported, or was ignored on purpose.
            at = window.find(pattern, max(0, len(self._tail) + 1 - len(pattern)))
            if at >= 0:
                matches.append((at + len(pattern), -len(pattern), stop))
        return min(matches)[2] if matches else None

    def interrupt(self) -> None:
        """What comes next is not adjacent to what came before."""
        self._tail = b""


class StopRules:
    """Whether each output token ends the output, and which tokens must not be sampled yet."""

    def __init__(self, params: SamplingParams, vocabulary: VocabularyFacts) -> None:
        self._params = params
        self._vocabulary = vocabulary
        self._strings = StopStrings(params.stop)
        eos = frozenset() if params.ignore_eos else vocabulary.eos_ids
        self._ending_ids = eos | frozenset(params.stop_token_ids)

    def avoided(self, num_output: int) -> frozenset[int]:
        """Tokens that may not follow `num_output` output tokens if anything else can."""
        params = self._params
        # A constrained output cannot go on after EOS, so there EOS is avoided rather than ignored.
        eos = self._vocabulary.eos_ids if params.ignore_eos and params.constraint is not None else frozenset()
        return eos | self._ending_ids if num_output < params.min_new_tokens else eos

    def may_end(self, token: int) -> bool:
        """Whether the token, by itself, ends the output once it is long enough."""
        if self._params.constraint is not None and token in self._vocabulary.eos_ids:
            return True
        return token in self._ending_ids

    def feed(self, token: int, num_output: int) -> Finish | None:
        """The finish that `token` brings after `num_output` output tokens, or None. Call once per token, in order."""
        params = self._params
        stop = self._feed_strings(token)
        if params.constraint is not None and token in self._vocabulary.eos_ids:
            return Finish("stop", token)  # the grammar says that it is complete, whatever else was asked
        if num_output < params.min_new_tokens:
            return None
        if token in self._ending_ids:
            return Finish("stop", token)
        return None if stop is None else Finish("stop", stop)

    def would_end(self, token: int, num_output: int) -> bool:
        """Whether `feed` would end the output."""
        if num_output < self._params.min_new_tokens:
            return False
        data = self._vocabulary.token_bytes[token] or b""
        return token in self._ending_ids or (bool(self._params.stop) and self._strings.find(data) is not None)

    def _feed_strings(self, token: int) -> str | None:
        if not self._params.stop:
            return None
        data = self._vocabulary.token_bytes[token]
        if data is not None:
            return self._strings.feed(data)
        if not self._params.skip_special_tokens:
            self._strings.interrupt()  # the special token's text stands in between
        return None
