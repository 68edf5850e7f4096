"""Questions about a state, and thoughts separated from answers."""

from __future__ import annotations

from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, gen, pick, predicate, rate, separate_reasoning
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.decisions import Option, PickAnswer, PredicateAnswer, RateAnswer

pytestmark = pytest.mark.usefixtures("endpoint")


def run(body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(**arguments)


def test_answers_are_typed_and_the_state_is_as_before(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "The message."
        s.decide(
            urgent="Is it urgent?",
            sure=predicate("Are you sure?"),
            team=pick("Which team?", {"sales": "sells", "ops": "operates"}),
            anger=rate("How angry?", ["calm", "cross", "furious"]),
        )
        s += gen("x")

    state = run(body)
    assert state.text() == "The message.<12>"
    assert isinstance(state["urgent"], PredicateAnswer)
    assert isinstance(state["team"], PickAnswer)
    assert isinstance(state["anger"], RateAnswer)
    assert state["team"].choice == "ops"  # the fake's likeliest is the shortest
    assert sum(one.probability for one in state["team"].probabilities) == pytest.approx(1)
    assert state["team"].name == "team"
    assert state.get_meta_info("anger")["score"] == state["anger"].score
    [decide] = frontend.operations(session.Decide)
    assert decide.questions[2].choices == (Option("sales", "sells"), Option("ops", "operates"))


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("", "instructions must not be empty"),
        (3, "must be a string, predicate, pick or rate"),
        (pick("Which?", ["one"]), "choices must be 2 to"),
        (pick("Which?", ["a", "a"]), "must differ"),
        (rate("How?", ["a", " "]), "must not be empty"),
    ],
)
def test_a_question_that_cannot_be_asked_is_named(question: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        run(lambda s: s.decide(good="Is it?", bad=question))
    assert caught.value.param == "bad"


def test_choices_given_as_one_string_are_refused() -> None:
    with pytest.raises(RequestError, match="choices must be a sequence"):
        pick("Which?", "ab")


def test_a_compiled_program_asks_in_its_one_message(frontend: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "Text."
        s.decide(a="Is it?")

    plan = body.compile()
    assert plan.num_generations == 1
    assert 0 < body.run()["a"].probability < 1
    assert len(frontend.messages(session.Play)) == 1


@pytest.mark.parametrize(
    ("model_type", "text", "thought", "said"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        ("qwen3", "Yes.", "", "Yes."),
        ("deepseek-r1", "hm</think>Yes.", "hm", "Yes."),
        ("DeepSeek-R1", "<think>hm</think>Yes.", "hm", "Yes."),
        ("deepseek-r1", "cut off while thinking", "cut off while thinking", ""),
        ("kimi", "◁think▷hm◁/think▷Yes.", "hm", "Yes."),
    ],
)
def test_thoughts_are_a_variable_of_their_own(
    frontend: Any, model_type: str, text: str, thought: str, said: str
) -> None:
    frontend.script = lambda before, operation: text

    def body(s: ProgramState) -> None:
        s += ramiform.user("Is it?")
        s += ramiform.assistant(separate_reasoning(gen("x"), model_type=model_type))

    state = run(body)
    assert (state["x_reasoning_content"], state["x"]) == (thought, said)
    assert text in state.text()


def test_thoughts_of_typed_results_and_samples_are_separated_too(frontend: Any) -> None:
    frontend.script = lambda before, operation: ["<think>a</think> one", "<think>b</think> two"]
    state = run(lambda s: s.__iadd__(separate_reasoning("Q" + gen("x", n=2), "qwen3")))
    assert state["x_reasoning_content"] == ["a", "b"]
    assert state["x"] == ["one", "two"]


def test_an_unknown_model_type_and_a_constrained_gen_are_refused() -> None:
    with pytest.raises(RequestError, match="model_type must be one of"):
        separate_reasoning(gen("x"), model_type="nobody")
    with pytest.raises(RequestError, match="without a constraint"):
        run(lambda s: s.__iadd__(separate_reasoning(gen("x", regex="a"), "qwen3")))


def test_log_probabilities_come_with_texts_when_asked_for(frontend: Any) -> None:
    frontend.script = lambda before, operation: "hi"

    def body(s: ProgramState, texts: bool) -> None:
        s += gen("x", return_logprob=True, return_text_in_logprobs=texts)

    with_texts = run(body, texts=True).get_meta_info("x")["output_token_logprobs"]
    assert with_texts == [(-0.5, ord("h"), "h"), (-0.5, ord("i"), "i")]
    without = run(body, texts=False).get_meta_info("x")["output_token_logprobs"]
    assert without == [(-0.5, ord("h"), None), (-0.5, ord("i"), None)]
