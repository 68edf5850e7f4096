"""States of a string after its opening quote: given texts as literals, all other strings as blocks of automata."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automaton.actions import QUOTE, UNBOUNDED
from ...automaton.automaton import Automaton
from ...automaton.blocks import Block, CharacterCounts
from ...automaton.literals import literal_states
from ...budget import CompileBudget, cached_piece
from ...errors import GrammarError
from ...regex.byte_dfa import byte_dfa
from ...regex.counted_chars import NEVER, LabelledTexts
from ...regex.dfa import DEAD, START, Dfa, free_kinds
from ..alternatives.scalars import apart
from ..formula import And, ExactlyOne, Formula, Not, Or, ResultCodes, Truths, atoms, evaluate, reader, substitute
from ..listed.evaluation import SparseTruths
from .string_dfas import any_string, format_chars, looping_states, plain_states, string_content_dfa
from .string_parts import StringPart, candidates, labelled_strings, spellings

MAX_SLASHES = 4  # of a text whose spellings are listed


def result_code(formulas: Iterable[Formula], truth: Callable[[Any], bool | None], result: ResultCodes) -> int:
    """Return the result code of the truths of the tracked formulas, or -1 if the first formula does not hold."""
    need, *tracked = [bool(evaluate(formula, truth)) for formula in formulas]
    return result(tuple(tracked)) if need else -1


def string_start(automaton: Automaton, formulas: tuple[Formula, ...], result: ResultCodes) -> int | None:
    """Return the number of the state after the opening quote, or None if no string satisfies the first formula.

    The string ends with the result code of the truths of the other formulas.
    """
    need = formulas[0]
    if need is False:
        return None
    texts = candidates(need)
    if texts is not None:
        key = ("given texts", formulas, id(result))
        if key not in automaton.memory:
            automaton.memory[key] = _texts_start(automaton, texts, formulas, result)
        return automaton.memory[key]  # type: ignore[no-any-return]
    listed = _listed_texts(formulas)
    if listed:
        # Listed texts get literal states. All other strings are read as if no texts were listed.
        others = tuple(substitute(f, lambda part: part if part.texts is None else False) for f in formulas)
        strings = _open_strings(automaton, others, result)
        if strings is None:
            return _texts_start(automaton, listed, formulas, result)
        literals = _literals(automaton, listed, formulas, result, strings.dfa)
        if not literals:
            return strings.base + START
        key = ("listed", tuple(literals), strings.base)
        if key not in automaton.memory:
            automaton.memory[key] = literal_states(automaton.tables, literals, *strings)
        return int(automaton.memory[key]) or None
    strings = _open_strings(automaton, formulas, result)
    return None if strings is None else strings.base + START


def _listed_texts(formulas: tuple[Formula, ...]) -> frozenset[str]:
    """Return the texts that some part lists, if each has few spellings."""
    parts = [part for formula in formulas for part in atoms(formula)]
    texts = frozenset().union(*(part.texts for part in parts if part.texts is not None))
    few = all(len(spellings(text)) == 1 and text.count("/") <= MAX_SLASHES for text in texts)
    return texts if few else frozenset()


class OpenStrings(NamedTuple):
    """Strings that are not listed: the base of their block, its automaton, and the states where characters are counted.

    `begins` is None if no characters are counted.
    """

    base: int
    dfa: Dfa
    begins: NDArray[np.bool_] | None


def _open_strings(automaton: Automaton, formulas: tuple[Formula, ...], result: ResultCodes) -> OpenStrings | None:
    """Add the block of the strings that are not listed; return None if there are none."""
    need, tracked = formulas[0], formulas[1:]
    if need is False:
        return None
    key = ("strings", formulas, id(result))
    if key in automaton.memory:
        return automaton.memory[key]  # type: ignore[no-any-return]
    single = not any(isinstance(f, And | Or | ExactlyOne | Not) for f in formulas)
    if single and all(f is need or f == need or isinstance(f, bool) for f in tracked):
        # All truths are that of one part, or constant.
        number = result(tuple(True if f == need else bool(f) for f in tracked))
        part = StringPart() if need is True else need
        block: Block | None = None
        try:
            block = part_block(part, number)
        except GrammarError as error:
            error.patterns = part.all_patterns
            automaton.refused.add(error)  # too complex to work out: allowing no string is safe
        block_key: Hashable = ("string", part, number)
    else:
        block, block_key = _product_block(automaton, formulas, result), key
    strings = None
    if block is not None:
        dfa = Dfa(block.table, block.class_of, block.results >= 0)
        begins = None if block.counts is None else block.counts.begins
        strings = OpenStrings(automaton.block(block_key, lambda: block), dfa, begins)
    automaton.memory[key] = strings
    return strings


def _texts_start(
    automaton: Automaton, texts: frozenset[str], formulas: tuple[Formula, ...], result: ResultCodes
) -> int | None:
    literals = _literals(automaton, texts, formulas, result, None)
    if not literals:
        return None
    key = ("texts", tuple(literals))
    if key not in automaton.memory:
        automaton.memory[key] = literal_states(automaton.tables, literals)
    return int(automaton.memory[key])


def _literals(
    automaton: Automaton, texts: frozenset[str], formulas: tuple[Formula, ...], result: ResultCodes, others: Dfa | None
) -> list[tuple[bytes, int]]:
    """Return the spellings of texts with the actions of their closing quotes.

    Texts that are refused are listed, with the action `DEAD`, only if `others` accepts them.
    """
    literals: list[tuple[bytes, int]] = []
    unsure = [] if _is_decided(formulas) else [part for f in formulas for part in atoms(f) if part.formats]
    truths = SparseTruths(formulas, lambda part: part.texts, lambda part, text: part.holds(text))
    for text in sorted(texts):
        bits = truths.bits(text)
        is_certain = bits & 1 and not any(part.is_undecided(text) for part in unsure)
        number = result.of_bits(bits >> 1) if is_certain else -1
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
    """Return True if formats are only asked to hold, so that texts of unknown truth are refused anyway."""
    return len(formulas) == 1 and not _negates_format(formulas[0])


def _negates_format(formula: Formula) -> bool:
    """Return True if a formula may hold because a format does not."""
    if isinstance(formula, And | Or):
        return any(_negates_format(part) for part in formula.parts)
    return isinstance(formula, ExactlyOne | Not) and any(part.formats for part in atoms(formula))


@cached_piece(maxsize=1024)
def part_block(part: StringPart, result: int) -> Block:
    """Return the block of the strings that satisfy a part without `texts`. Lengths are counted, not unrolled."""
    if part.least == 0 and part.most is None:
        chars = part.chars()
        dfa = any_string() if chars is None else string_content_dfa(chars)
        return _string_block(dfa, np.where(dfa.accepting, result, -1).astype(np.int32))
    labelled = labelled_strings((part,), lambda truths: result if truths[0] else -1)
    assert labelled is not None, "a part is made only if some string satisfies it"
    return counted_block(labelled)


def prepare_format(name: str) -> None:
    """Make the block of a format's strings, once a process, so that no mask waits for it."""
    if format_chars(name) is not None:
        part_block(StringPart(formats=frozenset([name])), 0)


