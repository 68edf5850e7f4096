"""Branches of a fork: appended to alone or together, and joined."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, gen
from ramiform.runtime.protocol import session

pytestmark = pytest.mark.usefixtures("endpoint")


def run(body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(**arguments)


def test_branches_begin_as_their_source_is_and_go_their_own_ways() -> None:
    def body(s: ProgramState) -> list[str]:
        s += "root " + gen("r")
        forks = s.fork(3)
        forks += ["a", "b", "c"]
        s += " trunk"
        forks[1] += "!"
        forks += lambda index: str(index)
        forks += " " + gen("leaf")
        assert len(forks) == 3
        return [fork.text() for fork in forks] + [fork["r"] + fork["leaf"] for fork in forks]

    state = run(body)
    assert state.ret_value == [
        "root <5>a0 <11>",
        "root <5>b!1 <12>",
        "root <5>c2 <11>",
        "<5><11>",
        "<5><12>",
        "<5><11>",
    ]
    assert state.text() == "root <5> trunk"


def test_a_fork_is_one_message_and_waits_for_nothing(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD

    def body(s: ProgramState) -> None:
        s += "x" + gen("slow")
        forks = s.fork(2)
        forks += "y" + gen("leaf")
        forks.join()
        frontend.wait_until(lambda: len(frontend.operations(session.Gen)) == 3)
        assert len(frontend.operations(session.Fork)) == 1
        frontend.play_on(lambda text, operation: text.upper())

    state = run(body)
    assert state["leaf"] == ["XXY", "XXY"]
    assert len(frontend.messages(session.Open)) == 1


def test_join_gathers_new_variables_in_the_branches_order() -> None:
    def body(s: ProgramState) -> None:
        s += gen("old")
        forks = s.fork(3)
        for index, fork in enumerate(forks):
            fork += "x" * index + gen("new")
            fork["index"] = index
            fork["old"] = "changed"
        forks[2]["only"] = "here"
        forks.join()

    state = run(body)
    assert state["new"] == ["<3>", "<4>", "<5>"]
    assert state["index"] == [0, 1, 2]
    assert state["only"] == ["here"]
    assert state["old"] == "<0>"
    assert [meta["prompt_tokens"] for meta in state.get_meta_info("new")] == [3, 4, 5]


def test_a_second_join_of_a_name_replaces_the_first() -> None:
    def body(s: ProgramState) -> list[Any]:
        seen = []
        for step in range(2):
            forks = s.fork(2)
            for index, fork in enumerate(forks):
                fork["thought"] = (step, index)
            forks.join()
            seen.append(s["thought"])
        s.fork(2).join()
        seen.append(s["thought"])
        return seen

    assert run(body).ret_value == [[(0, 0), (0, 1)], [(1, 0), (1, 1)], [(1, 0), (1, 1)]]


def test_join_can_append_the_branches_text(frontend: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "all:"
        forks = s.fork(2)
        forks += [" one " + gen("a"), " two " + gen("b")]
        forks.join("concate_and_append")
        del forks
        gc.collect()
        s += " end"

    state = run(body)
    assert state.text() == "all: one <9> two <9> end"
    assert "a" not in state


@pytest.mark.slow
def test_a_branch_outlives_its_source() -> None:
    def body(s: ProgramState) -> None:
        s += "root "
        s["branch"] = s.fork(1)[0]

    branch = run(body)["branch"]
    gc.collect()
    branch += gen("x")
    assert branch.text() == "root <5>"


def test_a_copy_is_joined_at_the_end() -> None:
    def body(s: ProgramState) -> None:
        s += "q"
        with s.copy() as copy:
            copy += "?" + gen("thought")
        s += "a"

    state = run(body)
    assert state["thought"] == ["<2>"]
    assert state.text() == "qa"


def test_a_branch_is_inside_the_message_that_was_open_and_has_the_messages_before() -> None:
    def body(s: ProgramState) -> list[Any]:
        s.user("q")
        s += ramiform.assistant_begin()
        forks = s.fork(2)
        forks += gen("a") + ramiform.assistant_end()
        return [fork.messages() for fork in forks]

    messages = run(body).ret_value
    assert messages[0] == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<29>"}]
    assert messages[0] == messages[1]


def test_forks_of_forks_compose() -> None:
    def body(s: ProgramState) -> None:
        s += "0"
        for fork in (outer := s.fork(2)):
            fork += "1"
            inner = fork.fork(2)
            inner += ["2", "3"]
            inner += gen("leaf")
            inner.join("gather_variable")
        outer.join()

    assert run(body)["leaf"] == [["<3>", "<3>"], ["<3>", "<3>"]]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda s: s.fork(0), "positive number of branches"),
        (lambda s: s.fork("2"), "positive number of branches"),
        (lambda s: s.fork(2).join("somehow"), "mode must be"),
        (lambda s: s.fork(2).__iadd__(["a"]), "1 expressions for 2 branches"),
        (lambda s: s.fork(2).__iadd__(3), "cannot append"),
        (lambda s: s.fork(2).__setitem__(0, s), "cannot be replaced"),
    ],
)
def test_misuse_is_named(misuse: Any, message: str) -> None:
    def body(s: ProgramState) -> None:
        with pytest.raises(RequestError, match=message):
            misuse(s)

    run(body)


def test_an_error_of_a_gathered_variable_that_was_caught_does_not_come_again() -> None:
    caught = []

    @ramiform.function
    def program(s: ramiform.ProgramState) -> None:
        branches = s.fork(3)
        branches += ramiform.gen("n", dtype=int)
        branches.join()
        try:
            s["n"]
        except ramiform.RequestError as error:
            caught.append(error)

    program.run(backend=ramiform.Scripted(["1", "no", "none"]))
    assert len(caught) == 1
    assert caught[0].code == "invalid_result"
