"""A run with a checkpoint goes on where the last one ended, and gives what an uninterrupted run gives."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen, select
from ramiform.runtime.protocol import session


@ramiform.function
def review(s: ProgramState, product: str, shape: str = "short") -> Any:
    s += ramiform.user(f"Review {product}, {shape}.")
    s += ramiform.assistant(gen("draft", max_tokens=5, temperature=1.0, ignore_eos=True))
    group = s.fork(2)
    group += lambda index: f"Critic {index}:" + gen("critique", max_tokens=4, temperature=1.0, ignore_eos=True)
    group.join("concate_and_append")
    s += " Verdict:" + select("verdict", [" good", " bad"], temperature=1.0)
    s.decide(clear="Is it clear?")
    s += gen("last", max_tokens=3, n=2, temperature=1.0, return_logprob=True)
    return group


@ramiform.function
async def review_async(s: ProgramState, product: str) -> None:
    s += product + gen("draft", max_tokens=5, temperature=1.0, ignore_eos=True)
    branches = s.fork(3)
    branches += gen("critique", max_tokens=4, temperature=1.0, ignore_eos=True)
    await asyncio.gather(*(branch.get("critique") for branch in branches))
    branches.join()
    s += branches[0]["critique"] + gen("last", max_tokens=3, temperature=1.0)


def results(state: ProgramState) -> list[Any]:
    metas = [state.get_meta_info(name) for name in ("draft", "verdict", "last")]
    return [state.text(), state.messages(), state.variables(), *metas]


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_that_ended_is_repeated_from_its_file(counted: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = review.run("bread", backend=counted, checkpoint=path)
    assert counted.num_generations == 6
    counted.operations.clear()
    size = path.stat().st_size
    again = review.run("bread", backend=counted, checkpoint=path)
    assert results(again) == results(first)
    assert counted.operations == []
    assert path.stat().st_size == size


@pytest.mark.parametrize("num_lines", range(1, 18))
def test_a_run_that_was_cut_anywhere_goes_on(num_lines: int, counted: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = review.run("bread", seed=3, backend=counted, checkpoint=path)
    whole = path.read_bytes().splitlines(keepends=True)
    assert len(whole) == 18
    kept = sum(b'"type":"gen"' in line or b'"type":"select"' in line or b'"type":"decide"' in line for line in whole)
    assert kept == 6
    cut = whole[:num_lines]
    num_kept = sum(any(b'"type":"%s"' % kind in line for kind in (b"gen", b"select", b"decide")) for line in cut)
    path = tmp_path / "cut.jsonl"
    path.write_bytes(b"".join(cut) + whole[num_lines][: len(whole[num_lines]) // 2])
    counted.operations.clear()
    again = review.run("bread", seed=3, backend=counted, checkpoint=path)
    assert again.text() == first.text()
    values, before = again.variables(), first.variables()
    # Computed again in another batch, a probability differs in its last digits.
    assert values.pop("clear").probability == pytest.approx(before.pop("clear").probability, abs=1e-3)
    assert values == before
    assert counted.num_generations == 6 - num_kept
    assert len(path.read_bytes().splitlines()) == 18
    assert sorted(line["index"] for line in lines_of(path)[2:]) == sorted(json.loads(x)["index"] for x in whole[2:])


def test_async_programs_and_streams_go_on_too(counted: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = asyncio.run(review_async.arun("bread", backend=counted, checkpoint=path))
    again = asyncio.run(review_async.arun("bread", backend=counted, checkpoint=path))
    assert again.variables() == first.variables()
    assert counted.num_generations == 5
    streamed = review.run("cake", backend=counted, checkpoint=tmp_path / "s.jsonl", stream=True)
    text = "".join(streamed.text_iter())
    assert review.run("cake", backend=counted, checkpoint=tmp_path / "s.jsonl").text() == text


def test_items_of_a_batch_are_known_by_index_and_arguments(counted: Any, tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    batch: list[Any] = [{"product": product} for product in ("bread", "cake", "cake")]
    first = review.run_batch(batch, backend=counted, checkpoint=path)
    again = review.run_batch([*batch, ("pie",)], backend=counted, checkpoint=path)
    assert [state.text() for state in again[:3]] == [state.text() for state in first]
    assert counted.num_generations == 4 * 6
    review.run_batch([batch[1]], backend=counted, checkpoint=path)
    assert counted.num_generations == 5 * 6


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiled_program_reads_the_file_of_one_that_is_not(compiled: bool, counted: Any, tmp_path: Path) -> None:
    program = ramiform.function(review.function)
    if compiled:
        program.compile(product="x")
    first = program.run("bread", backend=counted, checkpoint=tmp_path / "run.jsonl")
    assert results(review.run("bread", backend=counted, checkpoint=tmp_path / "run.jsonl")) == results(first)
    assert counted.num_generations == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: "a" + gen("x", max_tokens=4) + "b" + gen("y"), "sampling.max_new_tokens 3, now 4"),
        (lambda s: "a" + gen("x", max_tokens=3) + "c" + gen("y"), "text 'b', now 'c'"),
        (lambda s: "a" + select("x", ["1", "2"]) + "b" + gen("y"), "there it has a gen, now comes a select"),
        (lambda s: gen("x", max_tokens=3) + "b" + gen("y"), "there it has the text 'a', now comes a gen"),
        (lambda s: [s.fork(1), "b"][1] + gen("y"), "there it has the text 'a', now comes a fork"),
    ],
    ids=["parameter", "text", "select", "missing", "fork"],
)
def test_a_program_that_diverges_from_its_file_is_told_where(
    change: Callable[[ProgramState], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    parts: list[Callable[[ProgramState], Any]] = [lambda s: "a" + gen("x", max_tokens=3) + "b" + gen("y"), change]

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += parts.pop(0)(s)

    body.run(backend=Scripted(["1", "2"]), checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(RequestError, match=message) as raised:
        body.run(backend=Scripted([]), checkpoint=path)
    assert raised.value.code == "checkpoint_diverged"
    assert "test_checkpoint.py:" in str(raised.value)
    assert path.read_bytes() == before


def test_a_file_of_another_program_or_model_is_refused(tmp_path: Path, backend: ramiform.Runtime) -> None:
    @ramiform.function
    def one(s: ProgramState) -> None:
        s += gen("x")

    @ramiform.function
    def other(s: ProgramState) -> None:
        s += gen("x")

    one.run(backend=Scripted(["1"]), checkpoint=tmp_path / "x.jsonl")
    with pytest.raises(RequestError, match=r"other") as raised:
        other.run(backend=Scripted(["1"]), checkpoint=tmp_path / "x.jsonl")
    assert raised.value.code == "checkpoint_diverged"
    with pytest.raises(RequestError, match="the model"):
        one.run(checkpoint=tmp_path / "x.jsonl")


def test_tools_are_not_called_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def look_up(city: str) -> dict[str, Any]:
        """Look up."""
        calls.append(city)
        return {"city": city, "number": len(calls)}

    async def pair(city: str) -> tuple[int, str]:
        """Pair."""
        calls.append(city)
        return (len(calls), city)

    def broken(city: str) -> int:
        """Fail."""
        calls.append(city)
        raise OSError("no line")

    fail = [True]

    @ramiform.function
    def body(s: ProgramState) -> None:
        for name in ("a", "b", "c"):
            s += name + gen(name, tools=[look_up, pair, broken])
            assert s[name] is not None
        if fail:
            raise KeyboardInterrupt
        s += gen("end")

    answers = [f'{{"name": "{name}", "arguments": {{"city": "Lima"}}}}' for name in ("look_up", "pair", "broken")]
    with pytest.raises(KeyboardInterrupt):
        body.run(backend=Scripted(answers), checkpoint=tmp_path / "x.jsonl")
    fail.clear()
    state = body.run(backend=Scripted(["done"]), checkpoint=tmp_path / "x.jsonl")
    assert calls == ["Lima"] * 3
    assert state["a"] == {"city": "Lima", "number": 1}
    assert state["b"] == (2, "Lima")
    assert state.get_meta_info("c")["tool_call"]["error"] == "OSError: no line"
    assert state["end"] == "done"
    assert "Result: " in state.text()


def test_a_result_that_would_not_come_back_is_refused(tmp_path: Path) -> None:
    def look_up(city: str):  # type: ignore[no-untyped-def]
        """Look up."""
        return {1, 2}

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += gen("a", tools=[look_up])

    with pytest.raises(RequestError, match="look_up returned") as raised:
        body.run(
            backend=Scripted(['{"name": "look_up", "arguments": {"city": "Lima"}}']), checkpoint=tmp_path / "x.jsonl"
        )
    assert raised.value.code == "checkpoint_unsupported"


def test_a_checkpoint_and_a_cache_go_together(counted: Any, tmp_path: Path) -> None:
    cache = ramiform.cache(tmp_path / "cache", counted)
    first = review.run("bread", seed=1, backend=cache, checkpoint=tmp_path / "a.jsonl")
    counted.operations.clear()
    assert review.run("bread", seed=1, backend=cache, checkpoint=tmp_path / "b.jsonl").text() == first.text()
    assert counted.num_generations == 0
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"".join((tmp_path / "b.jsonl").read_bytes().splitlines(keepends=True)[:9]))
    assert review.run("bread", seed=1, backend=cache, checkpoint=path).text() == first.text()
    assert counted.num_generations == 0


def test_infinite_log_probabilities_come_back(tmp_path: Path) -> None:
    from ramiform.lang.storage.answers import StateContent, StoredAnswer, StoredRequest, StoredRun
    from ramiform.lang.storage.checkpoint import open_checkpoint

    choice = session.Choice(
        index=0, text="a", scores=[float("-inf")], normalized_prompt_logprobs=[float("inf")], token_logprobs=[]
    )
    request = StoredRequest(StoredRun("0"), "0", 0, session.Select(choices=("a",)), StateContent())
    checkpoint = open_checkpoint(tmp_path / "x.jsonl", "f")
    checkpoint.look_up(request).keep(StoredAnswer("a", choice=choice))
    del checkpoint
    assert open_checkpoint(tmp_path / "x.jsonl", "f").look_up(request).answer == StoredAnswer("a", choice=choice)


@pytest.mark.parametrize(
    "content", [b"hello", b"hello\n", b"{}\n", b'{"type":"ramiform_checkpoint","version":9,"program":"f"}\n', b"\xff\n"]
)
def test_another_file_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"notes\.txt") as raised:
        review.run("x", backend=Scripted([]), checkpoint=path)
    assert raised.value.code == "invalid_checkpoint"
    assert path.read_bytes() == content
    with pytest.raises(RequestError, match="checkpoint"):
        review.run("x", backend=Scripted([]), checkpoint=tmp_path)
    with pytest.raises(RequestError, match="path of a file"):
        review.run("x", backend=Scripted([]), checkpoint=7)  # type: ignore[arg-type]


def test_a_line_that_is_broken_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    program = ramiform.function(lambda s: s.__iadd__("a" + gen("x")))
    program.run(backend=Scripted(["1"]), checkpoint=path)
    lines = path.read_bytes().splitlines(keepends=True)
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"".join([*lines[:2], b"{broken\n", *lines[2:]]))
    with pytest.raises(RequestError, match="line 3"):
        program.run(backend=Scripted(["1"]), checkpoint=broken)


SCRIPT = """
import os, signal, sys, ramiform
@ramiform.function
def item(s, number):
    s += f"Item {number}:" + ramiform.gen("a", max_tokens=6, temperature=0, ignore_eos=True)
    with s.copy() as c:
        c += " Detail:" + ramiform.gen("b", max_tokens=6, seed=number, ignore_eos=True)
    if number == 8 and len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    s += " So:" + ramiform.gen("c", max_tokens=6, temperature=0, ignore_eos=True)
