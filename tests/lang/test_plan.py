"""Plans and compiled programs: contents of a plan, mistakes found before a run, and the messages of a compiled run."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, assistant, gen, select, user
from ramiform.runtime.protocol import session


@ramiform.function
def expert(s: ProgramState, question: str, width: int = 2) -> None:
    s += "Be brief.\n" + f"Question: {question}\n"
    s += gen("plan", max_tokens=5, temperature=0)
    branches = s.fork(width)
    branches += lambda index: f"Tip {index}:" + gen("tip", regex="[a-z]+")
    branches.join()
    s += "Sure?" + select("sure", ["yes", "no"])


def program(body: Any) -> ramiform.Program:
    return ramiform.function(body)


def line_of(body: Any, text: str) -> str:
    """`file:line` of the line of a function that holds the text."""
    lines, first = inspect.getsourcelines(body)
    [offset] = [offset for offset, line in enumerate(lines) if text in line]
    return f"{__file__}:{first + offset}: "


def test_a_plan_tells_states_variables_and_how_wide_it_gets() -> None:
    plan = expert.plan(question="Why?", width=3)
    assert plan.is_whole
    assert len(plan.states) == 4
    assert [state.parent for state in plan.states] == [None, 0, 0, 0]
    assert (plan.num_generations, plan.width) == (5, 3)
    assert plan.variables == ("plan", "sure", "tip")


def test_a_plan_shows_as_a_tree_with_its_arguments_as_slots() -> None:
    shown = str(expert.plan(question="Why?"))
    first = inspect.getsourcelines(expert.function)[1]
    assert f"├─ text 'Be brief.\\nQuestion: {{question}}\\n'   (test_plan.py:{first + 2})" in shown
    assert "gen plan (max_tokens=5, temperature=0)   (" in shown
    assert "fork x2" in shown
    assert shown.index("branch 0") < shown.index("'Tip 0:'") < shown.index("branch 1") < shown.index("'Tip 1:'")
    assert "Why?" not in shown


def test_a_plan_is_a_flowchart_whose_edges_join_its_nodes() -> None:
    chart = expert.plan(question='A "quoted" one?').to_mermaid()
    header, *lines = chart.splitlines()
    assert header == "flowchart TD"
    nodes = {match.group(1) for line in lines if (match := re.fullmatch(r'    (\w+)\["[^"]*"\]', line))}
    edges = [re.fullmatch(r"    (\w+) (?:-->|-\.->) (\w+)", line) for line in lines if "->" in line]
    assert len(nodes) + len(edges) == len(lines)
    assert all(edge is not None and {edge.group(1), edge.group(2)} <= nodes for edge in edges)
    reached = {edge.group(2) for edge in edges if edge}
    assert nodes - reached == {"s0_0"}


def test_trace_is_an_alias_of_plan() -> None:
    assert str(expert.trace(question="Why?")) == str(expert.plan(question="Why?"))


def test_an_argument_that_is_only_carried_is_a_slot_and_one_that_is_looked_into_is_its_value() -> None:
    def carried(s: ProgramState, a: str, b: str) -> None:
        s += "-".join([a, b]) + f"{a!s:>3}" + gen("x", stop=a)

    def looked_into(s: ProgramState, a: str, b: str) -> None:
        s += a.upper() + b + ("short" if len(a) < 3 else "long")

    assert "{a}-{b}" in str(program(carried).plan(a="one", b="two"))
    shown = str(program(looked_into).plan(a="one", b="two"))
    assert "'ONEtwolong'" in shown
    assert "{" not in shown


def test_arguments_without_an_example_are_symbols_that_cannot_be_looked_into() -> None:
    assert expert.plan().static_prefix == (session.Text("Be brief.\nQuestion: "),)

    def counts(s: ProgramState, number: int) -> None:
        for _ in range(number):
            s += "x"

    plan = program(counts).plan()
    assert not plan.is_whole
    assert (plan.stops_at, plan.argument_needed) == (line_of(counts, "range(number)").removesuffix(": "), "number")
    assert "from the argument 'number', which the program looks into, at" in str(plan)
    assert program(counts).plan(number=3).is_whole


def test_a_plan_ends_at_the_line_that_reads_a_generated_value() -> None:
    def reads(s: ProgramState, question: str) -> None:
        s += question + gen("x")
        if s["x"] == "yes":
            s += gen("y")

    plan = program(reads).plan()
    assert plan.stops_at == line_of(reads, 'if s["x"]').removesuffix(": ")
    assert plan.num_generations == 1
    assert plan.stops_at in str(plan)


def test_an_async_program_is_planned_too() -> None:
    async def body(s: ProgramState, question: str) -> None:
        s += question + gen("x")
        s["copy"] = await s.get("x")

    plan = program(body).plan()
    assert plan.variables == ("x",)
    assert plan.stops_at == line_of(body, "await s.get").removesuffix(": ")


def undefined(s: ProgramState) -> None:
    s += gen("x")
    s["y"] = s["z"]


def bad_regex(s: ProgramState) -> None:
    s += "a"
    s += gen("x", regex="(a|b")


def bad_schema(s: ProgramState) -> None:
    s += gen("x", json_schema="{'a': 1}")


def bad_grammar(s: ProgramState) -> None:
    s += gen("x", grammar="  ")


def open_role(s: ProgramState) -> None:
    s += user("Hello")
    s += ramiform.assistant_begin()
    s += gen("x")


def wrong_role(s: ProgramState) -> None:
    s += ramiform.user_begin() + "Hello"
    s += ramiform.assistant_end()


def no_choices(s: ProgramState) -> None:
    s += select("x", choices=[])


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        (undefined, 's["z"]', "no variable 'z'; there are: 'x'"),
        (bad_regex, "(a|b", "regex '(a|b': missing )"),
        (bad_schema, "json_schema", "is not JSON"),
        (bad_grammar, "gen(", "the grammar is empty"),
        (open_role, "assistant_begin", "the assistant message is never ended"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_found_before_a_run_with_the_program_s_line(body: Any, line: str, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        program(body).compile()
    assert str(caught.value).startswith(line_of(body, line))


@pytest.mark.parametrize(
    ("body", "message"),
    [(wrong_role, "the assistant message ends inside the user message"), (no_choices, "choices must be")],
)
def test_plan_raises_for_expressions_that_cannot_be_recorded(body: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        program(body).plan()


def test_a_compiled_program_is_one_message_and_gives_the_same(frontend: Any, endpoint: Any) -> None:
    plain = expert.run(question="Why?", width=3)
    compiled = program(expert.function)
    plan = compiled.compile(question="Example?")
    frontend.received.clear()
    state = compiled.run(question="Why?", width=3)
    assert state.text() == plain.text()
    assert [state[name] for name in plan.variables] == [plain[name] for name in plan.variables]
    said = [message for message in frontend.received if not isinstance(message, session.Hello | session.Close)]
    assert [type(message) for message in said] == [session.Play]
    assert said[0].complete


def test_a_compiled_async_program_is_one_message_too(frontend: Any, endpoint: Any) -> None:
    async def body(s: ProgramState, name: str) -> None:
        s += name + gen("x")
        branches = s.fork(2)
        branches += gen("y")
        branches.join()

    compiled = program(body)
    assert compiled.compile().is_whole
    assert compiled.run(name="Ada")["y"] == ["<6>", "<6>"]
    assert len(compiled.run_batch([{"name": "Bob"}] * 5)) == 5
    assert [play.complete for play in frontend.messages(session.Play)] == [True] * 6
    assert frontend.messages(session.Append) == []


def test_a_program_that_reads_is_sent_up_to_the_read_and_then_piece_by_piece(frontend: Any, endpoint: Any) -> None:
    def reads(s: ProgramState) -> None:
        s += "a" + gen("x")
        s += "b"
        s["seen"] = s["x"]
        s += "c"
        s += gen("y")

    compiled = program(reads)
    assert not compiled.compile().is_whole
    assert compiled.run()["y"] == "<6>"
    kinds = [type(message) for message in frontend.received]
    assert kinds.count(session.Play) == 1
    [play] = frontend.messages(session.Play)
    assert not play.complete
    assert len(frontend.messages(session.Append)) == 2


def test_a_compiled_run_is_checked_before_it_is_sent(frontend: Any, endpoint: Any) -> None:
    def body(s: ProgramState, pattern: str) -> None:
        s += gen("x", regex=pattern)

    compiled = program(body)
    compiled.compile(pattern="a+")
    with pytest.raises(RequestError, match="unterminated subpattern"):
        compiled.run(pattern="(a")
    endpoint.connection().call("info")
    assert frontend.messages(session.Play) == []
    assert compiled.run(pattern="b")["x"] == "<0>"


def test_a_text_that_cannot_be_sent_names_its_line_in_a_compiled_program_too(endpoint: Any) -> None:
    def body(s: ProgramState, text: str) -> None:
        s += "fine"
        s += text + gen("x")

    compiled = program(body)
    compiled.compile()
    with pytest.raises(RequestError, match="not valid Unicode") as caught:
        compiled.run(text="\ud800")
    assert str(caught.value).startswith(line_of(body, "s += text"))


def test_a_batch_of_a_compiled_program_takes_one_message_each_and_no_thread(frontend: Any, endpoint: Any) -> None:
    import threading

    names: set[str] = set()

    def body(s: ProgramState, number: int) -> None:
        names.add(threading.current_thread().name)
        s += f"{number}:" + gen("x")

    compiled = program(body)
    plan = compiled.compile(number=1)
    states = plan.run_batch([{"number": number} for number in range(200)])
    assert [state.text() for state in states] == [f"{number}:<{len(str(number)) + 1}>" for number in range(200)]
    assert names == {threading.current_thread().name}
    assert len(frontend.messages(session.Play)) == 200


def test_arguments_that_lead_a_batch_to_a_read_give_that_call_a_way_of_its_own(endpoint: Any) -> None:
    def body(s: ProgramState, again: bool) -> None:
        s += "x" + gen("x")
        if again:
            s += s["x"] + gen("y")

    compiled = program(body)
    assert compiled.compile(again=False).is_whole
    first, second, third = compiled.run_batch([{"again": False}, {"again": True}, {"again": False}])
    assert first.text() == third.text() == "x<1>"
    assert second.text() == "x<1><1><7>"


def test_errors_of_a_compiled_batch_stand_in_their_place(frontend: Any, endpoint: Any) -> None:
    from ramiform.runtime.protocol.errors import ErrorInfo

    failed = ErrorInfo(kind="request", message="no good")
    frontend.script = lambda text, operation: failed if "3" in text else "ok"

    def body(s: ProgramState, number: int) -> None:
        if number == 4:
            raise LookupError("four")
        s += str(number) + gen("x")

    compiled = program(body)
    compiled.compile(number=1)
    results = compiled.run_batch([(number,) for number in range(6)], return_exceptions=True)
    assert [type(result.error) for result in results[3:5]] == [RequestError, LookupError]
    assert [results[index]["x"] for index in (0, 1, 2, 5)] == ["ok"] * 4
    with pytest.raises(RequestError, match="no good"):
        compiled.run_batch([(number,) for number in range(4)])
    given = compiled.run_batch([(number,) for number in range(5)], generator_style=True)
    assert [next(given)["x"] for _ in range(3)] == ["ok"] * 3
    with pytest.raises(RequestError, match="no good"):
        next(given)


@pytest.mark.exhaustive
def test_a_branch_dropped_while_recording_is_closed_after_its_messages(frontend: Any, endpoint: Any) -> None:
    import gc

    def body(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += "b"
        branches.join("concate_and_append")
        del branches
        gc.collect()
        s += gen("x")

    compiled = program(body)
    compiled.compile()
    assert compiled.run().text() == "bb<2>"


def test_compiling_a_bound_program_keeps_its_arguments(endpoint: Any) -> None:
    bound = program(expert.function).bind(width=4)
    plan = bound.compile(question="Why?")
    assert plan.width == 4
    assert len(bound.run(question="Who?")["tip"]) == 4


@pytest.mark.slow
def test_cache_computes_and_keeps_the_prefix_of_every_call(frontend: Any, endpoint: Any) -> None:
    import gc

    kept = program(expert.function)
    kept.cache()
    gc.collect()
    endpoint.connection().call("info")
    assert [operation.text for operation in frontend.operations(session.Text)] == ["Be brief.\nQuestion: "]
    [warm] = frontend.operations(session.Gen)
    assert warm.sampling.max_new_tokens == 0
    assert frontend.messages(session.Close) == []

    def varies(s: ProgramState, a: str) -> None:
        s += a + assistant(gen("x"))

    frontend.received.clear()
    program(varies).cache()
    assert frontend.messages(session.Append)[0].operations[:-1] == [session.Text("")]
