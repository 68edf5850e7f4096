"""Masks of many outputs at once: their walks take place in one compiled call, over threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import loops
from ..errors import GrammarError
from .generation import Generation
from .masks import PACKAGE, NotReadyError
from .matcher import Matcher
from .walks import MaskWalk, walk_together


def fill_batch(matchers: Sequence[Any | None], out: NDArray[np.int32]) -> None:
    """Write the masks of a batch into int32[B, ceil(V / 32)]. Rows without a matcher get all bits set.

    Raises GrammarError if an output is too complex. The others' masks have been computed then: a second call without
    that output finds them.
    """
    native = [matcher for matcher in matchers if isinstance(matcher, Matcher)]
    for one in native:
        one.move_if_outdated()
    with _held({matcher.generation for matcher in native}, wait=True) as generations:
        _run([matcher for matcher in native if matcher.generation in generations])
    for row, matcher in zip(out, matchers, strict=True):
        if matcher is None:
            row[:] = -1
        else:
            matcher.mask(row)


def prepare_together(matchers: Iterable[Any]) -> None:
    """Let the masks be known that need a walk, but no new state: `Matcher.is_ready` is True of these afterwards.

    Other engines' matchers, and those whose automaton another thread uses, are left as they are.
    """
    native = [native for matcher in matchers if isinstance(native := matcher.native(), Matcher)]
    with _held({matcher.generation for matcher in native}, wait=False) as generations:
        for generation in generations:
            generation.walker.may_provide = False
        try:
            _run([matcher for matcher in native if matcher.generation in generations and not matcher.is_outdated])
        finally:
            for generation in generations:
                generation.walker.may_provide = True


@contextmanager
def _held(generations: set[Generation], *, wait: bool) -> Iterator[set[Generation]]:
    """Hold the locks of generations in the body: of all, or of those that are free."""
    held = set()
    try:
        for generation in sorted(generations, key=id):  # in one order, so that two batches cannot wait for each other
            if generation.lock.acquire(blocking=wait):
                held.add(generation)
        yield held
    finally:
        for generation in held:
            generation.lock.release()


def _run(matchers: list[Matcher]) -> None:
    """Compute the masks of matchers that are not known.

    Of those that need the same mask, one computes it, and the others find it. What fails is left to `Matcher.mask`.
    """
    waiting = matchers if loops.ready(PACKAGE) else []
    while waiting:
        begun: list[tuple[Matcher, MaskWalk]] = []
        later, keys = [], set()
        for matcher in waiting:
            try:
                key = matcher.mask_key()
                if key in keys:
                    later.append(matcher)
                elif (walk := matcher.begin_mask()) is not None:
                    begun.append((matcher, walk))
                    keys.add(key)
            except (NotReadyError, GrammarError):
                continue
        # What a walk stops for takes longer than the walk, so those that stopped go on one by one.
        results = walk_together([walk.arguments() for _, walk in begun])
        for (matcher, walk), (status, depth) in zip(begun, results, strict=True):
            with suppress(NotReadyError, GrammarError):
                matcher.finish_mask(walk, status, depth)
        waiting = later
