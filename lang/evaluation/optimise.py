"""Search for a better prompt of a program: its instruction and its demonstrations, judged by evaluation."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...runtime.programs.records.events import TokenCounts
from ...runtime.protocol.errors import RequestError
from ..backends.backend import Backend
from ..running.planning import blocking
from ..running.program import Program
from ..running.signatures import Demonstration as SignatureDemonstration
from .dataset import Dataset, read_dataset
from .evaluate import Metric, aevaluate
from .report import Report
from .result_file import ExampleResult

MIN_EXAMPLES = 8  # of the first round, in which all candidates are compared

Demonstration = Mapping[str, Any]  # an example's values and the texts that a run generated, by name
Propose = Callable[[str, Sequence[Demonstration]], Sequence[str]]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate prompt and its mean score on `num_examples` examples of the validation set."""

    instruction: str | None  # None: the program's own
    demonstrations: list[dict[str, Any]]
    score: float
    num_examples: int
    tokens: TokenCounts


@dataclass(frozen=True, slots=True)
class _Candidate:
    instruction: str | None
    demonstrations: tuple[int, ...]  # indices into the pool


Judge = Callable[[_Candidate, Sequence[Mapping[str, Any]]], Awaitable[Report]]


async def aoptimise(
    program: Program,
    train: Dataset,
    metric: Metric,
    *,
    instructions: Sequence[str] = (),
    propose: Propose | None = None,
    max_demonstrations: int = 4,
    num_candidates: int = 16,
    validation: Dataset | None = None,
    seed: int = 0,
    concurrency: int = 64,
    backend: Backend | None = None,
    progress_bar: bool | None = None,
    **options: Any,
) -> Program:
    """Return the program with the instruction and the demonstrations that score best.

    The function declares what is searched: a parameter `demonstrations`, a sequence of mappings that it writes into its
    prompt, a parameter `instruction`, or both. Each is given by `bind` in the result, which `save` keeps in a file. Of
    a signature both are searched, and given by `with_prompt`; an example's own answer is its value of the function's
    name.

    `train` is split into examples that become demonstrations and examples that judge, unless `validation` gives the
    latter. A demonstration holds an example's values and the texts of the variables that a run on it generated,
    without white space around them, if the run had the best score; an example that has a value of its own for each of
    these variables needs no such run. `instructions` are tried beside the program's own, as are those that `propose`
    returns for the program's own instruction and some demonstrations. `num_candidates` prompts are compared on few
    examples; the better half goes on to twice as many, until two are left that have been judged on all. The result's
    `trials` hold every prompt's score. Equal scores: the earlier, shorter prompt. `seed` decides all draws; `options`
    are arguments of `run`. Raises RequestError if the program declares neither parameter, for too few examples, and if
    every example fails. `aoptimise` is awaited in an event loop; `optimise` blocks.
    """
    import asyncio

    searched = _searched(program, bool(instructions or propose))
    if num_candidates < 2 or max_demonstrations < 0:
        raise RequestError("num_candidates must be at least 2, max_demonstrations at least 0", param="num_candidates")
    rng = random.Random(seed)
    examples, judging = _split(read_dataset(train), validation, rng)

    async def judge(candidate: _Candidate, on: Sequence[Mapping[str, Any]]) -> Report:
        return await aevaluate(
            _with_prompt(program, candidate, pool),
            on,
            metric,
            concurrency=concurrency,
            backend=backend,
            progress_bar=progress_bar,
            **options,
        )

    pool: list[dict[str, Any]] = []
    tried = list(dict.fromkeys(instructions))
    if max_demonstrations and ("demonstrations" in searched or propose is not None):
        pool = _demonstrations((await judge(_Candidate(None, ()), examples)).results)
    if propose is not None:
        own = program.prompt.instruction if program.is_signature else str(program.argument("instruction") or "")
        tried += await asyncio.to_thread(propose, own, pool[:max_demonstrations])
    size = max_demonstrations if "demonstrations" in searched else 0
    candidates = _candidates(tried, len(pool), size, num_candidates, rng)
    best, trials = await _tournament(candidates, judging, judge, pool)
    result = _with_prompt(program, best, pool)
    result.trials = trials
    return result


optimise = blocking(aoptimise)


