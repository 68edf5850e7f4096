"""The command `ramify`. Flags are made from the configuration's fields, so that a setting is written once."""

from __future__ import annotations

import asyncio
import inspect
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import __version__
from .runtime.planner.command import plan
from .runtime.protocol.config import CoreConfig, EvictionName, OrderName, ServeConfig
from .runtime.protocol.errors import RamifyError
from .runtime.quantize.calibrate import calibrate_kv
from .runtime.quantize.command import quantize

app = typer.Typer(
    help="A structured-generation language and the runtime that serves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True, soft_wrap=True, highlight=False)


PANELS = {
    "Model": "served_model_name device tp kernels deterministic dtype quantize context_length",
    "Memory and reuse": "num_pages kv_memory kv_dtype kv_scales host_kv_memory prefix_cache eviction kv_events",
    "Scheduling": "prefill_budget max_running max_waiting order log_plans",
    "Constraints": "grammar_backend jump_forward",
    "Speculation": "speculative speculative_draft_model speculative_num_steps speculative_eagle_topk "
    "speculative_num_draft_tokens speculative_adaptive",
    "HTTP": "host port uds ssl_certfile ssl_keyfile cors_origins max_body_mib request_timeout",
    "Access and limits": "api_key max_requests_per_key requests_per_minute_per_key",
    "Model's dialect": "tool_call_parser reasoning_parser",
    "Programs of other machines": "bind keys",
    "Processes": "frontends drain_seconds",
    "Logs and traces": "log_level log_format otlp_endpoint",
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}


def settings_of(struct: type[msgspec.Struct], skip: frozenset[str] = frozenset()) -> list[inspect.Parameter]:
    """One keyword parameter, hence one `--flag`, for each field of a configuration struct, in the order of PANELS."""
    kinds, hints = get_type_hints(struct), get_type_hints(struct, include_extras=True)
    parameters = []
    for field in msgspec.structs.fields(struct):
        if field.name in skip:
            continue
        description = next(m.description for m in get_args(hints[field.name])[1:] if isinstance(m, msgspec.Meta))
        annotation = Annotated[
            kinds[field.name], typer.Option(help=description, rich_help_panel=PANEL_OF.get(field.name))
        ]
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)
        )
    order = list(PANEL_OF)
    return sorted(parameters, key=lambda p: order.index(p.name) if p.name in PANEL_OF else len(order))


def with_settings(*settings: inspect.Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command that takes **settings these parameters by name."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = [*own, *settings]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


MODEL_SETTINGS = settings_of(CoreConfig, skip=frozenset({"model"}))
SERVE_SETTINGS = settings_of(ServeConfig, skip=frozenset({"socket_dir", "port", "api_key"}))
LOG_SETTINGS = [p for p in SERVE_SETTINGS if p.name in ("log_level", "log_format")]
ModelArgument = Annotated[
    str | None, typer.Argument(help="Path of a Hugging Face checkpoint; default: the model that ships.")
]
ModelOption = Annotated[str | None, typer.Option(help="Path of a checkpoint; default: the model that ships.")]
AddressOption = Annotated[
    str | None, typer.Option(help="Of a running runtime (printed by serve), instead of one's own.")
]
KeysOption = Annotated[
    str | None, typer.Option(envvar="RAMIFY_KEYS", help="Folder of the keys that an address of TCP asks for.")
]


@app.command()
@with_settings(*MODEL_SETTINGS, *SERVE_SETTINGS)
def serve(
    model: ModelArgument = None,
    *,
    port: Annotated[int, typer.Option(help="HTTP port; 0: any free one.", rich_help_panel="HTTP")] = 30000,
    api_key: Annotated[
        str | None,
        # From the environment it stays out of the list of processes.
        typer.Option(
            envvar="RAMIFY_API_KEY",
            show_envvar=True,
            help="Required as 'Authorization: Bearer KEY' when set.",
            rich_help_panel="Access and limits",
        ),
    ] = None,
    **settings: Any,
) -> None:
    """Serve a model over HTTP and to programs, until Ctrl-C. SIGTERM lets what runs end first."""
    from .runtime import logs
    from .runtime.launch import make_config
    from .runtime.protocol.start import Started
    from .runtime.serve import Signals
    from .runtime.serve import serve as run_frontend

    config = make_config(model, {"port": port, "api_key": api_key, **settings})
    logs.set_up(config.serve, "frontend")

    def on_start(started: Started) -> None:
        print(f"serving {started.info.name} at {config.serve.url(started.http_port)}", flush=True)
        print(f"programs: ramify run FILE --address {config.serve.client_address}", flush=True)
        if started.tcp_address is not None:
            print(f"from afar: ramify run FILE --address {started.tcp_address} --keys FOLDER", flush=True)

    async def until_signalled() -> None:
        signals = Signals()
        signals.install()
        await run_frontend(config, signals, on_start)

    asyncio.run(until_signalled())


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def run(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python script that uses ramify.")],
    model: ModelOption = None,
    address: AddressOption = None,
    keys: KeysOption = None,
    **settings: Any,
) -> None:
    """Run a script against a runtime of its own, or a running one. Other arguments go to the script."""
    _run_script(file, context.args, model, address, keys, settings)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def trace(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A script, or a trace saved as .json.")],
    model: ModelOption = None,
    address: AddressOption = None,
    keys: KeysOption = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the traces there too, as JSON that Perfetto and chrome://tracing show.")
    ] = None,
    **settings: Any,
) -> None:
    """Run a script as `run` does, then show what each of its programs did; or show a trace that was saved."""
    from .lang import trace as traces
    from .lang.recording import record_all

    if file.suffix == ".json":
        shown = traces.load(file)
    else:
        with record_all() as recordings:
            _run_script(file, context.args, model, address, keys, settings)
        shown = [traces.trace_of(recording) for recording in recordings]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else traces.WIDTH)
    for one in shown:
        console.print(one.tree())
    if save is not None:
        traces.save(shown, save)


