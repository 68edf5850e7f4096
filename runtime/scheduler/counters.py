"""Cumulative counters, and the CoreStats snapshot built from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from ...radix.cache import PrefixCache
from ..protocol.core import CoreStats
from .request import Request


@dataclass
class SpeculationCounters:
    """Speculation counters, with the names of their fields in `CoreStats`."""

    num_guessed_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_lengths: list[int] = field(default_factory=list)

    def observe(self, num_guessed: int, num_accepted: int) -> None:
        self.num_guessed_tokens += num_guessed
        self.num_accepted_tokens += num_accepted
        self.accepted_lengths += [0] * (num_accepted + 1 - len(self.accepted_lengths))
        self.accepted_lengths[num_accepted] += 1


@dataclass
class SchedulerCounters:
    """Scheduler counters, with the names of their fields in `CoreStats`."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_forced_tokens: int = 0
    num_retractions: int = 0

    def count_prompt(self, request: Request) -> None:
        """Count the prompt of a request that starts, once."""
        if not request.counted:
            request.counted = True
            assert request.num_cached is not None
            self.num_prompt_tokens += request.num_prompt
            self.num_cached_tokens += request.num_cached

    def stats(
        self, cache: PrefixCache, speculation: SpeculationCounters, *, num_running: int, num_waiting: int
    ) -> CoreStats:
        return CoreStats(
            num_running=num_running,
            num_waiting=num_waiting,
            num_pages=cache.num_pages,
            num_free_pages=cache.num_free,
            num_cached_pages=cache.num_cached,
            num_held_pages=cache.num_pages - cache.tiers.num_available,
            num_evicted_pages=cache.stats.num_evicted_pages,
            num_host_cached_pages=cache.num_host_cached,
            num_demoted_pages=cache.stats.num_demoted_pages,
            num_promoted_pages=cache.stats.num_promoted_pages,
            **({} if cache.states is None else cache.states.figures()),
            num_held_window_pages=0 if cache.windows is None else cache.windows.num_held,
            num_lost_window_pages=0 if cache.windows is None else cache.windows.num_given_up,
            **asdict(self),
            **asdict(speculation),
        )
