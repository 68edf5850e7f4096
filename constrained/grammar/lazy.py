"""Grammars that begin at a trigger: whether each of a grammar's texts begins with one."""

from __future__ import annotations

from collections.abc import Collection

from ..budget import INTERPRETED, CompileBudget
from ..regex.dfa import DEAD, START, Dfa
from .cfg import Cfg
from .earley import EarleySets
from .states import CompiledCfg, first_state


def begins_with_match(cfg: Cfg, dfa: Dfa, budget: CompileBudget) -> bool:
    """Return True if every text of a grammar begins with one of an automaton. Raises GrammarError beyond the budget."""
    todo = [(START, first_state(CompiledCfg.of(cfg)))]
    known = {*todo}
    for own, state in todo:
        budget.check(len(todo), 256 * INTERPRETED)
        if state.accepts:
            return False
        class_of, following = state.following()
        for byte, number in enumerate(class_of.tolist()):
            after, now = following[number], int(dfa.table[own, dfa.class_of[byte]])
            if dfa.accepting[now] or not (after.readings or after.accepts):
                continue
            if now == DEAD:
                return False
            if (now, after) not in known:
                known.add((now, after))
                todo.append((now, after))
    return True


def begins_with_token(cfg: Cfg, tokens: Collection[int | str]) -> bool:
    """Return True if every text of a grammar begins with one of some tokens."""
    sets = EarleySets(cfg.alternatives, cfg.nullable)
    first = [cfg.terminals[terminal].token for terminal in sets.expected(sets.start)]
    return not sets.accepts(sets.start) and all(
        token is not None and not token.is_excluded and set(token.tokens) <= set(tokens) for token in first
    )
