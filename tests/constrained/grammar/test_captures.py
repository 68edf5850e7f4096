"""Captures and temperatures of rules. Judges: llguidance's captures of random texts, and `re` for temperatures."""

from __future__ import annotations

import random
import re
from itertools import groupby

import numpy as np
import pytest

from ramiform.constrained import CompiledGrammar, Grammar, GrammarError, Prefixed, Vocabulary, compile_constraint
from ramiform.constrained.automaton.matcher import Matcher
from ramiform.tests.constrained.grammar.llguidance_grammars import LETTERS, captured, vocabulary
from ramiform.tests.constrained.tags.naive_tags import SPECIAL, token_number, token_vocabulary

Captures = list[tuple[str, bytes]]
BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])


def compiled(text: str) -> CompiledGrammar:
    return compile_constraint(Grammar(text, "lark"), BYTES, whitespace="compact")


def captures_of(text: str, output: str) -> Captures | None:
    matcher = compiled(text).matcher()
    assert all(map(matcher.accept, output.encode()))
    return matcher.captures()


def walked(grammar: CompiledGrammar, draw: random.Random, num_tokens: int) -> tuple[Matcher, list[int]]:
    """Follow a random text. Return its matcher and its tokens."""
    matcher, tokens = grammar.matcher(), list[int]()
    mask = np.zeros(grammar.vocabulary.num_words, np.int32)
    [end] = grammar.vocabulary.eos_ids
    for _ in range(num_tokens):
        matcher.mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        token = draw.choice(allowed)
        if token == end:
            break
        assert matcher.accept(token)
        if draw.random() < 0.3:
            matcher.read_on()  # at any time
        elif draw.random() < 0.2:
            matcher.rollback(1)  # a draft
            assert matcher.accept(token)
        tokens.append(token)
    return matcher, tokens


def by_name(captures: Captures) -> dict[str, list[bytes]]:
    """Return the captures of each name, of equal ones behind each other the first, as llguidance keeps them."""
    names = {name for name, _ in captures}
    return {name: [text for text, _ in groupby(text for own, text in captures if own == name)] for name in names}


def test_llguidance_captures_the_same_parts() -> None:
    pytest.importorskip("llguidance", exc_type=ImportError)
    from ramiform.tests.constrained.oracle_llguidance import Judge, llguidance

    judge = Judge(vocabulary(), lambda text: [LETTERS.index(byte) for byte in text.encode()])
    draw, num_whole, num_captures = random.Random(3), 0, 0
    for _ in range(40):
        text = captured(draw)
        grammar = compile_constraint(Grammar(text, "lark"), vocabulary(), whitespace="compact")
        for _ in range(4):
            matcher, tokens = walked(grammar, draw, 40)
            theirs = judge.matcher(llguidance.LLMatcher.grammar_from_lark(text))
            assert theirs.consume_tokens(tokens)
            found = matcher.captures()
            assert found is not None
            if matcher.is_accepting():
                num_whole += 1
                judge.end(theirs)
                assert by_name(found) == by_name(theirs.get_captures()), (text, tokens)
            else:  # what has ended so far, but for what has no further byte to end it
                for name, texts in by_name(found).items():
                    assert {*texts} <= {own for other, own in theirs.get_captures() if other == name}, (text, tokens)
            num_captures += len(found)
    assert num_whole > 50
    assert num_captures > 300


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        # llguidance's documentation.
        ('start: o\no[capture]: w\nw[capture, suffix="<end>"]: /.*/', "foo<end>", [("w", "foo"), ("o", "foo<end>")]),
        ('start: o\no[capture]: w\nw[capture, lazy]: /.*<end>/', "foo<end>", [("w", "foo<end>"), ("o", "foo<end>")]),
        ('start: w\nw[capture="b", suffix=/x?y/, stop_capture="s"]: /[a-z]*/', "axy", [("s", "y"), ("b", "ax")]),
        # Repeated, nested, recursive, without text, of one name, of a parameter's values.
        ('start: x x "c"\nx[capture]: /a/', "aac", [("x", "a"), ("x", "a")]),
        ('start: x "c"\nx[capture]: "a"+ "b"?', "aac", [("x", "aa")]),  # llguidance: a, then aa
        ('start: r\nr[capture]: "a" r | "b"', "aab", [("r", "b"), ("r", "ab"), ("r", "aab")]),
        ('start: "a" y\ny: e\ne[capture]: "b"*', "a", [("e", "")]),
        ('start: x y\nx[capture="n"]: "a"\ny[capture="n"]: "b"', "ab", [("n", "a"), ("n", "b")]),
        ('start: x::1\nx::_[capture]: "a" x::decr(_) %if gt(_, 0) | "b" %if eq(_, 0)', "ab", [("x", "b"), ("x", "ab")]),
        # What is skipped before a part belongs to it, as in llguidance.
        ('%ignore / +/\nstart: o "z"\no[capture]: "a" b\nb[capture]: "b"', "a  b  z", [("b", "  b"), ("o", "a  b")]),
        # Of an alternative that the text does not have, nothing is captured.
        ('start: a | b\na[capture]: "x"\nb[capture]: "xy"', "xy", [("b", "xy")]),
        ('start: a | b\na[capture]: x "d"\nb[capture]: x "e"\nx[capture]: "x"', "xe", [("x", "x"), ("b", "xe")]),
        # Of several readings, that in which earlier parts are longer.
        ('start: x y\nx[capture]: "a"+\ny[capture]: "a"* "b"', "aab", [("x", "aa"), ("y", "b")]),
        ('start: j "z"\nj[capture]: %json {"type": "object"}', '{"a":[1,{}]}z', [("j", '{"a":[1,{}]}')]),
        ('start: i f?\ni[capture]: %json {"type": "integer"}\nf[capture]: ".5"', "12.5", [("i", "12"), ("f", ".5")]),
        # An output that ends early has what has ended.
        ('start: x{3} "."\nx[capture]: /a/ z\nz[capture]: "b" "c"', "abcab", [("z", "bc"), ("x", "abc")]),
    ],
)  # fmt: skip
def test_captures_are_the_parts_of_a_reading(text: str, output: str, expected: list[tuple[str, str]]) -> None:
    assert captures_of(text, output) == [(name, part.encode()) for name, part in expected]


