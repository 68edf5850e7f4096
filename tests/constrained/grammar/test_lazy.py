"""A lazy grammar is free text until a trigger, and the grammar from it on. Judge: the texts, split at the trigger."""

from __future__ import annotations

import random
import re

import pytest

from ramiform.constrained import Grammar, GrammarError, Vocabulary, compile_constraint
from ramiform.runtime.frontend.api.constraints import lazy_grammar
from ramiform.tests.frontend.harness import run, says
from ramiform.tests.frontend.served import check_error, served

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"<f", b"f>1", None], [258])
CASES = [
    ('root ::= "<f>" [0-9]+ ("," root)?', ["<f>"], r"<f>[0-9]+(,<f>[0-9]+)*"),
    ('root ::= ("<f>" | "[g") foot\nfoot ::= "1"? "2"', ["<f>", "[g"], r"(<f>|\[g)1?2"),
    ('root ::= "<f>" | # root "root"\n "<f>root" [root]', ["<f>"], r"<f>(root[rot])?"),
]
PIECES = ["<f>", "[g", "1", "2", ",", "<", "f>", "a", "é", "root", "o", "12"]


@pytest.mark.parametrize(("text", "words", "pattern"), CASES)
def test_texts_are_free_until_a_trigger(text: str, words: list[str], pattern: str) -> None:
    grammar = compile_constraint(Grammar(lazy_grammar(text, words), "gbnf"), VOCABULARY)
    draw, accepted = random.Random(5), [0, 0]
    for _ in range(600):
        example = "".join(draw.choices(PIECES, k=draw.randrange(7)))
        places = [place for word in words if (place := example.find(word)) >= 0]
        expected = not places or re.fullmatch(pattern, example[min(places) :]) is not None
        matcher = grammar.matcher()
        found = all(matcher.accept(byte) for byte in example.encode()) and matcher.is_accepting()
        assert found == expected, example
        accepted[bool(places)] += expected
    assert min(accepted) > 5


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        ('root ::= "<f" | "x"', ["<f"], "each text of aoot has to begin with a trigger, one of <f"),
        ('root ::= "<f"?', ["<f"], "has to begin with a trigger"),
        ('root ::= "<"', ["<f"], "has to begin with a trigger"),
        ("root ::= <|x|>", ["<f"], "has no tokens"),
        ('root ::= "a', ["a"], "never closed, at position 9"),
    ],
)
def test_a_grammar_that_may_begin_otherwise_is_refused(text: str, words: list[str], reason: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_constraint(Grammar(lazy_grammar(text, words), "gbnf"), VOCABULARY)
    assert reason in str(error.value)


def test_a_request_s_triggers_are_words() -> None:
    async def main() -> None:
        async with served(says("a")) as (built, client):
            body = {"prompt": "a", "grammar": 'root ::= "<f>"', "grammar_lazy": True}
            check_error(await client.post("/completion", json=body), 400, "grammar_triggers", "needs")
            token = body | {"grammar_triggers": [{"type": 0, "value": "<f>", "token": 5}]}
            check_error(await client.post("/completion", json=token), 400, "grammar_triggers[0]", "TokenTagDispatch")
            word = body | {"grammar_triggers": [{"type": 1, "value": "<f>"}]}
            assert (await client.post("/v1/completions", json=word)).status_code == 200
            sent = built.core.requests[-1].sampling.constraint
            assert sent is not None
            assert sent.source == lazy_grammar('root ::= "<f>"', ["<f>"])

    run(main())