batch = [{"number": number} for number in range(20)]
backend = ramiform.RuntimeEndpoint(sys.argv[1])
states = item.run_batch(batch, backend=backend, num_threads=2, checkpoint=sys.argv[2])
print(*(repr([state.text(), state["b"]]) for state in states), sep="\\n")
"""


@pytest.mark.exhaustive
def test_a_batch_that_was_killed_generates_only_what_was_missing(backend: ramiform.Runtime, tmp_path: Path) -> None:
    def command(name: str) -> list[str]:
        return [sys.executable, "-c", SCRIPT, backend.address, str(tmp_path / name)]

    def num_kept(name: str) -> int:
        return (tmp_path / name).read_bytes().count(b'"operation":{"type":"gen"')

    whole = subprocess.run(command("whole.jsonl"), capture_output=True, text=True, timeout=240, check=True)
    assert num_kept("whole.jsonl") == 60
    killed = subprocess.run([*command("cut.jsonl"), "kill"], capture_output=True, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    before = num_kept("cut.jsonl")
    assert 0 < before < 60
    again = subprocess.run(command("cut.jsonl"), capture_output=True, text=True, timeout=240, check=True)
    shown = [line for line in again.stdout.splitlines() if line.startswith("[")]
    assert shown == [line for line in whole.stdout.splitlines() if line.startswith("[")]
    assert num_kept("cut.jsonl") == 60, "each generation is in the file once: none was made twice"


@pytest.mark.slow
def test_nothing_of_a_run_is_left_once_its_state_is_dropped(tmp_path: Path) -> None:
    program = ramiform.function(lambda s: s.__iadd__("a" + gen("x")))

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "ramiform-store"}

    before = threads()
    for name, backend in (("x", Scripted(["1"])), ("y", ramiform.cache(tmp_path / "cache", Scripted(["1"])))):
        state = program.run(backend=backend, checkpoint=tmp_path / f"{name}.jsonl")
        assert threads() - before
        del state, backend
    for _ in range(600):
        gc.collect()  # a thread that ends lets go of others
        if not (left := threads() - before):
            break
        left.pop().join(0.1)
    assert not threads() - before
    (tmp_path / "x.jsonl").write_text("")  # the file is read anew: it is not held open
    assert program.run(backend=Scripted(["2"]), checkpoint=tmp_path / "x.jsonl")["x"] == "2"


def test_a_file_is_not_written_by_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    program = ramiform.function(lambda s: s.__iadd__("a" + gen("x")))
    state = program.run(backend=Scripted(["1"]), checkpoint=path)
    assert program.run(backend=Scripted([]), checkpoint=path)["x"] == state["x"], "runs of one process share it"
    code = (
        "import ramiform, sys\n"
        "from ramiform.lang.storage.checkpoint import open_checkpoint\n"
        "try: open_checkpoint(sys.argv[1], '<lambda>')\n"
        "except ramiform.RequestError as error: print(error.code)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "checkpoint_in_use\n"
    assert os.stat(path).st_mode & 0o777 == 0o600
