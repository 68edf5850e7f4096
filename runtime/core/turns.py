"""Cooperative scheduler of jobs in threads: one runs at a time, by turns of counted work; short jobs pass long ones.

Each job belongs to a line, a queue whose jobs run one after the other. The next turn is that of the line whose jobs
have had the least work so far (least attained service). Work is the steps that jobs report to `constrained.budget`, not
time. Every second turn is the oldest job's, so that none starves.

A job yields inside `constrained.budget.count`, and keeps the locks that it holds then. So jobs that may want the same
lock belong to one line, and no other thread may wait for such a lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from ...constrained.budget import counted

T = TypeVar("T")
TURN_STEPS = 100_000  # about a millisecond
FIRST_STEPS = 30_000  # of a line's first turn, in which a plain schema is compiled
OLDEST_SHARE = 2  # one in so many turns is the oldest job's
_HALF_LIFE = 100_000_000  # steps of all lines, after which those that a line has had count half
MAX_BEGUN = 64  # jobs that have begun, each with a thread
MAX_LINES = 1024  # whose work is remembered


@dataclass(eq=False)
class _Line:
    """Queue of jobs that run one after the other, and the steps that they have had."""

    jobs: deque[_Job] = field(default_factory=deque)
    steps: int = 0

    @property
    def level(self) -> int:
        """Logarithm of the work. On one level the oldest job runs first, so lines of like work do not all end last."""
        return 0 if self.steps < FIRST_STEPS else 1 + (self.steps // TURN_STEPS).bit_length() // 2


@dataclass(eq=False)
class _Job:
    line: _Line
    serial: int
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    resumed: Lock = field(default_factory=Lock)  # held while it waits for its turn
    has_begun: bool = False
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self.resumed.acquire()


class Turns:
    """Runs the jobs of lines by turns, at most one at a time. Thread-safe."""

    def __init__(self, name: str) -> None:
        """`name` is the prefix of the threads' names."""
        self._threads = ThreadPoolExecutor(MAX_BEGUN, thread_name_prefix=name)
        self._lock = Lock()
        self._lines: OrderedDict[Hashable, _Line] = OrderedDict()  # the least recently used first
        self._busy: dict[_Line, None] = {}  # lines that have jobs
        self._running: _Job | None = None
        self._turn_steps = self._left = 0  # of the running job's turn: all steps, and those that are left
        self._num_jobs = self._num_begun = self._num_turns = self._num_steps = 0
        self._closed = False

    def submit(self, line: Hashable, work: Callable[[], T]) -> Future[T]:
        """Run `work` in a thread, after the jobs that were submitted to its line before."""
        with self._lock:
            if self._closed:
                raise RuntimeError("no job can begin any more")
            if line not in self._lines:
                self._forget_lines()
                self._lines[line] = _Line()
            self._lines.move_to_end(line)
            self._num_jobs += 1
            job = _Job(self._lines[line], self._num_jobs, work)
            job.line.jobs.append(job)
            self._busy[job.line] = None
            if self._running is None:
                self._resume(self._next())
            return job.future

    def stop(self, line: Hashable, future: Future[Any]) -> None:
        """End a job that has begun when it next counts work, with CancelledError."""
        with self._lock:
            jobs = self._lines[line].jobs if line in self._lines else ()
            for job in jobs:
                job.is_stopped |= job.future is future

    def close(self) -> None:
        """Cancel the jobs that have not begun, and end the others when they next count work."""
        with self._lock:
            self._close()
        self._threads.shutdown(wait=False)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for job in [job for line in self._busy for job in line.jobs]:
            if not job.has_begun:
                job.future.cancel()
            elif job is not self._running:
                job.resumed.release()

    def _forget_lines(self) -> None:
        """Forget the work of idle lines beyond the bound, the least recently used first."""
        if len(self._lines) >= MAX_LINES:
            for name in [name for name, line in self._lines.items() if not line.jobs][: MAX_LINES // 2]:
                del self._lines[name]

    def _next(self) -> _Job | None:
        """Choose the job whose turn is next, and begin the turn. Call under the lock."""
        waiting = [] if self._closed else [line.jobs[0] for line in self._busy]
        if self._num_begun >= MAX_BEGUN:
            waiting = [job for job in waiting if job.has_begun]
        self._num_turns += 1
        if not waiting:
            job = None
        elif self._num_turns % OLDEST_SHARE:
            job = min(waiting, key=lambda job: (not job.is_stopped, job.line.level, job.serial))
        else:
            job = min(waiting, key=lambda job: job.serial)
        self._running = job
        self._turn_steps = self._left = TURN_STEPS if job is None or job.line.level else FIRST_STEPS
        return job

    def _resume(self, job: _Job | None) -> None:
        """Wake up a job's thread, or begin the job in one. Call under the lock."""
        if job is None:
            return
        if job.has_begun:
            job.resumed.release()
            return
        try:
            self._threads.submit(self._run, job)
        except RuntimeError:  # the interpreter is exiting, and begins no more threads
            self._close()
        else:
            self._begin(job)

    def _begin(self, job: _Job) -> None:
        job.has_begun = True
        self._num_begun += 1

    def _run(self, job: _Job | None) -> None:
        """Run a job, and then those that begin next."""
        while job is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    with counted(partial(self._count, job)):
                        result = job.work()
                except BaseException as error:
                    job.future.set_exception(error)
                else:
                    job.future.set_result(result)
            job = self._after(job)

    def _after(self, job: _Job) -> _Job | None:
        """End a job. Return the next one if it has not begun, for this thread to run; else wake up its thread."""
        with self._lock:
            self._end_turn(job)
            job.line.jobs.popleft()
            if not job.line.jobs:
                del self._busy[job.line]
            self._num_begun -= 1
            following = self._next()
            if following is not None and not following.has_begun:
                self._begin(following)
                return following
            self._resume(following)
            return None

    def _count(self, job: _Job, steps: int) -> None:
        """Count steps of the running job, and yield to others at the end of its turn."""
        self._left -= steps
        if self._left > 0:
            return
        with self._lock:
            self._check(job)
            self._end_turn(job)
            following = self._next()
            if following is job:
                return
            self._resume(following)
        job.resumed.acquire()
        self._check(job)

    def _check(self, job: _Job) -> None:
        """Raise CancelledError in a job that must end."""
        if self._closed or job.is_stopped:
            raise CancelledError

    def _end_turn(self, job: _Job) -> None:
        """Count the turn's steps to the job's line."""
        num_steps = self._turn_steps - self._left
        job.line.steps += num_steps
        self._num_steps += num_steps
        if self._num_steps >= _HALF_LIFE:
            self._num_steps = 0
            for line in self._lines.values():
                line.steps //= 2
