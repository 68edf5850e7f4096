"""Limits on the cost of compiling a constraint: a hostile one ends in an error."""

from __future__ import annotations

import time

from .errors import GrammarError

MAX_STATES = 100_000  # of each intermediate automaton
MAX_CPU_SECONDS = 0.9
GRAMMAR_CPU_SECONDS = 2.0  # for all terminals of a grammar; those of SQL take a tenth
MAX_STEP_SECONDS = 0.1  # the most that is charged between two checks


class CompileBudget:
    """States and CPU seconds of one compilation.

    It charges the thread's CPU time, so a busy machine refuses no more constraints than an idle one. A suspended
    virtual machine may charge the suspension to the running thread, between two checks. So the time between two checks
    counts for at most a tenth of a second.
    """

    def __init__(self, max_states: int = MAX_STATES, max_cpu_seconds: float = MAX_CPU_SECONDS) -> None:
        self._max_states = max_states
        self._max_seconds = max_cpu_seconds
        self._spent = 0.0
        self._checked = time.thread_time()

    def check(self, num_states: int) -> None:
        """Raise GrammarError if an automaton has too many states, or the CPU time is used up."""
        if num_states > self._max_states:
            raise GrammarError(f"the constraint is too complex: it needs more than {self._max_states} states")
        now = time.thread_time()
        self._spent += min(now - self._checked, MAX_STEP_SECONDS)
        self._checked = now
        if self._spent > self._max_seconds:
            raise GrammarError(f"the constraint is too complex: compiling it takes more than {self._max_seconds} s")
