"""The states that read the strings of which a schema's formulas hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..automaton.actions import UNBOUNDED
from ..automaton.automaton import Automaton
from ..automaton.blocks import Block
from ..automaton.literals import literal_states
from ..errors import GrammarError
from ..regex.dfa import DEAD, START, Dfa, free_kinds
from .formula import And, ExactlyOne, Formula, Not, Or, atoms, evaluate, has_negation, substitute
from .string_dfas import any_string, labelled_product, looping_states, plain_states
from .string_parts import FAR, StringPart, candidates, counted_chars, encoded_chars, spellings, string_dfa

QUOTE = 0x22
MAX_LEAST = 8  # characters that states are made for, rather than counted, where some texts are listed
MAX_SLASHES = 4  # of a text whose spellings are listed one by one
_Result = Callable[[tuple[bool, ...]], int]


def string_start(automaton: Automaton, formulas: tuple[Formula, ...], result: _Result) -> int | None:
    """The number of the state after the opening quote of a string for which the first formula holds; it ends with the
    result of the truth of the others. None when there is no such string."""
    need = formulas[0]
    if need is False:
        return None
    texts = candidates(need)
    if texts is not None:
        return _texts_start(automaton, texts, formulas, result)
    given = _given_texts(formulas)
    if given:
        # The given texts by themselves, all others as if none had been given.
        others = tuple(substitute(f, lambda part: part if part.texts is None else False) for f in formulas)
        machine = _machine(automaton, others, result, is_unrolled=True)
        if machine is None:
            return _texts_start(automaton, given, formulas, result)
        written = _written(automaton, given, formulas, result, machine[1])
        if not written:
            return machine[0] + START
        key = ("given", tuple(written), machine[0])
        if key not in automaton.memory:
            automaton.memory[key] = literal_states(automaton.tables, written, *machine)
        return int(automaton.memory[key])
    machine = _machine(automaton, formulas, result)
    return None if machine is None else machine[0] + START


def _given_texts(formulas: tuple[Formula, ...]) -> frozenset[str]:
    """The texts that are listed in some part, if each has few spellings."""
    parts = [part for formula in formulas for part in atoms(formula)]
    if any(part.most is not None or part.least > MAX_LEAST for part in parts):
        return frozenset()  # along the given texts no characters are counted
    texts = frozenset().union(*(part.texts for part in parts if part.texts is not None))
    few = all(len(spellings(text)) == 1 and text.count("/") <= MAX_SLASHES for text in texts)
    return texts if few else frozenset()


def _machine(
    automaton: Automaton, formulas: tuple[Formula, ...], result: _Result, is_unrolled: bool = False
) -> tuple[int, Dfa] | None:
    """The block for strings that are not listed, as `Automaton.block` numbers it, and its automaton. `is_unrolled`:
    nothing is counted in it."""
    need, tracked = formulas[0], formulas[1:]
    if need is False:
        return None
    single = not any(isinstance(f, And | Or | ExactlyOne | Not) for f in formulas)
    if single and all(f is need or f == need or isinstance(f, bool) for f in tracked):
        # One part decides all: its own truth, and constants.
        number = result(tuple(True if f == need else bool(f) for f in tracked))
        part = StringPart() if need is True else need
        if is_unrolled and part.least:
            block = automaton.block(("unrolled", part, number), lambda: _unrolled_block(part, number))
            return block, string_dfa(part)
        return _part_machine(automaton, part, number)
    return _product_machine(automaton, formulas, result)


def _unrolled_block(part: StringPart, result: int) -> Block:
    dfa = string_dfa(part)
    results = np.where(dfa.accepting, result, -1).astype(np.int32)
    plain, loops = plain_states(dfa), looping_states(dfa)
    return Block(dfa.table, dfa.class_of, results, QUOTE, plain=plain, loops=loops, free=free_kinds(dfa))


def _texts_start(
    automaton: Automaton, texts: frozenset[str], formulas: tuple[Formula, ...], result: _Result
) -> int | None:
    written = _written(automaton, texts, formulas, result, None)
    if not written:
        return None
    key = ("texts", tuple(written))
    if key not in automaton.memory:
        automaton.memory[key] = literal_states(automaton.tables, written)
    return int(automaton.memory[key])


def _written(
    automaton: Automaton, texts: frozenset[str], formulas: tuple[Formula, ...], result: _Result, others: Dfa | None
) -> list[tuple[bytes, int]]:
    """The texts as they are written, and what their closing quotes do: refuse, where only `others` would accept."""
    written: list[tuple[bytes, int]] = []
    is_decided = _decided(formulas)
    for text in sorted(texts):
        truths = [evaluate(f, lambda part: part.holds(text)) for f in formulas]  # noqa: B023
        is_certain = truths[0] and (is_decided or not is_doubtful(formulas, text))
        number = result(tuple(map(bool, truths[1:]))) if is_certain else -1
        for spelling in spellings(text) if others is None else _with_escapes(spellings(text)):
            if number >= 0:
                written.append((spelling, automaton.pop(number)))
            elif others is not None and others.accepts(spelling[:-1]):
                written.append((spelling, DEAD))
    return sorted(written)


def _with_escapes(written: list[bytes]) -> list[bytes]:
    r"""Also with `\/` for each `/`, as an open string may have it."""
    for at in range(max(text.count(b"/") for text in written)):
        written = [new for text in written for new in (text, _escaped_at(text, at))]
    return written


def _escaped_at(text: bytes, number: int) -> bytes:
    """With a backslash before one of its slashes."""
    parts = text.split(b"/")
    return b"/".join(parts[: number + 1]) + b"\\/" + b"/".join(parts[number + 1 :])


def is_doubtful(formulas: tuple[Formula, ...], text: str) -> bool:
    """Whether the truth of a formula is not known of a text: that of its parts is not, and it matters."""
    parts = (part for formula in formulas for part in atoms(formula))
    return not _decided(formulas) and any(part.is_doubtful(text) for part in parts)


def _decided(formulas: tuple[Formula, ...]) -> bool:
    """Whether only what certainly holds is accepted, whatever else might: a doubtful part is never wanted to fail."""
    return len(formulas) == 1 and not has_negation(formulas[0])


def _part_machine(automaton: Automaton, part: StringPart, result: int) -> tuple[int, Dfa] | None:
    counted = counted_chars(part.patterns, part.formats, part.least)
    if counted is not None and counted.shortest[START] > (FAR - 1 if part.most is None else part.most):
        return None
    base = automaton.block(("string", part, result), lambda: part_block(part, result))
    return base, any_string() if counted is None else encoded_chars(counted.chars)


@lru_cache(maxsize=1024)
def part_block(part: StringPart, result: int) -> Block:
    counted = counted_chars(part.patterns, part.formats, part.least)
    if counted is None:
        dfa = any_string()
        num_boundaries, least, shortest = START + 1, part.least, np.zeros(dfa.num_states, np.int64)
    else:
        dfa = encoded_chars(counted.chars)
        num_boundaries, least, shortest = counted.chars.num_states, counted.least, counted.shortest
    results = np.where(dfa.accepting, result, -1).astype(np.int32)
    if part.most is None and least == 0:
        plain, loops = plain_states(dfa), looping_states(dfa)
        return Block(dfa.table, dfa.class_of, results, QUOTE, plain=plain, loops=loops, free=free_kinds(dfa))
    boundary = np.arange(dfa.num_states) < num_boundaries
    away = np.full(dfa.num_states, FAR)
    away[:num_boundaries] = shortest[:num_boundaries]
    while True:  # inside a character: as near as where it may lead
        nearer = np.where(boundary, away, away[dfa.table].min(axis=1))
        if (nearer == away).all():
            break
        away = nearer
    away[DEAD] = 0
    most = np.full(dfa.num_states, UNBOUNDED) if part.most is None else part.most - away
    plain = plain_states(dfa) & (away == 0)
    return Block(
        dfa.table,
        dfa.class_of,
        results,
        closing=QUOTE,
        plain=plain if counted is None or plain[1:num_boundaries].all() else None,
        loops=looping_states(dfa),
        free=free_kinds(dfa, away == 0),
        counted=boundary,
        least=least,
        most=most.astype(np.int32),
    )


def _product_machine(automaton: Automaton, formulas: tuple[Formula, ...], result: _Result) -> tuple[int, Dfa] | None:
    key = ("product", formulas, id(result))
    if key in automaton.memory:
        return automaton.memory[key]  # type: ignore[no-any-return]
    parts = list(dict.fromkeys(atom for formula in formulas for atom in atoms(formula)))

    doubts = [] if _decided(formulas) else [dfa for part in parts for dfa in part.doubts()]

    def label(accepted: tuple[bool, ...]) -> int:
        if any(accepted[len(parts) :]):
            return -1
        truth = dict(zip(parts, accepted, strict=False))
        truths = [bool(evaluate(f, truth.__getitem__)) for f in formulas]
        return result(tuple(truths[1:])) if truths[0] else -1

    try:
        made = labelled_product(any_string(), [*map(string_dfa, parts), *doubts], label)
    except GrammarError as error:
        made = None  # refusing all is safe, where what is asked cannot be worked out
        error.patterns = frozenset().union(*(part.patterns for part in parts))
        automaton.refused.append(error)
    else:
        if made is None and doubts:
            names = sorted({name for part in parts for name in part.formats})
            automaton.refused.append(
                GrammarError(f"not all of the format {names[0]!r} is known, so it cannot be negated")
            )
    machine: tuple[int, Dfa] | None = None
    if made is not None:
        table, class_of, labels = made
        dfa = Dfa(table, class_of, labels >= 0)
        plain, loops, free = plain_states(dfa), looping_states(dfa), free_kinds(dfa)
        block = Block(table, class_of, labels, QUOTE, plain=plain, loops=loops, free=free)
        machine = automaton.block(key, lambda: block), dfa
    automaton.memory[key] = machine
    return machine
