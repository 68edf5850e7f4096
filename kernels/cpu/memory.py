"""Writes numbers to addresses in compiled loops.

Buffers of bytes hold several types, and numba's views of another type compile slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def put(_: Any, address: Any, value: Any) -> Any:
    """Write an integer or float of any type at an address, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        place, number = arguments
        builder.store(number, builder.inttoptr(place, number.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, value), generate
