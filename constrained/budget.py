"""How much a constraint may cost before it is refused, so that a hostile one ends in an error."""

from __future__ import annotations

import time

from .errors import GrammarError

MAX_STATES = 100_000  # of each automaton on the way
MAX_CPU_SECONDS = 0.9


class Budget:
    """One compilation's. CPU time of this thread, so that a busy machine refuses nothing more."""

    def __init__(self, max_states: int = MAX_STATES, max_cpu_seconds: float = MAX_CPU_SECONDS) -> None:
        self._max_states = max_states
        self._seconds = max_cpu_seconds
        self._end = time.thread_time() + max_cpu_seconds

    def check(self, num_states: int) -> None:
        """Raises GrammarError when an automaton has grown to too many states, or the time is over."""
        if num_states > self._max_states:
            raise GrammarError(f"the constraint is too complex: it needs more than {self._max_states} states")
        if time.thread_time() > self._end:
            raise GrammarError(f"the constraint is too complex: compiling it takes more than {self._seconds} s")
