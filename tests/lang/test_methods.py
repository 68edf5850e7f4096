"""Programs that are methods of classes, and arguments that `bind` gives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, Scripted, gen


class Asker:
    """Programs of every kind of method."""

    style = "class"

    def __init__(self, style: str) -> None:
        self.style = style

    @ramiform.function
    def ask(self, s: ProgramState, question: str) -> str:
        s += f"[{self.style}] {question}" + gen("answer")
        return str(s["answer"])

    @ramiform.function
    def whole(self, s: ProgramState, question: str) -> None:
        s += f"[{self.style}] {question}" + gen("answer")

    @ramiform.function
    async def ask_async(self, s: ProgramState, question: str) -> str:
        s += f"[{self.style}] {question}" + gen("answer")
        return str(await s.get("answer"))

    @ramiform.function
    @staticmethod
    def outer_static(s: ProgramState, question: str) -> None:
        s += question + gen("answer")

    @staticmethod
    @ramiform.function
    def inner_static(s: ProgramState, question: str) -> None:
        s += question + gen("answer")

    @ramiform.function
    @classmethod
    def of_class(cls, s: ProgramState, question: str) -> None:
        s += f"[{cls.style}] {question}" + gen("answer")

    @ramiform.function()
    def twice(self, s: ProgramState, question: str) -> list[str]:
        return [self.ask(s, question), self.ask(s, question + "?")]


class Louder(Asker):
    """Overrides a program and calls the one below."""

    @ramiform.function
    def ask(self, s: ProgramState, question: str) -> str:
        return super().ask(s, question.upper())


def echo() -> Scripted:
    return Scripted(lambda prompt: f"<{prompt}>")


def test_the_state_comes_after_self() -> None:
    one, other = Asker("one"), Asker("other")
    assert one.ask.run(question="q", backend=echo()).text() == "[one] q<[one] q>"
    assert other.ask.run("q", backend=echo()).text() == "[other] q<[other] q>"
    assert one.ask("q", backend=echo()) == "<[one] q>"  # type: ignore[call-overload]
    assert one.twice.run("q", backend=echo()).ret_value[0] == "<[one] q>"
    assert Louder("two").ask.run("q", backend=echo())["answer"] == "<[two] Q>"
    assert asyncio.run(one.ask_async.arun("q", backend=echo()))["answer"] == "<[one] q>"


@pytest.mark.parametrize("name", ["outer_static", "inner_static"])
def test_static_methods_take_the_state_first(name: str) -> None:
    for owner in (Asker, Asker("one")):
        assert getattr(owner, name).run("q", backend=echo())["answer"] == "<q>"


def test_class_methods_take_the_class_first() -> None:
    for owner in (Asker, Asker("one")):
        assert owner.of_class.run("q", backend=echo())["answer"] == "<[class] q>"  # type: ignore[attr-defined]
    assert Louder.of_class.run("q", backend=echo())["answer"] == "<[class] q>"  # type: ignore[attr-defined]


def test_methods_are_planned_compiled_bound_cached_and_batched() -> None:
    one = Asker("one")
    assert str(one.whole.plan()).startswith("whole(question)")
    plan = one.whole.compile()
    assert one.whole.compiled is plan
    assert one.whole.run("q", backend=echo())["answer"] == "<[one] q>"
    assert Asker("two").whole.run("q", backend=echo())["answer"] == "<[two] q>"
    assert one.whole.bind(question="q").run(backend=echo())["answer"] == "<[one] q>"
    one.ask.cache(backend=echo())
    states = one.ask.run_batch([("a",), {"question": "b"}], backend=echo())
    assert [state["answer"] for state in states] == ["<[one] a>", "<[one] b>"]


def test_a_program_that_a_class_only_refers_to_is_no_method() -> None:
    @ramiform.function
    def body(s: ProgramState, q: str) -> None:
        s += q

    class Settings:
        program = body

    assert Settings().program.run("q", backend=echo()).text() == "q"


def test_bind_gives_sampling_arguments_and_budgets_too(frontend: Any, endpoint: Any) -> None:
    @ramiform.function
    def body(s: ProgramState, question: str) -> None:
        s += question + gen("x")

    bound = body.bind(question="q", temperature=0.25, timeout=60)
    bound.run()
    bound.run(temperature=0.5)
    bound.bind(max_new_tokens=3).run_batch([{}])
    gens = frontend.operations(ramiform.runtime.protocol.session.Gen)
    assert [(one.sampling.temperature, one.sampling.max_new_tokens) for one in gens] == [
        (0.25, 128),
        (0.5, 128),
        (0.25, 3),
    ]
    with pytest.raises(TypeError):
        body.bind(questoin="q")


def test_an_item_of_a_batch_has_sampling_arguments_of_its_own(frontend: Any, endpoint: Any) -> None:
    @ramiform.function
    def body(s: ProgramState, question: str) -> None:
        s += question + gen("x")

    items: list[Any] = [{"question": "a", "temperature": 0.25}, {"question": "b"}, ("c",)]
    body.run_batch(items, temperature=0.75, num_threads=1)
    asyncio.run(body.arun_batch(items, temperature=0.75, num_threads=1))
    gens = frontend.operations(ramiform.runtime.protocol.session.Gen)
    assert [one.sampling.temperature for one in gens] == [0.25, 0.75, 0.75] * 2
    with pytest.raises(TypeError, match="backend"):
        body.run_batch([{"question": "a", "backend": None}])

    @ramiform.function
    def takes_any(s: ProgramState, **named: Any) -> Any:
        return named

    assert takes_any.run_batch([{"temperature": "mild"}])[0].ret_value == {"temperature": "mild"}


def test_what_is_made_and_appended_nowhere_is_told_with_its_line() -> None:
    def ask(s: ProgramState, question: str) -> None:
        s += question
        gen("answer", max_tokens=3)
        "So: " + ramiform.select("sure", ["yes", "no"])
        kept = gen("kept")
        s += kept
        lost = "And: " + gen("lost")  # noqa: F841
        s.gen("appended")
        len(question)

    with pytest.warns(RuntimeWarning, match="appended to no state") as told:
        ramiform.function(ask)
    first = ask.__code__.co_firstlineno
    assert [(one.filename, one.lineno - first) for one in told] == [(__file__, 2), (__file__, 3), (__file__, 6)]
    assert str(told[0].message).endswith("write s += gen('answer', max_tokens=3)")


def test_a_name_that_is_the_programs_own_is_no_gen() -> None:
    def ask(s: ProgramState) -> None:
        def user(name: str) -> None:
            s.text()

        user("Ada")

    ramiform.function(ask)
    ramiform.function(lambda s: gen("x"))
    ramiform.function(eval("lambda s: gen('x')", {"gen": gen}))  # without a source