def _run_script(
    file: Path,
    arguments: list[str],
    model: str | None,
    address: str | None,
    keys: str | None,
    settings: dict[str, Any],
) -> None:
    from .lang.backend import set_default_backend
    from .runtime.launch import Runtime

    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))  # as `python FILE` does
    if address is not None:
        os.environ["RAMIFY_ADDRESS"] = address
        if keys is not None:
            os.environ["RAMIFY_KEYS"] = keys
        runpy.run_path(str(file), run_name="__main__")
        return
    with Runtime(model, **settings) as runtime:
        set_default_backend(runtime)
        runpy.run_path(str(file), run_name="__main__")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Where the keys go.")],
    name: Annotated[str, typer.Option(help="Of the program or user that these are for.")] = "client",
) -> None:
    """Make keys for `serve --bind`: the runtime's, if there are none yet, and a program's."""
    from .runtime.protocol.keys import make_keys

    for file in make_keys(folder, name):
        print(file)
    print(f"a program needs server.key and {name}.key_secret, in a folder of its own on another machine")


app.command()(plan)
app.command()(quantize)
app.command("calibrate-kv")(calibrate_kv)


@app.command()
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def chat(
    model: ModelArgument = None,
    url: Annotated[
        str | None,
        typer.Option(help="Of a server that speaks OpenAI's API, without /v1, instead of a runtime of one's own."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the server's model; default: its first.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="RAMIFY_API_KEY", show_envvar=True, help="Of the server.")
    ] = None,
    system: Annotated[str, typer.Option(help="What the model is told before everything.")] = "",
    **settings: Any,
) -> None:
    """Talk with a model in the terminal. /help in it says what there is."""
    from .chat import Chat, typed_lines
    from .runtime.launch import Runtime

    def talk(address: str) -> None:
        talking = Chat(address, Console(highlight=False), model=name, api_key=api_key)
        talking.conversation.system = system
        talking.run(typed_lines("> " if sys.stdin.isatty() else ""))

    if url is not None:
        talk(url)
        return
    with Runtime(model, port=0, **settings) as runtime:
        assert runtime.url is not None
        talk(runtime.url)


@app.command()
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def info(model: ModelArgument = None, address: AddressOption = None, keys: KeysOption = None, **settings: Any) -> None:
    """Print the facts of a model, its cache and its device, as a runtime sees them."""
    from .runtime.launch import Runtime
    from .runtime.protocol.client import Connection
    from .runtime.protocol.keys import keys_for

    if address is not None:
        connection = Connection(address, keys_for(address, keys))
        _print_info(connection)
        connection.close()
        return
    with Runtime(model, **settings) as runtime:
        _print_info(runtime.connection())


def _print_info(connection: Any) -> None:
    model = connection.call("info").info
    stats = connection.call("stats").stats
    table = Table(title=f"ramify {__version__}", show_header=False, title_justify="left")
    facts = {**msgspec.structs.asdict(model), "num_slots": model.num_slots}
    load = {**msgspec.structs.asdict(stats), "cache_hit_rate": stats.cache_hit_rate, "kv_use": stats.kv_use}
    for part in (facts, {name: value for name, value in load.items() if name not in facts}):
        for name, value in part.items():
            table.add_row(name, _shown(value))
        table.add_section()
    Console().print(table)


@app.command("train-draft")
def train_draft(
    data: Annotated[
        Path,
        typer.Option(
            exists=True, dir_okay=False, help='A line each: {"text"}, {"prompt", "completion"} or {"messages"}.'
        ),
    ],
    model: ModelArgument = None,
    held_out: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Texts to measure on; default: every fiftieth of the data."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the head; default: MODEL/draft.")] = None,
    eagle: Annotated[int, typer.Option(min=1, max=3, help="1: an EAGLE-1 and -2 head; 3: an EAGLE-3 head.")] = 1,
    init: Annotated[Path | None, typer.Option(help="Begin with this head, not a random one.")] = None,
    generate: Annotated[
        int, typer.Option(min=0, help="Learn what the model itself says after each prompt, at most so many tokens.")
    ] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of what the model says; 0: greedy.")] = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="In all, with those before a stop.")] = 2000,
    tokens_per_step: Annotated[int, typer.Option(min=16, help="Padding included.")] = 4096,
    max_length: Annotated[int, typer.Option(min=8, help="Longer texts are cut, in tokens.")] = 1024,
    optimizer: Annotated[Literal["adamw", "muon"], typer.Option(help="Muon needs fewer steps.")] = "adamw",
    learning_rate: Annotated[float | None, typer.Option(help="Default: 0.12 / the model's width.")] = None,
    ahead: Annotated[int | None, typer.Option(min=1, help="Guesses in a row; default: 1, EAGLE-3: 7.")] = None,
    token_loss: Annotated[float | None, typer.Option(help="Of tokens, in the loss; default: 0.1, EAGLE-3: 1.")] = None,
    draft_vocab: Annotated[
        int | None, typer.Option(min=1, help="EAGLE-3: tokens that the head knows; default: 32000 at most.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of the model and of products.")] = "bfloat16",
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU; default: torch's choice.")] = None,
    seed: Annotated[int, typer.Option(help="Of the head's first numbers, the order of texts and the noise.")] = 0,
) -> None:
    """Train a draft head for a model, beside it; when stopped, the same command goes on."""
    import torch

    from .runtime.train_draft.run import Options
    from .runtime.train_draft.run import train_draft as train

    if eagle == 2:
        eagle = 1  # EAGLE-2 grows other trees with the same head
    if threads is not None:
        torch.set_num_threads(threads)
    options = Options(
        model=model,
        data=data,
        held_out=held_out,
        out=out,
        eagle=eagle,
        init=init,
        generate=generate,
        temperature=temperature,
        draft_vocab=draft_vocab,
        device=device,
        dtype=dtype,
        num_steps=steps,
        tokens_per_step=tokens_per_step,
        max_length=max_length,
        seed=seed,
        optimizer=optimizer,
        learning_rate=learning_rate,
        num_ahead=ahead,
        token_loss=token_loss,
    )
    train(options, Console())


