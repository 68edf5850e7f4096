"""A program that another one calls is a part of that run, whatever the kind of call."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramiform
from ramiform import ProgramState, RequestError, RuntimeFailed, Scripted, gen
from ramiform.lang.operations.operation_log import OperationLog
from ramiform.lang.running.arguments import fits, plain_parameters

CALL = '{"name": "ask", "arguments": {"q": "x"}}'
WORDS = "one two three four five"


@ramiform.function
def inner(s: ProgramState, q: str) -> str:
    """Answer the question."""
    s += f"Inner {q}:" + gen("a")
    return s["a"]  # type: ignore[no-any-return]


@ramiform.function
async def inner_async(s: ProgramState, q: str) -> str:
    s += f"Inner {q}:" + gen("a")
    return await s.get("a")  # type: ignore[no-any-return]


@ramiform.function
def middle(s: ProgramState) -> str:
    return inner("x")


@ramiform.tool
def ask(q: str) -> str:
    return inner(q)


@ramiform.tool(name="ask")
async def ask_async(q: str) -> str:
    return await inner_async(q)


@ramiform.function
def by_function(s: ProgramState) -> str:
    return inner("x")


@ramiform.function
def by_two_levels(s: ProgramState) -> str:
    return middle()


@ramiform.function
def by_batch(s: ProgramState) -> str:
    return inner.run_batch([{"q": "x"}])[0].ret_value  # type: ignore[no-any-return]


@ramiform.function
def by_batch_of_async(s: ProgramState) -> str:
    return inner_async.run_batch([{"q": "x"}])[0].ret_value  # type: ignore[no-any-return]


@ramiform.function
def by_tool(s: ProgramState) -> str:
    s += "Tool:" + gen("result", tools=[ask], tool_errors="raise")
    return s["result"]  # type: ignore[no-any-return]


@ramiform.function
def by_program_as_tool(s: ProgramState) -> str:
    s += "Tool:" + gen("result", tools=[ramiform.tool(inner, name="ask")], tool_errors="raise")
    return s["result"]  # type: ignore[no-any-return]


@ramiform.function
def by_agent(s: ProgramState) -> str:
    return s.agent([ask], "Agent:", tool_errors="raise").calls[0].result  # type: ignore[no-any-return]


@ramiform.function
async def by_agent_async(s: ProgramState) -> str:
    result = await s.agent_async([ask_async], "Agent:", tool_errors="raise")
    return result.calls[0].result  # type: ignore[no-any-return]


@ramiform.function
def by_branch(s: ProgramState) -> str:
    [branch] = s.fork(1)
    found = ramiform.vote(branch, 1, lambda one: inner("x"))
    return found.value  # type: ignore[no-any-return]


@ramiform.function
async def by_await(s: ProgramState) -> str:
    return await inner_async("x")


@ramiform.function
async def by_task(s: ProgramState) -> str:
    return await asyncio.create_task(inner_async("x"))  # type: ignore[arg-type]


@ramiform.function
async def by_thread(s: ProgramState) -> str:
    return await asyncio.to_thread(inner, "x")


@ramiform.function
async def by_async_batch(s: ProgramState) -> str:
    return (await inner.arun_batch([{"q": "x"}]))[0].ret_value  # type: ignore[no-any-return]


KINDS = [
    by_function,
    by_two_levels,
    by_batch,
    by_batch_of_async,
    by_tool,
    by_program_as_tool,
    by_agent,
    by_agent_async,
    by_branch,
    by_await,
    by_task,
    by_thread,
    by_async_batch,
]
each_kind = pytest.mark.parametrize("outer", KINDS, ids=[one.function.__name__ for one in KINDS])


def answer(text: str) -> str:
    if text.startswith("Inner"):
        return WORDS
    if text.endswith("Tool:"):
        return CALL
    return "done" if "<|im_start|>tool" in text else f"<tool_call>\n{CALL}\n</tool_call>"


def refuse(text: str) -> str:
    raise AssertionError(f"asked again after {text!r}")


class Slow(Scripted):
    """Holds the inner program's answer until `release` is set. Each call has a thread."""

    def __init__(self) -> None:
        super().__init__(self._held)
        self._num_threads = 4
        self.release = threading.Event()

    def _held(self, text: str) -> str:
        if text.startswith("Inner"):
            self.release.wait(30)
        return answer(text)


@each_kind
def test_the_backend_and_the_trace_are_the_callers(outer: Any) -> None:
    state = outer.run(backend=Scripted(answer), trace=True)
    assert state.ret_value == WORDS
    trace = state.trace
    [called] = [one for one in trace.states if any(event.name == "a" for event in one.events)]
    assert called.parent is not None
    assert trace.states[0].parent is None
    calls = [event for event in trace.events if event.kind == "call"]
    assert called.number in [number for event in calls for number in event.states]
    assert all(event.place.rpartition(":")[0] == __file__ for event in calls)
    assert trace.tokens.completion >= len(WORDS.split())


