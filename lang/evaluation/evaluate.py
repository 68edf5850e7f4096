"""Runs a program on every example of a dataset and scores the results."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...runtime.programs.records.events import TokenCounts
from ...runtime.protocol.errors import RequestError, did_you_mean
from ..backends.backend import Backend
from ..expressions.expr import RUN_ARGUMENTS
from ..running.batch import progress_on_stderr
from ..running.planning import blocking
from ..running.program import Program
from ..states.state import ProgramState
from ..states.variables import AssignedVariable
from ..tracing.trace import Trace
from .dataset import Dataset, Example, digest, inputs_of, read_dataset
from .report import Report
from .result_file import ExampleResult, ResultFile

Score = bool | int | float | Mapping[str, bool | int | float]
Metric = Callable[[Example, ProgramState], Score | Awaitable[Score]]
OPTIONS = ("timeout", "max_total_tokens")  # of `run`, beside sampling arguments


async def aevaluate(
    program: Program,
    dataset: Dataset,
    metric: Metric,
    *,
    concurrency: int = 64,
    backend: Backend | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress_bar: bool | None = None,
    **options: Any,
) -> Report:
    """Run `program` on every example and return a Report of the scores that `metric` gives.

    `dataset`: a sequence of mappings, or the path of a .jsonl, .json or .csv file. The program's arguments are taken
    from the example by name; its other values are for the metric. `metric(example, state)`, sync or async, returns a
    number, a bool, or a mapping of several by name, the first of which is the report's score. The function's return
    value is `state.ret_value`. A program or metric that raises scores 0 and is one of the report's `failures`, with its
    trace.

    At most `concurrency` programs run at once. With `resume`, each result is appended to this file, and a later call
    takes the results that it holds. `progress_bar`: by default where stderr is a terminal. `options` are arguments of
    `run`: sampling arguments, budgets, and arguments of the function that are the same for all examples. Raises
    RequestError for a dataset without examples, for an example without a required argument, before anything runs,
    and for an unknown option. `aevaluate` is awaited in an event loop; `evaluate` blocks.
    """
    import asyncio

    if not isinstance(program, Program):
        raise RequestError(f"program must be made by @ramiform.function, got {program!r}", param="program")
    if not callable(metric):
        raise RequestError(f"metric must be a function of the example and the state, got {metric!r}", param="metric")
    if not isinstance(concurrency, int) or concurrency < 1:
        raise RequestError(f"concurrency must be a positive integer, got {concurrency!r}", param="concurrency")
    allowed = {*RUN_ARGUMENTS, *OPTIONS, *program.parameters}
    if (unknown := next((name for name in options if name not in allowed), None)) is not None:
        raise RequestError(f"evaluate has no option {unknown!r}{did_you_mean(unknown, allowed)}", param=unknown)
    if not (examples := read_dataset(dataset)):
        raise RequestError("dataset has no examples", param="dataset")
    required = [name for name in program.required if name not in options]
    inputs = [inputs_of(one, program.parameters, required, index) for index, one in enumerate(examples)]
    name = program.function.__name__
    results: dict[int, ExampleResult] = {}
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        file = None
        if resume is not None:
            file = stack.enter_context(ResultFile(resume, program=name, options=options))
            results = file.known(examples)
        threads = stack.enter_context(ThreadPoolExecutor(min(concurrency, 64), thread_name_prefix="ramiform-metric"))
        is_shown = sys.stderr.isatty() if progress_bar is None else progress_bar
        advance = stack.enter_context(progress_on_stderr("examples", len(examples), is_shown, num_done=len(results)))
        waiting = iter([index for index in range(len(examples)) if index not in results])

        async def work() -> None:
            for index in waiting:
                result = await _evaluate_one(
                    program, index, examples[index], inputs[index] | options, metric, backend, threads
                )
                results[index] = result
                if file is not None:
                    file.append(result)
                advance()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(examples))):
                group.create_task(work())
    ordered = [results[index] for index in range(len(examples))]
    return Report(program=name, options=_shown(options), seconds=time.perf_counter() - began, results=ordered)


evaluate = blocking(aevaluate)


async def _evaluate_one(
    program: Program,
    index: int,
    example: Example,
    arguments: Mapping[str, Any],
    metric: Metric,
    backend: Backend | None,
    threads: ThreadPoolExecutor,
) -> ExampleResult:
    """Run the program on one example and score it. An exception of either becomes the result's error."""
    import asyncio

    began = time.perf_counter()
    state: ProgramState | None = None
    error: Exception | None = None
    scores: dict[str, float] = {}
    try:
        state = await program.arun(**arguments, backend=backend, trace=True)
        score = await asyncio.get_running_loop().run_in_executor(threads, metric, example, state)
        scores = _scores(await score if inspect.isawaitable(score) else score)
    except Exception as raised:
        error = raised
        state = state or getattr(raised, "state", None)
    seconds = time.perf_counter() - began
    trace: Trace | None = None if state is None else state.trace
    is_kept = error is not None or not next(iter(scores.values()))
    return ExampleResult(
        index=index,
        digest=digest(example),
        example=_shown(example),
        scores=scores,
        error=None if error is None else f"{type(error).__name__}: {error}",
        outputs={} if state is None else _outputs(state),
        text="" if state is None else state._handle.text_so_far(),
        seconds=seconds,
        tokens=TokenCounts(0, 0, 0) if trace is None else trace.tokens,
        trace=trace if is_kept else None,
    )


def _outputs(state: ProgramState) -> dict[str, Any]:
    """Return the values of the variables that the program generated, as far as there are any."""
    outputs = {}
    for name, variable in state._reader.snapshot().items():
        if not isinstance(variable, AssignedVariable):
            with contextlib.suppress(Exception):  # a value that failed has none
                outputs[name] = variable.get()
    return _shown(outputs)


def _scores(score: Any) -> dict[str, float]:
    """Return the scores by name. Raises RequestError for what is no number."""
    given = dict(score) if isinstance(score, Mapping) else {"score": score}
    wrong = next((value for value in given.values() if not isinstance(value, bool | int | float)), None)
    if not given or wrong is not None or any(value != value for value in given.values()):
        raise RequestError(f"metric must return a number or names with numbers, got {score!r}", param="metric")
    return {str(name): float(value) for name, value in given.items()}


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON has them, Pydantic's models as objects; what JSON lacks is shown by `repr`."""
    import msgspec

    def builtins_of(value: Any) -> Any:
        return value.model_dump(mode="json") if hasattr(value, "model_dump") else repr(value)

    return msgspec.to_builtins(dict(values), str_keys=True, enc_hook=builtins_of)  # type: ignore[no-any-return]
