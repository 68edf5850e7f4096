"""Prepares what a grammar says about the next token: off the scheduler's loop, where that takes long.

After a token, a request's grammar has to accept it, to say which text is forced, and which tokens may follow. Mostly
all of that is known from earlier outputs, and is done at once. What is not known is worked out in a thread. Until then
the request keeps its pages and sits out, so that the others need not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import cast

from ....constrained.backends import OutputMatcher, prepare_together
from ....constrained.errors import GrammarError
from ...protocol.errors import RequestError
from ...protocol.sampling import Constraint
from ..counters import SchedulerCounters
from ..interfaces import VocabularyInfo
from ..jump_forward import Retokenise, append_forced, follow_continued, jump_forward, only_end
from ..request import Request
from .sampling_inputs import grammar_too_complex

MAX_WAIT = 0.002  # seconds that a step waits for masks that were begun after the step before
WAIT_DIVISOR = 4  # and at most 1/4 of the time since its last wait, because requests without grammars wait with it
IDLE_WAIT = 0.001  # seconds, where no request can be computed before its mask is there

Submit = Callable[[Constraint, Callable[[], None]], Future[None]]  # run what a constraint's grammar does, in a thread


class MaskPreparation:
    """The requests whose grammars are at work."""

    def __init__(
        self,
        submit: Submit,
        jump: Callable[[Request], None] | None,
        follow_continued: Callable[[Request], bool],
    ) -> None:
        """`jump` appends the forced text that the grammar knows; None if none is wanted. `follow_continued` lets the
        grammar follow the continued tokens of a prompt, in a thread."""
        self._submit = submit
        self._jump = jump
        self._follow_continued = follow_continued
        self._jobs: dict[Request, Future[None]] = {}
        self._walking: list[Request] = []  # their masks perhaps take no more than a walk, done for all together
        self._fresh: set[Future[None]] = set()  # those that no step has waited for
        self._last_wait = 0.0  # when it ended

    def __bool__(self) -> bool:
        """Return True while any request awaits its mask."""
        return bool(self._jobs or self._walking)

    def start(self, request: Request) -> None:
        """Begin a request's output, or continue it. Raises RequestError if it cannot go on."""
        if request.continued_due:
            request.awaits_mask = True
            self._begin(request)
        else:
            self.follow(request, None)

    def follow(self, request: Request, token: int | None) -> None:
        """Follow a request's output, which goes on after `token`, or begins. Raises RequestError if it cannot go on."""
        self._follow(request, token)
        self._continue(request)

    def follow_at_once(self, request: Request, token: int) -> bool:
        """Follow a token that was sampled together with later ones. Returns False if that takes long: then it is
        followed as by `follow`, and the later ones must be sampled again."""
        self._follow(request, token)
        self._continue(request, needs_mask=False)
        return not request.awaits_mask

    def _follow(self, request: Request, token: int | None) -> None:
        assert request not in self._jobs
        assert request not in self._walking
        has_room = request.end - 1 > len(request.tokens)
        request.unaccepted, request.jump_due = token, self._jump is not None and has_room

    def forget(self, request: Request) -> None:
        """Prepare nothing more for a request that ended."""
        if request in self._walking:
            self._walking.remove(request)
        if (job := self._jobs.pop(request, None)) is not None:
            job.cancel()
            self._fresh.discard(job)

    def settle(self) -> Iterator[tuple[Request, RequestError | None]]:
        """Yield the requests whose masks are ready, or that cannot go on. Waits a little for those begun last."""
        now = time.monotonic()
        if not self:
            self._last_wait = now
            return
        end = now + min(MAX_WAIT, (now - self._last_wait) / WAIT_DIVISOR)
        while True:
            yield from self._walk()
            for request, job in [(request, job) for request, job in self._jobs.items() if job.done()]:
                if self._jobs.get(request) is not job:
                    continue  # ended, because another one did
                del self._jobs[request]
                self._fresh.discard(job)
                try:
                    _result(job)
                    self._continue(request)
                except RequestError as error:
                    yield request, error
                else:
                    if not request.awaits_mask:
                        yield request, None
            left = end - time.monotonic()
            if self._walking:
                continue
            if not self._fresh or left <= 0:
                break
            wait(self._fresh, left, FIRST_COMPLETED)
        self._fresh.clear()
        self._last_wait = time.monotonic()

    def _walk(self) -> Iterator[tuple[Request, None]]:
        """Yield the requests whose masks took no more than a walk."""
        walking, self._walking = self._walking, []
        matchers = [cast(OutputMatcher, request.matcher) for request in walking]
        if matchers:
            prepare_together(matchers)
        for request, matcher in zip(walking, matchers, strict=True):
            if matcher.is_ready(forced=False):
                request.awaits_mask = False
                yield request, None
            else:
                self._begin(request)

    def wait_for_any(self) -> None:
        """Wait until a request's mask is ready, but not long."""
        wait(self._jobs.values(), IDLE_WAIT, FIRST_COMPLETED)

    def _continue(self, request: Request, *, needs_mask: bool = True) -> None:
        """Do what can be done at once; leave the rest to a thread."""
        matcher = request.matcher
        assert matcher is not None
        request.awaits_mask = True
        try:
            if request.unaccepted is not None:
                accepted = matcher.accept_at_once(request.unaccepted)
                if accepted is None:
                    return self._begin(request)
                assert accepted, f"token {request.unaccepted} was sampled against its mask"
                request.unaccepted = None
            if request.jump_due and self._jump is not None:
                if not (request.forced_rest or matcher.is_ready(forced=True)):
                    return self._begin(request)
                request.jump_due = False
                num_tokens = len(request.tokens)
                self._jump(request)
                if len(request.tokens) > num_tokens:
                    needs_mask = True  # perhaps none of the sampled tokens comes after the forced ones
                    if request.draft is not None:  # what it guessed of the forced text needs no verification
                        request.draft = request.draft.after(request.tokens[num_tokens:])
                    if (scored := request.next_scored) is not None:
                        request.num_computed = min(request.num_computed, scored - 1)
            is_check = not request.message.sampling.max_new_tokens  # whether its first mask can be made
            if needs_mask and (request.wants_tokens or is_check) and not matcher.is_ready(forced=False):
                self._walking.append(request)
                return None
        except GrammarError as error:
            raise grammar_too_complex(error) from None
        request.awaits_mask = False
        return None

    def _begin(self, request: Request) -> None:
        constraint = request.message.sampling.constraint
        assert constraint is not None
        job = self._submit(constraint, lambda: self._prepare(request))
        self._jobs[request] = job
        self._fresh.add(job)

    def _prepare(self, request: Request) -> None:
        """Do all that takes long. Nobody else uses the matcher meanwhile."""
        matcher = request.matcher
        assert matcher is not None
        if request.continued_due:
            request.jump_due = self._follow_continued(request)
            if request.jump_due:
                return
        if request.unaccepted is not None:
            accepted = matcher.accept(request.unaccepted)
            assert accepted, f"token {request.unaccepted} was sampled against its mask"
            request.unaccepted = None
        matcher.prepare(forced=request.jump_due)