@each_kind
def test_the_tokens_of_the_run_bound_its_calls(outer: Any) -> None:
    own = {by_tool: 4, by_program_as_tool: 4, by_agent: 6, by_agent_async: 6}.get(outer, 0)  # words of its own
    with pytest.raises(RequestError, match="max_total_tokens"):
        outer.run(backend=Scripted(answer), max_total_tokens=own + 4)
    assert outer.run(backend=Scripted(answer), max_total_tokens=own + 8).ret_value == WORDS


@pytest.mark.slow
@each_kind
def test_the_timeout_of_the_run_bounds_its_calls(outer: Any) -> None:
    backend = Slow()
    try:
        with pytest.raises(RequestError, match="timeout"):
            outer.run(backend=backend, timeout=0.2)
    finally:
        backend.release.set()


@each_kind
def test_a_checkpoint_and_a_cache_hold_the_calls(outer: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    assert outer.run(backend=Scripted(answer), checkpoint=file).ret_value == WORDS
    assert outer.run(backend=Scripted(refuse), checkpoint=file).ret_value == WORDS
    with ramiform.cache(tmp_path / "cache"):
        assert outer.run(backend=Scripted(answer)).ret_value == WORDS
        assert outer.run(backend=Scripted(refuse)).ret_value == WORDS


@pytest.mark.parametrize("outer", [by_function, by_two_levels, by_await, by_task])
def test_the_plan_goes_on_in_calls(outer: Any) -> None:
    plan = outer.plan()
    assert [step.label for state in plan.states for step in state.steps if step.kind == "text"] == ["text 'Inner x:'"]
    assert plan.variables == ("a",)


def test_run_starts_a_run_of_its_own() -> None:
    own = Scripted([WORDS])

    @ramiform.function
    def outer(s: ProgramState) -> Any:
        s += "Tool:"
        return inner.run("x", backend=own).ret_value, inner("y", backend=Scripted(["six"]))

    state = outer.run(backend=Scripted(refuse), trace=True, max_total_tokens=1)
    assert state.ret_value == (WORDS, "six")
    assert len(state.trace.states) == 1


def test_a_call_may_have_a_budget_of_its_own_which_the_run_spends_too() -> None:
    @ramiform.function
    def outer(s: ProgramState, most: int) -> Any:
        s += "Tool:" + gen("first")
        try:
            inner("x", max_total_tokens=most)
        except RequestError as error:
            s["caught"] = error.param
        s += "Tool:" + gen("second")
        return s["second"]

    state = outer.run(2, backend=Scripted(["one", WORDS, "two"]))
    assert (state.ret_value, state["caught"]) == ("two", "max_total_tokens")
    with pytest.raises(RequestError, match="budget of 6 "):
        outer.run(50, backend=Scripted(["one", WORDS, "two"]), max_total_tokens=6)


def test_what_a_call_raises_ends_the_call_alone() -> None:
    @ramiform.function
    def fails(s: ProgramState) -> None:
        s += gen("left")
        raise KeyError("mine")

    @ramiform.function
    def outer(s: ProgramState) -> Any:
        with pytest.raises(KeyError, match="mine") as raised:
            fails()
        assert raised.value.program == "fails"  # type: ignore[attr-defined]
        return inner("x")

    assert outer.run(backend=Scripted(lambda text: WORDS)).ret_value == WORDS


def test_the_end_of_a_run_ends_its_calls() -> None:
    backend = Slow()
    states: list[ProgramState] = []

    @ramiform.function
    def outer(s: ProgramState) -> str:
        states.append(s)
        return inner("x")

    state = outer.run(stream=True, backend=backend)
    while not states or not states[0]._handle.execution._called:
        threading.Event().wait(0.001)
    state.close()
    with pytest.raises(RuntimeFailed, match="closed"):
        state.text()
    backend.release.set()


def test_calls_at_the_same_time_are_known_by_their_arguments_in_a_checkpoint(tmp_path: Path) -> None:
    @ramiform.function
    async def outer(s: ProgramState, order: list[str]) -> Any:
        found = dict(zip(order, await asyncio.gather(*map(inner_async, order)), strict=True))
        return [found[one] for one in sorted(order)]

    backend = Scripted(lambda text: text.removeprefix("Inner "))
    assert outer.bind(order=["a", "b"]).run(backend=backend, checkpoint=tmp_path / "a").ret_value == ["a:", "b:"]
    orders = iter([["a", "b"], ["b", "a"]])

    @ramiform.function
    async def varied(s: ProgramState) -> Any:
        order = next(orders)
        return sorted(await asyncio.gather(*map(inner_async, order)))

    for asked in (backend, Scripted(refuse)):
        assert varied.run(backend=asked, checkpoint=tmp_path / "b").ret_value == ["a:", "b:"]


def test_a_fresh_state_is_empty_and_of_the_same_run() -> None:
    @ramiform.function
    def outer(s: ProgramState) -> Any:
        s += "Long text."
        side = s.fresh()
        assert "x" not in side
        assert side.text() == ""
        side += "Side:" + gen("x")
        branch = side.fork(1)[0]
        branch += " and" + gen("y")
        return side["x"], branch["y"], s.text()

    backend = Scripted(["1", "2"])
    state = outer.run(backend=backend, trace=True)
    assert state.ret_value == ("1", "2", "Long text.")
    assert backend.prompts == ["Side:", "Side:1 and"]
    assert [one.parent for one in state.trace.states] == [None, 0, 1]
    assert "call fresh" in str(state.trace)


def test_sampling_arguments_reach_calls_and_calls_draw_by_seeds_of_their_own() -> None:
    seen: list[tuple[Any, Any]] = []

    @ramiform.function
    def looks(s: ProgramState) -> None:
        seen.append((s._defaults.get("temperature"), s._defaults.get("seed")))

    @ramiform.function
    def outer(s: ProgramState) -> None:
        looks()
        looks()
        looks(temperature=0.5)

    outer.run(backend=Scripted([]), temperature=0.25, seed=3)
    first, second, third = seen
    assert [first[0], second[0], third[0]] == [0.25, 0.25, 0.5]
    assert len({seed for _, seed in seen}) == 3
    assert None not in {seed for _, seed in seen}
    seen.clear()
    outer.run(backend=Scripted([]), temperature=0.25, seed=3)
    assert seen == [first, second, third]


def test_a_compiled_program_sends_its_calls_with_itself() -> None:
    @ramiform.function
    def part(s: ProgramState, q: str) -> None:
        s += f"Part {q}" + gen("b")

    @ramiform.function
    def outer(s: ProgramState, q: str) -> None:
        s += "Outer " + gen("o")
        part(q)

    assert outer.compile(q="x").is_whole
    backend = Scripted(["1", "2"])
    outer.run("y", backend=backend)
    assert sorted(backend.prompts) == ["Outer ", "Part y"]
    with pytest.raises(RequestError, match="mine"):
        outer.run("y", backend=Scripted(lambda text: RequestError("mine") if "Part" in text else "1"))


def test_outside_of_programs_a_call_is_a_run() -> None:
    ramiform.set_default_backend(Scripted(["1", "2"]))
    try:
        assert inner("x") == "1"
        by_function.run(backend=Scripted(answer))
        assert inner("x") == "2"
    finally:
        ramiform.set_default_backend(None)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=4, unique_by=lambda pair: pair[0]),
    st.integers(0, 4),
    st.sets(st.sampled_from("abcde"), max_size=4),
)
def test_arguments_fit_where_a_call_takes_them(declared: list[tuple[str, bool]], given: int, named: set[str]) -> None:
    declared = sorted(declared, key=lambda pair: pair[1])  # those with defaults come last
    text = ", ".join(["s", *(f"{name}=1" if has_default else name for name, has_default in declared)])
    signature = inspect.signature(eval(f"lambda {text}: 0"))
    args, kwargs = (0,) * given, dict.fromkeys(named, 0)
    plain = plain_parameters(signature)
    assert plain is not None
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError:
        assert not fits(plain, args, kwargs)
    else:
        assert fits(plain, args, kwargs)


