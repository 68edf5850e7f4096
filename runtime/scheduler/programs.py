"""Live programs: their seniority, the soft pins of their states, and what these wait for.

A request without a program belongs to a session, a program that is recognised by its growing prefix: the request goes
on where the soft pin of an earlier one ends. In a session that the client has named, the states are recognised so: a
conversation, and those of its sub-agents.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from ...radix.cache import PrefixCache
from ..protocol.core import Generate, SoftPin
from .request import Request, program_id, session_id

MAX_PROGRAMS = 1 << 16  # bounds the memory if a frontend never ends its programs
MAX_SOFT_PINS = 1 << 16
MIN_SESSIONS = 64  # recognised sessions that are remembered with the smallest pool
# Kinds of waits: until the frontend says what for, of states whose forks have run, and of requests for their start
TURN, FORKED, QUEUED = "", "fork", "queue"
USER = "user"  # the kind of wait of an answer that calls no tool
MAX_SESSION_STATES = 64  # of a session that a client named
MAX_RETAINED = 256  # prefixes that an account has asked to keep
RETAINED_SHARE = 4  # an account may keep one of so many parts of the pool
MIN_REWRITTEN = 16  # a rewritten prompt shares at least this part of itself, 1/16, with the one before
MAX_ENDED_TURNS = 1 << 12  # ended requests of which the frontend may still say what their programs wait for


@dataclass
class _LiveProgram:
    rank: int
    has_started: bool = False
    states: set[int] = field(default_factory=set)  # those with a soft pin
    is_session: bool = False  # recognised, not named
    is_running: bool = False  # of a session: a request of it runs
    # Of a session that a client named:
    num_states: int = 0  # that it has had
    num_tokens: dict[int, int] = field(default_factory=dict)  # that its states have pinned
    given_up: dict[int, str] = field(default_factory=dict)  # what states waited for, by their pinned tokens


class LivePrograms:
    """Programs from their first request until they end, or until they are the oldest of too many."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._programs: OrderedDict[str, _LiveProgram] = OrderedDict()
        self._sessions: OrderedDict[str, None] = OrderedDict()  # recognised ones, used last at the end
        self._max_sessions = max(MIN_SESSIONS, cache.num_pages + cache.num_host_pages)  # others can have no page
        self._num_soft_pins = 0
        # By account: prefixes that clients have asked to keep, with their tokens, refreshed last at the end
        self._retained: dict[str, OrderedDict[Hashable, int]] = {}
        self._delegating: set[str] = set()  # kinds of waits during which other states of a session are continued
        self._ended_turns: OrderedDict[str, tuple[str, int]] = OrderedDict()  # by rid: the owner that waits

    def note_arrived(self, request: Request) -> None:
        """Record that the program's state has returned from what it waited for."""
        for owner in _own_pins(request):
            if self._cache.forecast.end_wait(owner):
                self._cache.begin_wait(owner, QUEUED)

    def rank(self, program_id: str, serial: int) -> int:
        """Return the seniority of a program, smaller for older ones: the serial number of its first request."""
        program = self._programs.get(program_id)
        if program is None:
            program = self._programs[program_id] = _LiveProgram(serial)
            self._end_oldest()
        return program.rank

    def rank_of(self, message: Generate, owner: bytes, serial: int) -> int:
        """Return the seniority of a request: its program's or its session's, or else its own."""
        if message.session is not None:
            return self.rank(session_id(message.session.name), serial)
        return serial if message.program is None else self.rank(program_id(owner, message.program), serial)

    def mark_started(self, request: Request) -> None:
        """Record that a request of a program has started. What its prompt has superseded is no longer pinned."""
        if request.message.session is not None:
            self._start_state(request)
        if request.program_id is None:
            self._start_session(request)
        else:
            program = self._programs.get(request.program_id)
            if program is not None:
                program.has_started = True
        for owner in _own_pins(request):
            self._cache.forecast.cancel_wait(owner)
            self._cache.drop_soft_pin(owner)

    def _start_session(self, request: Request) -> None:
        """Find the session that the request continues, or begin one."""
        assert request.lease is not None
        if not self._cache.recognises_sessions or request.is_background:
            return
        names = (owner[0] for owner in request.lease.continues if isinstance(owner, tuple))
        name = next((name for name in names if self._is_idle_session(name)), None)
        if name is None:
            name = f"session {request.serial}"
            self._programs[name] = _LiveProgram(request.serial, is_session=True)
        request.session = name
        program = self._programs[name]
        program.has_started = program.is_running = True
        self._programs.move_to_end(name)
        self._sessions[name] = None
        self._sessions.move_to_end(name)
        self._cache.forecast.end_wait((name, 0))
        self._end_oldest()

    def _start_state(self, request: Request) -> None:
        """Find the state of the client's session that the request continues, or begin one."""
        session, name = request.message.session, request.session
        program = None if name is None else self._programs.get(name)
        if program is None or name is None or session is None or request.session_state is not None:
            return
        assert request.lease is not None
        owned = [owner[1] for owner in request.lease.continues if isinstance(owner, tuple) and owner[0] == name]
        self._programs.move_to_end(name)
        if owned:
            request.session_state = owned[0]
            self._cache.forecast.end_wait((name, owned[0]))
        else:
            request.session_state = program.num_states
            program.num_states += 1
            self._learn_from_return(request, program)
        # A request that shares hardly anything, such as one for a title, replaces nothing.
        if not session.is_shared and MIN_REWRITTEN * request.lease.matched >= request.num_prompt:
            self._give_up_others(name, program, request.session_state)

    def _give_up_others(self, name: str, program: _LiveProgram, going_on: int) -> None:
        """End the states of a session that wait while another one goes on: their prompts have been rewritten.

        States that wait for a tool that is known to start sub-agents stay.
        """
        for state in program.states - {going_on}:
            if not self._cache.forecast.is_waiting((name, state)):
                continue  # a request of it runs
            kind = self._cache.forecast.wait((name, state)).group.kind
            if kind not in self._delegating:
                program.given_up[program.num_tokens.pop(state, 0)] = kind
                self.end(name, [state])
        while len(program.given_up) > MAX_SESSION_STATES:
            del program.given_up[next(iter(program.given_up))]

    def _learn_from_return(self, request: Request, program: _LiveProgram) -> None:
        """If the request continues a state that was given up, learn that what it waited for starts sub-agents."""
        assert request.lease is not None
        matched = request.lease.matched
        for num_tokens, kind in [*program.given_up.items()]:
            if num_tokens <= request.num_prompt and num_tokens < 2 * matched and kind != USER:
                self._delegating.add(kind)
                del program.given_up[num_tokens]

    def _is_idle_session(self, name: str) -> bool:
        program = self._programs.get(name)
        return program is not None and program.is_session and not program.is_running

    def has_started(self, request: Request) -> bool:
        """Return True if a request of the program has started, or this one before it was retracted."""
        program = None if request.program_id is None else self._programs.get(request.program_id)
        return request.num_retractions > 0 or (program is not None and program.has_started)

    def update_soft_pins(self, request: Request) -> None:
        """Soft-pin the part of the request's published tokens that its program's states will use again."""
        self._retain(request)
        program_id = request.program_id
        program = None if program_id is None else self._programs.get(program_id)
        if program_id is None or program is None:
            return
        assert request.lease is not None
        program.is_running = False
        for pin in self._soft_pins_of(request, program):
            owner = program_id, pin.state
            num_tokens = request.num_computed if pin.num_tokens is None else pin.num_tokens
            self._cache.set_soft_pin(request.lease, owner, max(0, num_tokens), request.rank)
            self._num_soft_pins += pin.state not in program.states
            program.states.add(pin.state)
            if request.session_state is not None:
                program.num_tokens[pin.state] = num_tokens
            self._cache.begin_wait(owner, TURN if pin.num_tokens is None else FORKED)
            if pin.num_tokens is None:
                self._ended_turns[request.rid] = owner
        if request.message.session is not None and len(program.states) > MAX_SESSION_STATES:
            self.end(
                program_id, [min(program.states, key=lambda each: self._cache.forecast.wait((program_id, each)).since)]
            )
        while len(self._ended_turns) > MAX_ENDED_TURNS:
            self._ended_turns.popitem(last=False)
        self._end_oldest()

    def _retain(self, request: Request) -> None:
        """Soft-pin what the client has asked to keep, within what its account may hold."""
        cache = self._cache
        for wanted in request.message.retain:
            assert request.lease is not None
            most = cache.num_slots // RETAINED_SHARE
            num_tokens = min(wanted.num_tokens, request.num_prompt, most)
            kept = self._retained.setdefault(wanted.account, OrderedDict())
            prefix = hash(tuple(request.cache_tokens[:num_tokens]))
            owner: Hashable = (wanted.account, request.message.namespace, prefix)
            over = [each for each in kept if (cache.forecast.retained_until(each) or 0.0) <= cache.forecast.now]
            for each in [*over, *([owner] if owner in kept else [])]:
                self._release(kept, each)
            kept[owner] = num_tokens
            while len(kept) > MAX_RETAINED or sum(kept.values()) > most:
                self._release(kept, next(iter(kept)))
            cache.forecast.retain(owner, cache.forecast.now + wanted.seconds)
            cache.set_soft_pin(request.lease, owner, num_tokens, request.rank)

    def _release(self, kept: OrderedDict[Hashable, int], owner: Hashable) -> None:
        """Keep a prefix no longer that a client has asked to keep."""
        if kept.pop(owner, None) is not None:
            self._cache.forecast.forget(owner)
            self._cache.drop_soft_pin(owner)

    def _soft_pins_of(self, request: Request, program: _LiveProgram) -> list[SoftPin]:
        if request.message.session is not None:
            return [] if request.session_state is None else [SoftPin(request.session_state)]
        return [SoftPin(0)] if program.is_session else request.message.soft_pins

    def note_turn_ended(self, rid: str, waits_for: str) -> None:
        """Record what the program of an ended request waits for."""
        owner = self._ended_turns.pop(rid, None)
        if owner is not None:
            self._cache.set_wait_kind(owner, waits_for)

    def end(self, program_id: str, states: Iterable[int] | None = None) -> None:
        """End these states, or the whole program if `states` is None, and drop their soft pins."""
        program = self._programs.get(program_id)
        if program is None:
            return
        if states is None:
            del self._programs[program_id]
            self._sessions.pop(program_id, None)
        for state in program.states.intersection(program.states if states is None else states):
            program.states.remove(state)
            program.num_tokens.pop(state, None)
            self._num_soft_pins -= 1
            self._cache.drop_soft_pin((program_id, state))
            self._cache.forecast.forget((program_id, state))

    def _end_oldest(self) -> None:
        while len(self._sessions) > self._max_sessions:
            self.end(next(iter(self._sessions)))
        while len(self._programs) > MAX_PROGRAMS or self._num_soft_pins > MAX_SOFT_PINS:
            self.end(next(iter(self._programs)))


def _own_pins(request: Request) -> list[tuple[str, int]]:
    """Return the owners of the soft pins of the state that the request belongs to."""
    if request.program_id is None:
        return []
    if request.message.session is not None:
        return [] if request.session_state is None else [(request.program_id, request.session_state)]
    return [(request.program_id, pin.state) for pin in request.message.soft_pins if pin.num_tokens is None]
