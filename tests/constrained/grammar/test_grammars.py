"""Grammars accept what Lark's Earley parser accepts, and masks allow exactly the tokens that can continue."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import LarkError

from ramiform.constrained import CompiledGrammar, Grammar, GrammarError, compile_constraint
from ramiform.constrained.grammar.earley import EarleySets
from ramiform.constrained.grammar.gbnf import gbnf_grammar
from ramiform.constrained.grammar.lark import lark_grammar
from ramiform.tests.constrained.walks import TOKENS, accepts, allowed, compiled_or_none, shared_vocabulary

from .texts import GBNF, LARK

CASES = [("lark", name) for name in LARK] + [("gbnf", name) for name in GBNF]
_compiled: dict[tuple[str, str], tuple[CompiledGrammar, Lark]] = {}


def grammar_and_judge(syntax: str, name: str) -> tuple[CompiledGrammar, Lark]:
    if (syntax, name) not in _compiled:
        if syntax == "lark":
            text = judged = LARK[name][0]
            judge = Lark(judged, parser="earley", lexer="dynamic")
        else:
            text, judged = GBNF[name][:2]
            judge = Lark(judged, parser="earley", lexer="dynamic_complete")
        grammar = compile_constraint(Grammar(text, "lark" if syntax == "lark" else "gbnf"), shared_vocabulary())
        _compiled[syntax, name] = grammar, judge
    return _compiled[syntax, name]


def texts_of(syntax: str, name: str) -> tuple[list[str], str]:
    return (LARK[name] if syntax == "lark" else GBNF[name])[-2:]  # type: ignore[return-value]


def parses(judge: Lark, text: str) -> bool:
    try:
        judge.parse(text)
    except LarkError:
        return False
    return True


@st.composite
def mutated(draw: st.DrawFn, texts: list[str], letters: str) -> str:
    """Draw a text that is of the grammar, or nearly."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 2))
        piece = draw(st.text(st.sampled_from(letters), max_size=2) | st.sampled_from(texts))
        text = text[:at] + piece + text[at + cut :]
    return text[:60]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("syntax", "name"), CASES)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_text_is_accepted_when_lark_parses_it(syntax: str, name: str, data: st.DataObject) -> None:
    grammar, judge = grammar_and_judge(syntax, name)
    text = data.draw(mutated(*texts_of(syntax, name)))
    assert accepts(grammar, text.encode()) == parses(judge, text), text


@pytest.mark.parametrize(("syntax", "name"), CASES)
def test_examples_are_accepted_as_by_lark(syntax: str, name: str) -> None:
    grammar, judge = grammar_and_judge(syntax, name)
    verdicts = {text: accepts(grammar, text.encode()) for text in texts_of(syntax, name)[0]}
    assert verdicts == {text: parses(judge, text) for text in verdicts}
    assert sum(verdicts.values()) > len(verdicts) / 2


@pytest.mark.parametrize(("syntax", "name"), CASES)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_a_mask_allows_the_tokens_whose_bytes_can_continue(
    syntax: str, name: str, seed: int, data: st.DataObject
) -> None:
    grammar, _ = grammar_and_judge(syntax, name)
    rng = random.Random(seed)
    matcher = grammar.matcher()
    text = data.draw(st.sampled_from(texts_of(syntax, name)[0])).encode()
    for byte in text[: rng.randrange(len(text) + 1)]:
        if not matcher.accept(byte):
            break
    for _ in range(4):
        expected = []
        for number, token in enumerate(TOKENS):
            if not token or number in shared_vocabulary().eos_ids:
                continue
            steps = 0
            while steps < len(token) and matcher.accept(token[steps]):
                steps += 1
            matcher.rollback(steps)
            if steps == len(token):
                expected.append(number)
        ends = sorted(shared_vocabulary().eos_ids) if matcher.is_accepting() else []
        assert allowed(matcher, shared_vocabulary()) == sorted(expected + ends)
        if not expected:
            break
        assert matcher.accept(rng.choice(expected))


