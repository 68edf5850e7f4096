"""Lark grammars with llguidance's additions allow the tokens that llguidance allows.

Judge: llguidance's masks along walks of random grammars, and its documentation.
"""

from __future__ import annotations

import json
import random

import pytest

from ramiform.constrained import CompiledGrammar, Grammar, GrammarError, compile_constraint
from ramiform.tests.constrained.grammar.llguidance_grammars import FEATURES, LETTERS, bounded, vocabulary
from ramiform.tests.constrained.tags.naive_tags import SPECIAL, token_number, token_vocabulary

NUM_GRAMMARS, NUM_WALKS = 12, 2


@pytest.mark.parametrize("feature", FEATURES)
def test_llguidance_allows_the_same_tokens(feature: str) -> None:
    pytest.importorskip("llguidance", exc_type=ImportError)  # the extra `backends`
    from ramiform.tests.constrained.oracle_llguidance import Judge, llguidance

    judge = Judge(vocabulary(), lambda text: [LETTERS.index(byte) for byte in text.encode()])
    draw, num_steps, num_empty = random.Random(feature), 0, 0
    for _ in range(NUM_GRAMMARS):
        text = FEATURES[feature](draw)
        judged = text if text.startswith("{") else llguidance.LLMatcher.grammar_from_lark(text)
        try:
            grammar = compile_constraint(Grammar(text, "lark"), vocabulary(), whitespace="compact")
        except GrammarError as error:  # of a grammar without texts, which llguidance takes
            num_empty += 1
            if "no text at all" not in str(error):
                raise
            continue
        num_steps += sum(judge.walk(grammar, judged, draw, 25) for _ in range(NUM_WALKS))
    assert num_empty < NUM_GRAMMARS // 2
    assert num_steps > 80


def test_llguidance_reads_bounds_of_plain_grammars_alike() -> None:
    pytest.importorskip("llguidance", exc_type=ImportError)
    from ramiform.tests.constrained.oracle_llguidance import Judge, llguidance

    judge = Judge(vocabulary(), lambda text: [LETTERS.index(byte) for byte in text.encode()])
    draw, num_steps = random.Random(11), 0
    for _ in range(20):
        text = bounded(draw)
        grammar = compile_constraint(Grammar(text, "lark"), vocabulary())
        judged = llguidance.LLMatcher.grammar_from_lark(text)
        num_steps += sum(judge.walk(grammar, judged, draw, 30) for _ in range(2))
    assert num_steps > 200


def reads(grammar: CompiledGrammar, text: str) -> bool:
    """Return True if a text, in which letters may stand for special tokens, is one of the grammar."""
    matcher = grammar.matcher()
    tokens: list[int] = []
    for piece in text:
        tokens += [token_number(piece)] if piece in SPECIAL.values() else piece.encode()
    return all(map(matcher.accept, tokens)) and matcher.is_accepting()


A, B = SPECIAL.values()
TOOLS = """
start: ( f_foo | f_bar )* f_end
f_end: TEXT
TEXT: /(.|\\n)*/
f_foo_hd[lazy]: TEXT "<function"
f_foo: f_foo_hd "=foo>" %json { "type": "object" } "</function>"
f_bar_hd[lazy]: TEXT "<function"
f_bar: f_bar_hd "=bar>" /[0-9]+/ "</function>"
"""
PERMUTATIONS = """
start    :  perm::0x0
perm::_  :  ""                       %if is_ones([0:3])
         |  "a" perm::set_bit(0)     %if bit_clear(0)
         |  "b" perm::set_bit(1)     %if bit_clear(1)
         |  "c" perm::set_bit(2)     %if bit_clear(2)
"""
THOUGHT = r'start: <|a|> "\n" /(.|\n)*/ <|b|> %json {"enum": [1, {}]}'
SKIPS_FIRST = '%llguidance {"allow_initial_skip": true}\n%ignore / +/\nstart: "a" "b"'
IMPORTS = (
    "%llguidance {}\n%import common.INT\n%import common (CNAME, ESCAPED_STRING)\nstart: INT | CNAME | ESCAPED_STRING"
)
COUNTS = 'start: "<"{2,} x::1\nx::_: "a" x::decr(_) %if gt(_, 0) | "é"i %if eq(_, 0)'
TWO_LINES = "start: A\nA: /[a-zA-Z \\n]*/ & ~/(?s:.*)\\n\\n(?s:.*)/"
CHUNKS = 'start: A\nA: %regex { "substring_chunks": ["abc", "de", "fg"] }'
CALLS = ["", "a\nb", 'x<function=foo>{"a":1}</function>y', "<function=bar>12</function><f"]
DOCUMENTED = [  # grammars of llguidance's documentation and some like them, with texts of them and others
    (TOOLS, CALLS, ["<function", "<function=x>"]),
    (THOUGHT, [f"{A}\nx<{B}1", f"{A}\n{B}{{}}"], [f"{A}x{B}1", "1"]),
    (PERMUTATIONS, ["abc", "cba", "bac"], ["", "ab", "aab", "abca"]),
    (TWO_LINES, ["a\nb", "", "\n a\n"], ["\n\n", "a\n\nb", "1"]),
    ('start: x "b"\nx[lazy]: /.*/', ["b"], ["ab", "bb"]),  # a lazy `.*` is the empty text; llguidance 1.9.1 takes one
    (CHUNKS, ["", "abc", "abcde", "defg"], ["ab", "cde", "abcfg"]),
    ('%llguidance {}\n%ignore / +/\nstart: "a"+ "b"', ["a a  b", "ab"], [" ab", "ab "]),
    (SKIPS_FIRST, [" a b"], ["a b "]),
    (IMPORTS, ["12", "a_1", '"\\"x"'], ["1a", '"', '"""']),
    (COUNTS, ["<<aé", "<<<aÉ"], ["<aé", "<<é", "<<aaé"]),
]


