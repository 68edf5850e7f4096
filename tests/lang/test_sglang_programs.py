"""Programs of SGLang's examples and tutorial: they run, or the error names the line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from math import exp
from typing import Any

import pytest
from pydantic import BaseModel

import ramiform as sgl
from ramiform import ProgramState, RequestError


@sgl.function
def two_turns(s: ProgramState, question_1: str, question_2: str) -> None:
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=8, temperature=0))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=8, temperature=0))


ASKED = {"question_1": "What is the capital of France?", "question_2": "And of Italy?"}


def test_a_variable_is_followed_by_its_name(backend: sgl.Runtime) -> None:
    expected = two_turns.run(**ASKED)["answer_2"]
    assert "".join(two_turns.run(**ASKED, stream=True).text_iter(var_name="answer_2")) == expected

    async def follow() -> str:
        state = two_turns.run(**ASKED, stream=True)
        return "".join([piece async for piece in state.text_async_iter(var_name="answer_2")])

    assert asyncio.run(follow()) == expected


def test_a_state_shows_its_text(backend: sgl.Runtime) -> None:
    state = two_turns.run(**ASKED)
    branch = state.fork(1)[0]
    branch += "More."
    branch.sync()
    assert str(state) == f"ProgramState({state.text()})"
    assert repr(branch) == f"ProgramState({state.text()}More.)"


def test_showing_a_state_neither_waits_nor_raises(backend: sgl.Runtime) -> None:
    @sgl.function
    def fails(s: ProgramState) -> None:
        s += "Once" + sgl.gen("x", regex="(")

    state = fails.run(stream=True)
    with pytest.raises(RequestError, match="invalid regex"):
        state.text()
    assert repr(state) == "ProgramState(Once)"


def test_the_function_of_a_program_is_its_func() -> None:
    assert two_turns.func.__name__ == "two_turns"


def test_videos_and_images_that_are_none_are_refused_where_they_are_written() -> None:
    with pytest.raises(RequestError, match=r"no videos.*'cat"):
        sgl.video("cat.mp4", 8)
    with pytest.raises(RequestError, match=r"'no cat.png' cannot be read"):
        sgl.image("no cat.png")
    with pytest.raises(RequestError, match="a path, bytes, a PIL image or an array, got int"):
        sgl.image(3)


def test_an_image_for_a_model_of_texts_fails_where_it_is_appended(backend: sgl.Runtime) -> None:
    @sgl.function
    def look(s: ProgramState) -> None:
        s += "See " + sgl.image(b"file") + sgl.gen("answer", max_tokens=2)

    with pytest.raises(RequestError, match="image: this model reads text only"):
        look.run(backend=backend)["answer"]


def test_the_error_for_a_type_as_json_schema_names_schema(backend: sgl.Runtime) -> None:
    class Wizard(BaseModel):
        name: str

    @sgl.function
    def describe(s: ProgramState) -> None:
        s += sgl.gen("wizard", json_schema=Wizard)  # type: ignore[arg-type]

    with pytest.raises(RequestError, match="schema=Wizard"):
        describe.run()


# By OpenAI's API: the runtime serves it too.

MODEL = "ramiform-demo"


@pytest.fixture
def open_ai(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[sgl.OpenAI]:
    """OpenAI's backend as the default one, with address and key from variables."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    made = sgl.OpenAI(MODEL)
    sgl.set_default_backend(made)
    yield made
    sgl.set_default_backend(None)
    made.close()


def test_a_chat_runs_alone_streamed_and_in_a_batch_by_an_api(open_ai: sgl.OpenAI, runtime: sgl.Runtime) -> None:
    expected = two_turns.run(**ASKED, backend=runtime)
    state = two_turns.run(**ASKED)
    assert state.messages() == expected.messages()
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert "".join(two_turns.run(**ASKED, stream=True).text_iter("answer_2")) == expected["answer_2"]
    for state in two_turns.run_batch([ASKED] * 3, num_threads=2, progress_bar=True):
        assert state.messages() == expected.messages()


def test_text_is_completed_up_to_its_stop_by_an_api(open_ai: sgl.OpenAI) -> None:
    @sgl.function
    def few_shot(s: ProgramState, question: str) -> None:
        s += "Question: What is the capital of Italy?\nAnswer: Rome\n"
        s += "Question: " + question + "\nAnswer:" + sgl.gen("answer", stop="\n", temperature=0)

    state = few_shot.run(question="What is the capital of France?")
    assert state["answer"].strip() == "Paris"
    assert "".join(few_shot.run(question="What is the capital of France?", stream=True).text_iter()) == state.text()


def test_several_samples_of_a_message_by_an_api(open_ai: sgl.OpenAI) -> None:
    @sgl.function
    def asks(s: ProgramState) -> None:
        s += sgl.user("Name a country.") + sgl.assistant(sgl.gen("first", max_tokens=8, n=2))
        s += sgl.user("And its capital?") + sgl.assistant(sgl.gen("second", max_tokens=8))

    state = asks.run()
    assert len(state["first"]) == 2
    assert isinstance(state["second"], str)
    assert state.messages()[1]["content"] == state["first"][0]


def test_branches_generate_and_choose_by_an_api(open_ai: sgl.OpenAI) -> None:
    @sgl.function
    def sample(s: ProgramState, question: str, n: int) -> None:
        s += "Question: " + question + "\n"
        forks = s.fork(n)
        forks += "Reasoning:" + sgl.gen("reasoning", stop="\n", max_tokens=12) + "\n"
        forks += "Tool:" + sgl.gen("tool", choices=["calculator", "browser"]) + "\n"
        forks += "Answer:" + sgl.gen("answer", stop="\n", max_tokens=12) + "\n"
        forks.join()

    state = sample.run(question="Compute 5 + 2 + 4.", n=3, temperature=1.0)
    assert all(len(state[name]) == 3 for name in ("reasoning", "tool", "answer"))
    assert set(state["tool"]) <= {"calculator", "browser"}


