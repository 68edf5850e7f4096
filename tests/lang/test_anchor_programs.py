"""Programs as users of SGLang's front end write them, with only the import changed, on the real runtime.

The model is small: what is asserted is structure (which variables there are, what they look like, what stands where),
and answers only where the model knows them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from typing import Any

import pytest

import ramiform as sgl

pytestmark = pytest.mark.usefixtures("backend")

FEW_SHOTS = (
    "Question: What is the capital of Italy?\nAnswer: Rome\nQuestion: What is the currency of Japan?\nAnswer: yen\n"
)


@sgl.function
def few_shot_qa(s, question):
    s += FEW_SHOTS
    s += "Question: " + question + "\nAnswer:" + sgl.gen("answer", stop="\n", temperature=0, max_tokens=16)


@pytest.mark.parametrize(("question", "answer"), [("What is the capital of France?", "Paris")])
def test_few_shot_question_answering(question: str, answer: str) -> None:
    state = few_shot_qa.run(question=question)
    assert state["answer"].strip() == answer
    assert state.text() == f"{FEW_SHOTS}Question: {question}\nAnswer:{state['answer']}"
    meta = state.get_meta_info("answer")
    assert meta["finish_reason"] == {"type": "stop", "matched": "\n"}
    assert meta["completion_tokens"] > 0


@sgl.function
def multi_turn_question(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=40))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=40))


@sgl.function
def multi_turn_question_in_blocks(s, question_1, question_2):
    s.system("You are a helpful assistant.")
    for number, question in enumerate((question_1, question_2), start=1):
        with s.user():
            s += question
        with s.assistant():
            s += sgl.gen(f"answer_{number}", max_tokens=40)


@sgl.function
def multi_turn_question_by_marks(s, question_1, question_2):
    s += sgl.system_begin() + "You are a helpful assistant." + sgl.system_end()
    s += sgl.user_begin() + question_1 + sgl.user_end()
    s += sgl.assistant_begin() + sgl.gen("answer_1", max_tokens=40) + sgl.assistant_end()
    s += sgl.user_begin() + question_2 + sgl.user_end()
    s += sgl.assistant_begin() + sgl.gen("answer_2", max_tokens=40) + sgl.assistant_end()


QUESTIONS = {"question_1": "My name is Ada.", "question_2": "What is my name?"}


@pytest.mark.parametrize(
    "program",
    [multi_turn_question, multi_turn_question_in_blocks, multi_turn_question_by_marks],
    ids=lambda p: p.__name__,
)
def test_a_chat_of_two_turns_by_each_way_of_writing_roles(program: sgl.Program) -> None:
    state = program.run(**QUESTIONS, temperature=0)
    assert state["answer_2"] == "Your name is Ada."
    assert state.messages() == [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": QUESTIONS["question_1"]},
        {"role": "assistant", "content": state["answer_1"]},
        {"role": "user", "content": QUESTIONS["question_2"]},
        {"role": "assistant", "content": state["answer_2"]},
    ]


@sgl.function
def tool_choice(s, question):
    s += "To answer this question: " + question + ". "
    s += "I need to use a " + sgl.select("tool", ["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression", max_tokens=8)
    else:
        s += "The words to search for are" + sgl.gen("word", max_tokens=8)


@sgl.function
def verdict(s, claim):
    s += f"Statement: {claim}\nTrue:" + sgl.gen("verdict", choices=[" yes", " no"])


def test_a_selected_variable_decides_how_the_program_goes_on() -> None:
    state = tool_choice.run(question="What is 23 times 17?", temperature=0)
    assert state["tool"] in ("calculator", "search engine")
    assert ("expression" in state) == (state["tool"] == "calculator")
    assert ("word" in state) == (state["tool"] != "calculator")
    assert f"I need to use a {state['tool']}. The " in state.text()


def test_choices_of_a_gen_are_a_select_with_its_scores() -> None:
    right = verdict.run(claim="The capital of France is Paris.")
    wrong = verdict.run(claim="The capital of France is Rome.")
    assert (right["verdict"], wrong["verdict"]) == (" yes", " no")
    scores = right.get_meta_info("verdict")["normalized_prompt_logprobs"]
    assert scores[0] == max(scores)


@pytest.mark.parametrize(
    "method",
    [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized],
    ids=lambda method: method.__name__,
)
def test_every_choices_method_picks_the_answer(method: sgl.ChoicesSamplingMethod) -> None:
    @sgl.function
    def capital(s):
        s += "Question: What is the capital of France?\nAnswer:"
        s += sgl.select("capital", [" Rome", " Paris", " Oslo"], choices_method=method)

    assert capital.run()["capital"] == " Paris"


@sgl.function
def numbers(s):
    s += "Question: How many legs does a spider have?\nAnswer:" + sgl.gen_int("legs", temperature=0) + "\n"
    s += "Question: How many days does June have?\nAnswer:" + sgl.gen("days", dtype=int, stop="\n", temperature=0)
    s += "\nText: Ada is 36 years old.\nname:" + sgl.gen_string("name", temperature=0, max_tokens=12)


def test_gen_int_gives_an_int_and_gen_string_the_text_between_the_quotes() -> None:
    state = numbers.run()
    assert (state["legs"], state["days"]) == (8, 30)
    assert type(state["legs"]) is int
    assert re.search(rf'\nname: ?"{re.escape(state["name"])}"$', state.text())


@sgl.function
def character(s, text):
    s += f"Text: {text}\nJSON with name, age and city: "
    with s.var_scope("json_output"):
        s += "{\n"
        s += '  "name": ' + sgl.gen("name", regex=r'"[A-Za-z ]{1,20}"', temperature=0) + ",\n"
        s += '  "age": ' + sgl.gen("age", regex=r"[0-9]{1,3}", temperature=0) + ",\n"
        s += '  "city": ' + sgl.gen("city", regex=r'"[A-Za-z ]{1,20}"', temperature=0) + "\n"
        s += "}"
    s += "\nDone."


def test_json_by_regexes_is_the_text_of_its_scope() -> None:
    state = character.run(text="Ada Brown is 36 years old and lives in London.")
    record = json.loads(state["json_output"])
    assert list(record) == ["name", "age", "city"]
    assert record == {"name": json.loads(state["name"]), "age": int(state["age"]), "city": json.loads(state["city"])}
    assert state.text().endswith(state["json_output"] + "\nDone.")


@sgl.function
def ip_address(s):
    s += "Question: What is the IP address of the name server?\nAnswer: "
    s += sgl.gen("address", regex=r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)", seed=1)


def test_a_regex_holds_at_any_temperature() -> None:
    octets = ip_address.run(temperature=1.5)["address"].split(".")
    assert str(ipaddress.ip_address(".".join(str(int(octet)) for octet in octets)))


@sgl.function
def expert_answer(s, question):
    s += sgl.user("Which expert can answer this? " + question)
    s += sgl.assistant("The expert is " + sgl.gen("expert", max_tokens=12, stop=[".", "\n"]) + ".")
    s += sgl.user(f"You are {s['expert']}. {question}")
    s += sgl.assistant(sgl.gen("answer", max_tokens=30))


def test_a_generated_expert_becomes_part_of_the_next_prompt() -> None:
    state = expert_answer.run(question="What is the capital of Peru?", temperature=0)
    _, first, second, answer = state.messages()
    assert first["content"] == f"The expert is {state['expert']}."
    assert second["content"] == f"You are {state['expert']}. What is the capital of Peru?"
    assert answer["content"] == state["answer"]


def calculate(text: str) -> str:
    left, operation, right = re.fullmatch(r" ?(\d+) ([-+*]) (\d+)", text).groups()  # type: ignore[union-attr]
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operation](int(left), int(right)))


@sgl.function
def tool_use(s, question):
    s += f"Question: {question}\n"
    s += "Thought 1:" + sgl.gen("thought", stop="\n", max_tokens=40)
    s += "\nAction 1: calculate(" + sgl.gen("expression", stop=")", max_tokens=12) + ")\n"
    s["result"] = calculate(s["expression"])
    s += f"Observation 1: {s['result']}\n"
    s += "Thought 2:" + sgl.gen("conclusion", stop="\n", max_tokens=40)


def test_the_next_generation_reads_the_result_of_a_tool() -> None:
    state = tool_use.run(question="What is 46 plus 28?", temperature=0)
    assert (state["expression"], state["result"]) == ("46 + 28", "74")
    assert "Observation 1: 74\nThought 2:" in state.text()
    assert "74" in state["conclusion"]


PAGES = {"spider": "A spider is an arachnid. It has 8 legs, lives in webs and eats insects."}


@sgl.function
def react(s, question):
    s += f"Question: {question}\n"
    for step in range(1, 6):
        s += f"Thought {step}:" + sgl.gen(f"thought_{step}", stop=["\n"], max_tokens=60)
        s += f"\nAction {step}: " + sgl.select(f"act_{step}", ["lookup[", "calculate(", "finish["])
        if s[f"act_{step}"] == "finish[":
            s += sgl.gen("answer", stop="]", max_tokens=10) + "]"
            return step
        if s[f"act_{step}"] == "lookup[":
            s += sgl.gen(f"what_{step}", stop="]", max_tokens=10) + "]"
            observation = PAGES.get(s[f"what_{step}"], "Nothing found.")
        else:
            s += sgl.gen(f"what_{step}", stop=")", max_tokens=10) + ")"
            observation = calculate(s[f"what_{step}"])
        s += f"\nObservation {step}: {observation}\n"
    return None


def test_react_goes_on_until_it_finishes() -> None:
    state = react.run(question="How many legs do 12 spiders have?", temperature=0)
    assert state["answer"] == "96"
    assert state.ret_value == 3
    assert [state[f"act_{step}"] for step in (1, 2, 3)] == ["lookup[", "calculate(", "finish["]
    assert state.text().endswith("finish[96]")


TIPS = ["Drink enough water.", "Sleep eight hours."]


@sgl.function
def expand_tips(s):
    s += "Here are two tips to stay healthy:\n1. " + TIPS[0] + "\n2. " + TIPS[1] + "\n"
    forks = s.fork(2)
    for index, fork in enumerate(forks):
        fork += f"Expand this tip to stay healthy: {TIPS[index]}\nParagraph:"
        fork += sgl.gen("detailed_tip", max_tokens=40, stop="\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=20)


def test_branches_of_a_fork_decode_in_parallel_and_are_read_by_index() -> None:
    state = expand_tips.run(temperature=0)
    assert re.search(r"\nTip 1: Drink enough water\..*\nTip 2: Sleep eight hours\.", state.text())
    assert "Expand this tip" not in state.text()  # what a branch says stays in it
    assert "detailed_tip" not in state
    assert state.text().endswith("In summary" + state["summary"])


@sgl.function
def parallel_encoding(s, passages, question):
    s += "Documents:\n"
    forks = s.fork(len(passages))
    forks += [f"[{number}] {passage}\n" for number, passage in enumerate(passages, start=1)]
    forks.join(mode="concate_and_append")
    s += f"Question: {question}\nAnswer:" + sgl.gen("answer", stop=["\n", " ["], max_tokens=16)


def test_branches_encoded_in_parallel_read_as_one_text() -> None:
    passages = [
        "The mayor of Velburg is Sofia Quinn. The river Tot flows through Velburg.",
        "Tom works as a chef. The best friend of Tom is Marta.",
    ]
    question = "Who is the mayor of Velburg?"
    state = parallel_encoding.run(passages=passages, question=question, temperature=0)
    prompt = f"Documents:\n[1] {passages[0]}\n[2] {passages[1]}\nQuestion: {question}\nAnswer:"
    assert state.text() == prompt + state["answer"]
    assert state["answer"].strip() == "Sofia Quinn"


@sgl.function
def streamed(s, question):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=40, temperature=0))


def test_the_text_of_the_whole_state_streams() -> None:
    state = streamed.run(question="Tell me three facts about France.", stream=True)
    pieces = list(state.text_iter())
    assert len(pieces) > 1  # a late reader gets fewer
    assert "".join(pieces) == state.text()


def test_the_text_of_a_variable_streams() -> None:
    state = streamed.run(question="Tell me three facts about France.", stream=True)
    pieces = list(state.text_iter("answer"))
    assert len(pieces) > 1  # a late reader gets fewer
    assert "".join(pieces) == state["answer"]


def test_streams_in_an_event_loop_come_with_meta_data() -> None:
    async def follow() -> tuple[list[tuple[str, dict[str, Any]]], sgl.ProgramState]:
        state = streamed.run(question="Tell me three facts about France.", stream=True)
        return [pair async for pair in state.text_async_iter("answer", return_meta_data=True)], state

    pairs, state = asyncio.run(follow())
    assert "".join(text for text, _ in pairs) == state["answer"]
    metas = [meta for _, meta in pairs]
    assert metas[0]["finish_reason"] is None
    assert metas[-1] == state.get_meta_info("answer")
    assert metas[-1]["finish_reason"] is not None


def test_a_batch_gives_its_states_in_order() -> None:
    capitals = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Peru": "Lima"}
    states = few_shot_qa.run_batch(
        [{"question": f"What is the capital of {country}?"} for country in capitals], num_threads=2, progress_bar=True
    )
    assert [state["answer"].strip() for state in states] == list(capitals.values())


def test_a_batch_of_positional_arguments_can_be_a_generator() -> None:
    states = few_shot_qa.run_batch(
        [("What is the capital of France?",), ("What is the capital of Peru?",)], generator_style=True
    )
    assert next(states)["answer"].strip() == "Paris"
    assert next(states)["answer"].strip() == "Lima"
    with pytest.raises(StopIteration):
        next(states)


@sgl.function
def at_least(s, least):
    s += "Question: What is the capital of France?\nAnswer:"
    s += sgl.gen("answer", max_tokens=32, min_tokens=least, temperature=0)


def test_an_answer_has_at_least_its_min_tokens() -> None:
    num_tokens = {
        least: at_least.run(least=least).get_meta_info("answer")["completion_tokens"] for least in (0, 12, 32)
    }
    assert num_tokens[0] < 12 <= num_tokens[12] <= 32 == num_tokens[32]


def test_arguments_can_be_bound_and_the_default_backend_is_used() -> None:
    bound = few_shot_qa.bind(question="What is the capital of France?")
    assert bound.run()["answer"].strip() == "Paris"
    assert sgl.get_server_info()["name"] == "ramiform-demo"
    sgl.flush_cache()


def test_several_samples_are_a_list_of_texts() -> None:
    @sgl.function
    def samples(s):
        s += "Question: What is the capital of France?\nAnswer:"
        s += sgl.gen("answer", n=3, max_tokens=6, temperature=1.0, seed=5)
        s += " That is it."

    state = samples.run()
    assert len(state["answer"]) == len(state.get_meta_info("answer")) == 3
    assert state.text().endswith(f"Answer:{state['answer'][0]} That is it.")
