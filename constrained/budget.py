"""How much a constraint may cost before it is refused, so that a hostile one ends in an error."""

from __future__ import annotations

import time

from .errors import GrammarError

MAX_STATES = 100_000  # of each automaton on the way
MAX_CPU_SECONDS = 0.9
GRAMMAR_CPU_SECONDS = 2.0  # of all terminals of one text: SQL's take a tenth
MAX_STEP_SECONDS = 0.1  # that one step counts for


class CompileBudget:
    """One compilation's. CPU time of this thread, so that a busy machine refuses nothing more.

    A virtual machine that stands still may count that as time of whoever was running, and then all of it falls into
    the step between two checks. So no step counts for more than a tenth of a second.
    """

    def __init__(self, max_states: int = MAX_STATES, max_cpu_seconds: float = MAX_CPU_SECONDS) -> None:
        self._max_states = max_states
        self._max_seconds = max_cpu_seconds
        self._spent = 0.0
        self._checked = time.thread_time()

    def check(self, num_states: int) -> None:
        """Raises GrammarError when an automaton has grown to too many states, or the time is over."""
        if num_states > self._max_states:
            raise GrammarError(f"the constraint is too complex: it needs more than {self._max_states} states")
        now = time.thread_time()
        self._spent += min(now - self._checked, MAX_STEP_SECONDS)
        self._checked = now
        if self._spent > self._max_seconds:
            raise GrammarError(f"the constraint is too complex: compiling it takes more than {self._max_seconds} s")
