"""Grammars that begin at a trigger: whether each of a grammar's texts begins with one of some words."""

from __future__ import annotations

from collections.abc import Collection

from ..budget import INTERPRETED, CompileBudget
from .cfg import Cfg
from .states import CompiledCfg, first_state


def begins_with_one_of(cfg: Cfg, words: Collection[bytes], budget: CompileBudget) -> bool:
    """Return True if every text of a grammar begins with one of the words. Raises GrammarError beyond the budget."""
    prefixes = {word[:length] for word in words for length in range(len(word))}
    todo = [(b"", first_state(CompiledCfg.of(cfg)))]
    for prefix, state in todo:
        budget.check(len(todo), 256 * INTERPRETED)
        if state.accepts:
            return False
        class_of, following = state.following()
        for byte, number in enumerate(class_of.tolist()):
            after, longer = following[number], prefix + bytes([byte])
            if longer in words or not (after.readings or after.accepts):
                continue
            if longer not in prefixes:
                return False
            todo.append((longer, after))
    return True
