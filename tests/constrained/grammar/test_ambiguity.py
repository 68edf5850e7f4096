"""Terminals that match the same text at the same place, judged by Lark's strict mode and `re`."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from lark import Lark
from lark.exceptions import LexError
from typer.testing import CliRunner

import ramiform
from ramiform.cli import app
from ramiform.constrained import GrammarError
from ramiform.constrained.grammar.ambiguity import Overlap, ambiguous_terminals

AMBIGUOUS = [
    "start: NAME | WORD\nNAME: /[a-z]+/\nWORD: /\\w+/",
    "start: A | B\nA: /x+y/\nB: /x+y/",
    "start: (A _NL)+\nA: /[a-z]+/\n_NL: /\\n+/\n%ignore /\\s+/",
    'start: e\n?e: t | e "+" t\n?t: "(" e ")" | N | ID\nN: /[0-9]+/\nID: /[a-z0-9]+/',
    "%import common.INT\n%import common.NUMBER\nstart: (INT | NUMBER)+",
    'start: pair{KEY}+\npair{k}: k ":" (VALUE | k) ";"\nKEY: /[a-c]+/\nVALUE: /[c-e]+/',
]
UNAMBIGUOUS = [
    'start: (KEY "=" VALUE)+\nKEY: /[a-z]+;/\nVALUE: /[0-9]+/',
    'start: KEY "=" VALUE\nKEY: /[a-z]+/\nVALUE: /[a-z0-9]+/',  # never at the same place
    'start: "[" [x ("," x)*] "]"\n?x: start | N\nN: /-?[0-9]+/\n%ignore /[ \\n]+/',
    "start: A | B\nA: /a+b/\nB: /a+c/",
]


def strict_lark_refuses(grammar: str) -> bool:
    try:
        Lark(grammar, parser="lalr", strict=True)
    except LexError as error:
        return "Collision" in str(error)
    return False


@pytest.mark.parametrize("grammar", [*AMBIGUOUS, *UNAMBIGUOUS])
def test_what_larks_strict_mode_refuses_is_ambiguous(grammar: str) -> None:
    assert bool(ambiguous_terminals(grammar).ambiguous) == strict_lark_refuses(grammar) == (grammar in AMBIGUOUS)


@pytest.mark.parametrize("seed", range(30))
def test_an_example_is_a_shortest_text_that_both_match(seed: int) -> None:
    rng = random.Random(seed)
    part = ["[ab]", "[bc]+", "(?:ab|c)", "a{1,3}", "[^b]", "c*b", "d?"]
    patterns = ["".join(rng.choices(part, k=3)) + "a" for _ in range(4)]
    names = ["A", "B", "C", "D"]
    rules = "".join(f"{name}: /{pattern}/\n" for name, pattern in zip(names, patterns, strict=True))
    report = ambiguous_terminals("start: A | B | C | D\n" + rules)
    assert not report.unchecked
    of = dict(zip(names, patterns, strict=True))
    texts = [""]
    for _ in range(5):
        texts += [text + letter for text in texts if len(text) == len(texts[-1]) for letter in "abcd"]

    def shared(first: str, second: str) -> list[int]:
        return [len(t) for t in texts if re.fullmatch(of[first], t) and re.fullmatch(of[second], t)]

    found = {(overlap.first, overlap.second): overlap.example for overlap in report.overlaps}
    for at, first in enumerate(names):
        for second in names[at + 1 :]:
            if (example := found.get((first, second))) is None:
                assert not shared(first, second)
            else:
                assert re.fullmatch(of[first], example)
                assert re.fullmatch(of[second], example)
                assert len(example) == min(shared(first, second), default=len(example))


def test_the_command_prints_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(ramiform.__file__).parent / "docs/use/constrained.md").read_text(encoding="utf-8")
    [(grammar, printed)] = re.findall(r"```lark\n(.*?)```\n\nit prints\n\n```\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("assign.lark").write_text(grammar)
    result = CliRunner().invoke(app, ["grammar", "check", "assign.lark"])
    assert (printed in result.stdout, result.exit_code) == (True, 1)


@pytest.mark.parametrize(
    ("grammar", "overlap"),
    [
        ('start: "if" NAME | NAME "=" NAME\nNAME: /[a-z]+/', Overlap('"if"', "NAME", "if", '"if"')),
        ("start: A | B\nA.2: /x+/\nB: /x*y?x/", Overlap("A", "B", "x", "A")),
    ],
)
def test_overlaps_that_a_lexer_decides_are_not_ambiguous(grammar: str, overlap: Overlap) -> None:
    report = ambiguous_terminals(grammar)
    assert report.overlaps == (overlap,)
    assert not report.ambiguous


def test_unicode_and_lazy_repeats_count() -> None:
    assert [o.example for o in ambiguous_terminals("start: A | B\nA: /\\w+/\nB: /[à-ü]/").ambiguous] == ["à"]
    lazy = 'start: A | B\nA: /".*?"/\nB: /"a"b"/'  # A ends at its second quote
    assert not ambiguous_terminals(lazy).overlaps


def test_terminals_that_are_too_large_to_compare_are_named() -> None:
    grammar = "start: A | B | C\nA: /(a|b)*a(a|b){10}/\nB: /(a|b)*b(a|b){11}/\nC: /c/"
    assert ambiguous_terminals(grammar).unchecked == (("A", "B"),)


@pytest.mark.slow
@pytest.mark.parametrize(
    "grammar",
    [
        "start: A\nA: /a(?=b)/",
        'start: A\nA: "a',
        # Places that a text leads to are exponentially many here.
        "start: r0\n"
        + "".join(f"r{n}: A r{n + 1} B | B r{n + 1} A | r{n + 1} r{n + 1}\n" for n in range(300))
        + 'r300: A\nA: "a"\nB: "b"',
    ],
    ids=["look-ahead", "syntax", "too complex"],
)
def test_a_grammar_that_cannot_be_checked_is_refused(grammar: str) -> None:
    with pytest.raises(GrammarError):
        ambiguous_terminals(grammar)
