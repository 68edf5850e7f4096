"""Live programs: their seniority, and the soft pins of their states."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...radix.cache import PrefixCache
from .request import Request

MAX_PROGRAMS = 1 << 16  # bounds the memory if a frontend never ends its programs
MAX_SOFT_PINS = 1 << 16


@dataclass
class _LiveProgram:
    rank: int
    has_started: bool = False
    states: set[int] = field(default_factory=set)  # those with a soft pin


class LivePrograms:
    """Programs from their first request until they end, or until they are the oldest of too many."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._programs: OrderedDict[str, _LiveProgram] = OrderedDict()
        self._num_soft_pins = 0

    def rank(self, program_id: str, serial: int) -> int:
        """Seniority of a program, smaller for older ones: the serial number of its first request."""
        program = self._programs.get(program_id)
        if program is None:
            program = self._programs[program_id] = _LiveProgram(serial)
            self._end_oldest()
        return program.rank

    def mark_started(self, request: Request) -> None:
        """Record that a request of a program has started."""
        program = None if request.program_id is None else self._programs.get(request.program_id)
        if program is not None:
            program.has_started = True

    def has_started(self, request: Request) -> bool:
        """True if a request of the program has started, or this one before it was retracted."""
        program = None if request.program_id is None else self._programs.get(request.program_id)
        return request.num_retractions > 0 or (program is not None and program.has_started)

    def update_soft_pins(self, request: Request) -> None:
        """Soft-pin the part of the request's published tokens that its program's states will use again."""
        program = None if request.program_id is None else self._programs.get(request.program_id)
        if program is None:
            return
        assert request.lease is not None
        for claim in request.message.claims:
            num_tokens = request.num_computed if claim.num_tokens is None else claim.num_tokens
            self._cache.set_soft_pin(request.lease, (request.program_id, claim.state), max(0, num_tokens), request.rank)
            self._num_soft_pins += claim.state not in program.states
            program.states.add(claim.state)
        self._end_oldest()

    def end(self, program_id: str, states: Iterable[int] | None = None) -> None:
        """End these states, or the whole program if `states` is None, and drop their soft pins."""
        program = self._programs.get(program_id)
        if program is None:
            return
        if states is None:
            del self._programs[program_id]
        for state in program.states.intersection(program.states if states is None else states):
            program.states.remove(state)
            self._num_soft_pins -= 1
            self._cache.drop_soft_pin((program_id, state))

    def _end_oldest(self) -> None:
        while len(self._programs) > MAX_PROGRAMS or self._num_soft_pins > MAX_SOFT_PINS:
            self.end(next(iter(self._programs)))
