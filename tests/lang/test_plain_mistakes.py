"""Plain mistakes in programs raise or warn at their line, or do what was meant."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import BusyError, ProgramState, RequestError, RuntimeFailed, Scripted, assistant, gen, select, user
from ramiform.lang.backends.http_errors import failure_of_answer


def run(body: Any, answers: list[Any], **options: Any) -> ProgramState:
    return ramiform.function(body).run(backend=Scripted(answers), **options)


def test_a_copy_outside_a_block_says_how_it_is_written() -> None:
    def body(s: ProgramState) -> None:
        c = s.copy()
        c += "x"  # type: ignore[misc]

    with pytest.raises(RequestError, match=r"with s\.copy\(\) as c"):
        run(body, [])


def test_a_pattern_in_the_place_of_max_tokens_is_named() -> None:
    with pytest.raises(RequestError, match=r"second argument of gen is max_tokens.*'\[0-9\]\+'.*regex=") as raised:
        gen("x", r"[0-9]+")  # type: ignore[arg-type]
    assert raised.value.param == "max_tokens"


def test_choices_may_come_before_a_name() -> None:
    assert select(["a", "b"], name="x") == select("x", ["a", "b"])
    with pytest.raises(TypeError):
        select("y", name="x")  # type: ignore[misc]


def test_lists_of_chat_messages_are_appended() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]

    def body(s: ProgramState) -> Any:
        s += chat
        s += [{"role": "assistant", "content": gen("answer")}]
        return s.messages()

    state = run(body, ["Hi"])
    assert state.ret_value == [*chat, {"role": "assistant", "content": "Hi"}]
    assert state["answer"] == "Hi"


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([gen("x")], "cannot append a list whose item 0 is of type GenExpr"),
        ([{"role": "user"}], "message 0 must be a dict of 'role' and 'content'"),
        ([{"role": "user", "content": "x", "name": "y"}], "message 0"),
        ([{"role": "user", "content": ["x"]}], "message 0"),
    ],
)
def test_other_lists_are_refused_by_their_item(items: Any, told: str) -> None:
    def body(s: ProgramState) -> None:
        s += items

    with pytest.raises(RequestError, match=told) as raised:
        run(body, [])
    assert raised.value.param == "messages"
    assert "sampling" not in str(raised.value)


def test_values_after_an_exception_of_ones_own_are_the_programs_matter(runtime: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "Once" + gen("draft", max_tokens=900, ignore_eos=True)
        raise KeyError("mine")

    with pytest.raises(KeyError) as raised:
        ramiform.function(body).run(backend=runtime)
    with pytest.raises(RequestError, match="ended with KeyError") as read:
        assert raised.value.state["draft"]  # type: ignore[attr-defined]
    assert read.value.code == "program_failed"


def test_a_signature_without_a_type_of_its_answer_is_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="capital asks nothing"):

        @ramiform.function
        def capital(s: ProgramState, country: str):  # type: ignore[no-untyped-def]
            """Name the capital of the country."""

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @ramiform.function
        def told(s: ProgramState) -> None:
            """Do nothing."""


@pytest.mark.parametrize("together", [True, False])
def test_a_gen_after_a_message_and_outside_any_is_a_warning(together: bool) -> None:
    def body(s: ProgramState) -> None:
        if together:
            s += user("Hello") + gen("x")
        else:
            s += user("Hello")
            s += gen("x")

    with pytest.warns(RuntimeWarning, match=r"outside any.*assistant\(gen") as warned:
        run(body, ["Hi"])
    assert {warning.filename for warning in warned} == {__file__}

    def right(s: ProgramState) -> None:
        mark = s.mark()
        s += user("Hello") + assistant(gen("x"))
        s += user("Bye")
        s.rollback(mark)
        s += gen("y") + user("Go on")
        branches = s.fork(2)
        branches += [" one", " two"]
        branches.join("concate_and_append")
        s += gen("z")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(right, lambda text: "Hi")


def test_a_regex_cut_at_a_stop_is_no_match() -> None:
    def body(s: ProgramState, **more: Any) -> Any:
        s += gen("n", regex="[0-9]+-[0-9]+", stop="-", **more)
        return s["n"]

    with pytest.raises(RequestError, match=r"cut off at the stop '-'.*regex"):
        run(body, ["12-34"])
    assert run(lambda s: body(s, on_cut="keep"), ["12-34"]).ret_value == "12"

    def whole(s: ProgramState) -> Any:
        s += gen("n", regex="[0-9]+", stop="-")
        return s["n"]

    assert run(whole, ["12-34"]).ret_value == "12"


@pytest.mark.parametrize(("name", "value"), [("max_tokens", -1), ("temperature", "hot"), ("min_tokens", -3), ("n", 0)])
def test_an_argument_of_run_is_checked_where_every_gen_has_its_own(name: str, value: Any) -> None:
    def body(s: ProgramState) -> None:
        s += gen("x", max_tokens=3, temperature=0, min_tokens=1, n=1)

    program = ramiform.function(body)
    with pytest.raises(RequestError, match=name.removeprefix("max_").removeprefix("min_")):
        program.run(backend=Scripted(["x"]), **{name: value})
    assert program.run(backend=Scripted(["x"]), min_tokens=2)["x"] == "x"


def test_a_returned_text_with_an_expression_in_it_is_refused_by_run_too() -> None:
    with pytest.raises(RequestError, match="return"):
        run(lambda s: f"{gen('x')}", [])


def test_a_server_whose_model_is_loading_is_busy() -> None:
    failure = failure_of_answer(503, {}, b'{"error": {"message": "the model is still loading"}}')
    assert isinstance(failure.to_error(), BusyError)
    assert isinstance(failure_of_answer(503, {}, b"gone").to_error(), RuntimeFailed)


def test_dir_has_every_public_name_and_programs_have_names() -> None:
    assert set(ramiform.__all__) <= set(dir(ramiform))

    @ramiform.function
    def report(s: ProgramState, topic: str, length: int = 3) -> None:
        s += topic

    assert repr(report).endswith("report(topic: 'str', length: 'int' = 3) -> 'None'>")
    assert "topic" not in repr(report.bind(topic="x"))


def test_bound_texts_are_constants_of_plans_and_of_the_kept_prefix(tmp_path: Path) -> None:
    @ramiform.function
    def asks(s: ProgramState, instruction: str, question: str) -> None:
        s += instruction + "\n" + question + gen("answer")

    bound = asks.bind(instruction="Answer in a word.")
    [text] = {operation.text for operation in bound.plan().static_prefix}  # type: ignore[union-attr]
    assert text == "Answer in a word.\n"
    assert bound.plan(instruction="Other").static_prefix == asks.plan(instruction="Other").static_prefix
    backend = Scripted(["", "yes"])
    bound.cache(backend=backend)
    assert backend.prompts == ["Answer in a word.\n"]
