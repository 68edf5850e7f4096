"""A core answers before its compiled loops are there, and alike afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
from numba.core import event

from ramiform import loops
from ramiform.kernels.cpu.products import block_matmul
from ramiform.runtime import compile_ahead
from ramiform.runtime.core import compile_child, loop_loader
from ramiform.runtime.core.loop_loader import LoopLoader
from ramiform.runtime.core.main import LoadedCore, load_core
from ramiform.runtime.engine import ForwardEngine
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate, LogprobParams, Tokens
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams

WAIT = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nsys.exit(int(sys.argv[2]))"
PROMPT = [5, 6, 7, 8, 9, 10]


@pytest.fixture(autouse=True)
def _used_again() -> Iterator[None]:
    yield
    for package in ("ramiform.kernels", "ramiform.constrained"):
        loops.allow(package)


def generate(core: LoadedCore, rid: str, constraint: Constraint | None = None) -> tuple[list[int], list[float]]:
    """Return the tokens and the log-probabilities of a greedy answer, each step's computed as the core does."""
    sampling = SamplingParams(
        max_new_tokens=12, temperature=0, ignore_eos=constraint is None, constraint=constraint, seed=0
    )
    core.scheduler.handle(
        Generate(rid=rid, tokens=PROMPT, sampling=sampling, logprobs=LogprobParams()), time.monotonic(), b""
    )
    ids: list[int] = []
    logprobs: list[float] = []
    while True:
        plan = core.scheduler.plan(time.monotonic())
        answers = core.scheduler.answers()
        if plan is not None:
            assert isinstance(core.engine, ForwardEngine)
            answers = [*answers, *core.scheduler.commit(plan, core.engine.run(plan), time.monotonic())]
        for answer in answers:
            assert isinstance(answer, Tokens), answer
            ids += answer.ids
            logprobs += [entry.logprob for entry in answer.logprobs or []]
            if answer.finish is not None:
                return ids, logprobs


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 1], ids=["compiled", "failed"])
def test_answers_come_before_the_loops_and_are_the_same_afterwards(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_loader, "is_compiled", lambda _group: False)
    compiled = tmp_path / "compiled"
    loader = LoopLoader(lambda _group: [sys.executable, "-c", WAIT, str(compiled), str(status)])
    core = load_core(CoreConfig(num_pages=256, prefix_cache=False), loader=loader)
    assert isinstance(core.engine, ForwardEngine)
    loader.load()
    number = Constraint("regex", "[0-9]{3}")

    before = [generate(core, "free, before"), generate(core, "number, before", number)]
    assert loader.pending
    assert not loader.take()
    assert not loops.ready("ramiform.kernels")
    assert not loops.ready("ramiform.constrained")

    compiled.touch()
    until(loader.take)
    core.engine.use_loops()
    loader.wait_for_grammars()
    assert loops.ready("ramiform.kernels")
    assert loops.ready("ramiform.constrained")
    after = [generate(core, "free, after"), generate(core, "number, after", number)]
    for (ids, logprobs), (ids_after, logprobs_after) in zip(before, after, strict=True):
        assert ids == ids_after
        assert len(logprobs) == len(ids)
        assert logprobs == pytest.approx(logprobs_after, abs=1e-4)


def test_compiling_begins_when_the_core_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_loader, "is_compiled", lambda _group: False)
    monkeypatch.setattr(loop_loader, "import_module", lambda _name: None)
    monkeypatch.setattr(loops, "compile_registered", lambda _package: None)
    started: list[str] = []

    def command(group: str) -> list[str]:
        started.append(group)
        return [sys.executable, "-c", ""]

    loader = LoopLoader(command)
    loader.start()
    time.sleep(0.1)
    assert started == []
    loader.load()
    until(loader.take)
    loader.wait_for_grammars()
    until(lambda: len(started) == 3)
    assert sorted(started) == ["drafts", "grammars", "kernels"]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_on_few_cores_grammars_are_compiled_after_the_kernels_unless_one_waits(
    cores: int, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_loader, "_num_cores", lambda: cores)
    monkeypatch.setattr(loop_loader, "is_compiled", lambda _group: False)
    monkeypatch.setattr(loop_loader, "import_module", lambda _name: None)
    monkeypatch.setattr(loops, "compile_registered", lambda _package: None)
    started: list[str] = []

    def command(group: str) -> list[str]:
        started.append(group)
        held = tmp_path / ("kernels" if group == "kernels" else "others")
        return [sys.executable, "-c", WAIT, str(held), "0"]

    loader = LoopLoader(command)
    loader.start()
    loader.load()
    (tmp_path / "others").touch()
    if waits:
        loader.wait_for_grammars()
    until(lambda: "kernels" in started)
    if waits or cores > 2:
        until(lambda: "grammars" in started)
    else:
        time.sleep(0.1)
        assert "grammars" not in started
    (tmp_path / "kernels").touch()
    until(loader.take)
    until(lambda: all(one.is_set() for one in loader._loaded.values()))
    assert len(started) == 3