def _string_block(dfa: Dfa, results: NDArray[np.int32]) -> Block:
    """Return the block of an automaton of string contents, which ends at the quote with the result of its state."""
    plain, loops, free = plain_states(dfa), looping_states(dfa), free_kinds(dfa)
    return Block(dfa.table, dfa.class_of, results, QUOTE, plain=plain, loops=loops, free=free)


def counted_block(labelled: LabelledTexts) -> Block:
    """Return the block of the strings of labelled texts, which ends at the quote with the label as result."""
    chars = labelled.chars
    dfa = byte_dfa(chars, "json_string", CompileBudget())
    num_states, num_chars = dfa.num_states, chars.num_states
    if not labelled.counts_matter:
        results = np.full(num_states, -1, np.int32)
        results[:num_chars] = [row[0][1] if row else -1 for row in labelled.labels]
        return _string_block(dfa, results)
    by_count = [tuple((min(last, UNBOUNDED), label) for last, label in row) for row in labelled.labels]
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    results = np.full(num_states, -1, np.int32)
    results[:num_chars] = [numbers.setdefault(row, len(numbers)) if row else -1 for row in by_count]
    fewest, most = _inner_bounds(dfa, labelled)
    # A state that may be entered with any count up to the greatest of all.
    is_open = (fewest == 0) & (most == most[1:].max())
    plain: NDArray[np.bool_] | None = plain_states(dfa)
    if not is_open[plain].all():
        plain = None
    return Block(
        dfa.table,
        dfa.class_of,
        results,
        QUOTE,
        plain=plain,
        loops=looping_states(dfa),
        free=free_kinds(dfa, is_open),
        counts=CharacterCounts(np.arange(num_states) < num_chars, fewest, most, list(numbers)),
    )