@pytest.mark.slow
@pytest.mark.parametrize(("syntax", "name"), CASES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_outputs_drawn_from_masks_parse(syntax: str, name: str, seed: int) -> None:
    grammar, judge = grammar_and_judge(syntax, name)
    rng = random.Random(seed)
    matcher, output, last = grammar.matcher(), b"", b"" if grammar.matcher().is_accepting() else None
    for _ in range(25):
        tokens = allowed(matcher, shared_vocabulary())
        assert tokens, output
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if token in shared_vocabulary().eos_ids:
            break
        output += TOKENS[token] or b""
        if matcher.is_accepting():
            last = output
    if last is not None:
        assert parses(judge, last.decode())


@pytest.mark.parametrize(
    ("text", "syntax", "position", "words"),
    [
        ("start: (", "lark", 8, ["Unclosed", "^"]),
        ("start: A", "lark", None, ["A"]),
        ("start: b", "lark", None, ["'b'"]),
        ("begin: \"a\"", "lark", None, ["start"]),
        ("start: A\nA: /a*/", "lark", None, ["A", "empty"]),
        ("start: A\nA: /ab(?=c)/", "lark", None, ["A", "look-around"]),
        ("start: A\nA: /(a)\\1/", "lark", 3, ["A", r"\1", "^"]),
        ("start: A\n%declare A", "lark", None, ["A", "declared"]),
        ("%import .secrets (x)\nstart: x", "lark", 9, ["imports"]),
        ("start: x\n%import passwords.x", "lark", 17, ["imports"]),
        ("start: x\nx: x \"a\"", "lark", None, ["no text at all"]),
        ("start: \"a\"~5..2", "lark", None, ["5"]),
        ("root ::= a", "gbnf", 9, ["no rule a", "^"]),
        ("root ::= \"a", "gbnf", 9, ["never closed"]),
        ("root ::= [a", "gbnf", 9, ["never closed"]),
        ("root ::= (\"a\"", "gbnf", 9, ["never closed"]),
        ("root ::= [b-a]", "gbnf", 10, ["reversed range"]),
        ("root ::= \"\\q\"", "gbnf", 10, ["escape"]),
        ("root ::= <think>", "gbnf", 9, ["no token '<think>'"]),
        ("root ::= \"a\" )", "gbnf", 13, ["part of the rule"]),
        ("root ::= \"a\"{3,2}", "gbnf", 12, ["reversed bounds"]),
        ("root = \"a\"", "gbnf", 0, ["::="]),
        ("root ::= \"a\"\nroot ::= \"b\"", "gbnf", 13, ["twice"]),
        ("main ::= \"a\"", "gbnf", None, ["'root'"]),
        ("root ::= root \"a\"", "gbnf", None, ["no text at all"]),
        ("root ::= root", "gbnf", None, ["no text at all"]),
        ("start: start", "lark", None, ["no text at all"]),
    ],
)  # fmt: skip
def test_errors_name_the_position(text: str, syntax: str, position: int | None, words: list[str]) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_constraint(Grammar(text, "lark" if syntax == "lark" else "gbnf"), shared_vocabulary())
    assert caught.value.position == position
    assert all(word in str(caught.value) for word in words), str(caught.value)


HOSTILE = [
    ("start: " + " ".join(f'["{letter}"]' for letter in "abcdefghijklmnopqrstuvwxyz" * 4), "lark"),
    ('start: ((("a" b)~900)~900)~900\nb: "b"', "lark"),
    ('start: t{"a"}\nt{x}: x t{t{x}} | x', "lark"),
    ("start: " + "(" * 500 + '"a"' + ")" * 500, "lark"),
    ("start: A\nA: /(a|b)*a(a|b){24}/", "lark"),
    ('root ::= (((("a" root?){900}){900}){900}){900}', "gbnf"),
    ("root ::= " + "(" * 500 + '"a"' + ")" * 500, "gbnf"),
    ("root ::= a0\n" + "\n".join(f"a{n} ::= a{n + 1} a{n + 1}" for n in range(60)) + '\na60 ::= "x"', "gbnf"),
    ("root ::= [ab]* [a] [ab]{24}", "gbnf"),
    ("root ::= r0\n" + "\n".join(f'r{n} ::= r{n + 1} "x" | "y"' for n in range(2000)) + '\nr2000 ::= "z"', "gbnf"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("text", "syntax"), HOSTILE)
def test_a_hostile_grammar_is_refused_or_small(text: str, syntax: str) -> None:
    try:
        grammar = lark_grammar(text) if syntax == "lark" else gbnf_grammar(text)
    except GrammarError:
        return
    assert sum(len(rule) for group in grammar.alternatives for rule in group) < 300_000


def test_regular_grammars_are_finite_automata() -> None:
    """Neither left nor right recursion makes new states as the text grows."""
    for text in ('start: "a" start | "b"', 'start: start "a" | "b"', "start: (A B?)+\nA: /a/\nB: /b/"):
        grammar = lark_grammar(text)
        sets = EarleySets(grammar.alternatives, grammar.nullable)
        reached = {sets.start}
        for _ in range(30):
            reached |= {sets.after(frozenset({(n, t)})) for n in reached for t in sets.expected(n)}
        assert len(reached) < 12


@pytest.mark.exhaustive
def test_an_ambiguous_text_is_read_in_polynomial_time_or_refused() -> None:
    grammar, _ = grammar_and_judge("lark", "left recursive and ambiguous")
    assert accepts(grammar, b"a+aa" * 20)
    hopeless = compile_constraint(Grammar('start: start start start | start start | "a"'), shared_vocabulary())
    with pytest.raises(GrammarError, match="too ambiguous"):
        accepts(hopeless, b"a" * 500)


KEYWORDS = [f"kw{number}" for number in range(3000)]
MANY_KEYWORDS = {
    "gbnf": Grammar("root ::= (" + " | ".join(f'"{word}"' for word in KEYWORDS) + ")+", "gbnf"),
    "lark": Grammar("start: (" + " | ".join(f'"{word}"' for word in KEYWORDS) + ")+", "lark"),
    "nested gbnf": Grammar(
        'root ::= "(" root ")" | word root | word\nword ::= ' + " | ".join(f'"{word}"' for word in KEYWORDS), "gbnf"
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MANY_KEYWORDS)
def test_many_keywords_are_one_reading(name: str) -> None:
    grammar = compile_constraint(MANY_KEYWORDS[name], shared_vocabulary())
    for text in ("kw0", "kw1kw19kw2999", "kw12kw1234"):
        assert accepts(grammar, text.encode())
    for text in ("", "kw", "kw3000", "kw01", "kw1kw"):
        assert not accepts(grammar, text.encode())
    assert grammar.generation.automaton.tables.num_states < 1000


@pytest.mark.parametrize(
    "text",
    [
        'start: NAME "x"\nNAME: /[a-z]+/',
        "start: A B\nA: /a+/\nB: /a+b/",
        "start: A A\nA: /a/+",
    ],
)
def test_a_grammar_without_text_by_the_longest_match_is_refused(text: str) -> None:
    with pytest.raises(GrammarError, match="no text at all"):
        compile_constraint(Grammar(text), shared_vocabulary())


def test_an_alternative_that_the_longest_match_leaves_no_text_is_no_trap() -> None:
    grammar = compile_constraint(Grammar('start: NAME "x" | "1"\nNAME: /[a-z]+/'), shared_vocabulary())
    assert grammar.matcher().forced() == b"1"


TERMINALS = ["A: /a/", "A: /a+/", "A: /a*b/", "A: /ab?/", "A: /(a|ab)/", "A: /a+?/", "A: /[ab]+/"]


@pytest.mark.slow
def test_random_grammars_have_the_texts_that_lark_finds() -> None:
    """Also those that have none, and those of which some alternatives have none."""
    num_refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        symbols = ["A", "B", '"a"', '"b"', "x", "y"]
        rules = [
            f"{name}: "
            + " | ".join(" ".join(rng.choices(symbols, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 2)))
            for name in ("y", "x")
        ]
        named = [rng.choice(TERMINALS), "B" + rng.choice(TERMINALS)[1:]]
        text = "\n".join(["start: y", *rules, *named, *(['%ignore "b"'] if rng.random() < 0.3 else [])])
        judge = Lark(text, parser="earley", lexer="dynamic")
        grammar = compiled_or_none(Grammar(text), shared_vocabulary())
        num_refused += grammar is None
        for length in range(1, 6):
            for letters in product("ab", repeat=length):
                one = "".join(letters)
                expected = grammar is not None and accepts(grammar, one.encode())
                assert expected == parses(judge, one), (text, one)
    assert num_refused > 5
