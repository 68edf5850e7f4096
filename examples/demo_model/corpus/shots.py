"""Few-shot prompts: zero to three solved examples before the query, all in one format."""

from __future__ import annotations

from collections.abc import Callable

from .case import Case
from .draw import Draw


def with_shots(d: Draw, one: Callable[[], tuple[str, str]], head: str = "") -> Case:
    """Write the examples and the query; `one` draws a (prompt, answer)."""
    gap = d.pick(["", "\n"])
    shots = ""
    for _ in range(d.pick([0, 0, 1, 2, 3])):
        text, answer = one()
        shots += f"{text} {answer}\n{gap}"
    text, answer = one()
    return Case("judging", head + shots + text, f" {answer}")