def _inner_bounds(dfa: Dfa, labelled: LabelledTexts) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the counts with which each state of a string may be entered, also inside characters: int32[S] each."""
    from ...regex import dfa_kernel  # not at the top: it imports numba

    num_chars = labelled.chars.num_states
    fewest = np.full(dfa.num_states, NEVER, np.int64)
    most = np.full(dfa.num_states, -1, np.int64)
    fewest[:num_chars], most[:num_chars] = labelled.fewest, labelled.most
    fewest[DEAD], most[DEAD] = NEVER, -1
    dfa_kernel.spread_bounds(np.ascontiguousarray(dfa.table), num_chars, fewest, most)
    leading = dfa.table[num_chars:]  # from states inside characters
    if fewest[1:].any():
        entered = fewest[leading]
        least = np.take_along_axis(leading, entered.argmin(axis=1)[:, None], axis=1)
        # The counts of most states follow one another from one target on.
        gaps = np.where(leading == DEAD, -1, entered).max(axis=1, initial=-1) > most[least[:, 0]] + 1
        for state in (num_chars + np.flatnonzero(gaps)).tolist():
            reached = fewest[state] - 1
            for target in sorted(set(dfa.table[state].tolist()) - {DEAD}, key=lambda each: fewest[each]):
                if fewest[target] > reached + 1:
                    raise GrammarError("the lengths of a string are too complex in combination")
                reached = max(reached, most[target])
    fewest[DEAD] = most[DEAD] = 0
    return np.minimum(fewest, UNBOUNDED).astype(np.int32), np.minimum(most, UNBOUNDED).astype(np.int32)


def _product_block(automaton: Automaton, formulas: tuple[Formula, ...], result: ResultCodes) -> Block | None:
    """Return the block of the strings for which the first formula holds, or None if there are none.

    They end with the result codes of the truths of the others.
    """
    formulas = apart(formulas)
    parts = tuple(dict.fromkeys(atom for formula in formulas for atom in atoms(formula)))
    undecided = () if _is_decided(formulas) else tuple(chars for part in parts for chars in part.undecided())

    read = reader(formulas, parts)

    def label(truths: Truths) -> int:
        need, *tracked = read(truths)
        return result(tuple(tracked)) if need else -1

    try:
        labelled = labelled_strings(parts, label, undecided)
    except GrammarError as error:
        error.patterns = frozenset().union(*(part.all_patterns for part in parts))
        automaton.refused.add(error)
        return None  # too complex to work out: allowing no string is safe
    if labelled is None:
        if undecided:
            names = sorted({name for part in parts for name in part.formats})
            automaton.refused.add(GrammarError(f"not all of the format {names[0]!r} is known, so it cannot be negated"))
        return None
    return counted_block(labelled)
