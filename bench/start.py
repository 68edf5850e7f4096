"""Time to the first answer of a program, with and without compiled loops on disk, beside other servers.

    python -P bench/start.py [MODEL] [--wheel FILE.whl] [--llama-server BINARY]
        [--vllm PYTHON [--vllm-model FOLDER]] [--repeat 3] [--out FILE]

A start is `ramiform run` of a script that asks ten times for 16 tokens: from its first process to the first answer, and
the seconds of the tenth. A cold start has an empty folder for compiled loops; for the warm ones all are compiled beside
the code. With `--wheel` the code is that of a wheel, unpacked without its dependencies, otherwise this checkout's.
Peers that are not there are skipped by name. vLLM has a folder of the same weights; its first start keeps what it
compiles in an empty cache, its second one finds that. Files stay in the system's cache: what is read from a disk is not
measured.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import httpx
import typer

from ramiform.bench.harness import Model, Out, Repeat, report, table
from ramiform.bench.peers.engines import Launch, llama_server, running, vllm
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

TOKENS, ANSWERS, PROMPT = 16, 10, "Question: What is the capital of France?\nAnswer:"
SCRIPT = f"""
import time
import ramiform

@ramiform.function
def answer(s):
    s += {PROMPT!r} + ramiform.gen("text", max_tokens={TOKENS}, temperature=0, ignore_eos=True)

for _ in range({ANSWERS}):
    start = time.monotonic()
    answer.run()["text"]
    print(time.monotonic(), time.monotonic() - start, flush=True)
"""


class Start(NamedTuple):
    """Seconds of a start."""

    first: float  # from the first process to the first answer
    tenth: float  # of the tenth answer
    processor: float  # of all its processes that have ended, up to the tenth answer


def ramiform_start(model: str, environment: Mapping[str, str]) -> Start:
    """Run the script once."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "ask.py")
        script.write_text(SCRIPT)
        command = [sys.executable, "-P", "-c", "from ramiform.cli import main; main()", "run", str(script)]
        used, start = _children_seconds(), time.monotonic()
        done = subprocess.run(
            [*command, "--model", model], env=dict(environment), stdout=subprocess.PIPE, text=True, check=True
        )
    times = [line.split() for line in done.stdout.splitlines()]
    return Start(float(times[0][0]) - start, float(times[-1][1]), _children_seconds() - used)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def peer_start(launch: Launch) -> Start:
    """Start a server and ask as the script does."""
    with tempfile.TemporaryDirectory() as folder:
        used, start, ends = _children_seconds(), time.monotonic(), []
        with running(launch, Path(folder, "log")) as engine:
            body = {"model": engine.model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            for _ in range(ANSWERS):
                httpx.post(f"{engine.url}/v1/completions", json=body, timeout=600).raise_for_status()
                ends.append(time.monotonic())
    return Start(ends[0] - start, ends[-1] - ends[-2], _children_seconds() - used)


def peer_starts(
    path: str, llama_binary: Path | None, vllm_python: Path | None, vllm_model: Path | None, repeat: int
) -> tuple[dict[str, list[Start]], list[str]]:
    """Start the peers that can serve the model; return their starts, and a line for each that is skipped."""
    found: dict[str, list[Start]] = {}
    skipped, is_gguf = [], path.endswith(".gguf")
    if llama_binary is not None and is_gguf:
        launch = llama_server(llama_binary, Path(path))
        found[launch.name] = [peer_start(launch) for _ in range(repeat)]
    else:
        skipped.append("llama.cpp: skipped: it needs `--llama-server BINARY` and a GGUF file.")
    folder = vllm_model or (None if is_gguf else Path(path))
    if vllm_python is not None and folder is not None:
        launch = vllm(vllm_python, folder, "bfloat16")
        for _ in range(repeat):
            with tempfile.TemporaryDirectory() as cache:
                kept = replace(launch, environment=launch.environment | {"VLLM_CACHE_ROOT": cache})
                for name in ("cold", "warm"):
                    found.setdefault(f"{launch.name}, {name}", []).append(peer_start(kept))
    else:
        skipped.append("vLLM: skipped: it needs `--vllm PYTHON` and a folder.")
    return found, skipped


@contextmanager
def code(wheel: Path | None) -> Iterator[dict[str, str]]:
    """Yield an environment in which `ramiform` is the wheel's."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        if wheel is not None:
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, str(wheel)]
            subprocess.run(install, check=True)
            environment["PYTHONPATH"] = folder
        yield environment


def starts(model: str, environment: dict[str, str], repeat: int) -> dict[str, list[Start]]:
    """Start cold and warm in turn."""
    ahead = [sys.executable, "-P", "-m", "ramiform.runtime.compile_ahead"]  # nothing to do if they are all there
    subprocess.run(ahead, env=environment, stderr=subprocess.DEVNULL, check=True)
    found: dict[str, list[Start]] = {"cold": [], "warm": []}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            found["cold"].append(ramiform_start(model, environment | {"NUMBA_CACHE_DIR": folder}))
        found["warm"].append(ramiform_start(model, environment))
    return found


def main(
    model: Model = None,
    wheel: Annotated[Path | None, typer.Option(help="of ramiform; default: this checkout")] = None,
    llama_binary: Annotated[Path | None, typer.Option("--llama-server", help="llama.cpp's, for a GGUF file")] = None,
    vllm_python: Annotated[Path | None, typer.Option("--vllm", help="Python of an environment with it")] = None,
    vllm_model: Annotated[Path | None, typer.Option(help="folder of the file's weights, for vLLM")] = None,
    repeat: Repeat = 3,
    out: Out = None,
) -> None:
    path = model or str(SHIPPED_MODEL)
    with code(wheel) as environment:
        found = {f"ramiform, {name}": some for name, some in starts(path, environment, repeat).items()}
    others, skipped = peer_starts(path, llama_binary, vllm_python, vllm_model, repeat)
    found |= others
    warm = statistics.median(each.tenth for each in found["ramiform, warm"])
    rows = []
    for name, some in found.items():
        first, tenth, processor = (statistics.median(column) for column in zip(*some, strict=True))
        rows.append(
            {
                "start": name,
                "first answer, s": first,
                f"answer {ANSWERS}, s": tenth,
                "of the warm one's": tenth / warm,
                "processor, s": processor,
            }
        )
    report(f"Time to the first answer: {Path(path).name}", table(rows), *skipped, out=out)


if __name__ == "__main__":
    typer.run(main)
