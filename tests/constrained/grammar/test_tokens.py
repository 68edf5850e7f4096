"""Tokens and free text in GBNF. Judges: llama.cpp's masks (`models/llama_cpp/write_grammars.py`), xgrammar's."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramiform.constrained import Grammar, GrammarError, StructuralTag, Vocabulary, compile_constraint
from ramiform.tests.constrained.tags.naive_tags import END, token_vocabulary
from ramiform.tests.constrained.walks import allowed

JUDGED = json.loads((Path(__file__).parents[2] / "models/llama_cpp/data/grammars.json").read_text("utf-8"))
BYTES = {"\u010a": b"\n", "\u0120": b" "}
CONTROL = 3
A, B = (token_vocabulary().names[name] for name in ("<|a|>", "<|b|>"))
MACROS = [
    f"root ::= Token({A}) [a-c]+ Token({B}, {A})?",
    f'root ::= ExcludeToken({A}, {B}) "a" | Token({A})',
    f'root ::= (Token({A}) item)* "!"\nitem ::= "<" [a-z]* ">" | "" Token({B}) item',
    'root ::= TagDispatch(("<a>", one), ("<b", two))\none ::= [0-9]+ ";"\ntwo ::= "x"?',
    'root ::= TagDispatch(("<a>", one), loop_after_dispatch=false) "!"\none ::= [0-9]+ ";"',
    'root ::= body "</s>"\nbody ::= TagDispatch(("<a>", one), excludes=("</s>",))\none ::= [0-9] | "(" one ")"',
    'root ::= "x" TagDispatch(excludes=("b",)) "b"',
    r'root ::= "<" Regex("^[a-c]{2,}(1|x)?$") ">" | Regex("\\d+") ";" root | ""',
    'root ::= "(" Substring("a", "b", "<a>", "12;", "a") ")" root?',
    f'root ::= TokenTagDispatch(({A}, one), excludes=({B},))\none ::= "(" one? ")"',
    f'root ::= TokenTagDispatch(({A}, one), ({B}, two), loop_after_dispatch=false)\none ::= "a"\ntwo ::= "b" two?',
]
PIECES = ["<a>", "<b", "</s>", "!", "x", "b", "a", "12;", "1;", "()", "(", ")", "(1)", "<", ">", "z"]


def llama_vocabulary() -> Vocabulary:
    tokens, types = JUDGED["tokens"], JUDGED["types"]
    texts = [None if kind == CONTROL else BYTES.get(t, t.encode()) for t, kind in zip(tokens, types, strict=True)]
    names = {token: number for number, token in enumerate(tokens) if types[number] == CONTROL}
    return Vocabulary.from_tokens(texts, [len(tokens) - 1], names)


@pytest.mark.parametrize("row", JUDGED["grammars"], ids=[row["grammar"] for row in JUDGED["grammars"]])
def test_llama_cpp_allows_the_same_tokens(row: dict[str, Any]) -> None:
    vocabulary = llama_vocabulary()
    if row["walks"] is None:
        with pytest.raises(GrammarError):
            compile_constraint(Grammar(row["grammar"], "gbnf"), vocabulary)
        return
    grammar = compile_constraint(Grammar(row["grammar"], "gbnf"), vocabulary)
    for tokens, allowed_before in row["walks"]:
        matcher = grammar.matcher()
        for number, expected in enumerate(allowed_before):
            assert allowed(matcher, vocabulary) == expected, tokens[:number]
            assert number == len(tokens) or matcher.accept(tokens[number])


@pytest.mark.parametrize("text", MACROS)
def test_xgrammar_accepts_the_same_tokens(text: str) -> None:
    xgrammar = pytest.importorskip("xgrammar", exc_type=ImportError)  # the extra `backends`
    vocabulary, draw = token_vocabulary(), random.Random(7)
    # It has no special tokens: these have bytes that are in no text. Free tokens of ours are not special ones.
    texts = [data or b"\xff%d" % number for number, data in enumerate(vocabulary.tokens)]
    info = xgrammar.TokenizerInfo(texts, vocab_size=len(texts), stop_token_ids=[END])
    peer = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(text)
    grammar = compile_constraint(Grammar(text, "gbnf"), vocabulary)
    mask = np.zeros((1, vocabulary.num_words), np.int32)
    single = [vocabulary.number_of(letter) for letter in "abc<>!x()19;z"]
    likely = [A, B, *single, *(number for piece in PIECES if (number := vocabulary.number_of(piece)) is not None)]
    num_accepted = 0
    for _ in range(30):
        ours, theirs = grammar.matcher(), xgrammar.GrammarMatcher(peer)
        for _ in range(12):
            theirs.fill_next_token_bitmask(mask)
            mine = {*allowed(ours, vocabulary)}
            for token in likely:
                its = bool(mask[0, token >> 5] >> (token & 31) & 1)
                assert (token in mine) == its or token in free_specials(text, token), token
            choice = [token for token in likely if token in mine]
            if not choice:
                break
            token = draw.choice(choice)
            assert ours.accept(token)
            assert theirs.accept_token(token)
            assert ours.is_accepting() == theirs.is_completed()
            num_accepted += 1
    assert num_accepted > 30


def free_specials(text: str, token: int) -> list[int]:
    """The special tokens that are free where xgrammar has no special ones."""
    return [token] if "TagDispatch" in text or "ExcludeToken" in text else []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("root ::= <|nothing|>", "the vocabulary has no token '<|nothing|>', at position 9"),
        ("root ::= <[99999]>", "the vocabulary has no token 99999"),
        (f"root ::= Token({END})", "ends an output"),
        ("root ::= <", "a token is written <name> or <[number]>"),
        ("root ::= !a", "a token is written <name> or <[number]>"),
        ('root ::= Regex("a", "b")', "Regex takes one text, a pattern"),
        ('root ::= Regex("a(?=b)b")', "look-around"),
        ('root ::= "x" Regex("(")', "the pattern '('"),
        ("root ::= Substring(3)", "Substring takes texts"),
        ('root ::= Token("a")', "Token takes numbers of tokens"),
        ("root ::= ExcludeToken()", "ExcludeToken takes numbers of tokens"),
        ('root ::= TagDispatch(("", a))\na ::= "b"', "TagDispatch takes pairs of a text and a rule"),
        ('root ::= TagDispatch(("b", a))', "there is no rule a"),
        ('root ::= TagDispatch(("b", a), excludes=("b",))\na ::= "b"', "the trigger 'b' is excluded"),
        ('root ::= TagDispatch(("b", a), loop_after_dispatch=3)\na ::= "b"', "loop_after_dispatch is true or false"),
        ('root ::= TagDispatch(("b" a))', "expected , or ) in a tuple"),
        ("root ::= TagDispatch(", "expected a text in quotes"),
    ],
)
def test_what_has_no_meaning_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_constraint(Grammar(text, "gbnf"), token_vocabulary())
    assert reason in str(error.value)
    assert "position" in str(error.value)


def test_a_rule_may_have_the_name_of_a_macro() -> None:
    grammar = compile_constraint(Grammar('root ::= Token("a")\nToken ::= "b"', "gbnf"), token_vocabulary())
    assert all(map(grammar.matcher().accept, b"ba"))


def test_tokens_stand_in_grammars_of_tags() -> None:
    spec = {"type": "grammar", "grammar": f"root ::= Token({A}) [a-c]+"}
    matcher = compile_constraint(StructuralTag({"format": spec}), token_vocabulary()).matcher()
    assert all(map(matcher.accept, (A, ord("a"), ord("b"))))
    assert not matcher.accept(A)
