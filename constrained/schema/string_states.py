"""States of a string after its opening quote: given texts as literals, all other strings as blocks of automata."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..automaton.actions import UNBOUNDED
from ..automaton.automaton import Automaton
from ..automaton.blocks import Block
from ..automaton.literals import literal_states
from ..errors import GrammarError
from ..regex.dfa import DEAD, START, Dfa, free_kinds
from .formula import And, ExactlyOne, Formula, Not, Or, Truths, atoms, evaluate, has_negation, reader, substitute
from .string_dfas import any_string, labelled_product, looping_states, plain_states
from .string_parts import (
    UNREACHABLE,
    StringPart,
    candidates,
    counted_chars,
    spellings,
    string_content_dfa,
    string_dfa,
)

QUOTE = 0x22
ResultOf = Callable[[Truths], int]  # the result code of the truths of tracked formulas
MAX_UNROLLED_LENGTH = 8  # a minimum length that is unrolled into states instead of counted
MAX_SLASHES = 4  # of a text whose spellings are listed


def result_code(formulas: Iterable[Formula], truth: Callable[[Any], bool | None], result: ResultOf) -> int:
    """Return the result code of the truths of the tracked formulas, or -1 if the first formula does not hold."""
    need, *tracked = [bool(evaluate(formula, truth)) for formula in formulas]
    return result(tuple(tracked)) if need else -1


def string_start(automaton: Automaton, formulas: tuple[Formula, ...], result: ResultOf) -> int | None:
    """Return the number of the state after the opening quote, or None if no string satisfies the first formula.

    The string ends with the result code of the truths of the other formulas.
    """
    need = formulas[0]
    if need is False:
        return None
    texts = candidates(need)
    if texts is not None:
        return _texts_start(automaton, texts, formulas, result)
    listed = _listed_texts(formulas)
    if listed:
        # Listed texts get literal states. All other strings are read as if no texts were listed.
        others = tuple(substitute(f, lambda part: part if part.texts is None else False) for f in formulas)
        strings = _open_strings(automaton, others, result, is_unrolled=True)
        if strings is None:
            return _texts_start(automaton, listed, formulas, result)
        literals = _literals(automaton, listed, formulas, result, strings[1])
        if not literals:
            return strings[0] + START
        key = ("listed", tuple(literals), strings[0])
        if key not in automaton.memory:
            automaton.memory[key] = literal_states(automaton.tables, literals, *strings)
        return int(automaton.memory[key])
    strings = _open_strings(automaton, formulas, result)
    return None if strings is None else strings[0] + START


def _listed_texts(formulas: tuple[Formula, ...]) -> frozenset[str]:
    """Return the texts that some part lists, if each has few spellings."""
    parts = [part for formula in formulas for part in atoms(formula)]
    if any(part.most is not None or part.least > MAX_UNROLLED_LENGTH for part in parts):
        return frozenset()  # literal states do not count characters
    texts = frozenset().union(*(part.texts for part in parts if part.texts is not None))
    few = all(len(spellings(text)) == 1 and text.count("/") <= MAX_SLASHES for text in texts)
    return texts if few else frozenset()


def _open_strings(
    automaton: Automaton, formulas: tuple[Formula, ...], result: ResultOf, is_unrolled: bool = False
) -> tuple[int, Dfa] | None:
    """Return the number of the block for strings that are not listed, and its automaton.

    `is_unrolled`: the block counts no characters.
    """
    need, tracked = formulas[0], formulas[1:]
    if need is False:
        return None
    single = not any(isinstance(f, And | Or | ExactlyOne | Not) for f in formulas)
    if single and all(f is need or f == need or isinstance(f, bool) for f in tracked):
        # All truths are that of one part, or constant.
        number = result(tuple(True if f == need else bool(f) for f in tracked))
        part = StringPart() if need is True else need
        if is_unrolled and part.least:
            block = automaton.block(("unrolled", part, number), lambda: _unrolled_block(part, number))
            return block, string_dfa(part)
        return _part_strings(automaton, part, number)
    return _product_strings(automaton, formulas, result)


def _unrolled_block(part: StringPart, result: int) -> Block:
    dfa = string_dfa(part)
    return _string_block(dfa, np.where(dfa.accepting, result, -1).astype(np.int32))


def _string_block(dfa: Dfa, results: NDArray[np.int32]) -> Block:
    """Return the block of an automaton of string contents, which ends at the quote with the result of its state."""
    plain, loops, free = plain_states(dfa), looping_states(dfa), free_kinds(dfa)
    return Block(dfa.table, dfa.class_of, results, QUOTE, plain=plain, loops=loops, free=free)


def _texts_start(
    automaton: Automaton, texts: frozenset[str], formulas: tuple[Formula, ...], result: ResultOf
) -> int | None:
    literals = _literals(automaton, texts, formulas, result, None)
    if not literals:
        return None
    key = ("texts", tuple(literals))
    if key not in automaton.memory:
        automaton.memory[key] = literal_states(automaton.tables, literals)
    return int(automaton.memory[key])


def _literals(
    automaton: Automaton, texts: frozenset[str], formulas: tuple[Formula, ...], result: ResultOf, others: Dfa | None
) -> list[tuple[bytes, int]]:
    """Return the spellings of texts with the actions of their closing quotes.

    Texts that are refused are listed, with the action `DEAD`, only if `others` accepts them.
    """
    literals: list[tuple[bytes, int]] = []
    is_decided = _is_decided(formulas)
    for text in sorted(texts):
        truths = [evaluate(f, lambda part: part.holds(text)) for f in formulas]  # noqa: B023
        is_certain = truths[0] and (is_decided or not is_undecided(formulas, text))
        number = result(tuple(map(bool, truths[1:]))) if is_certain else -1
        for spelling in spellings(text) if others is None else _with_escapes(spellings(text)):
            if number >= 0:
                literals.append((spelling, automaton.pop(number)))
            elif others is not None and others.accepts(spelling[:-1]):
                literals.append((spelling, DEAD))
    return sorted(literals)


def _with_escapes(texts: list[bytes]) -> list[bytes]:
    r"""Return the texts with every choice of `/` or `\/`, because the automaton of other strings reads both."""
    for number in range(max(text.count(b"/") for text in texts)):
        texts = [new for text in texts for new in (text, _with_escaped_slash(text, number))]
    return texts


def _with_escaped_slash(text: bytes, number: int) -> bytes:
    parts = text.split(b"/")
    return b"/".join(parts[: number + 1]) + b"\\/" + b"/".join(parts[number + 1 :])


def is_undecided(formulas: tuple[Formula, ...], text: str) -> bool:
    """Return True if the truth of a formula may depend on a format that is known in part only."""
    parts = (part for formula in formulas for part in atoms(formula))
    return not _is_decided(formulas) and any(part.is_undecided(text) for part in parts)


def _is_decided(formulas: tuple[Formula, ...]) -> bool:
    """Return True if the formulas only ask parts to hold, so that texts of unknown truth are refused anyway."""
    return len(formulas) == 1 and not has_negation(formulas[0])


def _part_strings(automaton: Automaton, part: StringPart, result: int) -> tuple[int, Dfa] | None:
    counted = counted_chars(part.patterns, part.formats, part.least)
    if counted is not None and counted.shortest[START] > (UNREACHABLE - 1 if part.most is None else part.most):
        return None
    base = automaton.block(("string", part, result), lambda: part_block(part, result))
    return base, any_string() if counted is None else string_content_dfa(counted.chars)


@lru_cache(maxsize=1024)
def part_block(part: StringPart, result: int) -> Block:
    """Return the block of the strings that satisfy a part without `texts`. Lengths are counted, not unrolled."""
    counted = counted_chars(part.patterns, part.formats, part.least)
    if counted is None:
        dfa = any_string()
        num_boundaries, least, shortest = START + 1, part.least, np.zeros(dfa.num_states, np.int64)
    else:
        dfa = string_content_dfa(counted.chars)
        num_boundaries, least, shortest = counted.chars.num_states, counted.least, counted.shortest
    results = np.where(dfa.accepting, result, -1).astype(np.int32)
    if part.most is None and least == 0:
        return _string_block(dfa, results)
    boundary = np.arange(dfa.num_states) < num_boundaries
    away = np.full(dfa.num_states, UNREACHABLE)
    away[:num_boundaries] = shortest[:num_boundaries]
    while True:  # a state inside a character is as far from the end as the nearest one that it leads to
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


def _product_strings(automaton: Automaton, formulas: tuple[Formula, ...], result: ResultOf) -> tuple[int, Dfa] | None:
    key = ("product", formulas, id(result))
    if key in automaton.memory:
        return automaton.memory[key]  # type: ignore[no-any-return]
    parts = list(dict.fromkeys(atom for formula in formulas for atom in atoms(formula)))

    read = reader(formulas, parts)
    undecided = [] if _is_decided(formulas) else [dfa for part in parts for dfa in part.undecided_dfas()]

    def label(accepted: Truths) -> int:
        if any(accepted[len(parts) :]):
            return -1
        need, *tracked = read(accepted)
        return result(tuple(tracked)) if need else -1

    try:
        product = labelled_product(any_string(), [*map(string_dfa, parts), *undecided], label)
    except GrammarError as error:
        product = None  # too complex to work out: allowing no string is safe
        error.patterns = frozenset().union(*(part.patterns for part in parts))
        automaton.refused.append(error)
    else:
        if product is None and undecided:
            names = sorted({name for part in parts for name in part.formats})
            automaton.refused.append(
                GrammarError(f"not all of the format {names[0]!r} is known, so it cannot be negated")
            )
    strings: tuple[int, Dfa] | None = None
    if product is not None:
        table, class_of, labels = product
        dfa = Dfa(table, class_of, labels >= 0)
        strings = automaton.block(key, lambda: _string_block(dfa, labels)), dfa
    automaton.memory[key] = strings
    return strings