@sgl.function(num_api_spec_tokens=64)
def quick_card(s: ProgramState) -> None:
    s += "Text: Ada Brown is 36 years old and lives in London.\nname:"
    s += sgl.gen("name", stop="\n") + "\nage:" + sgl.gen("age", stop="\n") + "\n"


@sgl.function
def slow_card(s: ProgramState) -> None:
    quick_card(s)


def test_one_call_may_serve_several_gens_and_is_counted_once(open_ai: sgl.OpenAI) -> None:
    counted = {}
    for program in (slow_card, quick_card):
        open_ai.token_usage.reset()
        state = program.run(temperature=0)
        counted[program.func.__name__] = open_ai.token_usage.requests
        assert re.search(r"prompt_tokens=[1-9]\d*.*completion_tokens=[1-9]", str(open_ai.token_usage))
        assert (state["name"].strip(), state["age"].strip()) == ("Ada Brown", "36")
    assert counted["slow_card"] == 2
    assert counted["quick_card"] <= 2


# What may come next: no token, but log-probabilities.


@sgl.function
def paths(s: ProgramState, question: str, num: int) -> list[tuple[str, float]]:
    """Decode greedily after each of the likeliest first tokens; return the texts and how sure each token was."""
    s += sgl.user(question)
    s += sgl.assistant_begin()
    first = s.fork(1)[0]
    branches = s.fork(num)
    asked = {"return_logprob": True, "return_text_in_logprobs": True}
    first += sgl.gen("next", max_tokens=0, top_logprobs_num=num, **asked)
    found = []
    for branch, (_, _, text) in zip(branches, first.get_meta_info("next")["output_top_logprobs"][0], strict=True):
        branch += text
        branch += sgl.gen("rest", temperature=0, max_tokens=12, top_logprobs_num=2, **asked)
        tops = branch.get_meta_info("rest")["output_top_logprobs"]
        found.append((text + branch["rest"], sum(exp(top[0][0]) - exp(top[1][0]) for top in tops) / len(tops)))
    return found


@sgl.function
def chat_of_one(s: ProgramState, question: str) -> None:
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer", temperature=0, max_tokens=8))


def test_decoding_from_each_of_the_likeliest_tokens(url: str) -> None:
    with sgl.RuntimeEndpoint(url) as endpoint:
        question = "What is the capital of France?"
        found = paths.run(question=question, num=3, backend=endpoint).ret_value
        assert len({text for text, _ in found}) == 3
        assert all(0 <= sureness <= 1 for _, sureness in found)
        greedy = chat_of_one.run(question, backend=endpoint)["answer"]
        assert found[0][0].startswith(greedy)


def test_no_token_is_appended_and_the_next_ones_are_told(backend: sgl.Runtime) -> None:
    asked: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 4}

    @sgl.function
    def looks_ahead(s: ProgramState) -> None:
        s += "The capital of France is"
        s += sgl.gen("none", max_tokens=0, n=2, **asked)
        s += sgl.gen("some", max_tokens=2, temperature=0, **asked)

    state = looks_ahead.run(max_total_tokens=2, stream=True)
    assert state["none"] == ["", ""]
    [[ahead], _] = (meta["output_top_logprobs"] for meta in state.get_meta_info("none"))
    meta = state.get_meta_info("some")
    assert [id for _, id, _ in ahead] == [id for _, id, _ in meta["output_top_logprobs"][0]]
    assert [value for value, _, _ in ahead] == pytest.approx(
        [v for v, _, _ in meta["output_top_logprobs"][0]], abs=1e-3
    )
    assert meta["output_ids"][0] == ahead[0][1]
    assert state.get_meta_info("none")[0]["completion_tokens"] == 0
    assert state.text() == "The capital of France is" + state["some"]


def test_a_prompt_is_scored_as_a_choice_is(backend: sgl.Runtime) -> None:
    @sgl.function
    def scores(s: ProgramState, text: str) -> None:
        s += text + sgl.gen("x", max_tokens=0, return_logprob=True, logprob_start_len=0)

    @sgl.function
    def chooses(s: ProgramState) -> None:
        s += "The capital of France is" + sgl.select("x", [" Paris", " Rome"])

    told = chooses.run().get_meta_info("x")["input_token_logprobs"]
    for choice, expected in zip((" Paris", " Rome"), told, strict=True):
        found = scores.run(f"The capital of France is{choice}").get_meta_info("x")["input_token_logprobs"]
        assert found[0] is None
        assert [entry[0] for entry in found[-len(expected) :]] == pytest.approx([e[0] for e in expected], abs=1e-3)


def test_branches_name_their_variables_by_themselves(backend: sgl.Runtime) -> None:
    @sgl.function
    def sweep(s: ProgramState, companies: dict[str, str]) -> None:
        """Names of variables that are made of data."""
        s += "Facts:\n"
        forks = s.fork(len(companies))
        for index, (name, fact) in enumerate(companies.items()):
            forks[index] += f"{name}: {fact}\nSummary of {name}:"
            forks[index] += sgl.gen(f"summary_{name}", max_tokens=8, stop="\n", temperature=0.3)
        for index, name in enumerate(companies):
            s += f"[{name}]" + forks[index][f"summary_{name}"]
        s += "\nBest:" + sgl.gen("best", max_tokens=8, temperature=0.2)

    state = sweep.run(companies={"A": "large", "B": "small"})
    assert re.match(r"Facts:\n\[A\].*\[B\].*\nBest:", state.text(), re.DOTALL)
