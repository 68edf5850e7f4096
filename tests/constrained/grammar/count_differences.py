"""Counts where llguidance reads its own Lark otherwise, by kind: `python -P count_differences.py [NUM_TEXTS]`.

Each kind has random grammars. Along a random text of each the tokens allowed, the ends and what is captured are
compared; the text counts if they differ anywhere. The rows of the features say what is left without these kinds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np

from ramiform.constrained import Grammar, GrammarError, compile_constraint
from ramiform.tests.constrained.grammar.llguidance_grammars import (
    FEATURES,
    FIRST_SPECIAL,
    LETTERS,
    captured,
    vocabulary,
)
from ramiform.tests.constrained.oracle_llguidance import Judge, llguidance

NUM_TOKENS = 20


def lazy_and_empty(draw: random.Random) -> str:
    body = draw.choice(["[ab]*", "(ab)?", "a*b*", "[abcd]{0,3}"])
    return f'start: "<" x {draw.choice(["/[cd]+/", "/[ab]>/", chr(34) + ">" + chr(34)])}\nx[lazy]: /{body}/\n'


def lazy_behind_greedy(draw: random.Random) -> str:
    greedy, lazy = draw.choice(["a+", "[ab]+", "b[ab]*"]), draw.choice(["[cd]+", "c|cd", "c+"])
    return f'start: g x "{draw.choice("<>")}"\ng: /{greedy}/\nx[lazy]: /{lazy}/\n'


def without_an_end(draw: random.Random) -> str:
    wrong = draw.choice(["eq(_, 3)", "gt(_, 4)", "bit_set(2)"])
    return f'start: "<" (x::{draw.choice("012")} | "b" ">")\nx::_: "{draw.choice("ab")}" y::_\ny::_: "c" %if {wrong}\n'


def any_token(draw: random.Random) -> str:
    return f'start: "{draw.choice("ab")}" <[*]>{draw.choice(["", "{1,2}", "+"])} "{draw.choice("cd")}"\n'


def token_or_text(draw: random.Random) -> str:
    letter = draw.choice("abcd")
    number = LETTERS.index(letter.encode())
    return f'start: ("{letter}" "<" | <[{number}]> ">") <[{FIRST_SPECIAL}]>\n'


def captured_early(draw: random.Random) -> str:
    body = draw.choice(['"a"+', '"a" ("b" "c")*', '("a" | "b"){1,4}', '"a" "b"?'])
    return f'start: x "{draw.choice("<>")}"\nx[capture]: {body}\n'


KINDS: dict[str, Callable[[random.Random], str]] = {
    "1 a lazy pattern that may be empty": lazy_and_empty,
    "2 a lazy match of one byte behind a greedy one": lazy_behind_greedy,
    "3 an alternative that cannot end": without_an_end,
    "4 an end of sequence in <[*]>": any_token,
    "5 a token and a text at one place": token_or_text,
    "6 a capture where the rule may end and does not": captured_early,
    "feature: captures": captured,
    **{f"feature: {name}": make for name, make in FEATURES.items()},
}


class Counter:
    """Compares texts over one vocabulary."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary()
        self._judge = Judge(self._vocabulary, lambda text: [LETTERS.index(byte) for byte in text.encode()])

    def differs(self, text: str, draw: random.Random, *, counts_ends: bool) -> bool | None:
        """Return True if both differ along a random text; None if the grammar has no text here.

        `counts_ends`: also if only llguidance's mask has an end of sequence, which it then refuses.
        """
        try:
            ours = compile_constraint(Grammar(text, "lark"), self._vocabulary, whitespace="compact").matcher()
        except GrammarError:
            return None
        judged = text if text.startswith("{") else llguidance.LLMatcher.grammar_from_lark(text)
        theirs, mask = self._judge.matcher(judged), np.zeros(self._vocabulary.num_words, np.int32)
        for _ in range(NUM_TOKENS):
            ours.mask(mask)
            allowed = {*np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()}
            ends = self._vocabulary.eos_ids
            expected = {token for token in range(len(self._vocabulary)) if theirs.validate_tokens([token])}
            if allowed - ends != expected - ends or ours.is_accepting() != theirs.is_accepting():
                return True
            if counts_ends and not theirs.is_accepting() and self._judge.mask_of(theirs) & ends:
                return True
            if not (following := sorted(allowed - ends)) or (ours.is_accepting() and draw.random() < 0.3):
                break
            token = draw.choice(following)
            if not (ours.accept(token) and theirs.consume_token(token)):
                return True
        if (found := ours.captures()) is None or not ours.is_accepting():
            return False
        self._judge.end(theirs)
        return {*found} != {*theirs.get_captures()}


def main(num_texts: int) -> None:
    counter = Counter()
    print(f"llguidance {llguidance.__version__}")
    for name, make in KINDS.items():
        draw, found = random.Random(name), list[bool]()
        while len(found) < num_texts:
            differs = counter.differs(make(draw), draw, counts_ends=name[0].isdigit())
            found += [] if differs is None else [differs]
        print(f"| {name} | {len(found)} | {sum(found)} |", flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["200"])[0]))
