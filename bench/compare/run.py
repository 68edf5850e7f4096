"""Five programs in five frameworks on the model that ships: lines, calls and tokens.

    python -P bench/compare/run.py --sglang VENV --guidance VENV --dspy VENV --langgraph VENV
        [--rounds 3] [--only judge] [--out FILE.md]

Each program runs in a process of its framework's environment, against one server whose prefix cache is flushed before.
The server counts tokens; a relay before it counts requests. guidance runs the same checkpoint in its own process, where
`guidance_usage.py` counts. A framework without an environment is left out. The environments, for instance:

    python -m venv VENV
    VENV/bin/pip install --no-deps sglang==0.5.23
    VENV/bin/pip install torch transformers requests aiohttp msgspec pybase64 ipython pydantic tqdm orjson pyzmq \
        fastapi psutil pillow triton
    VENV/bin/pip install guidance==0.3.1 torch "transformers<5" accelerate pydantic
    VENV/bin/pip install dspy==3.4.1
    VENV/bin/pip install langgraph==1.2.22 langchain-openai
"""

from __future__ import annotations

import ast
import io
import json
import re
import statistics
import subprocess
import sys
import time
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

import ramiform
from ramiform.bench.compare import tasks
from ramiform.bench.compare.relay import CountingRelay
from ramiform.bench.harness import Only, Out, report, table
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

HERE = Path(__file__).parent
NAME = "ramiform-small"
PACKAGES = {"ramiform": [], "sglang": ["sglang"], "guidance": ["guidance", "llguidance", "transformers"],
            "dspy": ["dspy", "litellm"], "langgraph": ["langgraph", "langchain-openai", "openai"]}  # fmt: skip
TIMEOUT = 180  # seconds for one run of a program
COUNTERS = {"prompt": "ramiform_prompt_tokens_total", "cached": "ramiform_cached_tokens_total",
            "generated": "ramiform_generated_tokens_total"}  # fmt: skip

# What is right, and which answers each framework guarantees to be well-formed.
RIGHT: dict[str, Callable[[Any], bool]] = {
    "extract": lambda answer: answer == tasks.RECORD,
    "map_reduce": lambda answer: tasks.DOCUMENTS_ANSWER in answer,
    "judge": lambda answer: answer == tasks.VERDICTS,
    "agent": lambda answer: tasks.SUM_ANSWER in answer,
    "checked": lambda answer: answer == tasks.NAMES,
}
VALID = {
    "extract": {"ramiform": "yes", "sglang": "yes", "guidance": "yes", "dspy": "yes", "langgraph": "yes"},
    "map_reduce": dict.fromkeys(PACKAGES, "free text"),
    "judge": {"ramiform": "yes", "sglang": "yes", "guidance": "yes", "dspy": "yes", "langgraph": "yes"},
    "agent": {"ramiform": "calls", "sglang": "calls", "guidance": "calls", "dspy": "no", "langgraph": "calls"},
    "checked": {"ramiform": "yes", "sglang": "yes", "guidance": "yes", "dspy": "no", "langgraph": "yes"},
}


@dataclass(frozen=True)
class Counts:
    """Cost of one run of a program. `calls` is None where no requests were sent over HTTP."""

    calls: int | None
    bytes_sent: int
    prompt: int
    prefilled: int
    generated: int


@dataclass(frozen=True)
class Answer:
    """Value that a program printed as JSON; None if it failed, with the last line of its error."""

    value: Any
    error: str


def num_lines(source: str) -> int:
    """Count the lines of a program that hold code: not blank, no comments, no docstrings."""
    doc_lines = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        # A signature of DSPy's is instructed by its docstring: that is code.
        if not isinstance(node, ast.ClassDef)
    }
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - doc_lines)


def program_lines(framework: str, program: str) -> int:
    """Count a program's lines, with those of the framework's own module that it imports, if any."""
    source = (HERE / framework / f"{program}.py").read_text(encoding="utf-8")
    helper = HERE / framework / "connection.py"
    shared = num_lines(helper.read_text(encoding="utf-8")) if helper.exists() else 0
    return num_lines(source) + shared


def counters(url: str) -> dict[str, int]:
    """Read the server's counters, once they no longer change."""
    found: dict[str, int] = {}
    while True:
        text = httpx.get(url + "/metrics").text
        now = {key: int(float(re.search(rf"^{name}\{{.*\}} (\S+)$", text, re.M)[1])) for key, name in COUNTERS.items()}  # type: ignore[index]
        if now == found:
            return now
        found = now
        time.sleep(0.3)