bench = typer.Typer(help="Measure, and look into what was measured.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command()
def replay(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Written by --log-plans.")],
    order: Annotated[OrderName | None, typer.Option(help="What if requests waited in this order?")] = None,
    eviction: Annotated[EvictionName | None, typer.Option(help="What if prefixes were evicted so?")] = None,
    num_pages: Annotated[int | None, typer.Option(help="What if the KV pool had so many pages?", min=4)] = None,
    prefill_budget: Annotated[int | None, typer.Option(help="What if a step computed so many tokens?", min=16)] = None,
    max_running: Annotated[int | None, typer.Option(help="What if so many requests could run?", min=1)] = None,
    prefix_cache: Annotated[bool | None, typer.Option(help="What if prefixes were reused, or not?")] = None,
) -> None:
    """Plan a logged run again, without a model, and fail at the first plan that differs.

    With an option: run the same requests under that setting, and compare.
    """
    from .runtime import replay as replaying
    from .runtime.scheduler.plan_log import read_log

    with file.open("rb") as lines:
        entries = list(read_log(lines))
    try:
        logged = replaying.replay(entries)
    except replaying.Difference as difference:
        errors.print("[red]ramify:[/red] a plan differs from the log.", Text(str(difference)))
        raise typer.Exit(1) from None
    changes = {
        "order": order,
        "eviction": eviction,
        "num_pages": num_pages,
        "prefill_budget": prefill_budget,
        "max_running": max_running,
        "prefix_cache": prefix_cache,
    }
    if all(value is None for value in changes.values()):
        assert logged.stats is not None
        print(f"{logged.stats.num_steps} plans, all as logged")
        return
    changed = replaying.what_if(entries, **changes)
    table = Table(title=str(file), title_justify="left")
    for title in ("", "logged", "what if"):
        table.add_column(title, justify="left" if not title else "right")
    for name, first, second in zip(FIGURES, _figures(logged), _figures(changed), strict=True):
        table.add_row(name, f"{first:,.6g}", f"{second:,.6g}")
    Console().print(table)


FIGURES = (
    "steps",
    "tokens computed",
    "prompt tokens",
    "of those cached, %",
    "retractions",
    "evicted pages",
    "mean wait, steps",
    "longest wait, steps",
)


def _figures(figures: Any) -> list[float]:
    stats = figures.stats
    return [
        stats.num_steps,
        figures.num_computed,
        stats.num_prompt_tokens,
        100 * stats.num_cached_tokens / max(1, stats.num_prompt_tokens),
        stats.num_retractions,
        stats.num_evicted_pages,
        figures.mean_wait,
        max(figures.waits, default=0),
    ]


def _shown(value: Any) -> str:
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.1%}"
        case _:
            return str(value)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Errors made on purpose are one line on standard error and status 1; anything else is a bug and shows itself."""
    try:
        app()
    except RamifyError as error:
        errors.print("[red]ramify:[/red]", Text(str(error)))
        sys.exit(1)


if __name__ == "__main__":
    main()
