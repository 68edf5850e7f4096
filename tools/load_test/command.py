"""`ramiform bench serve`: measures a server under load, and reports a table, JSON and a plot."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, Group
from rich.table import Table

from ...runtime.protocol.errors import RequestError

if TYPE_CHECKING:
    from .client import LoadTarget, Measured
    from .figures import Summary
    from .workload import LoadWorkload

OBJECTIVES = ("ttft", "tpot", "e2e")
COMPARED = ("output_rate", "request_rate", "ttft", "itl", "e2e")
PERCENTILES = ("p50", "p95", "p99")


def serve_load(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:30000.")],
    compare: Annotated[str | None, typer.Option(help="Another server, measured in turns with the first.")] = None,
    concurrency: Annotated[str, typer.Option(help="Closed loop: requests that run at once, such as 1,2,4,8.")] = "1",
    rate: Annotated[str | None, typer.Option(help="Open loop: requests a second, such as 1,2,4.")] = None,
    burstiness: Annotated[
        float, typer.Option(help="Shape of the gaps of --rate: 1 is Poisson, less comes in bursts.", min=0.01)
    ] = 1.0,
    arrivals: Annotated[Path | None, typer.Option(help="Open loop: a file of times in seconds, one a line.")] = None,
    requests: Annotated[int, typer.Option(help="Requests of a round.", min=1)] = 32,
    rounds: Annotated[int, typer.Option(help="Rounds of each level; with --compare at least 2.", min=1)] = 1,
    warmup: Annotated[int, typer.Option(help="Requests before the first round.", min=0)] = 2,
    prompt_tokens: Annotated[
        str, typer.Option(help="About so many: 128, uniform:64,256, normal:128,32, lognormal:128,0.5.")
    ] = "128",
    output_tokens: Annotated[str, typer.Option(help="Most tokens of an answer; the forms of --prompt-tokens.")] = "64",
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts: JSON lines with prompt or messages, or ShareGPT's JSON.")
    ] = None,
    prefix_tokens: Annotated[int, typer.Option(help="Tokens of a prefix that prompts share.", min=0)] = 0,
    prefix_groups: Annotated[int, typer.Option(help="Different shared prefixes.", min=1)] = 1,
    structured: Annotated[float, typer.Option(help="Share of answers under a JSON schema.", min=0, max=1)] = 0.0,
    route: Annotated[Literal["chat", "completions"], typer.Option(help="The route that is asked.")] = "chat",
    ignore_eos: Annotated[bool, typer.Option(help="Generate all tokens (vLLM, SGLang and ramiform).")] = False,
    model: Annotated[str | None, typer.Option(help="The model's name; default: the first that is listed.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="RAMIFORM_API_KEY", show_envvar=True, help="API key, sent to every server measured."),
    ] = None,
    slo: Annotated[str | None, typer.Option(help="Objectives of goodput, such as ttft=200ms,tpot=50ms,e2e=2s.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.", min=0.1)] = 600.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same requests.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curve (.png, .svg); needs matplotlib.")] = None,
) -> None:
    """Measure an OpenAI-compatible server under load: latencies, throughput, goodput.

    The default is a closed loop; --rate or --arrivals make it an open one. Ctrl-C prints what was measured.
    """
    from .client import LoadTarget
    from .workload import Length, LoadWorkload, read_arrivals, read_prompts

    if plot is not None:
        _pyplot()
    output = Length.parse(output_tokens, "--output-tokens")
    times = None if arrivals is None else read_arrivals(arrivals)
    workload = LoadWorkload(
        num_requests=requests if times is None else len(times),
        prompt=Length.parse(prompt_tokens, "--prompt-tokens"),
        output=output,
        prefix_tokens=prefix_tokens,
        prefix_groups=prefix_groups,
        structured_share=structured,
        prompts=() if prompts is None else read_prompts(prompts, output, seed),
        seed=seed,
    )
    if route == "completions" and structured and prompts is None:
        raise RequestError("--structured needs --route chat", param="--structured")
    if rate is not None and times is not None:
        raise RequestError("give --rate or --arrivals, not both", param="--arrivals")
    levels = (
        [0.0]
        if times is not None
        else _numbers(*((concurrency, "--concurrency") if rate is None else (rate, "--rate")))
    )
    urls = [each.rstrip("/").removesuffix("/v1") for each in (url, compare) if each is not None]
    test = LoadTest(workload, _objectives(slo), kind="arrivals" if times else "concurrency" if rate is None else "rate")
    test.burstiness, test.times = burstiness, times

    async def run() -> None:
        from .client import served_model

        targets = [
            LoadTarget(each, model or await served_model(each, api_key), route, ignore_eos, api_key, timeout)
            for each in urls
        ]
        await test.run(targets, levels, rounds if compare is None else max(2, rounds), warmup)

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        test.keep_interrupted()
        Console().print("interrupted; what was measured:")
    _report(test, urls, out, plot)


class LoadTest:
    """Runs rounds at levels of load, the servers in turn, and keeps their summaries: (server, level, summary)."""

    def __init__(self, workload: LoadWorkload, objectives: dict[str, float], kind: str) -> None:
        self.workload = workload
        self.objectives = objectives
        self.kind = kind
        self.burstiness = 1.0
        self.times: list[float] | None = None
        self.results: list[tuple[int, float, Summary]] = []
        self._current: tuple[int, float, Measured] | None = None

    async def run(self, targets: Sequence[LoadTarget], levels: Sequence[float], rounds: int, warmup: int) -> None:
        from .client import Measured, run_closed

        for target in targets:
            if warmup:
                await run_closed(target, self.workload.jobs(-1)[:warmup], 1, Measured())
        number = 0
        for level in levels:
            for turn in range(rounds):
                number += 1
                order = list(enumerate(targets))
                for server, target in order if turn % 2 == 0 else reversed(order):
                    await self._round(server, target, level, number)

    async def _round(self, server: int, target: LoadTarget, level: float, number: int) -> None:
        from .client import Measured, run_closed, run_open
        from .workload import arrival_times

        measured = Measured()
        self._current = server, level, measured
        jobs = self.workload.jobs(number)
        if self.kind == "concurrency":
            await run_closed(target, jobs, int(level), measured)
        else:
            rng = random.Random(f"{self.workload.seed}/arrivals/{number}")
            offsets = self.times or arrival_times(len(jobs), level, self.burstiness, rng)
            await run_open(target, jobs, offsets, measured)
        self._keep(server, level, measured)
        self._current = None

    def keep_interrupted(self) -> None:
        """Summarise the requests of the interrupted round that had ended."""
        if self._current is not None and self._current[2].outcomes:
            self._keep(*self._current)

    def _keep(self, server: int, level: float, measured: Measured) -> None:
        from .figures import summarise

        label = "arrivals" if self.kind == "arrivals" else f"{self.kind} {level:g}"
        self.results.append((server, level, summarise(label, measured, self.objectives)))


def _report(test: LoadTest, urls: Sequence[str], out: Path | None, plot: Path | None) -> None:
    for server, url in enumerate(urls):
        mine = [summary for number, _, summary in test.results if number == server]
        if mine:
            Console().print(_tables(url, mine))
            _warn(mine)
    if len(urls) == 2:
        Console().print(_comparison(test, urls))
    if out is not None:
        written = [{"url": urls[server], "level": level} | summary.as_json() for server, level, summary in test.results]
        out.write_text(
            json.dumps({"kind": test.kind, "objectives": test.objectives, "rounds": written}, indent=1), "utf-8"
        )
    if plot is not None:
        _draw(test, urls, plot)
    if not test.results or all(summary.num_done == 0 for _, _, summary in test.results):
        raise typer.Exit(1)


def _tables(title: str, summaries: Sequence[Summary]) -> Group:
    """Build the table of rates, and that of times below it: together they are too wide for a terminal."""
    rates = Table(title=title, title_justify="left")
    times = Table(caption="times in ms", caption_justify="left")
    has_goodput = any(summary.goodput is not None for summary in summaries)
    for table, names in (
        (rates, ["done", "errors", "req/s", "output tok/s", "total tok/s", *(["goodput/s"] if has_goodput else [])]),
        (times, ["", *PERCENTILES]),
    ):
        table.add_column("level", overflow="fold")
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
    for each in summaries:
        figures = [each.request_rate, each.output_rate, each.total_rate, *([each.goodput or 0] if has_goodput else [])]
        counts = [f"{each.num_done}", f"{sum(each.errors.values())}"]
        rates.add_row(each.label, *counts, *(f"{figure:.2f}" for figure in figures))
        for name, part in (("TTFT", each.ttft), ("ITL", each.itl), ("TPOT", each.tpot), ("e2e", each.e2e)):
            label = each.label if name == "TTFT" else ""
            times.add_row(label, name, *(f"{1000 * part[p]:.1f}" for p in PERCENTILES), end_section=name == "e2e")
    return Group(rates, times)


def _warn(summaries: Sequence[Summary]) -> None:
    """Print what limits the figures: errors, a busy client, counts without usage, answers outside their schema."""
    for each in summaries:
        for kind, number in each.errors.items():
            Console().print(f"{each.label}: {number} requests failed: {kind}")
        if each.is_client_busy:
            Console().print(
                f"{each.label}: this client used {each.client_cpu:.0%} of a core, and its event loop was "
                f"{1000 * each.client_lag:.1f} ms late: it may be the bottleneck"
            )
        if not each.has_usage:
            Console().print(f"{each.label}: the server sends no usage; output tokens are chunks")
        if each.num_structured:
            Console().print(
                f"{each.label}: {each.num_valid} of {each.num_structured} structured answers fit their schema"
            )


def _comparison(test: LoadTest, urls: Sequence[str]) -> Table:
    """Build the table of ratios, first server to second: the median of the rounds, lowest and highest."""
    table = Table(title=f"{urls[0]} / {urls[1]}", title_justify="left", caption="ratios", caption_justify="left")
    for name in ("level", ""):
        table.add_column(name)
    for name in ("median", "lowest", "highest"):
        table.add_column(name, justify="right")
    for level in dict.fromkeys(level for _, level, _ in test.results):
        sides = [[s for server, at, s in test.results if (server, at) == (side, level)] for side in (0, 1)]
        if not all(sides):
            continue
        for name in COMPARED:
            ratios = [
                _figure(a, name) / b
                for first, second in zip(*sides, strict=False)
                for a, b in [(first, _figure(second, name))]
                if b
            ]
            found = (statistics.median(ratios), min(ratios), max(ratios)) if ratios else ()
            label = f"{level:g}" if name == COMPARED[0] else ""
            about = name if name.endswith("rate") else f"{name} p50"
            table.add_row(label, about, *(f"{ratio:.2f}" for ratio in found), end_section=name == COMPARED[-1])
    return table


def _figure(summary: Summary, name: str) -> float:
    value: Any = getattr(summary, name)
    return float(value["p50"] if isinstance(value, dict) else value)


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise RequestError("--plot needs matplotlib: pip install matplotlib", param="--plot") from None
    return pyplot


def _draw(test: LoadTest, urls: Sequence[str], path: Path) -> None:
    """Draw throughput and latency over the levels: the median of the rounds, from the lowest to the highest."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4))
    levels = sorted({level for _, level, _ in test.results})
    for axis, name in zip(axes, ("output_rate", "ttft", "itl"), strict=True):
        scale = 1 if name == "output_rate" else 1000
        for server, url in enumerate(urls):
            rounds = {
                at: [scale * _figure(s, name) for number, level, s in test.results if (number, level) == (server, at)]
                for at in levels
            }
            medians = {at: statistics.median(values) for at, values in rounds.items() if values}
            below = [medians[at] - min(rounds[at]) for at in medians]
            above = [max(rounds[at]) - medians[at] for at in medians]
            axis.errorbar([*medians], [*medians.values()], yerr=[below, above], fmt="o-", capsize=3, label=url)
        axis.set_xlabel(test.kind)
        axis.set_ylabel("output tokens/s" if name == "output_rate" else f"{name.upper()} p50, ms")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def _numbers(text: str, param: str) -> list[float]:
    """Read positive numbers between commas; whole ones for --concurrency. Raises RequestError."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    is_whole = param != "--concurrency" or all(value == int(value) and value <= 4096 for value in values)
    if not values or not all(0 < value < 1e6 for value in values) or not is_whole:
        raise RequestError(f"{param} is {text!r}; write numbers such as 1,2,4", param=param)
    return values


def _objectives(text: str | None) -> dict[str, float]:
    """Read "ttft=200ms,tpot=50ms,e2e=2s" into seconds. Raises RequestError."""
    found = {}
    for part in (text or "").split(",") if text else []:
        name, _, value = part.strip().partition("=")
        digits, scale = (value[:-2], 1e-3) if value.endswith("ms") else (value.removesuffix("s"), 1.0)
        try:
            found[name] = float(digits) * scale
        except ValueError:
            found["?"] = 0.0
    if not found.keys() <= set(OBJECTIVES) or any(not limit > 0 for limit in found.values()):
        raise RequestError(f"--slo is {text!r}; write ttft=200ms,tpot=50ms,e2e=2s", param="--slo")
    return found