def test_a_token_belongs_to_the_part_that_it_is_in() -> None:
    grammar = compile_constraint(Grammar('start: x "b"\nx[capture]: <[97-98]> <|a|> "c"', "lark"), token_vocabulary())
    matcher = grammar.matcher()
    assert all(matcher.accept(token_number(piece)) for piece in ("a", SPECIAL["<|a|>"], "c", "b"))
    assert matcher.captures() == [("x", b"ac")]  # a special token has no text


def test_captures_begin_behind_what_leads() -> None:
    grammar = compile_constraint(Prefixed("ab", Grammar('start: x\nx[capture]: /[ab]+/ "c"', "lark")), vocabulary())
    for pieces in ([b"ab", b"ab", b"c"], [b"a", b"b", b"b", b"c"]):
        matcher = grammar.matcher()
        tokens = [vocabulary().tokens.index(piece) for piece in pieces]
        assert all(map(matcher.accept, tokens))
        assert matcher.captures() == [("x", b"".join(pieces)[2:])]


def test_a_grammar_without_captures_has_none() -> None:
    assert captures_of('%llguidance {}\nstart: "a"', "a") is None


def test_captures_are_bounded() -> None:
    words = " | ".join(f'"{chr(letter)}"' for letter in range(0x4E00, 0x4E00 + 400))
    matcher = compiled(f'start: x*\nx[capture]: "a" y\ny: "b" | {words}').matcher()

    def read() -> None:
        for _ in range(600):
            assert all(map(matcher.accept, b"ab"))
            matcher.read_on()

    with pytest.raises(GrammarError, match="more than 200000 items"):
        read()


def temperatures_of(text: str, output: str) -> list[float | None]:
    matcher = compiled(text).matcher()
    found = [matcher.temperature]
    for byte in output.encode():
        assert matcher.accept(byte)
        found.append(matcher.temperature)
    matcher.rollback(len(output))
    assert matcher.temperature == found[0]
    return found


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        ('start: "a" x "b"\nx[temperature=0.5]: /c+/', "acb", [None, 0.5, 0.5, None]),
        # The highest of those that may come; inside, that of those that go on.
        ("start: x | y\nx[temperature=0.5]: /a+/\ny[temperature=0.9]: /b+/", "aa", [0.9, 0.5, 0.5]),
        ("start: x y\nx[temperature=0.5, lazy]: /a+b/\ny[temperature=0]: /c/", "abc", [0.5, 0.5, 0.0, None]),
        ('start: "a" j "b"\nj[temperature=0.5]: %json {"enum":["a",1]}', 'a"a"b', [None, *[0.5] * 3, None, None]),
        ('start: j "b"\nj[temperature=2]: %lark {start: "x" y "z"\ny[temperature=1]: /y+/}', "xyz", [2, 1, 1, None]),
        ('start: j "b"\nj[temperature=2, capture]: <[97]>', "ab", [2, None, None]),
    ],
)
def test_a_rule_has_its_temperature(text: str, output: str, expected: list[float | None]) -> None:
    assert temperatures_of(text, output) == expected


def test_temperatures_are_those_of_the_rules_that_texts_are_in() -> None:
    draw = random.Random(4)
    for _ in range(30):
        names = [f"r{number}" for number in range(draw.randint(2, 5))]
        own = {name: draw.choice([0.0, 0.3, 0.7, 1.5]) for name in names}
        lines = [
            f"{name}[temperature={own[name]}]: /{'[ab]' * draw.randint(1, 3)}{number}/"
            for number, name in enumerate(names)
        ]
        text = "\n".join([f'start: {" ".join(names)} "."', *lines])
        pattern = "".join(f"(?P<{name}>[ab]+{number})" for number, name in enumerate(names))
        output = "".join(
            "".join(draw.choices("ab", k=lines[number].count("[ab]"))) + str(number) for number in range(len(names))
        )
        match = re.fullmatch(pattern, output)
        assert match is not None
        expected = [
            next(own[name] for name in names if match.start(name) <= at < match.end(name)) for at in range(len(output))
        ]
        assert temperatures_of(text, output) == [*expected, None]
