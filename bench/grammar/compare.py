"""Grammar engines side by side: MaskBench's schemas and instances on the native engine, llguidance, xgrammar, outlines.

    python -P bench/grammar/compare.py FOLDER [--tokenizer FILE] [--engines native,llguidance,xgrammar,xgrammar-any]
    python -P bench/grammar/compare.py FOLDER --engines native --quick --list-failures

For every schema and engine: whether it compiles, and why not; CPU time to the first mask; every valid instance token by
token to an end, every invalid one refused somewhere; CPU time of each mask and step, one thread. Engines take turns
schema by schema in one process, so that ratios hold on a machine with neighbours. A schema passes when it compiles and
all its instances are judged rightly.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Literal

import typer

from ramiform.bench.grammar.cases import Whitespace, load_cases
from ramiform.bench.grammar.engines import KINDS
from ramiform.bench.grammar.measure import Options, Result
from ramiform.bench.grammar.pool import Setup, measure
from ramiform.bench.grammar.report import engine_tables, failures_text, plot
from ramiform.bench.grammar.tokens import find_tokenizer
from ramiform.bench.harness import TEKKEN, CasesFolder, Only, Out, Sample, TokenizerFile, report


def main(
    folder: CasesFolder,
    tokenizer: TokenizerFile = TEKKEN,
    engines: Annotated[str, typer.Option(help=f"of {', '.join(KINDS)}")] = "native,llguidance,xgrammar,xgrammar-any",
    whitespace: Annotated[Literal["any", "compact"], typer.Option(help="of instances, and what engines allow")] = "any",
    sample: Sample = None,
    seed: Annotated[int, typer.Option()] = 0,
    only: Only = "",
    jobs: Annotated[int, typer.Option(help="processes; for figures of time: 1")] = 1,
    limit: Annotated[float, typer.Option(help="seconds for one schema and engine")] = 20.0,
    memory: Annotated[int, typer.Option(help="GiB of address space for a process")] = 16,
    quick: Annotated[bool, typer.Option("--quick", help="steps only, no masks")] = False,
    forced: Annotated[bool, typer.Option("--forced", help="count forced tokens too")] = False,
    list_failures: Annotated[bool, typer.Option("--list-failures", help="each with its first instance")] = False,
    out: Out = None,
) -> None:
    names = engines.split(",")
    for engine in names:
        if engine not in KINDS:
            raise typer.BadParameter(f"there is no engine {engine!r}; there are {', '.join(KINDS)}")
    cases = load_cases(folder, only, sample, seed)
    if not cases:
        raise typer.BadParameter(f"no *.json with {only!r} in its name in {folder}")
    path = find_tokenizer(tokenizer)
    setting: Whitespace = whitespace
    options = Options(whitespace=setting, masks=not quick, forced=forced)
    setup = Setup(str(path), names, options, limit, memory)
    results: list[Result] = []
    start = time.monotonic()
    for result in measure(cases, setup, jobs):
        results.append(result)
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {len(cases) * len(names)}", end="", file=sys.stderr)
    heading = [
        f"{len(cases)} schemas, {sum(len(case.instances) for case in cases)} instances, whitespace {whitespace!r}, "
        f"{path.name}, {jobs} process{'es' if jobs > 1 else ''}, {time.monotonic() - start:.0f} s",
        ", ".join(dict.fromkeys(KINDS[engine].version for engine in names)),
    ]
    by_engine = {engine: [result for result in results if result.engine == engine] for engine in names}
    parts = heading + engine_tables(by_engine)
    if out is not None and not quick and plot(by_engine, out.with_suffix(".png")):
        parts.append(f"![CPU time by percentile]({out.stem}.png)")
    report("Grammar engines side by side", *parts, out=out)
    if list_failures:
        print(failures_text({case.name: case for case in cases}, results))


if __name__ == "__main__":
    typer.run(main)
