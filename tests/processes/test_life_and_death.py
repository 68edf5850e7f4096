"""Processes start and end together, whichever ends first, and leave neither processes nor sockets behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import ramiform
from ramiform.runtime.processes import parent_watchdog
from ramiform.runtime.protocol.config import CoreConfig, RuntimeConfig, ServeConfig

from .processes import SOON, children, endless, is_alive, wait_until_dead

MANY = 16  # programs
RAMIFORM = str(Path(sys.executable).parent / "ramiform")


@pytest.mark.exhaustive
def test_a_killed_core_ends_the_frontend_and_fails_the_program(
    own_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ramiform.Runtime() as runtime:
        [core] = children(runtime.pid)
        states = [endless.run(backend=runtime, stream=True) for _ in range(MANY)]
        for state in states:
            state["began"]
        os.kill(core, signal.SIGKILL)
        for state in states:
            with pytest.raises(ramiform.RuntimeFailed, match="core"):
                state.text()
        assert wait_until_dead(runtime.pid, SOON)
    assert "was killed by signal 9" in capfd.readouterr().err
    assert not list(own_tmp.iterdir())


@pytest.mark.exhaustive
def test_a_killed_frontend_ends_the_core_and_fails_the_program(
    own_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ramiform.Runtime() as runtime:
        [core] = children(runtime.pid)
        states = [endless.run(backend=runtime, stream=True) for _ in range(MANY)]
        for state in states:
            state["began"]
        os.kill(runtime.pid, signal.SIGKILL)
        assert wait_until_dead(core, SOON)
        for state in states:
            with pytest.raises(ramiform.RuntimeFailed):
                state.text()
    assert "the frontend is gone" in capfd.readouterr().err
    assert not list(own_tmp.iterdir())


@pytest.mark.exhaustive
def test_a_killed_program_takes_its_runtime_along(own_tmp: Path) -> None:
    code = "import ramiform; r = ramiform.Runtime(); print(r.pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        frontend = int(program.stdout.readline())
        [core] = children(frontend)
        program.kill()
        assert wait_until_dead(frontend, SOON)
        assert wait_until_dead(core, SOON)
    assert not list(own_tmp.iterdir())


@pytest.mark.exhaustive
def test_shutdown_leaves_nothing_behind(own_tmp: Path) -> None:
    runtime = ramiform.Runtime()
    processes = [runtime.pid, *children(runtime.pid)]
    assert list(own_tmp.iterdir())
    assert os.stat(next(own_tmp.iterdir())).st_mode & 0o777 == 0o700
    runtime.shutdown()
    assert not any(is_alive(pid) for pid in processes)
    assert not list(own_tmp.iterdir())
    runtime.shutdown()


@pytest.mark.exhaustive
def test_ctrl_c_ends_serve_cleanly(own_tmp: Path) -> None:
    with subprocess.Popen(
        [RAMIFORM, "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        url = line.split(" at ")[1].strip()
        assert httpx.get(f"{url}/health", timeout=120).status_code == 200
        [core] = children(server.pid)
        os.killpg(server.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert server.wait(120) == 0
        assert server.stderr.read() == ""
        assert not is_alive(core)
    assert not list(own_tmp.iterdir())


@pytest.mark.exhaustive
def test_ctrl_c_ends_serve_cleanly_also_while_the_core_starts(own_tmp: Path) -> None:
    with subprocess.Popen(
        [RAMIFORM, "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stderr is not None
        while not (cores := children(server.pid)):
            assert server.poll() is None
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(120) == 0
        assert server.stderr.read() == ""
        assert wait_until_dead(cores[0], SOON)
    assert not list(own_tmp.iterdir())


@pytest.mark.exhaustive
def test_a_core_whose_socket_cannot_be_had_says_so_and_ends(tmp_path: Path) -> None:
    config = RuntimeConfig(core=CoreConfig(), serve=ServeConfig(socket_dir=str(tmp_path / "gone")))
    with subprocess.Popen(
        parent_watchdog.child_command("ramiform.runtime.processes.core_main"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as core:
        assert core.stdin is not None
        assert core.stderr is not None
        core.stdin.write(parent_watchdog.config_line(config))
        core.stdin.flush()
        said = core.stderr.read().decode()  # to its end, while its standard input stays open
        assert core.wait() == 1
    assert "cannot listen" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("module", ["core_main", "frontend_worker"])
@pytest.mark.parametrize("log", ["full", "closed"])
def test_a_process_that_cannot_write_its_log_ends_with_its_parent(own_tmp: Path, module: str, log: str) -> None:
    """The log may be on a full disk, or a pipe whose reader has left."""
    folder = own_tmp / "ramiform-x"
    folder.mkdir()
    config = RuntimeConfig(core=CoreConfig(), serve=ServeConfig(socket_dir=str(folder)))
    if log == "closed":
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open("/dev/full", os.O_WRONLY)
    command = [*parent_watchdog.child_command(f"ramiform.runtime.processes.{module}"), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write) as process:
        os.close(write)
        assert process.stdin is not None
        process.stdin.write(parent_watchdog.config_line(config))
        process.stdin.close()  # as when the parent is killed
        process.wait(SOON)


@ramiform.function
def long(s: ramiform.ProgramState) -> None:
    s += "Tell me everything." + ramiform.gen("x", max_tokens=1900, ignore_eos=True, temperature=1.0)


@pytest.mark.exhaustive
def test_a_core_that_was_stopped_for_a_while_goes_on() -> None:
    with ramiform.Runtime() as runtime:
        [core] = children(runtime.pid)
        state = long.run(backend=runtime, stream=True)
        next(state.text_iter("x"))
        os.kill(core, signal.SIGSTOP)
        time.sleep(4)  # longer than any sign of life may be overdue
        os.kill(core, signal.SIGCONT)
        assert state["x"]


LOUD = """
import sys

