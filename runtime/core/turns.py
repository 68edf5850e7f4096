"""Runs jobs in threads, one at a time, by turns of counted work, so that short jobs pass long ones.

Jobs belong to lines. Of one line, one job takes place after the other; of several lines, that one goes on whose jobs
have had the least work, which is least attained service. Work is what the jobs count with `constrained.budget`, not
time. Every second turn is the oldest job's, so that none waits for ever.

A job that gives way keeps the locks that it holds. So jobs that may want the same lock belong to one line, and nobody
else may wait for such a lock.
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
HALF_LIFE = 100_000_000  # steps of all lines, after which those that a line has had count half
MAX_BEGUN = 64  # jobs that have begun, each with a thread
MAX_LINES = 1024  # whose work is remembered


@dataclass(eq=False)
class _Line:
    """Jobs of which one takes place after the other, and the steps that they have had."""

    jobs: deque[_Job] = field(default_factory=deque)
    steps: int = 0

    @property
    def level(self) -> int:
        """Logarithm of the work: lines of about as much work finish one after the other, and not all at the end."""
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
    """Lines of jobs, of which at most one is at work."""

    def __init__(self, name: str) -> None:
        """`name` is that of the threads."""
        self._threads = ThreadPoolExecutor(MAX_BEGUN, thread_name_prefix=name)
        self._lock = Lock()
        self._lines: OrderedDict[Hashable, _Line] = OrderedDict()
        self._running: _Job | None = None
        self._turn_steps = self._left = 0  # of its turn
        self._num_jobs = self._num_begun = self._num_turns = self._num_steps = 0
        self._closed = False

    def submit(self, line: Hashable, work: Callable[[], T]) -> Future[T]:
        """Run `work` in a thread, after the jobs of its line that came before."""
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
        self._closed = True
        for job in [job for line in self._lines.values() for job in line.jobs]:
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
        """Choose whose turn it is, and begin the turn. Call under the lock."""
        waiting = [line.jobs[0] for line in self._lines.values() if line.jobs and not self._closed]
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
        """Let a job go on in its thread, or begin in one. Call under the lock."""
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
        """End a job; return the next one, if it begins, and wake it up otherwise."""
        with self._lock:
            self._end_turn(job)
            job.line.jobs.popleft()
            self._num_begun -= 1
            following = self._next()
            if following is not None and not following.has_begun:
                self._begin(following)
                return following
            self._resume(following)
            return None

    def _count(self, job: _Job, steps: int) -> None:
        """Count steps of the running job, and give way to others after its turn."""
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
        if self._closed or job.is_stopped:
            raise CancelledError

    def _end_turn(self, job: _Job) -> None:
        """Count the turn's steps to the job's line."""
        num_steps = self._turn_steps - self._left
        job.line.steps += num_steps
        self._num_steps += num_steps
        if self._num_steps >= HALF_LIFE:
            self._num_steps = 0
            for line in self._lines.values():
                line.steps //= 2