def _result(job: Future[None]) -> None:
    try:
        job.result()
    except GrammarError as error:
        raise grammar_too_complex(error) from None
    except (RecursionError, MemoryError) as error:  # of this request's grammar: the others go on
        raise grammar_too_complex(GrammarError(str(error) or type(error).__name__)) from None


class GrammarFollowing:
    """The grammars of the running requests, which follow outputs and append the text that they force: at once, or as
    their masks are prepared."""

    def __init__(
        self, retokenise: Retokenise | None, prepare_masks: Submit | None, counters: SchedulerCounters
    ) -> None:
        """`retokenise` None: no forced text is appended. `prepare_masks` runs what takes long in a thread; None: it is
        done when it is needed."""
        self._retokenise = retokenise
        self._counters = counters
        self._follow_continued = partial(follow_continued, retokenise=retokenise)
        jump = None if retokenise is None else self._jump
        self._preparation = (
            None if prepare_masks is None else MaskPreparation(prepare_masks, jump, self._follow_continued)
        )

    def __bool__(self) -> bool:
        """Return True while any request awaits its mask."""
        return bool(self._preparation)

    def start(self, request: Request) -> None:
        """Begin a request's output, or continue it. Raises RequestError if it cannot go on."""
        if self._preparation is not None:
            self._preparation.start(request)
        elif not request.continued_due or self._follow_continued(request):
            self._jump(request)

    def follow(self, request: Request, token: int | None, goes_on: bool, is_last: bool) -> bool:
        """Let a request's grammar follow a token of its output, and append what it forces. Returns False if that takes
        too long for the tokens after it to be taken. Raises RequestError when the grammar is too complex to follow."""
        assert request.matcher is not None
        if self._preparation is not None:
            if goes_on and not is_last:
                assert token is not None
                return self._preparation.follow_at_once(request, token)
            if goes_on:
                self._preparation.follow(request, token)
            return True
        if token is not None:
            try:
                accepted = request.matcher.accept(token)
            except GrammarError as error:
                raise grammar_too_complex(error) from None
            assert accepted, f"token {token} was sampled against its mask"
        if goes_on:
            self._jump(request)
        return True

    def forced_end(self, request: Request, vocabulary: VocabularyInfo) -> int | None:
        """Return the end of sequence if the output can only end here; None otherwise, or if that is not known yet."""
        if self._retokenise is None or request.is_held or (end := only_end(request, vocabulary)) is None:
            return None
        self._counters.num_forced_tokens += 1
        return end

    def settle(self) -> Iterator[tuple[Request, RequestError | None]]:
        """Yield the requests whose masks have become ready, or that cannot go on. Waits a little for those begun
        last."""
        if self._preparation is not None:
            yield from self._preparation.settle()

    def wait_for_any(self) -> None:
        """Wait until a request's mask is ready, but not long."""
        if self._preparation is not None:
            self._preparation.wait_for_any()

    def forget(self, request: Request) -> None:
        """Prepare nothing more for a request that ended."""
        if self._preparation is not None:
            self._preparation.forget(request)

    def _jump(self, request: Request) -> None:
        if request.forced_rest:
            ids, request.forced_rest = request.forced_rest, []
            self._counters.num_forced_tokens += append_forced(request, ids)
        elif self._retokenise is not None:
            self._counters.num_forced_tokens += jump_forward(request, self._retokenise)