def test_the_state_of_a_called_program_begins_where_it_is_used_or_told() -> None:
    @ramiform.function
    def word(s: ProgramState, q: str) -> str:
        s += q + gen("x")
        return str(s["x"])

    @ramiform.function
    def silent(s: ProgramState, q: str) -> str:
        if q == "wrong":
            raise ValueError(q)
        return word(q)

    @ramiform.function
    def kept(s: ProgramState, q: str) -> None:
        word(q)

    @ramiform.function
    def outer(s: ProgramState, *questions: str) -> None:
        s += "".join(silent(q) for q in questions)
        s["kept"] = kept("k")

    backend = Scripted(lambda text: text.upper())
    channel = backend.connection()
    first = channel.attach(OperationLog())
    state = outer.run("a", "b", backend=backend)
    assert channel.attach(OperationLog()) - first == 6  # outer's, three words' and kept's state, and this one
    assert (state.text(), state["kept"].text()) == ("AB", "")
    traced = outer.run("a", backend=backend, trace=True)
    assert len(traced.trace.states) == 5  # a trace shows also the programs that wrote nothing
    with pytest.raises(ValueError, match="wrong") as caught:
        outer.run("wrong", backend=backend)
    assert caught.value.program == "silent"  # type: ignore[attr-defined]
    assert caught.value.state.text() == ""  # type: ignore[attr-defined]
