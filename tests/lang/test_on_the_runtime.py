"""Features of the language on the real runtime and the shipped model, seen from outside."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Literal, TypedDict

import pydantic
import pytest

import ramiform
from ramiform import ProgramState, RuntimeFailed, assistant, gen, pick, select, system, user
from ramiform.lang.backends.backend import get_server_info

SHARED = "Ada lives near a river and reads about spiders. " * 20


@ramiform.function
def expert(s: ProgramState, question: str, width: int = 3) -> None:
    s += system("Answer briefly.")
    s += user(question)
    s += assistant(gen("answer", max_tokens=12, temperature=0))
    branches = s.fork(width)
    branches += lambda index: user(f"And {index}?") + assistant(gen("more", max_tokens=5, temperature=0))
    branches.join()
    s += "Sure:" + select("sure", [" yes", " no"])


@ramiform.function
async def expert_async(s: ProgramState, question: str) -> str:
    expert(s, question)
    return str(await s.get("answer"))


def results(state: ProgramState) -> Any:
    return [state[name] for name in ("answer", "more", "sure")], state.text()


def test_compiled_async_and_plain_programs_give_the_same(backend: ramiform.Runtime) -> None:
    questions = [{"question": f"What is the capital of {country}?"} for country in ("France", "Japan", "Peru", "Italy")]
    plain = [results(expert.run(**question)) for question in questions]
    compiled = ramiform.function(expert.function)
    compiled.compile(question="Who?")
    assert [results(state) for state in compiled.run_batch(questions)] == plain
    assert [results(state) for state in expert_async.run_batch(questions)] == plain

    async def main() -> list[Any]:
        states = await asyncio.gather(*(compiled.arun(**question) for question in questions))
        return [results(state) for state in states]

    assert asyncio.run(main()) == plain


@ramiform.function
def poll(s: ProgramState) -> None:
    s += "Once"
    branches = s.fork(3)
    branches += gen("own", max_tokens=6, ignore_eos=True)
    branches += gen("said", max_tokens=6, ignore_eos=True, seed=4)
    with s.copy() as same:
        same += gen("copied", max_tokens=6, ignore_eos=True)
    s += gen("after", max_tokens=6, ignore_eos=True)
    branches.join()


def test_branches_of_a_fork_draw_by_seeds_of_their_own(backend: ramiform.Runtime) -> None:
    compiled = ramiform.function(poll.function)
    compiled.compile()
    first, second, third = poll.run(seed=3), poll.run(seed=3), compiled.run(seed=3)
    assert first["own"] == second["own"] == third["own"]
    assert len(set(first["own"])) == 3
    assert first["said"] == second["said"]
    with_copy = gen("after", max_tokens=6, ignore_eos=True)
    alone = ramiform.function(lambda s: s.__iadd__("Once" + with_copy)).run(seed=3)
    assert first["copied"] == [alone["after"]]  # a fork of one keeps the seed


def test_a_batch_computes_the_common_prefix_once(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def ask(s: ProgramState, number: int) -> None:
        s += SHARED + f"Question {number}:" + gen("x", max_tokens=4, temperature=0, ignore_eos=True)

    ask.compile(number=1)
    ramiform.flush_cache()
    states = ask.run_batch([{"number": number} for number in range(30)])
    metas = [state.get_meta_info("x") for state in states]
    shared = min(meta["prompt_tokens"] for meta in metas) - 4
    computed = sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas)
    assert computed < shared + 30 * 8


def test_the_first_run_finds_the_prefix_that_cache_computed(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def ask(s: ProgramState, question: str) -> None:
        s += SHARED + "Question: " + question + gen("x", max_tokens=4, temperature=0)

    ramiform.flush_cache()
    ask.cache()
    meta = ask.run(question="Who?").get_meta_info("x")
    assert meta["prompt_tokens"] - meta["cached_tokens"] < 10


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Person:
    name: str
    age: int
    colour: Colour


class Place(TypedDict):
    city: Literal["Paris", "Rome"]
    visited: bool


class Model(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0, le=130)


@pytest.mark.parametrize(
    ("schema", "check"),
    [
        (Person, lambda value: isinstance(value, Person) and isinstance(value.colour, Colour)),
        (Place, lambda value: value["city"] in ("Paris", "Rome") and isinstance(value["visited"], bool)),
        (Model, lambda value: isinstance(value, Model)),
        (Colour, lambda value: isinstance(value, Colour)),
        (Literal["a", "b"], lambda value: value in ("a", "b")),
        (bool, lambda value: isinstance(value, bool)),
    ],
    ids=["dataclass", "typed dict", "pydantic", "enum", "literal", "bool"],
)
def test_values_of_a_schema_are_validated_objects(backend: ramiform.Runtime, schema: Any, check: Any) -> None:
    @ramiform.function
    def extract(s: ProgramState) -> None:
        s += "Text: Ada Brown is 36 years old. She lives in Paris.\nJSON:"
        s += gen("x", schema=schema, max_tokens=100, temperature=0)

    assert check(extract.run()["x"])


def test_a_tool_is_called_with_arguments_of_its_types(backend: ramiform.Runtime) -> None:
    seen: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        """The sum of two numbers."""
        seen.append((a, b))
        return a + b

    @ramiform.function
    def calculate(s: ProgramState) -> None:
        s += "Question: What is 3 plus 4?\nCall:"
        s.tool("sum", [add], max_tokens=60, temperature=0)
        s += "Answer:" + gen("answer", max_tokens=4, temperature=0)

    state = calculate.run()
    [(a, b)] = seen
    assert state["sum"] == a + b
    assert f"\nResult: {a + b}\nAnswer:" in state.text()


def test_a_choices_method_of_ones_own_decides_among_real_scores(backend: ramiform.Runtime) -> None:
    def worst(**given: Any) -> ramiform.ChoicesDecision:
        scores = given["normalized_prompt_logprobs"]
        return ramiform.ChoicesDecision(given["choices"][scores.index(min(scores))])

    @ramiform.function
    def choose(s: ProgramState, method: Any) -> None:
        s += "Question: What is the capital of France?\nAnswer:"
        s += select("city", [" Paris", " Rome"], choices_method=method) + "." + gen("x", max_tokens=3, temperature=0)

    best = choose.run(method=ramiform.token_length_normalized)
    other = choose.run(method=worst)
    assert {best["city"], other["city"]} == {" Paris", " Rome"}
    assert best["city"] == " Paris"


def test_decisions_are_probabilities_that_sum_to_one(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def judge(s: ProgramState, text: str) -> None:
        s += user(text)
        s.decide(city=pick("Which city?", ["Paris", "Par", "Rome"]), true="Is this true?")

    for text in ("Ada lives in Paris.", "The capital of Italy is Rome."):
        state = judge.run(text=text)
        assert sum(one.probability for one in state["city"].probabilities) == pytest.approx(1)
        assert 0 < state["true"].probability < 1


@pytest.mark.parametrize("budget", [{"timeout": 0.2}, {"max_total_tokens": 40}], ids=str)
def test_a_budget_ends_all_branches_and_frees_the_runtime(backend: ramiform.Runtime, budget: dict[str, Any]) -> None:
    @ramiform.function
    def endless(s: ProgramState) -> None:
        while True:  # however fast the runtime is
            branches = s.fork(4)
            branches += gen("x", max_tokens=1500, ignore_eos=True)
            branches[0]["x"]

    with pytest.raises(ramiform.RequestError, match=next(iter(budget))) as caught:
        endless.run(**budget)
    assert str(caught.value).startswith(__file__)
    assert (get_server_info()["num_running"], get_server_info()["num_waiting"]) == (0, 0)


def test_cancelling_frees_the_runtime(backend: ramiform.Runtime) -> None:
    @ramiform.function
    async def endless(s: ProgramState) -> None:
        while True:  # however fast the runtime is
            branches = s.fork(16)
            branches += "x" + gen("x", max_tokens=1500, ignore_eos=True)
            await branches[0].get("x")

    async def main() -> None:
        task = asyncio.create_task(endless.arun())
        while get_server_info()["num_running"] < 4:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    while get_server_info()["num_running"]:  # over HTTP the connection's end comes first
        time.sleep(0.01)


@pytest.mark.exhaustive
def test_when_the_runtime_is_killed_fifty_running_programs_raise_at_once_each_naming_its_line() -> None:
    failures: dict[int, BaseException | None] = {}
    running = threading.Barrier(51, timeout=120)

    @ramiform.function
    def endless(s: ProgramState, number: int) -> None:
        s += f"Number {number}:" + gen("first", max_tokens=1)
        s["first"]
        running.wait()
        while True:  # however fast the runtime is
            [branch] = s.fork(1)
            branch += gen("x", max_tokens=1500, ignore_eos=True)  # the line
            branch["x"]

    def play(number: int, backend: ramiform.Runtime) -> None:
        error: BaseException | None = None
        try:
            endless.run(number=number, backend=backend)
        except BaseException as raised:
            error = raised
        failures[number] = error

    with ramiform.Runtime(dtype="float32", num_pages=4096, log_level="error") as runtime:
        threads = [threading.Thread(target=play, args=(number, runtime)) for number in range(50)]
        for thread in threads:
            thread.start()
        running.wait()
        while get_server_info(runtime)["num_running"] < 20:
            assert not failures
        [core] = Path(f"/proc/{runtime.pid}/task/{runtime.pid}/children").read_text().split()
        os.kill(int(core), signal.SIGKILL)
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# the line"))
    assert len(failures) == 50
    for error in failures.values():
        assert isinstance(error, RuntimeFailed), error
        assert f"{__file__}:{line}: " in str(error)