modules = [argument for argument in sys.orig_argv if argument.startswith("ramiform.runtime.")]

def hear(event, arguments):
    if event == "open" and str(arguments[0]).endswith("config.json"):
        print(*modules, "says hello", flush=True)

if modules:
    sys.addaudithook(hear)
"""


@pytest.mark.exhaustive
def test_output_of_a_library_is_not_taken_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Libraries may print at any time, such as NCCL in its debug mode."""
    (tmp_path / "sitecustomize.py").write_text(LOUD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ramiform.Runtime(tp=2, frontends=2, port=0) as runtime:
        assert runtime.info.name == "ramiform-demo"
    said = capfd.readouterr()
    for module in ("processes.frontend_main", "processes.frontend_worker", "processes.core_main", "parallel.worker"):
        assert f"ramiform.runtime.{module} says hello" in said.err
    assert said.out == ""


@pytest.mark.exhaustive
def test_threads_that_ask_at_once_share_one_connection() -> None:
    with ramiform.Runtime() as runtime, ThreadPoolExecutor(16) as threads:
        together = threading.Barrier(16)
        asked = [threads.submit(lambda: (together.wait(), runtime.connection())[1]) for _ in range(16)]
        assert len({id(future.result()) for future in asked}) == 1


@pytest.mark.exhaustive
def test_the_end_of_a_program_s_fork_is_not_its_runtime_s() -> None:
    code = (
        "import os, sys, ramiform; r = ramiform.Runtime()\n"
        "child = os.fork()\n"
        "if not child: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(r.connection().call('info').info.name)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "ramiform-demo\n", done.stderr


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0])
def test_a_setting_that_is_no_amount_is_named_before_a_process_starts(own_tmp: Path, value: float) -> None:
    with pytest.raises(ramiform.RequestError) as caught:
        ramiform.Runtime(kv_memory=value)
    assert caught.value.param == "kv_memory"
    assert not list(own_tmp.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "info"])
def test_an_unknown_model_is_a_clear_error(command: str) -> None:
    done = subprocess.run([RAMIFORM, command, "/no/such/model"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "no model at '/no/such/model'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive
def test_a_corrupt_checkpoint_is_a_clear_error(tmp_path: Path, own_tmp: Path) -> None:
    from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

    for file in SHIPPED_MODEL.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = (SHIPPED_MODEL / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ramiform.RamiformError, match=r"model\.safetensors"):
        ramiform.Runtime(str(tmp_path))
    assert not list(own_tmp.iterdir())