@pytest.mark.parametrize(("text", "good", "bad"), DOCUMENTED)
def test_documented_grammars_have_their_texts(text: str, good: list[str], bad: list[str]) -> None:
    grammar = compile_constraint(Grammar(text, "lark"), token_vocabulary(), whitespace="compact")
    assert [example for example in good if not reads(grammar, example)] == []
    assert [example for example in bad if reads(grammar, example)] == []


def test_a_rule_has_at_most_its_tokens() -> None:
    vocabulary = token_vocabulary()
    grammar = compile_constraint(Grammar('start: "<" x ">"\nx[max_tokens=2]: /[a-z<]+/', "lark"), vocabulary)
    for pieces, expected in [
        (["<", "ab", "x", ">"], True), (["<", "ab", "a>x"], False), (["<", "a", "b", "c"], False), (["<", ">"], False),
        (["<", "<a>"], True), (["<", "x", "<a>"], True), (["<", "x", "x", "<a>"], False), (["<a", "x", ">"], True),
        (["<a", "x", "x"], False),
    ]:  # fmt: skip
        matcher = grammar.matcher()
        accepted = all(matcher.accept(token_number(piece)) for piece in pieces)
        assert (accepted and matcher.is_accepting()) == expected, pieces


REFUSED = [
    ('start: x\nx[stop=","]: /[a-z]+/', "stop hides text that the model has written", 11),
    ('start: x\nx[capture=""]: /[a-z]+/', "the name of a capture has 1 to 200 characters", 11),
    ('start: x\nx[stop_capture="a"]: /[a-z]+/', "stop_capture names the text of a suffix", 11),
    ("start: x\nx[temperature=101]: /[a-z]+/", "temperature is a number from 0 to 100", 23),
    ("start: x\nx[temperature=1]: y\ny: /a/", "y is a rule, which cannot stand in a terminal", 27),
    ("start: x\nx[max_tokens=0]: /[a-z]+/", "max_tokens is a natural number above 0", 22),
    ("start: x\nx[lasy]: /[a-z]+/", "lasy is no attribute of the rule x", 11),
    ('%llguidance {"no_backtrack": true}\nstart: "a"', "the option no_backtrack of %llguidance", 0),
    ('%llguidance {}\n%import python.STRING\nstart: "a"', "imports are from Lark's own grammar common only", 23),
    ("%llguidance {}\nx{a}: a\nstart: x{B}", "templates are not supported beside llguidance's syntax", 16),
    ("%llguidance {}\nA.2: /a/\nstart: A", "priorities are not supported", 15),
    ('start: "a" & "b"', "& and ~ stand in terminals only", 7),
    ("start: A\nA: /a/ & <[1]>", "a token, %json or a grammar cannot stand in a terminal", 18),
    ("start: A\nA: %json {}", "a token, %json or a grammar cannot stand in a terminal", 12),
    ("start: A\nA: ~/a+?/", "lazy repeats are not supported", 14),
    ("start: A\nA: ~/a(?=b)/", "look-around", 14),
    ('start: "a" @value', "there is no grammar 'value'", 11),
    ("start: <|none|>", "the vocabulary has no token '<|none|>'", 7),
    ("start: <[100000]>", "no token of the vocabulary is among these", 7),
    ("start: <[5-2]>", "tokens are numbers and ranges of them", 7),
    ("start: %json {", "%json takes a JSON value", 14),
    ('start: %json {"type": "integer", "minimum": 2, "maximum": 1}', "%json: no text at all", 7),
    ('start: %json {"x-guidance": {"coerce_one_of": true}}', "of x-guidance only whitespace_flexible is supported", 7),
    ('start: %regex {"type": "number"}', "%regex takes one of substring_chunks", 7),
    ('start: x::set_bit(0)\nx::_: "a"', "the rule has no parameter", 10),
    ('start: x\nx::_: "a"', "x has a parameter: write x::0", 7),
    ('start: x::0\nx: "a"', "x has no parameter", 7),
    ('start: x::0\nx::_: "a" %if odd(_)', "a condition is one of", 26),
    ('start: x::0\nx::_: "a" x::set_bit(64)', "a parameter has 64 bits", 33),
]


@pytest.mark.parametrize(("text", "reason", "position"), REFUSED)
def test_what_cannot_be_held_is_refused_by_name(text: str, reason: str, position: int) -> None:
    with pytest.raises(GrammarError) as error:
        compile_constraint(Grammar(text, "lark"), token_vocabulary())
    assert reason in str(error.value)
    assert error.value.position == position


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('start: x::0\nx::_: "a" x::incr(_) | ""', "more than 20000 rules"),
        ("start: A\nA: ~" + "(" * 200 + "/a/" + ")" * 200, "nested deeper than 60"),
        (json.dumps({"grammars": []}), "a list of grammars is"),
        (json.dumps({"grammars": [{"name": "a"}]}), "/grammars/0"),
        ('start: "a" )', "not Lark's syntax"),
    ],
)
def test_other_mistakes_have_their_own_message(text: str, reason: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_constraint(Grammar(text, "lark"), token_vocabulary())
    assert reason in str(error.value)
