"""Phases of work that the threads of one compiled call share; tasks are claimed by atomic counters.

Every thread runs the same code. In a phase it claims tasks until none is left, then waits until all are done. A thread
that the system does not run delays the others only if it stopped in the middle of a task: they claim all that it has
not. A late thread finds the first phases done and passes through them. What it reads between phases may be of
a later one by then, so it must check numbers that it uses as indices.

`claim` hands tasks out in their order. `claim_near` gives each thread a range of neighbouring tasks, so that what a
task fetches ahead is what the thread reads next. A thread that has done its range goes on with another's next tasks.

A waiting thread spins for some 50 us, then sleeps until the phase is done: on a futex where the system has them,
elsewhere for a tenth of a millisecond at a time. A task must not raise: the other threads would wait for ever.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..compiled import Ints, compiled

_LINE = 8  # words of a cache line; counters of different kinds and ranges have lines of their own
_MOST_RANGES = 4  # of a phase's tasks; where there are more threads, several share one
_STRIDE = _LINE * (1 + _MOST_RANGES)  # words of a phase
_DONE = _LINE  # where completions count. The first range's claims count before it, the others' behind
_SLEEPERS = 0  # word before the first phase: threads that sleep
_SPINS = 1500  # each takes some 35 ns
_WAIT, _WAKE, _EVERYONE = 128, 129, 1 << 30  # FUTEX_WAIT and FUTEX_WAKE within one process

_X86 = platform.machine() in ("x86_64", "AMD64")
_futex_number = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0

_INDEX = ir.IntType(64)
_system_call = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


def new_phases(num_phases: int) -> Ints:
    """Return the counters of one call, int64, all zero."""
    return np.zeros((num_phases + 1) * _STRIDE, dtype=np.int64)


def _on_word(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a code generator whose `generate` gets the address of a word, given as array and index, and the rest."""

    def with_address(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        words = context.make_array(signature.args[0])(context, builder, args[0])
        return generate(builder, builder.gep(words.data, [args[1]]), *args[2:])

    return with_address


@intrinsic  # type: ignore[untyped-decorator]
def _add(_: Any, words: Any, index: Any, value: Any) -> Any:
    """Add to a word and return its value before."""
    generate = _on_word(lambda builder, word, value: builder.atomic_rmw("add", word, value, "seq_cst"))
    return types.int64(words, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _read(_: Any, words: Any, index: Any) -> Any:
    generate = _on_word(lambda builder, word: builder.load_atomic(word, "seq_cst", 8))
    return types.int64(words, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _address(_: Any, words: Any, index: Any) -> Any:
    generate = _on_word(lambda builder, word: builder.ptrtoint(word, _INDEX))
    return types.int64(words, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _pause(_: Any) -> Any:
    """Tell the processor that this thread spins."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@compiled("int64(int64[::1], int64, int64)")
def claim(phases: Ints, phase: int, num_tasks: int) -> int:
    """Return the next task of a phase; -1 when all are claimed."""
    task = _add(phases, (phase + 1) * _STRIDE, 1)
    return task if task < num_tasks else -1


@compiled("int64(int64[::1], int64, int64, int64, int64)")
def claim_near(phases: Ints, phase: int, num_tasks: int, thread: int, num_threads: int) -> int:
    """Return the next task of the range of a thread, else one of another range; -1 when all are claimed.

    All threads claim a phase's tasks by this function, or all by `claim`.
    """
    ranges = min(num_threads, num_tasks, _MOST_RANGES)
    own = thread * ranges // num_threads
    for turn in range(ranges):
        place = own + turn if own + turn < ranges else own + turn - ranges
        first, end = num_tasks * place // ranges, num_tasks * (place + 1) // ranges
        word = (phase + 1) * _STRIDE + _LINE * (place if place == 0 else place + 1)
        if _read(phases, word) < end - first:
            task = first + _add(phases, word, 1)
            if task < end:
                return task
    return -1


@compiled("void(int64[::1], int64, int64, int64)")
def complete_tasks(phases: Ints, phase: int, count: int, num_tasks: int) -> None:
    """Count claimed tasks as done; wake the threads that sleep if they are the phase's last ones."""
    word = (phase + 1) * _STRIDE + _DONE
    if count > 0 and _add(phases, word, count) + count == num_tasks and _futex_number and _read(phases, _SLEEPERS) > 0:
        _system_call(_futex_number, _address(phases, word), _WAKE, _EVERYONE, 0, 0, 0)


@compiled("void(int64[::1], int64, int64)")
def complete(phases: Ints, phase: int, num_tasks: int) -> None:
    """Count one claimed task as done."""
    complete_tasks(phases, phase, 1, num_tasks)


@compiled("void(int64[::1], int64, int64)")
def wait(phases: Ints, phase: int, num_tasks: int) -> None:
    """Return when all tasks of a phase are done."""
    word = (phase + 1) * _STRIDE + _DONE
    for _ in range(_SPINS):
        if _read(phases, word) >= num_tasks:
            return
        _pause()
    while _read(phases, word) < num_tasks:
        if _futex_number:
            # The system compares the word with `done` before the thread sleeps, so no completion is missed.
            _add(phases, _SLEEPERS, 1)
            done = _read(phases, word)
            if done < num_tasks:
                _system_call(_futex_number, _address(phases, word), _WAIT, done, 0, 0, 0)
            _add(phases, _SLEEPERS, -1)
        else:
            _sleep(np.uint32(100))
