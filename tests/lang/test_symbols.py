"""Plans stop where a program looks into an argument that is not given, whatever way it looks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, Scripted, gen, pick, rate, select

LOOKS: dict[str, Callable[[Any], Any]] = {
    "iteration": lambda q: [word for word in q],  # noqa: C416
    "len": len,
    "bool": lambda q: "yes" if q else "no",
    "or": lambda q: q or "default",
    "not": lambda q: not q,
    "equal": lambda q: q == "x",
    "equal, reflected": lambda q: "x" == q,  # noqa: SIM300
    "unequal": lambda q: q != "x",
    "less": lambda q: q < "x",
    "greater, reflected": lambda q: "x" > q,  # noqa: SIM300
    "max": lambda q: max(q, "b"),
    "contains": lambda q: "a" in q,
    "in list": lambda q: q in ["a", "b"],
    "in dict": lambda q: q in {"a": 1},
    "dict lookup": lambda q: {"a": 1}.get(q),
    "set": lambda q: {q},
    "index": lambda q: q[0],
    "slice": lambda q: q[:3],
    "split": lambda q: q.split(),
    "strip": lambda q: q.strip(),
    "upper": lambda q: q.upper(),
    "replace": lambda q: q.replace("a", "b"),
    "startswith": lambda q: q.startswith("a"),
    "isdigit": lambda q: q.isdigit(),
    "encode": lambda q: q.encode(),
    "format method": lambda q: q.format(1),
    "template": lambda q: q % ("x",),
    "int": int,
    "float": float,
    "range": range,
    "times": lambda q: q * 2,
    "times, reflected": lambda q: "-" * q,
    "plus one": lambda q: q + 1,
    "one plus": lambda q: 1 + q,
    "minus": lambda q: q - 1,
    "divided": lambda q: 1 / q,
    "list plus": lambda q: ["a", *q],
    "plus list": lambda q: [1] + q,  # noqa: RUF005
    "list": list,
    "sorted": sorted,
    "attribute": lambda q: q.items(),
    "field": lambda q: q.title_of_it,
    "format spec": lambda q: f"{q:>9}",
    "repr": lambda q: f"{q!r}",
    "json": lambda q: json.loads(q),
    "call": lambda q: q(),
    "unpacking": lambda q: (lambda **k: k)(**dict(q)),
    # Through a text that holds it, which is a plain string: a second call tells.
    "upper of a text": lambda q: f"<{q}>".upper(),
    "split of a text": lambda q: "|".join(f"{q}".split()),
    "strip of a text": lambda q: f"{q}".strip(),
    "len of a text": lambda q: "x" * len(f"{q}"),
    "search in a text": lambda q: "yes" if "\n" in "".join(["a", q]) else "no",
    "regex": lambda q: re.sub(r"\s", "_", str(q)),
    "width": lambda q: f"{q!s:>40}",
    "a number of steps": lambda q: "".join(str(number) for number in range(len(str(q)))),
}


def looking(look: Callable[[Any], Any]) -> ramiform.Program:
    def body(s: ProgramState, q: Any) -> None:
        s += "before"
        s += f"{look(q)}" + gen("x")

    return ramiform.function(body)


@pytest.mark.parametrize("name", LOOKS)
def test_a_plan_stops_where_an_argument_is_looked_into(name: str) -> None:
    program = looking(LOOKS[name])
    plan = program.plan()
    assert not plan.is_whole
    assert plan.argument_needed == "q"
    assert plan.num_generations == 0
    assert [step.label for step in plan.steps()] == ["text 'before'"]
    assert plan.stops_at is not None
    assert plan.stops_at.startswith(__file__)


CARRIES: dict[str, Callable[[str, str], Any]] = {
    "f-string": lambda a, b: f"1 {a} 2 {b} 3" + gen("x"),
    "f-string with a gen": lambda a, b: f"1 {a} {gen('x')} {b}",
    "plus": lambda a, b: a + "-" + b + gen("x"),
    "reflected": lambda a, b: "-" + a + b + gen("x"),
    "gen first": lambda a, b: gen("x") + a + b,
    "join": lambda a, b: ", ".join([a, "c", b]) + gen("x"),
    "format": lambda a, b: "{} {}".format(a, b) + gen("x"),  # noqa: UP032
    "percent": lambda a, b: "%s %s" % (a, b) + gen("x"),  # noqa: UP031
    "percent of one": lambda a, b: ("%s" % a) + b + gen("x"),  # noqa: UP031
    "stop": lambda a, b: a + gen("x", stop=b),
    "stops": lambda a, b: a + gen("x", stop=[b, "."]),
    "regex": lambda a, b: a + gen("x", regex=b),
    "choices": lambda a, b: "?" + select("x", [a, b, "c"]),
    "roles": lambda a, b: ramiform.user(a) + ramiform.assistant(b + gen("x")),
}


@pytest.mark.parametrize("name", CARRIES)
def test_an_argument_that_is_only_put_into_texts_does_not_stop_the_plan(name: str) -> None:
    def body(s: ProgramState, a: str, b: str) -> None:
        s += CARRIES[name](a, b)

    plan = ramiform.function(body).plan()
    assert plan.is_whole
    assert plan.num_generations == 1
    if name not in ("stop", "stops", "regex"):
        assert "{a}" in str(plan)
        assert "{b}" in str(plan)


GIVES: dict[str, Callable[[Any], Any]] = {
    **{
        name: look
        for name, look in LOOKS.items()
        if name not in ("attribute", "field", "call", "unpacking", "template")
    },
}


def outcome(program: ramiform.Program, argument: Any) -> Any:
    try:
        state = program.run(argument, backend=Scripted(["out"]))
    except Exception as error:
        return type(error), str(error).rpartition(": ")[2]
    return state.text(), state["x"]


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["a b\n", "12", "", "{x}", 3, ["a", "b"]])
@pytest.mark.parametrize("name", GIVES)
def test_a_compiled_program_gives_what_the_program_gives(name: str, argument: Any) -> None:
    compiled = looking(GIVES[name])
    compiled.compile()
    assert outcome(compiled, argument) == outcome(looking(GIVES[name]), argument)


@pytest.mark.parametrize(
    "use",
    [
        lambda s, q: s.fork(q),
        lambda s, q: gen("x", max_tokens=q),
        lambda s, q: gen("x", temperature=q),
        lambda s, q: gen("x", schema=q, json_schema=q),
        lambda s, q: gen(q),
        lambda s, q: select("x", q),
        lambda s, q: select("x", ["a"], temperature=q),
    ],
)
def test_a_parameter_that_is_no_text_needs_the_argument(use: Any) -> None:
    def body(s: ProgramState, q: Any) -> None:
        s += "before"
        s += use(s, q)

    plan = ramiform.function(body).plan()
    assert plan.argument_needed == "q"
    assert [step.label for step in plan.steps()] == ["text 'before'"]


def test_a_difference_in_a_branch_cuts_what_comes_after_it_only() -> None:
    def body(s: ProgramState, q: str) -> None:
        s += "shared" + gen("x")
        branches = s.fork(2)
        branches[0] += "first" + gen("y")
        branches[1] += f"{q}".upper() + gen("z")
        branches.join()
        s += "end"

    plan = ramiform.function(body).plan()
    assert plan.argument_needed == "q"
    assert plan.variables == ("x", "y")
    assert plan.stops_at is not None
    assert plan.stops_at.endswith(f":{body.__code__.co_firstlineno + 4}")
    assert [state.parent for state in plan.states] == [None, 0, 0]
    assert "y" in plan.to_mermaid()


def test_a_read_still_says_that_a_generated_value_is_needed() -> None:
    def body(s: ProgramState, q: str) -> None:
        s += q + gen("x")
        s += s["x"]

    plan = ramiform.function(body).plan()
    assert plan.stops_at is not None
    assert plan.argument_needed is None
    assert "from what is generated" in str(plan)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_variable_that_is_generated_again_is_the_latest_compiled_or_not(is_compiled: bool) -> None:
    def body(s: ProgramState, topic: str) -> None:
        s["topic"] = topic
        for _ in range(3):
            s += topic + gen("topic") + gen("user")

    program = ramiform.function(body)
    if is_compiled:
        assert program.compile().is_whole
    state = program.run("t", backend=Scripted(list("abcdef")))
    assert (state["topic"], state["user"], state.text()) == ("e", "f", "tabtcdtef")


def test_questions_about_an_argument_are_planned_with_its_symbol() -> None:
    def body(s: ProgramState, q: str) -> None:
        s += q
        s.decide(good=f"Is {q} good?", bad=q, team=pick(q, [q, "sales"]), mood=rate("How?", {"bad": q, "good": q}))

    plan = ramiform.function(body).plan()
    assert plan.is_whole
    assert plan.num_generations == 1


def test_an_error_that_only_some_arguments_lead_to_stops_the_plan_there() -> None:
    def body(s: ProgramState, q: str) -> None:
        s += "before"
        if len(f"{q}") > 5:
            raise LookupError("too long")
        s += "after" + gen("x")

    plan = ramiform.function(body).plan()
    assert plan.argument_needed == "q"
    assert plan.stops_at == f"{__file__}:{body.__code__.co_firstlineno + 3}"
    assert [step.label for step in plan.steps()] == ["text 'before'"]


def test_a_program_that_ends_early_for_some_arguments_is_not_planned_whole() -> None:
    def body(s: ProgramState, q: str) -> None:
        s += "before"
        if len(f"{q}") > 5:
            return
        s += "after" + gen("x")

    plan = ramiform.function(body).plan()
    assert (plan.is_whole, plan.num_generations) == (False, 0)


@ramiform.function
def looks_in_parameters(s: ramiform.ProgramState, number: int) -> None:
    s += "text"
    s += ramiform.gen("x", max_tokens=number)


@ramiform.function
def looks_at_a_fork(s: ramiform.ProgramState, number: int) -> None:
    s.fork(number)


def test_a_plan_stops_at_the_users_line_where_a_parameter_is_a_symbol() -> None:
    for program, distance in ((looks_in_parameters, 3), (looks_at_a_fork, 2)):
        first = program.function.__code__.co_firstlineno
        assert program.plan().stops_at == f"{__file__}:{first + distance}"
