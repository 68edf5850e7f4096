"""Mutated inputs for parsers, and tests that go on for FUZZ_SECONDS each, with new examples in every run.

Without the variable a test takes a few examples, the same each time. `make fuzz SECONDS=300` runs them longer.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
MAX_GROWTH = 1 << 20  # KiB that a test may add to the process's peak memory
Test = Callable[[Any], None]

EXTREME_VALUES: list[Any] = [
    *[None, True, -1, 0, 1, 2**31, 2**63, 10**400, -1.5, 1e308],
    *["", "a", "\x00", "\ud800", "é" * 300, "(" * 300, [], {}, [[]], {"": {}}],
]
EXTREME_BYTES = [
    *[b"", b"\x00", b"\xff", b"\x00" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\x80" * 9, b"\r\n", b"\n", b'"'],
    *["\ud800".encode("utf-8", "surrogatepass"), b"{" * 50, b"[" * 2000, b"9" * 400, b"%s%n", b"../"],
]


def fuzz(inputs: st.SearchStrategy[Any], examples: int = 100) -> Callable[[Test], Callable[[], None]]:
    """Make a test of one argument that takes examples of `inputs`, for FUZZ_SECONDS if that is set.

    Fails too if it adds more than MAX_GROWTH to the peak memory of the process.
    """
    options = settings(
        max_examples=300 if FUZZ_SECONDS else examples,
        derandomize=not FUZZ_SECONDS,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # Shrinking a slow parser's input takes minutes; a mutated seed is readable as it is.
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if FUZZ_SECONDS else [])],
    )

    def decorate(test: Test) -> Callable[[], None]:
        run = options(given(inputs)(test))

        @pytest.mark.fuzz
        def repeated() -> None:
            before, end = _peak_kib(), time.monotonic() + FUZZ_SECONDS
            run()
            while time.monotonic() < end:
                run()
            assert _peak_kib() - before < MAX_GROWTH

        repeated.__name__, repeated.__doc__ = test.__name__, test.__doc__
        repeated.__module__ = test.__module__
        return repeated

    return decorate


def _peak_kib() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak  # macOS counts bytes


@st.composite
def mutated_bytes(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw a seed with some of its bytes cut, repeated, replaced, or taken from another seed."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from([0, 1, 2, 4, 8, 50]))
        match draw(st.integers(0, 5)):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[at + size :]
            case 2:
                data = data[:at] + data[at : at + size] * 2 + data[at + size :]
            case 3:
                data = data[:at] + draw(st.sampled_from(EXTREME_BYTES)) + data[at + size :]
            case 4:
                other = draw(st.sampled_from(seeds))
                start = draw(st.integers(0, len(other)))
                data = data[:at] + other[start : start + 30] + data[at + size :]
            case _:
                data = data[:at] + draw(st.binary(max_size=8)) + data[at + size :]
    return data


def mutated_text(seeds: Sequence[str]) -> st.SearchStrategy[str]:
    """Draw texts, valid Unicode or with replacement characters."""
    encoded = [seed.encode() for seed in seeds]
    return mutated_bytes(encoded).map(lambda data: data.decode("utf-8", "replace"))


@st.composite
def mutated_json(draw: st.DrawFn, seeds: Sequence[Any]) -> Any:
    """Draw a seed with some values at any depth replaced by extreme ones or by others of its values, or removed."""
    value = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        places = _places(value)
        if not places:
            break
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.booleans()):
            holder[key] = copy.deepcopy(draw(st.sampled_from(EXTREME_VALUES)))
        elif draw(st.booleans()):
            other, other_key = places[draw(st.integers(0, len(places) - 1))]
            holder[key] = copy.deepcopy(other[other_key])
        else:
            del holder[key]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """List the places of values inside an object or array: the container and the key or index."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack and len(found) < 2000:
        holder = stack.pop()
        keys: Any = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in list(keys):
            found.append((holder, key))
            stack.append(holder[key])
    return found


def dump(value: Any) -> bytes:
    """Encode a mutated JSON value, lone surrogates included as escapes."""
    return json.dumps(value).encode()
