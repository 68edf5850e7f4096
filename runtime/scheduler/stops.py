"""Stop conditions of one output: stop strings and patterns across token boundaries, stop tokens, EOS."""

from __future__ import annotations

from collections.abc import Sequence

from ...constrained.regex.search import Match, Scan, search
from ..protocol.core import Finish
from ..protocol.errors import RequestError
from ..protocol.sampling import SamplingParams
from ..protocol.stop_strings import StopMatch, StopStrings
from .interfaces import VocabularyInfo


class StopRules:
    """Decides which token ends the output, and which tokens are suppressed until then.

    Raises GrammarError for a stop pattern that cannot be compiled for searching.
    """

    def __init__(self, params: SamplingParams, vocabulary: VocabularyInfo) -> None:
        self._params = params
        self._vocabulary = vocabulary
        self._searches: list[StopStrings | Scan] = []
        if params.stop:
            self._searches.append(StopStrings(params.stop))
        if params.stop_regex:
            self._searches.append(search(params.stop_regex).scan())
        eos = frozenset() if params.ignore_eos else vocabulary.eos_ids
        self._ending_ids = eos | frozenset(params.stop_token_ids)
        self._min_new_tokens = params.min_new_tokens
        # The end of a sequence completes a constrained output, whatever `ignore_eos` says.
        self._completing_ids = frozenset() if params.constraint is None else vocabulary.eos_ids
        # A constrained output cannot continue after EOS, so EOS is suppressed rather than ignored.
        self._suppressed = self._completing_ids if params.ignore_eos else frozenset()
        self._suppressed_at_first = self._suppressed | self._ending_ids

    def suppressed(self, num_output: int) -> frozenset[int]:
        """Return the tokens that may not follow `num_output` output tokens if others can."""
        return self._suppressed_at_first if num_output < self._min_new_tokens else self._suppressed

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an output that is long enough and has no constraint."""
        return self._ending_ids

    @property
    def reads_text(self) -> bool:
        """True if stop strings or patterns may end the output."""
        return bool(self._searches)

    def can_end(self, token: int) -> bool:
        """Return True if the token by itself ends an output that is long enough."""
        return token in self._completing_ids or token in self._ending_ids

    def with_one_end(self, mask: bytes | None) -> bytes | None:
        """Return the mask of a constrained output's next token, where only ends of sequence may follow with one of them
        alone: whether the model samples it or nobody has to, it is the same."""
        end = self._vocabulary.forced_end
        if mask is None or end is None or end not in self._completing_ids or not _has(mask, end):
            return mask
        if int.from_bytes(mask).bit_count() > sum(_has(mask, token) for token in self._completing_ids):
            return mask
        alone = bytearray(len(mask))
        alone[end // 8] = 1 << end % 8
        return bytes(alone)

    def is_only_end(self, mask: bytes | None) -> bool:
        """Return True if the mask has the end of sequence that `with_one_end` leaves, and nothing else."""
        end = self._vocabulary.forced_end
        return mask is not None and end is not None and _has(mask, end) and int.from_bytes(mask).bit_count() == 1

    def feed(self, token: int, num_output: int) -> Finish | None:
        """Return the finish that `token` causes after `num_output` output tokens, or None. Call once per token, in
        order."""
        match = self._feed_searches(token) if self._searches else None
        if token in self._completing_ids:
            return Finish("stop", token)
        if num_output < self._min_new_tokens:
            return None
        if token in self._ending_ids:
            return Finish("stop", token)
        return None if match is None else Finish("stop", match.text.decode())

    def follow(self, tokens: Sequence[int], first: int) -> None:
        """Take the tokens from position `first` on, which are output already: a match may begin in them, but one that
        ends there ends nothing. Raises RequestError for an end of a constrained output.
        """
        if self._completing_ids:
            for position in range(first, len(tokens)):
                if tokens[position] in self._completing_ids:
                    raise RequestError(
                        f"token {tokens[position]} at position {position} of the prompt ends the constrained output",
                        param="continued_tokens",
                    )
        for position in range(self._first_relevant(tokens, first), len(tokens)):
            self._feed_searches(tokens[position])

    def _first_relevant(self, tokens: Sequence[int], first: int) -> int:
        """Return the position from which on a match that is still open may have begun, `first` or later."""
        if not all(isinstance(search_, StopStrings) for search_ in self._searches):
            return first  # a pattern's match may be of any length
        num_bytes = max((search_.num_kept for search_ in self._searches if isinstance(search_, StopStrings)), default=0)
        position = len(tokens)
        while position > first and num_bytes > 0:
            position -= 1
            num_bytes -= len(self._vocabulary.token_bytes[tokens[position]] or b"")
        return position

    def would_end(self, token: int, num_output: int) -> bool:
        """Return True if `feed` would end the output. Changes nothing."""
        if num_output < self._min_new_tokens:
            return False
        data = self._vocabulary.token_bytes[token] or b""
        return token in self._ending_ids or any(search_.find(data) is not None for search_ in self._searches)

    def _feed_searches(self, token: int) -> StopMatch | Match | None:
        """Return the match that ends first within the token; of several, the longest."""
        data = self._vocabulary.token_bytes[token]
        if data is not None:
            found = [search_.feed(data) for search_ in self._searches]
            return min((match for match in found if match is not None), default=None)
        if not self._params.skip_special_tokens:
            for search_ in self._searches:
                search_.reset()  # the special token's text is in between
        return None


def _has(mask: bytes, token: int) -> bool:
    """Return True if a mask allows a token."""
    return bool(mask[token // 8] >> token % 8 & 1)
