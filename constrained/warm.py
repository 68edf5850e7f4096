"""What the first constraint of a process would wait for, made before: the compiled loops and the formats' automata.

Knows what is slow the first time; changes nothing that a constraint means.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .schema.formats import PATTERNS
from .schema.string_dfas import any_string, labelled_product, plain_states
from .schema.string_parts import StringPart
from .schema.string_states import part_block


@cache
def warm_up() -> None:
    """About a third of a second, once a process; seconds where the loops were never compiled."""
    from .automaton import walk_kernel as kernel  # here, for it imports numba

    if kernel.IS_COMPILED:
        for name in (
            "automaton.walk_packed",
            "regex.dfa_kernel",
            "regex.subset_kernel",
        ):  # before what follows, whose processor time is bounded
            import_module(f".{name}", __package__)
    plain_states(any_string())
    labelled_product(any_string(), [any_string()], lambda _: 0)
    for name in PATTERNS:
        part_block(StringPart(formats=frozenset([name])), 0)
