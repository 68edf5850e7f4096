"""A cached run gives what the first one gave and generates nothing; a changed one generates only what changed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import Cache, ProgramState, RequestError, Scripted, gen, pick, select
from ramiform.runtime.protocol import session

PROBABLE = [" yes", " no"]


@ramiform.function
def story(s: ProgramState, topic: str, ending: str = " The end.") -> Any:
    s += ramiform.system("You write.") + ramiform.user(f"A story about {topic}.")
    s += ramiform.assistant("Once" + gen("opening", max_tokens=5, temperature=0, ignore_eos=True))
    branches = s.fork(2)
    branches += lambda index: f" Part {index}:" + gen("part", max_tokens=4, temperature=0.8, seed=index, stop="\n")
    deep = branches[1].fork(1)
    deep += gen("deep", max_tokens=2, temperature=0)
    deep.join("concate_and_append")
    branches.join()
    branches.join("concate_and_append")
    s += " Is it good?" + select("good", PROBABLE)
    s.decide(kind=pick("Which kind?", ["sad", "glad"]))
    s += ending + gen("moral", max_tokens=4, n=2, seed=1, return_logprob=True)
    return branches, deep


def results(state: ProgramState) -> list[Any]:
    names = ["opening", "part", "good", "kind", "moral"]
    metas = [state.get_meta_info(name) for name in ("opening", "good", "moral")]
    return [state.text(), state.messages(), *(state[name] for name in names), *metas]


@pytest.fixture(params=["run", "compiled", "arun", "batch"])
def way(request: Any) -> Callable[..., ProgramState]:
    program = ramiform.function(story.function)
    if request.param == "compiled":
        program.compile(topic="x")
    if request.param == "arun":
        return lambda *args, **kwargs: asyncio.run(program.arun(*args, **kwargs))
    if request.param == "batch":
        return lambda topic, **kwargs: program.run_batch([{"topic": topic}], **kwargs)[0]
    return program.run


def test_a_run_repeated_gives_the_same_without_a_generation(
    way: Callable[..., ProgramState], counted: Any, tmp_path: Path
) -> None:
    plain = results(story.run("bread"))
    cache = ramiform.cache(tmp_path, counted)
    first = way("bread", backend=cache)
    assert first.text() == plain[0]
    assert (cache.hits, cache.misses) == (0, 7)
    assert counted.num_generations == 7
    counted.operations.clear()
    again = way("bread", backend=cache)
    assert results(again) == results(first)
    assert counted.operations == [], "not even opened"
    assert (cache.hits, cache.misses) == (7, 7)


def test_what_comes_after_a_change_is_generated_and_what_comes_before_is_not(counted: Any, tmp_path: Path) -> None:
    expected = results(story.run("bread", ending=" Finis."))
    cache = ramiform.cache(tmp_path, counted)
    story.run("bread", backend=cache)
    counted.operations.clear()
    changed = story.run("bread", ending=" Finis.", backend=cache)
    assert results(changed)[:7] == expected[:7], "the tokens before it are the same"
    assert counted.num_generations == 1
    assert counted.count(session.Generated) == 5  # opening, two parts, the deep one, the choice


def test_branches_that_need_the_backend_share_their_beginning(counted: Any, tmp_path: Path) -> None:
    @ramiform.function
    def wide(s: ProgramState, more: bool) -> Any:
        s += "A long beginning." + gen("x", max_tokens=3, temperature=0, ignore_eos=True)
        group = s.fork(3)
        group += lambda index: f" {index}" + gen("y", max_tokens=2, temperature=0)
        if more:
            group += gen("z", max_tokens=2, temperature=0)
        s += " Then" + (gen("w", max_tokens=2, temperature=0) if more else "")
        return group

    plain = wide.run(True)
    cache = ramiform.cache(tmp_path, counted)
    assert all(branch["y"] for branch in wide.run(False, backend=cache).ret_value)
    counted.operations.clear()
    state = wide.run(True, backend=cache)
    assert state.text() == plain.text()
    assert [branch.text() for branch in state.ret_value] == [branch.text() for branch in plain.ret_value]
    assert counted.num_generations == 4
    assert counted.operations.count(session.Text("A long beginning.")) == 1


def test_draws_without_a_seed_are_the_nth_of_a_run(backend: ramiform.Runtime, tmp_path: Path) -> None:
    @ramiform.function
    def draws(s: ProgramState, size: int) -> Any:
        s += "A number:"
        group = s.fork(size)
        group += gen("x", max_tokens=8, temperature=2.0)
        group.join()
        return group

    cache = ramiform.cache(tmp_path)
    with cache:
        first = draws.run(4)["x"]
        assert len(set(first)) > 1
        assert sorted(draws.run(4)["x"]) == sorted(first)
        assert (cache.hits, cache.misses) == (4, 4)
        more = draws.run(6)["x"]
    assert cache.misses == 6
    assert set(first) <= set(more)
    draws.run(2)
    assert cache.hits + cache.misses == 14, "outside the block nothing is looked up"


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 6},
        {"temperature": 0.5},
        {"seed": 8},
        {"stop": "x"},
        {"regex": "[a-z]+"},
        {"logit_bias": {5: 1.0}},
        {"return_logprob": True},
        {"n": 2},
    ],
    ids=str,
)
def test_another_parameter_is_another_request(change: dict[str, Any], tmp_path: Path) -> None:
    @ramiform.function
    def body(s: ProgramState, **options: Any) -> None:
        s += "a" + gen("x", **{"max_tokens": 5, "temperature": 1.0, "seed": 7} | options)

    backend = Scripted(lambda prompt: "1")
    cache = ramiform.cache(tmp_path, backend)
    body.run(backend=cache)
    backend.close()
    other = Scripted(lambda prompt: ["2", "3"] if "n" in change else "2")
    body.bind(**change).run(backend=ramiform.cache(tmp_path, other))
    assert len(other.prompts) == 1
    again = body.run(backend=ramiform.cache(tmp_path, other))
    assert again["x"] == "1"
    assert len(other.prompts) == 1


def test_the_program_text_does_not_matter_but_the_content_does(tmp_path: Path) -> None:
    backend = Scripted(lambda prompt: f"<{len(prompt)}>")
    cache = ramiform.cache(tmp_path, backend)

    def run(body: Callable[[ProgramState], None]) -> ProgramState:
        return ramiform.function(body).run(backend=cache)

    def one(s: ProgramState) -> None:
        s += "ab" + gen("x", temperature=0) + "c" + gen("y", temperature=0)

    def same(s: ProgramState) -> None:
        s += "a"
        with s.copy() as c:
            c += "b" + gen("u", temperature=0)
        s += "b"
        s += gen("x", temperature=0)
        for letter in "c":
            s += letter
        s += gen("y", temperature=0)

    def other(s: ProgramState) -> None:
        s += "ab<2>c" + gen("y", temperature=0)  # the same text, but not generated

    run(one)
    assert len(backend.prompts) == 2
    run(same)
    assert len(backend.prompts) == 2
    run(other)
    assert len(backend.prompts) == 3


def test_tools_and_own_choices_run_again(tmp_path: Path) -> None:
    calls = []

    def look_up(city: str) -> str:
        """Look up."""
        calls.append(city)
        return f"{city} {len(calls)}"

    def longest(choices: list[str], **scores: Any) -> ramiform.ChoicesDecision:
        return ramiform.ChoicesDecision(max(choices, key=len), {"mine": 1})

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += gen("call", tools=[look_up]) + select("c", ["a", "bbb"], choices_method=longest) + gen("last")

    backend = Scripted(['{"name": "look_up", "arguments": {"city": "Lima"}}', 0, "x", 0, "y"])
    cache = ramiform.cache(tmp_path, backend)
    first = body.run(backend=cache)
    second = body.run(backend=cache)
    assert (first["call"], second["call"]) == ("Lima 1", "Lima 2")
    assert (first["c"], second["c"], second.get_meta_info("c")["mine"]) == ("bbb", "bbb", 1)
    assert (first["last"], second["last"]) == ("x", "y"), "the tool's result came before it"
    assert len(backend.prompts) == 5


def test_failures_are_not_kept_and_errors_have_their_line(tmp_path: Path) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "a" + gen("x")

    backend = Scripted([RequestError("no good"), "fine"])
    cache = ramiform.cache(tmp_path, backend)
    with pytest.raises(RequestError, match=r"test_cache\.py:.*no good"):
        body.run(backend=cache)
    assert body.run(backend=cache)["x"] == "fine"
    with pytest.raises(RequestError, match="not valid Unicode"):
        ramiform.function(lambda s: s.__iadd__("\ud800" + gen("x"))).run(backend=cache)


def test_budgets_hold_with_a_cache(counted: Any, tmp_path: Path) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "a" + gen("x", max_tokens=5, temperature=0, ignore_eos=True)
        s += "b" + gen("y", max_tokens=5, temperature=0, ignore_eos=True)

    cache = ramiform.cache(tmp_path, counted)
    for _ in range(2):
        with pytest.raises(RequestError) as raised:
            body.run(max_total_tokens=7, backend=cache)
        assert raised.value.param == "max_total_tokens"


@pytest.mark.exhaustive
def test_streamed_text_comes_through_a_cache(backend: ramiform.Runtime, tmp_path: Path) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "a" + gen("x", max_tokens=400, temperature=0, ignore_eos=True)  # a late reader gets several pieces too

    pieces: list[str] = []
    while len(pieces) <= 2:  # a reader that stands still gets all in one piece
        cache = ramiform.cache(tmp_path, backend)
        cache.clear()
        pieces = list(body.run(stream=True, backend=cache).text_iter())
    assert list(body.run(stream=True, backend=cache).text_iter()) == ["a", "".join(pieces[1:])]
    assert cache.hits == 1


def test_the_oldest_answers_go_first(tmp_path: Path) -> None:
    @ramiform.function
    def body(s: ProgramState, prompt: str) -> None:
        s += prompt + gen("x", temperature=0)

    backend = Scripted(lambda prompt: "v" * 100)
    cache = ramiform.cache(tmp_path, backend, max_entries=3)
    for prompt in "abcde":
        body.run(prompt, backend=cache)
    assert len(cache) == 3
    for prompt in "cde":
        body.run(prompt, backend=cache)
    assert (cache.hits, cache.misses) == (3, 5)
    body.run("a", backend=cache)
    assert cache.misses == 6
    small = ramiform.cache(tmp_path, backend, max_bytes=500)
    body.run("f", backend=small)
    assert small.database.totals()[1] <= 500
    cache.clear()
    assert (len(cache), cache.database.totals()) == (0, (0, 0))


@pytest.mark.parametrize("content", [b"not a database", b"\0" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").write_bytes(content)
    with pytest.raises(RequestError, match=r"answers\.sqlite") as raised:
        ramiform.cache(tmp_path)
    assert raised.value.code == "invalid_cache"
    assert (tmp_path / "answers.sqlite").read_bytes() == content


def test_a_database_of_someone_else_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "answers.sqlite") as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(RequestError, match="another kind"):
        ramiform.cache(tmp_path)


def test_an_answer_that_cannot_be_read_is_an_error_with_the_line(tmp_path: Path) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += gen("x")

    cache = ramiform.cache(tmp_path, Scripted(["1"]))
    body.run(backend=cache)
    with sqlite3.connect(cache.path) as connection:
        connection.execute("UPDATE answers SET answer = x'00'")
    connection.close()
    with pytest.raises(RequestError, match=r"test_cache\.py:.*cannot be read"):
        body.run(backend=cache)


def test_parameters_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="max_entries"):
        Cache(tmp_path, max_entries=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="not a folder"):
        ramiform.cache(tmp_path / "file")


SCRIPT = """
import sys, ramiform
@ramiform.function
def body(s, number):
    s += f"{number}:" + ramiform.gen("x", temperature=0)
backend = ramiform.Scripted(lambda prompt: f"answer to {prompt}")
cache = ramiform.cache(sys.argv[1], backend)
states = body.run_batch([{"number": number} for number in range(40)], backend=cache)
assert [state["x"] for state in states] == [f"answer to {number}:" for number in range(40)]
print(cache.hits, cache.misses, len(cache))
"""


@pytest.mark.slow
def test_several_processes_share_a_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "shared")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert out.split()[2] == "40" or int(out.split()[2]) <= 40
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["40", "0", "40"]