def play(python: str, words: list[str]) -> tuple[Answer, list[str]]:
    """Run a program in its environment; return its answer, and the lines that it printed."""
    environment = {"PYTHONPATH": str(HERE), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run([python, *words], capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    except subprocess.TimeoutExpired:  # SGLang's language does not end after an error while copies are left
        return Answer(None, f"did not end within {TIMEOUT} s"), []
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.match(r"[\w.]*(Error|Failed)\b", line)]
        return Answer(None, errors[-1] if errors else "failed"), lines
    return Answer(json.loads(lines[-2 if len(words) == 3 else -1]), ""), lines


def run_on_server(python: str, framework: str, program: str, url: str) -> tuple[Answer, Counts]:
    httpx.post(url + "/flush_cache").raise_for_status()
    before = counters(url)
    with CountingRelay(url) as relay:
        answer, _ = play(python, [str(HERE / framework / f"{program}.py"), relay.url])
        after = counters(url)
        used = {key: after[key] - before[key] for key in before}
        calls = relay.calls or None
        return answer, Counts(
            calls, relay.bytes_sent, used["prompt"], used["prompt"] - used["cached"], used["generated"]
        )


def run_locally(python: str, program: str) -> tuple[Answer, Counts]:
    words = [str(HERE / "guidance_usage.py"), str(HERE / "guidance" / f"{program}.py"), str(SHIPPED_MODEL)]
    answer, lines = play(python, words)
    used = json.loads(lines[-1]) if lines else {"prompt": 0, "prefilled": 0, "generated": 0}
    return answer, Counts(None, 0, used["prompt"], used["prefilled"], used["generated"])


def version(python: str, framework: str) -> str:
    if framework == "ramiform":
        return "this repository"
    code = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    words = [python, "-c", code, *PACKAGES[framework]]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def row(framework: str, program: str, runs: list[tuple[Answer, Counts]]) -> dict[str, Any]:
    """Return the medians over the rounds of one program."""

    def median(values: list[int]) -> int:
        return round(statistics.median(values))

    counts = [count for _, count in runs]
    calls = [count.calls for count in counts if count.calls is not None]
    right = sum(answer.value is not None and RIGHT[program](answer.value) for answer, _ in runs)
    last = runs[-1][0]
    return {
        "framework": framework,
        "lines": program_lines(framework, program),
        "calls": str(median(calls)) if calls else "–",
        "bytes sent": f"{median([count.bytes_sent for count in counts]):,}" if calls else "–",
        "prompt tokens": median([count.prompt for count in counts]),
        "prefilled": median([count.prefilled for count in counts]),
        "generated": median([count.generated for count in counts]),
        "valid": VALID[program][framework],
        "right": f"{right} of {len(runs)}",
        "last result": last.error[:80] if last.value is None else f"`{json.dumps(last.value)[:90]}`",
    }


def main(
    sglang: Annotated[Path | None, typer.Option(help="environment with sglang")] = None,
    guidance: Annotated[Path | None, typer.Option(help="environment with guidance, torch and transformers")] = None,
    dspy: Annotated[Path | None, typer.Option(help="environment with dspy")] = None,
    langgraph: Annotated[Path | None, typer.Option(help="environment with langgraph and langchain-openai")] = None,
    rounds: Annotated[int, typer.Option(help="runs of each program")] = 3,
    only: Only = "",
    out: Out = None,
) -> None:
    """Run all programs and print the tables."""
    folders = {"sglang": sglang, "guidance": guidance, "dspy": dspy, "langgraph": langgraph}
    pythons = {"ramiform": sys.executable} | {
        name: str(folder.absolute() / "bin/python") for name, folder in folders.items() if folder is not None
    }
    versions = "\n".join(f"- {name}: {version(python, name)}" for name, python in pythons.items())
    parts = [versions]
    with ramiform.Runtime(port=0, served_model_name=NAME, log_level="error") as runtime:
        for program in (name for name in RIGHT if only in name):
            rows = []
            for framework, python in pythons.items():
                runs = [
                    run_locally(python, program)
                    if framework == "guidance"
                    else run_on_server(python, framework, program, str(runtime.url))
                    for _ in range(rounds)
                ]
                rows.append(row(framework, program, runs))
                print(rows[-1], file=sys.stderr)
            parts += [f"## {program}", table(rows)]
    report("Five programs in five frameworks", *parts, out=out)


if __name__ == "__main__":
    typer.run(main)
