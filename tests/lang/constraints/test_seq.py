"""Composed constraints in programs: built, refused, lowered to one generation, and read as variables."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import ramiform
from ramiform import (
    HttpRuntime,
    OpenAI,
    ProgramState,
    RequestError,
    Scripted,
    gen,
    one_or_more,
    optional,
    repeat,
    role,
    rx,
    select,
    seq,
    user,
    zero_or_more,
)
from ramiform.runtime.protocol import session


def shopping(**sampling: Any) -> Any:
    item = seq(
        "- ", gen("count", dtype=int), " ", gen("item", regex="[a-z]{3,8}"), optional(" (", gen("note", stop=")"), ")")
    )
    return seq("List\n", one_or_more(item, "\n"), "Total: ", gen("total", schema=dict[str, int]), **sampling)


@ramiform.function
def shop(s: ProgramState, day: str) -> None:
    s += f"It is {day}. " + shopping(max_tokens=100) + " Bye" + gen("end", max_tokens=3)


ANSWER = 'List\n- 3 apples\n- 12 pears (ripe)\nTotal: {"apples": 3}'


def check_shopping(state: ProgramState) -> None:
    assert state["count"] == [3, 12]
    assert state["item"] == ["apples", "pears"]
    assert state["note"] == [None, "ripe"]
    assert state["total"] == {"apples": 3}
    assert state.text() == f"It is Monday. {ANSWER} Byeend"


def scripted() -> Scripted:
    return Scripted([ANSWER, "end"])


def test_captures_become_typed_variables_of_one_generation() -> None:
    backend = scripted()
    check_shopping(shop.run("Monday", backend=backend))
    assert len(backend.prompts) == 2
    check_shopping(asyncio.run(shop.arun("Monday", backend=scripted())))
    [state] = shop.run_batch([("Monday",)], backend=scripted())
    check_shopping(state)
    compiled = ramiform.function(shop.function)
    assert compiled.compile().is_whole
    check_shopping(compiled.run("Monday", backend=scripted()))


def test_plans_and_traces_show_the_captures() -> None:
    plan = shop.plan()
    assert plan.num_generations == 2
    assert "gen count, item, note, total (max_tokens=100" in str(plan)
    [gen_step] = [step for step in plan.steps() if step.kind == "gen" and step.name != "end"]
    assert isinstance(gen_step.operation, session.Gen)
    assert gen_step.operation.sampling.constraint is not None
    assert gen_step.operation.sampling.constraint.kind == "grammar"
    state = shop.run("Monday", backend=scripted(), trace=True)
    assert "count, item, note, total" in str(state.trace)
    assert state.get_meta_info("item")["finish_reason"]["type"] == "stop"


def test_an_argument_may_stand_in_the_strings_of_a_constraint() -> None:
    def body(s: ProgramState, q: str) -> None:
        s += seq(q, f"\n<{q}>", gen("x", regex="[a-z]+"))

    plan = ramiform.function(body).plan()
    assert plan.is_whole
    state = ramiform.function(body).run('a"\n', backend=Scripted(['a"\n\n<a"\n>b']))
    assert state["x"] == "b"


def test_branches_streams_and_samples_have_captures_too() -> None:
    pair = seq(gen("a", regex="[a-z]"), "-", gen("b", dtype=int), name="whole")

    def body(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += pair
        branches.join()

    state = ramiform.function(body).run(backend=Scripted(["x-1", "y-2"]))
    assert (state["a"], state["b"], state["whole"]) == (["x", "y"], [1, 2], ["x-1", "y-2"])

    def draws(s: ProgramState) -> None:
        s += seq(gen("a", regex="[a-z]"), "-", gen("b", dtype=int), n=2)

    state = ramiform.function(draws).run(backend=Scripted([["x-1", "y-2"]]))
    assert (state["a"], state["b"], state.text()) == (["x", "y"], [1, 2], "x-1")

    def streams(s: ProgramState) -> None:
        s += pair

    state = ramiform.function(streams).run(backend=Scripted([["x-", "1"]]), stream=True)
    assert "".join(state.text_iter()) == "x-1"
    assert "".join(state.text_iter("a")) == "x"

    async def follow() -> list[str]:
        state = await ramiform.function(streams).arun(backend=Scripted([["x-", "1"]]), stream=True)
        return [piece async for piece in state.text_async_iter("a")]

    assert asyncio.run(follow()) == ["x"]


def test_parts_may_be_f_strings_and_constraints_alone() -> None:
    def body(s: ProgramState) -> None:
        s += seq(f"<{gen('x', regex='a+')}>")
        s += rx("[0-9]+") + "," + one_or_more(gen("y", choices=["p", "q"])) + f"{optional('z')}"
        s += select("k", ["no", seq("yes ", gen("why", stop="."))])

    state = ramiform.function(body).run(backend=Scripted(["<aa>", "12", "pq", "z", "yes it is"]))
    assert [state[name] for name in ("x", "y", "k", "why")] == ["aa", ["p", "q"], "yes it is", "it is"]
    assert state.text() == "<aa>12,pqzyes it is"


def test_text_that_does_not_match_names_the_line_and_what_is_wrong() -> None:
    def body(s: ProgramState) -> None:
        s += seq("a", gen("x", regex="b"))

    with pytest.raises(RequestError, match=r"test_seq.py:\d+: .*does not match at 'c', after 1") as caught:
        ramiform.function(body).run(backend=Scripted(["ac"]))
    assert (caught.value.code, caught.value.param) == ("invalid_result", "x")


def test_a_stop_of_run_does_not_cut_a_constraint() -> None:
    def body(s: ProgramState) -> None:
        s += seq("a\n", gen("x", regex="b"))

    assert ramiform.function(body).run(backend=Scripted(["a\nb"]), stop="\n")["x"] == "b"


REFUSED: list[tuple[Any, str]] = [
    (lambda: seq(), "parts"),
    (lambda: seq(""), "parts"),
    (lambda: seq(3), ""),
    (lambda: seq(user("a")), "parts"),
    (lambda: seq(role("tool", "a")), "parts"),
    (lambda: seq(gen("x", max_tokens=5)), "max_tokens"),
    (lambda: seq(gen("x", temperature=0.5)), "temperature"),
    (lambda: seq(gen("x", n=2)), "n"),
    (lambda: seq(gen("x", stop="aab")), "stop"),
    (lambda: seq(gen("x", stop=["ab", "cd"])), "stop"),
    (lambda: seq(gen("x", stop=["ab", "b"])), "stop"),
    (lambda: seq(gen("x", stop="")), "stop"),
    (lambda: seq(gen("x", stop=[3])), "stop"),  # type: ignore[list-item]
    (lambda: seq(gen("x", regex="a", stop="b")), "stop"),
    (lambda: seq(gen("x", stop_regex="a")), "stop_regex"),
    (lambda: seq(gen("x", grammar="start: 'a'")), "grammar"),
    (lambda: seq(gen("x", tools=[len])), "tools"),
    (lambda: seq(gen("x", json_schema={}, additional_properties="schema")), "additional_properties"),
    (lambda: seq(select("x", ["a", "b"], temperature=0.5)), "choices_method"),
    (lambda: seq(select("x", ["a"], choices_method="greedy_token_selection")), "choices_method"),
    (lambda: seq(gen("x", regex="a"), gen("x", regex="b")), "name"),
    (lambda: seq(one_or_more(gen("x", regex="a")), gen("x", regex="b")), "name"),
    (lambda: seq(seq("a", temperature=0.5)), "temperature"),
    (lambda: seq("a", stop="b"), "stop"),
    (lambda: seq("a", regex="b"), "regex"),
    (lambda: seq("a", name=""), "name"),
    (lambda: rx("(a"), "pattern"),
    (lambda: rx("^a"), "pattern"),
    (lambda: rx(r"\ba"), "pattern"),
    (lambda: rx(r"(a)\1"), "pattern"),
    (lambda: rx(r"(?iu)a"), "pattern"),
    (lambda: rx("a{5000}"), "repeat"),
    (lambda: rx(3), "pattern"),  # type: ignore[arg-type]
    (lambda: rx(f"a{gen('x')}"), "pattern"),
    (lambda: repeat("a", 3, 2), "most"),
    (lambda: repeat("a", -1), "least"),
    (lambda: repeat("a", 1, 2, 3), "least"),
    (lambda: repeat("a", 1, most=2), "least"),
    (lambda: repeat("a", 0, 0), "most"),
    (lambda: zero_or_more(), "parts"),
    (lambda: seq(*(repeat(repeat(repeat("ab", 100), 100), 100) for _ in range(2))), "parts"),
    (lambda: select("k", ["a", gen("x", regex="a")], temperature=0.5), "temperature"),
    (lambda: gen("k", choices=["a", gen("x", regex="a")]), "choices"),  # type: ignore[list-item]
    (lambda: select("k", [gen("k", regex="a")]), "name"),
    (lambda: ramiform.separate_reasoning(seq("a"), "qwen3"), "separate_reasoning"),
]


@pytest.mark.parametrize(("build", "param"), REFUSED, ids=range(len(REFUSED)))
def test_what_one_grammar_cannot_hold_is_refused_by_name_where_it_is_written(build: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        build()
    assert (caught.value.param or "") == param


def nested(depth: int) -> Any:
    expr: Any = rx("a")
    for _ in range(depth):
        expr = optional(expr, "b")
    return expr


def test_nesting_is_bounded() -> None:
    assert nested(30) is not None
    with pytest.raises(RequestError, match="nested deeper than"):
        nested(100)


def test_a_number_that_is_not_given_stops_the_plan() -> None:
    def body(s: ProgramState, count: int) -> None:
        s += "before"
        s += repeat("a", count)

    plan = ramiform.function(body).plan()
    assert (plan.argument_needed, len(list(plan.steps()))) == ("count", 1)


def test_a_backend_without_grammars_refuses() -> None:
    with pytest.raises(RequestError, match="cannot constrain completions to a grammar"):
        shop.run("Monday", backend=OpenAI("m", base_url="http://127.0.0.1:9", api_key="x"))


@ramiform.function
def order(s: ProgramState) -> None:
    s += "A shopping list, with the number of each thing.\n"
    item = seq(
        "- ",
        gen("count", regex="[1-9]"),
        " ",
        gen("item", regex="[a-z]{3,8}"),
        optional(" (", gen("note", regex="[a-z ]{1,9}"), ")"),
    )
    s += seq(repeat(item, "\n", least=2, most=3), "Total: ", gen("total", schema=dict[str, int]), max_tokens=120)
    s += select("mood", [" happy", seq(" at ", gen("hour", dtype=int), " o'clock")]) + "!"


def outcome(state: ProgramState) -> Any:
    return [state[name] for name in ("count", "item", "note", "total", "mood", "hour")], state.text()


@pytest.mark.exhaustive
def test_the_runtime_generates_what_is_composed(backend: ramiform.Runtime, url: str) -> None:
    for seed in range(4):
        state = order.run(seed=seed, temperature=0.8)
        assert 2 <= len(state["count"]) == len(state["item"]) == len(state["note"]) <= 3
        assert all(
            len(count) == 1 and 3 <= len(item) <= 8 for count, item in zip(state["count"], state["item"], strict=True)
        )
        lines = "".join(
            f"- {count} {item}{'' if note is None else f' ({note})'}\n"
            for count, item, note in zip(state["count"], state["item"], state["note"], strict=True)
        )
        assert state.text().startswith(f"A shopping list, with the number of each thing.\n{lines}Total: {{")
        assert isinstance(state["total"], dict)
        assert (state["hour"] is None) == (state["mood"] == " happy")
    here = outcome(order.run(temperature=0))
    over_http = HttpRuntime(url)
    try:
        assert outcome(order.run(temperature=0, backend=over_http)) == here
    finally:
        over_http.close()


def test_a_text_that_is_cut_off_says_so(backend: ramiform.Runtime) -> None:
    def body(s: ProgramState) -> None:
        s += seq("List: ", gen("x", regex="[a-z]{100}"), max_tokens=3)

    with pytest.raises(RequestError, match="cut off at max_tokens"):
        ramiform.function(body).run()
