"""Programs give the same tokens whatever the runtime does for speed: the judge is a runtime with all of it off.

In float32, with seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, Runtime, gen, optional, repeat, select, seq, system, tool, user

pytestmark = pytest.mark.slow

OFF: dict[str, Any] = {"speculative": "off", "jump_forward": False, "prefix_cache": False, "overlap": "off"}
FEATURES: dict[str, dict[str, Any]] = {
    "all off": OFF,
    "prefix cache": OFF | {"prefix_cache": True},
    "speculation": OFF | {"prefix_cache": True, "speculative": "ngram"},
    "chunks of a prompt": OFF | {"prefix_cache": True, "prefill_budget": 24, "num_pages": 64},
    "defaults": {},
}
PROMPT = "Ada lives in Oslo. Bo lives in Rome. Ada lives in Oslo. Bo lives in"


@ramiform.function
def goes_back(s: ProgramState, seed: int) -> None:
    """Rolls back twice to one mark, and generates another text each time."""
    s += PROMPT
    mark = s.mark()
    texts = []
    for attempt in range(3):
        s += gen("place", max_tokens=12, temperature=1.0, seed=seed + attempt, ignore_eos=True)
        texts.append(s["place"])
        if attempt < 2:
            s.rollback(mark)
    s["texts"] = texts
    s += " So" + gen("end", max_tokens=10, temperature=0.0, ignore_eos=True)


@ramiform.function
def tries_again(s: ProgramState, seed: int) -> None:
    """Checks what is generated; the third attempt is the first that is valid."""
    seen: list[str] = []

    def third(text: str) -> bool:
        seen.append(text)
        return len(seen) == 3

    how = "tell" if seed % 2 else "again"
    s += PROMPT + gen(
        "a", max_tokens=8, temperature=1.0, seed=seed, check=third, retries=4, on_invalid=how, ignore_eos=True
    )
    s["texts"] = [s["a"], *seen]
    s += "." + gen("end", max_tokens=8, temperature=0.8, seed=seed, ignore_eos=True)


@ramiform.function
def composes(s: ProgramState, seed: int) -> None:
    s += PROMPT
    s += seq(
        " ",
        repeat(gen("word", regex="[a-z]{2,7}"), optional(" and"), " ", least=1, most=3),
        select("who", ["Ada", seq("Bo", gen("n", regex="[0-9]{1,3}"))]),
        max_tokens=80,
        temperature=1.0,
        seed=seed,
    )
    s += " is" + gen("end", max_tokens=8, temperature=0.0, ignore_eos=True)


@ramiform.function
def branches_out(s: ProgramState, seed: int) -> None:
    """Branches, of which one branches again and one goes back; the text of all is what the end follows."""
    s += user(PROMPT) if seed % 2 else PROMPT
    group = s.fork(3)
    for index, branch in enumerate(group):
        mark = branch.mark()
        branch += f" {index}:" + gen("item", max_tokens=7, temperature=1.0, seed=seed + index, ignore_eos=True)
        if index == 1:
            branch.rollback(mark)
            branch += " no:" + gen("item", max_tokens=5, temperature=1.0, seed=seed, ignore_eos=True)
        if index == 2:
            inner = branch.fork(2)
            inner += lambda number: gen("inner", max_tokens=4, temperature=1.0, seed=seed + number, ignore_eos=True)
            inner.join("concate_and_append")
    group.join("concate_and_append")
    s += select("which", [" yes", " no", " perhaps"])
    s += gen("end", n=2, max_tokens=6, temperature=1.0, seed=seed, ignore_eos=True)


@tool(pure=True, speculate=True)
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers"""
    return {"result": a + b}


@ramiform.function
def calls_early(s: ProgramState, seed: int) -> None:
    """Calls a tool that begins before its turn ends, and from the third run on before the turn begins."""
    s += system("You are a helpful assistant.", tools=[add])
    result = s.agent([add], f"Add {20 + seed} and 30.", temperature=0.7, seed=seed, max_tokens=40, max_steps=2)
    s["calls"] = [(one.arguments, one.text) for one in result.calls]


PROGRAMS: list[Any] = [goes_back, tries_again, composes, branches_out, calls_early]


def results(program: Any, runtime: Runtime) -> list[Any]:
    """The texts and variables of runs at the same time, and one after another."""
    calls = [{"seed": seed} for seed in range(4)]
    together = [(s.text(), s.variables()) for s in program.run_batch(calls, backend=runtime)]
    alone = [(s.text(), s.variables()) for s in (program.run(**call, backend=runtime) for call in calls)]
    assert together == alone
    return together


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name == "defaults" else pytest.mark.exhaustive)
        for name in FEATURES
        if name != "all off"
    ],
)
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with Runtime(port=0, dtype="float32", log_level="error", **({"num_pages": 256} | FEATURES[request.param])) as one:
        yield one


@pytest.fixture(scope="module")
def expected() -> Callable[[Any], list[Any]]:
    """Return the programs' results on a runtime without any of the features; it ends before others start."""
    with Runtime(port=0, dtype="float32", log_level="error", num_pages=256, **OFF) as judge:
        kept = {program.function.__name__: results(program, judge) for program in PROGRAMS}
    return lambda program: kept[program.function.__name__]


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", PROGRAMS, ids=[one.function.__name__ for one in PROGRAMS])
def test_a_program_gives_the_same(program: Any, expected: Callable[[Any], list[Any]], runtime: Runtime) -> None:
    got, wanted = results(program, runtime), expected(program)
    assert got == wanted
    assert len({text for text, _ in wanted}) > 1  # seeds matter
