"""The generated corpus: reproducible, true, and split into training and held-out data."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from ramiform.examples.demo_model.corpus.draw import Draw
from ramiform.examples.demo_model.corpus.mix import SHARES, SKILLS, cases, cases_of
from ramiform.examples.demo_model.corpus.relations import all_facts
from ramiform.examples.demo_model.corpus.trace import calculate
from ramiform.examples.demo_model.corpus.world import lookup


def documents(seed: int, count: int = 300, **options) -> list[str]:
    return [case.document for case in itertools.islice(cases(seed, **options), count)]


def test_the_same_seed_gives_the_same_text():
    assert documents(3) == documents(3)
    assert documents(3) != documents(4)


def test_every_kind_of_document_can_be_drawn():
    for maker in SHARES:
        for held_out, wide in itertools.product((False, True), repeat=2):
            case = maker(Draw(5, held_out, wide))
            assert case.answer
            assert case.answer == case.answer.rstrip()
            assert case.prompt == "" or case.prompt[-1] != " ", "a prompt that ends in a space splits tokens wrongly"


@pytest.mark.parametrize(
    ("relation", "entity", "answer"),
    [
        ("capital", "France", "Paris"),
        ("currency", "Japan", "yen"),
        ("legs", "a spider", "8"),
        ("flies", "a penguin", "no"),
        ("planet_at", "third", "Earth"),
        ("symbol", "gold", "Au"),
        ("month_days", "June", "30"),
        ("month_after", "December", "January"),
        ("country_of", "Oslo", "Norway"),
        ("continent", "the Netherlands", "Europe"),
    ],
)
def test_facts_are_true(relation, entity, answer):
    [fact] = [fact for fact in all_facts() if (fact.relation, fact.entity) == (relation, entity)]
    assert fact.answer == answer
    if fact.pattern:
        assert fact.claim(answer) == fact.statements[0]


def test_a_question_has_one_answer():
    answers = {}
    for fact in all_facts():
        for question in fact.questions:
            assert answers.setdefault(question, fact.answer) == fact.answer


@pytest.mark.slow
def test_training_never_uses_held_out_names_numbers_or_wordings():
    training, held_out = Draw(1), Draw(2, held_out=True)
    assert not {training.person() for _ in range(2000)} & {held_out.person() for _ in range(2000)}
    assert not ({training.number(21, 999) for _ in range(5000)} & {held_out.number(21, 999) for _ in range(5000)})
    options = [f"wording {n}" for n in range(60)]
    assert not (
        {training.fact_wording("key", options) for _ in range(2000)}
        & {held_out.fact_wording("key", options) for _ in range(2000)}
    )


@pytest.mark.slow
def test_wide_draws_hold_out_pairs():
    options = [f"wording {n}" for n in range(60)]

    def drawn(held_out: bool) -> set[str]:
        d = Draw(1, held_out=held_out, wide=True)
        return {d.wording("key", options, beside="age") for _ in range(2000)}

    assert not drawn(False) & drawn(True)
    assert len({Draw(n, wide=True).wording("key", options) for n in range(2000)}) == 60


def test_extraction_answers_are_json_made_of_the_text():
    for case in cases_of("extraction", 11, 60):
        if case.answer.strip().startswith("{"):
            values = json.loads(case.answer)
            [values] = [v if isinstance(v, dict) else values for v in list(values.values())[:1]]
            for value in values.values():
                if isinstance(value, str | int) and not isinstance(value, bool):
                    assert str(value) in case.prompt


def test_react_traces_end_with_their_tools_results():
    for case in cases_of("react", 11, 60):
        lines = case.answer.splitlines()
        assert re.fullmatch(r"Action \d: finish\[.+\]", lines[-1])
        for action, observation in itertools.pairwise(lines):
            if "calculate(" in action and observation.startswith("Observation"):
                assert observation.split(": ")[1] == str(calculate(action.split("calculate(")[1][:-1]))


def test_tool_calls_name_a_tool_that_was_offered():
    for case in cases_of("tools", 11, 60):
        if case.answer.startswith("<tool_call>"):
            call = json.loads(case.answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            assert f'{{"name": "{call["name"]}", "description"' in case.prompt


def test_the_calculator_only_calculates():
    assert calculate("3 * (14 - 2)") == 36
    assert calculate("96 / 8") == 12
    for bad in ("__import__('os')", "2 ** 9999", "1 / 0", "1.5 + 1", "a", ""):
        with pytest.raises(ValueError, match=r"calculate|only"):
            calculate(bad)


def test_lookup_answers_or_says_that_it_cannot():
    assert "8 legs" in lookup("Spider")
    assert "Paris" in lookup("France")
    assert lookup("Atlantis") == "Nothing found."


def test_every_skill_has_held_out_cases():
    for skill in SKILLS:
        assert len({case.prompt for case in cases_of(skill, 1, 20)}) > 10