async def _tournament(
    candidates: list[_Candidate], judging: list[dict[str, Any]], judge: Judge, pool: Sequence[dict[str, Any]]
) -> tuple[_Candidate, list[Trial]]:
    """Judge candidates on few examples, and the better half of them on twice as many, up to all; return the best."""
    trials: list[Trial] = []
    failed: list[str] = []  # the errors of programs and metrics
    num_examples = min(len(judging), max(MIN_EXAMPLES, len(judging) // 4))
    while True:
        ranked: list[tuple[float, int, _Candidate]] = []
        for index, candidate in enumerate(candidates):
            report = await judge(candidate, judging[:num_examples])
            trials.append(
                Trial(
                    instruction=candidate.instruction,
                    demonstrations=[pool[index] for index in candidate.demonstrations],
                    score=report.score,
                    num_examples=len(report.results),
                    tokens=report.tokens,
                )
            )
            ranked.append((-report.score, index, candidate))
            failed += [result.error for result in report.results if result.error is not None]
        if len(failed) == sum(trial.num_examples for trial in trials):
            raise RequestError(f"no example could be scored; the first failed with {failed[0]}", param="metric")
        ranked.sort(key=lambda one: one[:2])
        if num_examples == len(judging):
            return ranked[0][2], trials
        keep = max(2, len(candidates) // 2)
        best = {candidate for _, _, candidate in ranked[:keep]}
        candidates = [one for one in candidates if one in best or one == _Candidate(None, ())]
        num_examples = min(len(judging), 2 * num_examples) if len(candidates) > 2 else len(judging)


def _searched(program: Program, needs_instruction: bool) -> set[str]:
    """Return what is searched of a program's prompt. Raises RequestError if that is nothing."""
    if not isinstance(program, Program):
        raise RequestError(f"program must be made by @ramiform.function, got {program!r}", param="program")
    if program.is_signature and program.function.__name__ in program.parameters:
        raise RequestError(
            f"{program.function.__name__} has an argument of its own name, which an example's answer has too",
            param="program",
        )
    names = ("instruction", "demonstrations")
    searched = {name for name in names if program.is_signature or name in program.parameters}
    if not searched:
        raise RequestError(
            f"{program.function.__name__} declares no parameter 'instruction' or 'demonstrations' to search",
            param="program",
        )
    if needs_instruction and "instruction" not in searched:
        raise RequestError(f"{program.function.__name__} declares no parameter 'instruction'", param="instructions")
    return searched


def _split(
    examples: list[dict[str, Any]], validation: Dataset | None, rng: random.Random
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the examples that become demonstrations and those that judge."""
    shuffled = rng.sample(examples, len(examples))
    if validation is not None:
        judging = read_dataset(validation)
    else:
        shuffled, judging = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]
    if not shuffled or not judging:
        raise RequestError(f"train must have at least two examples, got {len(examples)}", param="train")
    return shuffled, judging


def _demonstrations(results: Sequence[ExampleResult]) -> list[dict[str, Any]]:
    """Return the demonstrations that the runs give: of the best score, or of examples that have all values."""
    scored = [next(iter(result.scores.values())) for result in results if result.scores]
    best = max(scored, default=0.0)
    generated = {name for result in results for name in result.outputs}
    pool = []
    for result in results:
        is_best = best > 0 and bool(result.scores) and next(iter(result.scores.values())) == best
        if is_best or (generated and generated <= result.example.keys()):
            outputs = result.outputs if is_best else {}
            texts = {name: value.strip() if isinstance(value, str) else value for name, value in outputs.items()}
            pool.append({**texts, **result.example})
    return pool


def _candidates(
    instructions: Sequence[str], pool_size: int, max_demonstrations: int, number: int, rng: random.Random
) -> list[_Candidate]:
    """Return different candidates: the program as it is, each instruction alone, then draws of both."""
    own: list[str | None] = [None, *instructions]
    candidates = [_Candidate(instruction, ()) for instruction in own]
    most = min(max_demonstrations, pool_size)
    for _ in range(20 * number if most else 0):  # draws may repeat
        if len(candidates) >= number:
            break
        size = rng.randint(1, most)
        drawn = _Candidate(rng.choice(own), tuple(rng.sample(range(pool_size), size)))
        if drawn not in candidates:
            candidates.append(drawn)
    return candidates


def _with_prompt(program: Program, candidate: _Candidate, pool: Sequence[dict[str, Any]]) -> Program:
    """Return the program with the candidate's prompt."""
    if program.is_signature:
        answer = program.function.__name__
        examples = [
            SignatureDemonstration({name: one[name] for name in program.parameters if name in one}, one[answer])
            for one in map(pool.__getitem__, candidate.demonstrations)
        ]
        return program.with_prompt(candidate.instruction, examples or None)
    given: dict[str, Any] = {}
    if candidate.instruction is not None:
        given["instruction"] = candidate.instruction
    if candidate.demonstrations:
        given["demonstrations"] = [pool[index] for index in candidate.demonstrations]
    return program.bind(**given)
