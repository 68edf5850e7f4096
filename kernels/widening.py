"""Which products widen weights of codes to bfloat16: those of a long prompt's rows, never those of other rows.

A product with widened weights rounds otherwise than one of codes (`kernels/cpu/products/widened.py`). Which of them a
row meets is therefore a fact of the row, and depends on no other row of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Tokens of a prompt from which on its rows meet widened weights. Alone, 24 rows take 1.0 to 1.4 times as long as by
# codes with scales by 32 inputs, and 40 as long; in a step with other prompts, which share the widening, half as long.
WIDENED_FROM = 24
_widens = ContextVar("widens", default=False)


@contextmanager
def widened_products(on: bool) -> Iterator[None]:
    """Multiply by widened weights, where a matrix has them, until the end of the block; with `on` False by codes."""
    token = _widens.set(on)
    try:
        yield
    finally:
        _widens.reset(token)


def widens() -> bool:
    """Return True inside `widened_products(True)`."""
    return _widens.get()
