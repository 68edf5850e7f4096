"""Expressions inside f-strings: generated where text is appended, refused elsewhere, never sent as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, assistant, gen, pick, role, select, user
from ramiform.lang.expressions import format_marks
from ramiform.lang.expressions.expr import Concat, Constant, GenExpr, parts_of

X = gen("x", max_tokens=3)


def same(text: str, chain: Any) -> bool:
    return parts_of(text) == parts_of(chain)


@pytest.mark.parametrize(
    "text",
    [
        f"a{X}b",
        f"a{X!s}b",
        "a%sb" % X,  # noqa: UP031
        "a{}b".format(X),  # noqa: UP032
        "a" + str(X) + "b",
        "".join(["a", str(X), "b"]),
        f"{'a' + X}b",
        f"  a{X}b".strip(),
        textwrap.dedent(f"  a{X}b").upper().replace("A", "a").replace("B", "b"),
    ],
    ids=range(9),
)
def test_a_string_with_an_expression_has_its_parts(text: str) -> None:
    assert same(text, "a" + X + "b")


def test_expressions_in_strings_nest_and_chain() -> None:
    assert same(f"{X}", X)
    assert same(f"{X}{X}", X + "" + X)
    assert same(user(f"Hi {X}"), user("Hi " + X))  # type: ignore[arg-type]
    assert same(f"{user(f'Hi {X}')}{assistant(X)}", user("Hi " + X) + assistant(X))
    assert same(f"{select('y', ['1', '2'])}." + X, select("y", ["1", "2"]) + "." + X)
    assert same("a" + X + f"{X}b", "a" + X + X + "b")
    inner = f"{X}"
    assert same(f"<{inner}>", "<" + X + ">")


def test_a_program_generates_what_its_f_strings_say() -> None:
    @ramiform.function
    def program(s: ProgramState, name: str) -> None:
        s += f"I am {name}. {gen('a')}! {select('b', ['yes', 'no'])}"
        s += user(f"x {gen('c', dtype=int, stop='.')} y")
        with s.assistant():
            s += f"{gen('d')}"
        group = s.fork(2)
        group += lambda index: f" {index} {gen('e')}"
        group.join()

    for compiled in (False, True):
        if compiled:
            plan = program.compile()
            assert plan.is_whole
            assert "{name}" in str(plan)
        state = program.run("Ada", backend=Scripted(["one", "no", "7", "d", "e0", "e1"]), trace=True)
        assert [state[name] for name in "abcde"] == ["one", "no", 7, "d", ["e0", "e1"]]
        assert state.text().startswith("I am Ada. one! no<|im_start|>user\nx 7 y<|im_end|>\n<|im_start|>assistant\nd")
        assert not format_marks.has_mark(str(state.trace) + str(program.plan()))


def test_a_string_may_be_appended_more_than_once_and_from_other_threads() -> None:
    text = f"a{X}"
    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(lambda _: same(text, "a" + X), range(50)))


@pytest.mark.parametrize("spec", [">10", "s", "r", ".3"])
def test_a_format_is_refused(spec: str) -> None:
    with pytest.raises(RequestError, match="takes no format") as caught:
        format(X, spec)
    assert caught.value.param == "format_spec"


@pytest.mark.parametrize("cut", [slice(0, 12), slice(12, None), slice(1, None), slice(0, -1)])
def test_a_string_that_is_cut_inside_an_expression_is_refused(cut: slice) -> None:
    with pytest.raises(RequestError, match="cut inside"):
        parts_of(f"{X}"[cut])


def test_an_expression_that_is_no_longer_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_marks, "MAX_MARKS", 3)
    old, *_, new = [f"a{X}" for _ in range(5)]
    assert same(new, "a" + X)
    with pytest.raises(RequestError, match="not known here"):
        parts_of(old)


def test_a_prompt_that_is_used_again_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_marks, "MAX_MARKS", 3)
    prompt = f"a{X}"
    for _ in range(10):
        assert same(f"{gen('y')}", gen("y"))
        assert same(prompt, "a" + X)


def test_what_is_kept_is_bounded_by_its_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_marks, "MAX_CHARACTERS", 10_000)
    texts = [f"{user('x' * 3000)}" for _ in range(10)]
    assert len(format_marks._expressions) <= 3
    assert same(texts[-1], user("x" * 3000))


@pytest.mark.parametrize("text", ["\U000f5c0a", "\U000f5c0b", "\U000f5c0a x \U000f5c0b", "\ue000q\ue001", "{x}"])
def test_texts_from_outside_with_such_characters_are_plain(text: str) -> None:
    assert parts_of(text) == (Constant(text),)


def test_a_mark_of_somebody_else_is_refused_and_never_an_expression() -> None:
    made_up = f"{X}"[0] + "1" * 36 + f"{X}"[-1]
    with pytest.raises(RequestError, match="not known here"):
        parts_of(made_up)


USES: dict[str, Callable[[str], Any]] = {
    "choices": lambda text: select("y", ["a", text]),
    "choices of gen": lambda text: gen("y", choices=[text]),
    "stop": lambda text: gen("y", stop=text),
    "stop list": lambda text: gen("y", stop=["a", text]),
    "stop_regex": lambda text: gen("y", stop_regex=text),
    "regex": lambda text: gen("y", regex=text),
    "grammar": lambda text: gen("y", grammar=text),
    "json_schema": lambda text: gen("y", json_schema={"const": text}),
    "tool_result": lambda text: gen("y", tools=[], tool_result=text),
    "name": lambda text: gen(text),
    "role": lambda text: role(text, "x"),
}


@pytest.mark.parametrize("param", USES)
def test_an_expression_elsewhere_is_refused_where_it_is_written(param: str) -> None:
    with pytest.raises(RequestError, match="holds an expression") as caught:
        USES[param](f"a{X}")
    assert caught.value.param == param.split()[0]
    assert not format_marks.has_mark(str(caught.value))


def run(body: Callable[[ProgramState], None], **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(backend=Scripted(["a"] * 9), **arguments)


def test_an_expression_in_a_variable_a_question_a_default_or_a_tool_result_is_refused() -> None:
    def sets(s: ProgramState) -> None:
        s["v"] = f"{X}"

    def decides(s: ProgramState) -> None:
        s.decide(q=pick(f"{X}", ["a", "b"]))

    def decides_of_text(s: ProgramState) -> None:
        s.decide(q=f"{X}")

    def generates(s: ProgramState) -> None:
        s += gen("y")

    def lookup() -> str:
        """Look it up."""
        return f"found {X}"

    def calls(s: ProgramState) -> None:
        s += gen("y", tools=[lookup])

    for body in (sets, decides, decides_of_text):
        with pytest.raises(RequestError, match="holds an expression"):
            run(body)
    with pytest.raises(RequestError, match="holds an expression") as caught:
        run(generates, stop=f"{X}")
    assert caught.value.param == "stop"
    with pytest.raises(RequestError, match="holds an expression"):
        ramiform.function(calls).run(backend=Scripted(['{"name": "lookup", "arguments": {}}']))


def test_an_expression_may_come_as_an_argument() -> None:
    @ramiform.function
    def program(s: ProgramState, text: str) -> None:
        s += text

    assert program.run(f"a{gen('x')}", backend=Scripted(["b"]))["x"] == "b"


def test_repr_shows_an_expression_and_text_keeps_it() -> None:
    assert repr(X).startswith("GenExpr(")
    assert isinstance(parts_of(str(X))[0], GenExpr)
    assert isinstance("a" + X, Concat)


def test_an_expression_is_not_returned_as_text() -> None:
    @ramiform.function
    def returned(s: ramiform.ProgramState) -> str:
        return f"{gen('x')}"

    with pytest.raises(RequestError, match=r"return = '\{\.\.\.\}' holds an expression"):
        returned(backend=Scripted([]))  # type: ignore[call-arg]