def test_a_child_that_compiles_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge: what Linux says of the process and, where sessions share the processors, of its session."""
    monkeypatch.setattr(loop_loader, "is_compiled", lambda _group: False)
    seen: list[str] = []

    def give_way(pid: int) -> None:
        real(pid)
        seen.append(str(os.getpriority(os.PRIO_PROCESS, pid)))
        if (group := Path(f"/proc/{pid}/autogroup")).exists():
            seen.append(group.read_text().split()[-1])
        (tmp_path / "seen").touch()

    real = loop_loader._give_way
    monkeypatch.setattr(loop_loader, "_give_way", give_way)
    loader = LoopLoader(lambda _group: [sys.executable, "-c", WAIT, str(tmp_path / "seen"), "0"])
    loader._compile("drafts")
    assert seen in (["19"], ["19", "19"])


@pytest.mark.slow
def test_quantised_weights_answer_before_all_loops_but_those_of_their_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_loader, "is_compiled", lambda _group: False)
    compiled = tmp_path / "compiled"
    loader = LoopLoader(lambda _group: [sys.executable, "-c", WAIT, str(compiled), "0"])
    core = load_core(CoreConfig(num_pages=256, prefix_cache=False, quantize="int8"), loader=loader)
    assert isinstance(core.engine, ForwardEngine)
    loader.load()
    ids, logprobs = generate(core, "before")
    assert loader.pending
    assert not loops.ready("ramiform.kernels")
    compiled.touch()
    until(loader.take)
    core.engine.use_loops()
    ids_after, logprobs_after = generate(core, "after")
    assert len(ids) == len(ids_after) == 12
    assert logprobs[0] == pytest.approx(logprobs_after[0], abs=0.05)  # a rounded input may go to the next code


LOADED = """
from ramiform import loops
from ramiform.runtime.core.loop_loader import LoopLoader
from ramiform.runtime.core.main import load_core
from ramiform.runtime.protocol.config import CoreConfig

load_core(CoreConfig(num_pages=256, quantize="int8"), loader=LoopLoader())
print(*{loop.__module__ for loop in loops.registered if loop._compiled is not None})
"""


@pytest.mark.slow
def test_a_start_with_quantised_weights_loads_the_loops_of_products_only() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", LOADED], capture_output=True, text=True, check=True)
    names = {name.removeprefix("ramiform.kernels.cpu.") for name in done.stdout.split()}
    assert "products.matmul" in names
    products = {f"products.{name}" for name in ("amx", "matmul", "block_panels", "packed_matrix")}
    assert names <= products | {"bfloat16", "compiled"}


def test_what_the_products_of_block_formats_compile_imports_no_torch() -> None:
    script = (
        "import sys\nfrom ramiform.runtime.core import compile_child\n"
        "from ramiform.kernels.cpu.products import block_matmul, block_panels\n"
        "print(sorted({'torch', 'triton', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True).stdout == "[]\n"


@pytest.fixture
def q8_file(tmp_path: Path) -> Path:
    """A GGUF file with tensors of 32-bit floats and of Q8_0."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    numbers = np.ones((32, 64), np.float32)
    writer.add_tensor("output_norm.weight", numbers[0])
    blocks = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "tiny.gguf"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[list[str]]]:
    """The arguments of children that would compile products; the cache is empty."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    loops.cache_directory.cache_clear()
    found: list[list[str]] = []
    monkeypatch.setattr(compile_child, "start_child", found.append)
    monkeypatch.setattr(compile_child, "compile_command", lambda *arguments: list(arguments))
    yield found
    loops.cache_directory.cache_clear()


def test_the_products_of_a_files_formats_are_compiled_from_the_start_and_once(
    q8_file: Path, started: list[list[str]]
) -> None:
    config = CoreConfig(model=str(q8_file), device="cpu")
    compile_child.start_products(config)
    assert started == [["products", "Q8_0"]]
    loops.mark_complete(compile_ahead._PRODUCTS_FOLDER, "Q8_0")  # as the child does
    assert compile_child.start_products(config) is None
    assert len(started) == 1


@pytest.mark.parametrize(
    "setting", [{"deterministic": True}, {"wait_for_loops": True}, {"device": "cuda"}, {"quantize": "int8"}], ids=str
)
def test_a_start_that_needs_no_products_of_blocks_compiles_none(
    q8_file: Path, started: list[list[str]], setting: dict[str, Any]
) -> None:
    config = msgspec.structs.replace(CoreConfig(model=str(q8_file), device="cpu"), **setting)
    assert compile_child.start_products(config) is None
    assert started == []


@pytest.mark.parametrize("model", [None, "no/such/file.gguf"])
def test_models_without_blocks_and_missing_files_start_no_child(model: str | None, started: list[list[str]]) -> None:
    assert compile_child.start_products(CoreConfig(model=model, device="cpu")) is None
    assert started == []


@pytest.mark.parametrize("status", [0, 1])
def test_a_core_waits_for_the_child_that_compiles_products(status: int, tmp_path: Path) -> None:
    """A child that fails leaves the compilation to the core."""
    done = tmp_path / "done"
    child = subprocess.Popen([sys.executable, "-c", WAIT, str(done), str(status)])
    loader = LoopLoader(lambda _group: pytest.fail("compiles a group"), products=child)
    loader.start_products(["Q8_0"])
    waiting = threading.Thread(target=loader.wait_for_products)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    done.touch()
    waiting.join(120)
    assert not waiting.is_alive()
    assert block_matmul._compiled_loop.cache_info().currsize > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [{"deterministic": True}, {"wait_for_loops": True}], ids=lambda each: next(iter(each))
)
def test_settings_that_need_the_loops_from_the_first_token_wait_for_them(setting: dict[str, bool]) -> None:
    loader = LoopLoader(lambda _group: pytest.fail("compiles in the background"))
    load_core(msgspec.structs.replace(CoreConfig(num_pages=256), **setting), loader=loader)
    assert not loader.pending
    assert loops.ready("ramiform.kernels")


def test_a_start_that_waits_for_loops_says_with_which_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_group(_group: str) -> None:
        with event.trigger_event("numba:compile"):
            pass

    monkeypatch.setattr(compile_ahead, "compile_group", compile_group)
    compile_ahead.compile_loops("deterministic")
    [line] = [message for message in caplog.messages if "; with" in message]
    assert line.endswith("; with deterministic the first answer waits for them")
