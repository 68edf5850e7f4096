"""Parts that the benches share: options, checkouts in turn, ratios, processor time, Markdown tables and reports.

Run as a script it is a worker of `checkouts`. It imports nothing of `ramiform`, since an older checkout may run it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")
Ask = Callable[[Any], Any]
TEKKEN = "tekken_240911.json"  # a vocabulary of 131k tokens

Model = Annotated[str | None, typer.Argument(help="checkpoint path; default: the shipped model")]
Batches = Annotated[str, typer.Option(help="numbers of requests at once, separated by commas")]
Repeat = Annotated[int, typer.Option(help="interleaved runs of each, after one that warms up")]
Threads = Annotated[int, typer.Option(help="of torch and of compiled loops")]
Before = Annotated[Path | None, typer.Option(help="Python of an environment with another checkout, to compare with")]
Out = Annotated[Path | None, typer.Option(help="write the report here too, as Markdown")]
CasesFolder = Annotated[Path, typer.Argument(help="MaskBench's *.json files", exists=True, file_okay=False)]
TokenizerFile = Annotated[str, typer.Option(help="a file, or the name of one in the package mistral-common")]
Sample = Annotated[int | None, typer.Option(help="number of schemas, drawn at random; default: all")]
Only = Annotated[str, typer.Option(help="only what has this in its name")]
Cases = Annotated[int, typer.Option("--cases", help="per skill; 0: none")]
Documents = Annotated[int, typer.Option("--documents", help="of the perplexity")]


# Runs


def interleaved(repeat: int, ways: Mapping[str, Callable[[int], T]]) -> dict[str, list[T]]:
    """Run all ways in turn, `repeat` times after a round that warms up, so that load on the machine meets all alike.

    A way is called with the number of its round, 0 for the one whose result is dropped.
    """
    results: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(repeat + 1):
        for name, run in ways.items():
            result = run(number)
            if number:
                results[name].append(result)
    return results


def timed(clock: Callable[[], float], call: Callable[[], object]) -> float:
    """Return the seconds of a call, by `clock`."""
    start = clock()
    call()
    return clock() - start


@contextmanager
def checkouts(script: str, before: Path | None, **arguments: Any) -> Iterator[list[Ask]]:
    """Run `worker(**arguments)` of a script with this checkout, and with that of the Python `before` if it is given.

    Yields for each what sends a question to the function that `worker` returned, and returns its answer; both are JSON.
    The script and this file are the same for both; all else that they import of `ramiform` is the checkout's own.
    """
    with ExitStack() as stack:
        workers = []
        for python in [sys.executable, *([str(before)] if before else [])]:
            worker = subprocess.Popen(
                [python, "-P", __file__, script, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # As in servers: spinning threads of torch would take a processor from the loops.
                env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
            )
            stack.enter_context(worker)
            stack.callback(worker.terminate)
            workers.append(worker)
        for worker in workers:
            _read(worker)  # it is ready
        yield [partial(_ask, worker) for worker in workers]


def _ask(worker: subprocess.Popen[str], question: Any) -> Any:
    assert worker.stdin is not None
    print(json.dumps(question), file=worker.stdin, flush=True)
    return _read(worker)


def _read(worker: subprocess.Popen[str]) -> Any:
    assert worker.stdout is not None
    if not (line := worker.stdout.readline()):
        raise RuntimeError("the worker has ended; its error is above")
    return json.loads(line)


def _work(script: str, arguments: str) -> None:
    """Answer questions from standard input by the script's worker."""
    sys.modules["ramiform.bench.harness"] = sys.modules[__name__]  # not the checkout's
    spec = importlib.util.spec_from_file_location("bench_script", script)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answer = module.worker(**json.loads(arguments))
    print("null", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor seconds of processes and all their descendants so far."""
    import psutil  # of the extra `bench`

    roots = [psutil.Process(pid) for pid in pids]
    times = [each.cpu_times() for root in roots for each in (root, *root.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """Return the median of the rounds' ratios. Raises ValueError if the rounds do not pair up."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile, interpolated; a single value is every percentile, and 0 stands for none."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def numbers(text: str) -> list[int]:
    """Parse integers separated by commas."""
    return [int(word) for word in text.split(",") if word]


# Reports


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows with equal keys as a Markdown table. Columns of numbers are aligned to the right."""
    columns = list(rows[0])
    marks = ["---" if isinstance(rows[0][column], str) else "---:" for column in columns]
    return _lines([columns, marks, *([cell(row[column]) for column in columns] for row in rows)])


def figures(values: Mapping[str, Any]) -> str:
    """Format names and figures as a Markdown table."""
    return table([{"figure": name, "value": value} for name, value in values.items()])


def matrix(columns: Iterable[object], rows: Iterable[tuple[str, Iterable[str]]], corner: str = "") -> str:
    """Format titled rows of cells as a Markdown table."""
    head = [corner, *map(str, columns)]
    return _lines([head, ["---", *["---:"] * (len(head) - 1)], *([title, *cells] for title, cells in rows)])


def _lines(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(value: Any) -> str:
    """Format a number with about three digits; other values as they are."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def report(title: str, *parts: str, out: Path | None = None) -> None:
    """Print parts below their title, command and machine, and write them to `out`."""
    text = "\n\n".join([f"# {title}", command(), machine(), *parts])
    print(text)
    if out is not None:
        out.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def command() -> str:
    """Return the command line of this run, without the folders of its files."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    script = Path(sys.argv[0]).resolve().relative_to(Path(__file__).resolve().parents[1])
    return f"`python -P {shlex.join([str(script), *words])}`"


def machine() -> str:
    """Describe what this ran on, and whether other processes ran too."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = names[0].partition(": ")[2] if names else platform.machine()
    versions = f"Python {platform.python_version()}, torch {version('torch')}"
    noise = "busy: only ratios say something" if load > cores + 1 else "quiet"
    return f"{cores} cores of {processor}, {versions}; load average {load:.1f} at the end ({noise})."


if __name__ == "__main__":
    _work(*sys.argv[1:])
