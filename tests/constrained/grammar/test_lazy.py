"""A lazy grammar is free text until a trigger, and the grammar from it on. Judge: the texts, split at the trigger."""

from __future__ import annotations

import random
import re

import pytest

from ramiform.constrained import Grammar, GrammarError, Vocabulary, compile_constraint
from ramiform.runtime.frontend.api.constraints import GrammarTrigger, lazy_grammar
from ramiform.tests.frontend.harness import run, says
from ramiform.tests.frontend.served import check_error, served

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"<f", b"f>1", None], [258])
Trigger = str  # a word, or "/pattern/"
CASES = [
    ('root ::= "<f>" [0-9]+ ("," root)?', ["<f>"], r"<f>[0-9]+(,<f>[0-9]+)*"),
    ('root ::= ("<f>" | "[g") foot\nfoot ::= "1"? "2"', ["<f>", "[g"], r"(<f>|\[g)1?2"),
    ('root ::= "<f>" | # root "root"\n "<f>root" [root]', ["<f>"], r"<f>(root[rot])?"),
    ('root ::= "<" [fg] ">" [0-9]+', ["/<[fgh]>/"], r"<[fg]>[0-9]+"),
    ('root ::= "1" [12,]* "o"', ["/[12],*o/", "/1,+2/", "1o"], None),
    ('root ::= "é" ("1" | "2")', ["/[é-í]/"], r"é[12]"),
]
PIECES = ["<f>", "[g", "1", "2", ",", "<", "f>", "a", "é", "root", "o", "12"]


def written(trigger: Trigger) -> str:
    is_pattern = trigger[0] == trigger[-1] == "/"
    made = GrammarTrigger(type=2, value=trigger[1:-1]) if is_pattern else GrammarTrigger(type=1, value=trigger)
    return made.written("")


def lazy(text: str, triggers: list[Trigger]) -> Grammar:
    return Grammar(lazy_grammar(text, [*map(written, triggers)]), "gbnf")


@pytest.mark.parametrize(("text", "triggers", "pattern"), [case for case in CASES if case[2]])
def test_texts_are_free_until_a_trigger(text: str, triggers: list[Trigger], pattern: str) -> None:
    grammar = compile_constraint(lazy(text, triggers), VOCABULARY)
    parts = [each[1:-1] if each[0] == each[-1] == "/" else re.escape(each) for each in triggers]
    draw, accepted = random.Random(5), [0, 0]
    for _ in range(600):
        example = "".join(draw.choices(PIECES, k=draw.randrange(7)))
        found = re.search("|".join(parts), example)
        expected = found is None or re.fullmatch(pattern, example[found.start() :]) is not None
        matcher = grammar.matcher()
        assert (all(map(matcher.accept, example.encode())) and matcher.is_accepting()) == expected, example
        accepted[found is not None] += expected
    assert min(accepted) > 5


SPECIAL_VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None, None], [256], {"<t>": 257})


@pytest.mark.parametrize(
    ("trigger", "text"), [("<[257]>, <t>", 'root ::= <t> "1" root?'), ("<[102]>", 'root ::= <[102]> "1"')]
)
def test_a_token_begins_the_grammar(trigger: str, text: str) -> None:
    grammar = compile_constraint(Grammar(lazy_grammar(text, [trigger]), "gbnf"), SPECIAL_VOCABULARY)
    token = 257 if "257" in trigger else 102
    for tokens, expected in [
        (b"ab1", True), ([*b"a", token, *b"1"], True), ([*b"a", token], False), ([*b"a", token, *b"2"], False),
        ([*b"a", token, *b"1a"], False), ([], True), ([token, *b"1", token, *b"1"], token == 257),
    ]:  # fmt: skip
        matcher = grammar.matcher()
        assert (all(map(matcher.accept, tokens)) and matcher.is_accepting()) == expected, tokens


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        (CASES[4][0], CASES[4][1], "each text of aoot has to begin with a trigger"),
        ('root ::= "a"', ["/^a/"], "a pattern that is a trigger has no ^"),
        ('root ::= "a"', ["/a(?=b)/"], "look-around, and anchors but at its ends, are not supported"),
        ('root ::= "a"', ["/a*/"], "a trigger may not be empty"),
        ('root ::= "<f" | "x"', ["<f"], "each text of aoot has to begin with a trigger"),
        ('root ::= "<f"?', ["<f"], "has to begin with a trigger"),
        ('root ::= "<"', ["<f"], "has to begin with a trigger"),
        ("root ::= <|x|>", ["<f"], "has no tokens"),
        ('root ::= "a', ["a"], "never closed, at position 9"),
    ],
)
def test_a_grammar_that_may_begin_otherwise_is_refused(text: str, words: list[str], reason: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_constraint(lazy(text, words), VOCABULARY)
    assert reason in str(error.value)


def test_a_request_s_triggers_are_words() -> None:
    async def main() -> None:
        async with served(says("a")) as (built, client):
            body = {"prompt": "a", "grammar": 'root ::= "<f>"', "grammar_lazy": True}
            check_error(await client.post("/completion", json=body), 400, "grammar_triggers", "needs")
            for trigger, reason in [
                ({"type": 0, "value": "<f>"}, "needs the number of its token"),
                ({"type": 1, "value": ""}, "needs a value"),
                ({"type": 3, "value": "<f>.*"}, "type 3, must be"),
                ({"type": 3, "value": r"(<f>)[\s\S]*"}, "type 3, must be"),  # begins the whole text only
                ({"type": 3, "value": r"[\s\S]*(<f>)[\s\S]*"}, "type 3, must be"),  # the last one
                ({"type": 3, "value": r"[\s\S]*?(<f>)|(a)[\s\S]*"}, "type 3, must be"),
                ({"type": 3, "value": r"[\s\S]*?(?:<f>)[\s\S]*"}, "type 3, must be"),
                ({"type": 3, "value": r"[\s\S]*?()[\s\S]*"}, "type 3, must be"),
            ]:
                wrong = body | {"grammar_triggers": [trigger]}
                check_error(await client.post("/completion", json=wrong), 400, "grammar_triggers[0]", reason)
            mixed = body | {"grammar_triggers": [{"type": 0, "token": 5}, {"type": 1, "value": "<f>"}]}
            check_error(await client.post("/completion", json=mixed), 400, "grammar_triggers", "all tokens")
            word = body | {"grammar_triggers": [{"type": 1, "value": "<f>"}]}
            assert (await client.post("/v1/completions", json=word)).status_code == 200
            sent = built.core.requests[-1].sampling.constraint
            assert sent is not None
            assert sent.source == lazy('root ::= "<f>"', ["<f>"]).text
            for whole in (r"[\s\S]*?(<[f)](?:>))[\s\S]*", r"^[\s\S]*?(<[f)](?:>))[\s\S]*$"):
                anywhere = body | {"grammar_triggers": [{"type": 3, "value": whole}]}
                assert (await client.post("/v1/completions", json=anywhere)).status_code == 200
                sent = built.core.requests[-1].sampling.constraint
                assert sent is not None
                assert sent.source == lazy('root ::= "<f>"', ["/<[f)](?:>)/"]).text
            both = [{"type": 2, "value": "<[fg]>"}, {"type": 1, "value": "<f>"}]
            assert (await client.post("/v1/completions", json=body | {"grammar_triggers": both})).status_code == 200
            sent = built.core.requests[-1].sampling.constraint
            assert sent is not None
            assert sent.source == lazy('root ::= "<f>"', ["/<[fg]>/", "<f>"]).text

    run(main())
