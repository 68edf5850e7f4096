"""The command `ramiform`. Commands with many flags of their own are defined beside their implementation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import __version__
from .flags import (
    LOG_SETTINGS,
    MODEL_SETTINGS,
    SERVE_SETTINGS,
    CommandWithSettings,
    ServingCommand,
    TranslatingCommand,
    with_settings,
)
from .runtime.protocol.config import RuntimeConfig, ServeConfig
from .runtime.protocol.errors import RamiformError, RequestError
from .tools.batch import batch
from .tools.check_constraint import check_grammar, grammar
from .tools.check_logprobs import check_logprobs
from .tools.cluster.command import cluster
from .tools.load_test.command import serve_load
from .tools.planner.command import plan
from .tools.quantize.calibrate_kv import calibrate_kv
from .tools.quantize.command import quantize
from .tools.replay import replay
from .tools.train_draft.command import train_draft

app = typer.Typer(
    help="A structured-generation language and the runtime that serves it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # else long names of flags are cut at 80 columns
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True, soft_wrap=True, highlight=False)

ModelArgument = Annotated[
    str | None,
    typer.Argument(help="Path or hub id ORG/NAME[@REVISION][:GGUF] of a model; default: the one that ships."),
]
ModelOption = Annotated[str | None, typer.Option(help="Path or hub id of a model; default: the one that ships.")]
AddressOption = Annotated[
    str | None, typer.Option(help="Address of a running runtime, as serve prints it; default: start a runtime.")
]
KeysOption = Annotated[
    str | None, typer.Option(envvar="RAMIFORM_KEYS", help="Folder of the keys that a TCP address needs.")
]

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # a server listens at all addresses; a browser needs one


@app.command(cls=ServingCommand)
@with_settings(*MODEL_SETTINGS, *SERVE_SETTINGS)
def serve(
    model: ModelArgument = None,
    *,
    port: Annotated[int, typer.Option(help="HTTP port; 0: any free one.", rich_help_panel="HTTP")] = 30000,
    api_key: Annotated[
        str | None,
        # Given in the environment, it does not appear in the list of processes.
        typer.Option(
            envvar="RAMIFORM_API_KEY",
            show_envvar=True,
            help="Required as 'Authorization: Bearer KEY' when set.",
            rich_help_panel="Access and limits",
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(
            envvar="RAMIFORM_ADMIN_KEY",
            show_envvar=True,
            help="API key that may flush the cache and abort all requests.",
            rich_help_panel="Access and limits",
        ),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page.", rich_help_panel="Page for browsers")
    ] = False,
    **settings: Any,
) -> None:
    """Serve a model over HTTP and to programs, until Ctrl-C. On SIGTERM running requests end first."""
    from .runtime.processes import frontend_main, logs
    from .runtime.processes.launch import make_config
    from .runtime.processes.start_report import Started

    config = make_config(model, {"port": port, "api_key": api_key, "admin_key": admin_key, **settings})
    if open_page and (config.serve.uds is not None or not config.serve.page):
        raise RequestError("--open needs the page, at a port: without --no-page and --uds", param="open")
    if config.core.node_rank > 0:
        _serve_node(config)
        return
    logs.set_up_logging(config.serve, "frontend")
    if config.core.nnodes > 1:
        _say(f"waiting for {config.core.nnodes - 1} more of {config.core.nnodes} nodes at {config.core.master}")

    if errors.is_terminal:
        _note(f"loading {config.core.served_model_name or model or 'the model that ships'}")

    if config.serve.host in ANYWHERE and config.serve.uds is None and not (api_key or admin_key):
        told = "all who reach this machine may use the model; --api-key KEY asks for a key"
        _note(f"--host {config.serve.host}: {told}")

    def on_start(started: Started) -> None:
        page = " and its page" if config.serve.page and config.serve.uds is None else ""
        _say(f"serving {started.info.name}{page} at {config.serve.url(started.http_port)}")
        _say(f"programs: ramiform run FILE --address {config.serve.client_address}")
        if started.tcp_address is not None:
            _say(f"remote: ramiform run FILE --address {started.tcp_address} --keys FOLDER")
        if open_page:
            _open_in_browser(config.serve, started.http_port)

    async def until_signalled() -> None:
        signals = frontend_main.ShutdownSignals()
        signals.install()
        await frontend_main.serve(config, signals, on_start)

    asyncio.run(until_signalled())
    if errors.is_terminal:
        _note("the server has ended")


def _say(text: str) -> None:
    """Print a line of a server; where nothing can be written any more, to stderr."""
    try:
        print(text, flush=True)
    except OSError:  # a full disk, a pipe that nobody reads
        sys.stdout = None  # as it is where it was closed before the start; else the end would try again
        _note(text)


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        errors.print(Text(text))


def _open_in_browser(serve_config: ServeConfig, port: int | None) -> None:
    """Open the page in a browser of this machine, without waiting for it."""
    import threading
    import webbrowser

    url = msgspec.structs.replace(serve_config, host=ANYWHERE.get(serve_config.host, serve_config.host)).url(port)

    def show() -> None:
        if not webbrowser.open(url):
            _note(f"no browser could be started; the page is at {url}")

    threading.Thread(target=show, name="browser", daemon=True).start()


def _serve_node(config: RuntimeConfig) -> None:
    from .runtime.parallel.worker_node import serve_node
    from .runtime.processes import logs

    core = config.core
    logs.set_up_logging(config.serve, f"node {core.node_rank}")

    def on_start() -> None:
        ranks = f"{core.own_ranks.start} to {core.own_ranks[-1]} of {core.num_ranks}"
        _say(f"node {core.node_rank}: ranks {ranks}, led by {core.master}")

    serve_node(config, on_start)


@app.command(cls=CommandWithSettings, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def run(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python script that uses ramiform.")],
    model: ModelOption = None,
    address: AddressOption = None,
    keys: KeysOption = None,
    **settings: Any,
) -> None:
    """Run a script against a runtime of its own, or a running one. Further arguments go to the script."""
    with _script_errors(file):
        _run_script(file, context.args, model, address, keys, settings)


@app.command(cls=CommandWithSettings, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def trace(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A script, or a trace saved as .json.")],
    model: ModelOption = None,
    address: AddressOption = None,
    keys: KeysOption = None,
    save: Annotated[
        Path | None, typer.Option(help="Also write the traces to this file, as JSON for Perfetto and chrome://tracing.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write the traces to this file, as a page for browsers that loads nothing.")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Also show totals by source line.")] = False,
    **settings: Any,
) -> None:
    """Run a script as `run` does, then show the trace of each of its programs; or show a saved trace."""
    from .lang.operations.recording import record_all
    from .lang.tracing import trace as traces

    def show(shown: list[traces.Trace]) -> None:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else traces.TREE_WIDTH)
        for one in shown:
            console.print(one.tree())
            if summary:
                console.print(one.summary().table())
        if save is not None:
            traces.save(shown, save)
        if html is not None:
            from .lang.tracing.page import trace_page

            views = traces.load_views(file) if file.suffix == ".json" else traces.views_of(shown)
            html.write_text(trace_page(views), "utf-8")

    if file.suffix == ".json":
        show(traces.load(file))
        return
    with _script_errors(file), record_all() as recordings:
        try:
            _run_script(file, context.args, model, address, keys, settings)
        finally:  # a script that fails is shown too, up to the failure
            show([traces.trace_of(recording) for recording in recordings])


@contextlib.contextmanager
def _script_errors(file: Path) -> Iterator[None]:
    """Show an exception of the script's own by the script's frames, and exit with 1; exit with 130 after Ctrl-C.

    A RamiformError, which has the program's line, is left to `main`.
    """
    from .lang.running.failures import fold, program_line

    try:
        yield
    except KeyboardInterrupt as error:
        line = getattr(error, "line", None) or program_line(error) or str(file)
        program = getattr(error, "program", None)
        errors.print(
            "[red]interrupted[/red]", Text(f"at {line}" + (f", in the program {program!r}" if program else ""))
        )
        sys.exit(130)
    except RamiformError:
        raise
    except Exception as error:
        fold(error)
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != str(file):
            frames = frames.tb_next
        if frames is None:
            raise  # not the script's
        traceback.print_exception(error.with_traceback(frames))
        sys.exit(1)


def _run_script(
    file: Path,
    arguments: list[str],
    model: str | None,
    address: str | None,
    keys: str | None,
    settings: dict[str, Any],
) -> None:
    if file.suffix == ".py":
        compile(file.read_bytes(), str(file), "exec")  # report a syntax error before a runtime starts
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))  # as `python FILE` does
    with _default_backend(model, address, keys, settings):
        runpy.run_path(str(file), run_name="__main__")


@contextlib.contextmanager
def _default_backend(
    model: str | None, address: str | None, keys: str | None, settings: dict[str, Any]
) -> Iterator[None]:
    """Let programs run on the runtime at `address`, or start one for the block."""
    if address is not None:
        os.environ["RAMIFORM_ADDRESS"] = address
        if keys is not None:
            os.environ["RAMIFORM_KEYS"] = keys
        yield
        return
    from .lang.backends.backend import set_default_backend
    from .runtime.processes.launch import Runtime

    with Runtime(model, **settings) as runtime:
        set_default_backend(runtime)
        yield


@app.command("eval", cls=CommandWithSettings)
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def evaluate(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="A script that defines program, dataset and metric.")
    ],
    model: ModelOption = None,
    address: AddressOption = None,
    keys: KeysOption = None,
    *,
    data: Annotated[
        Path | None, typer.Option(exists=True, help="Examples in place of the script's: .jsonl, .json or .csv.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take only the first examples.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Programs at once.")] = 64,
    resume: Annotated[
        Path | None, typer.Option(help="File that results are appended to, and taken from when it exists.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(exists=True, help="Saved report to compare with, example by example.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the report as JSON, for --against.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots and traces.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a row an example.")] = None,
    **settings: Any,
) -> None:
    """Evaluate a program: run it on every example of a dataset and score the results."""
    from .lang.backends.backend import get_server_info
    from .lang.evaluation.command import evaluate_file

    sys.path.insert(0, str(file.resolve().parent))
    with _default_backend(model, address, keys, settings):
        get_server_info()  # else each example would fail at a wrong address
        report, comparison = evaluate_file(
            file, data=data, limit=limit, concurrency=concurrency, resume=resume, against=against
        )
    Console(highlight=False).print(report)
    if comparison is not None:
        print(comparison)
    for path, write in ((save, report.save), (html, report.to_html), (csv, report.to_csv)):
        if path is not None:
            write(path)


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Folder to write the keys to.")],
    name: Annotated[str, typer.Option(help="Name of the program or user that the keys are for.")] = "client",
) -> None:
    """Make keys for `serve --bind`: the runtime's, unless the folder has them, and a program's."""
    from .runtime.protocol.keys import make_keys

    for file in make_keys(folder, name):
        print(file)
    print(f"a program needs server.key and {name}.key_secret, in a folder of its own on another machine")


app.add_typer(grammar, name="grammar")
app.command("check-grammar", hidden=True)(check_grammar)
app.command(cls=TranslatingCommand)(with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)(batch))
app.command(cls=TranslatingCommand)(with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)(cluster))
app.command()(plan)
app.command()(quantize)
app.command("calibrate-kv")(calibrate_kv)
app.command("train-draft")(train_draft)
app.command("check-logprobs")(check_logprobs)


@app.command(cls=TranslatingCommand)
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def chat(
    model: ModelArgument = None,
    url: Annotated[
        str | None,
        typer.Option(help="URL of an OpenAI-compatible server, without /v1; default: start a runtime."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the server's model; default: its first.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="RAMIFORM_API_KEY", show_envvar=True, help="API key of the server.")
    ] = None,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    **settings: Any,
) -> None:
    """Chat with a model in the terminal; /help lists the commands."""
    from .chat import Chat, typed_lines

    def converse(address: str) -> None:
        terminal = Chat(address, Console(highlight=False), model=name, api_key=api_key)
        terminal.conversation.system = system
        terminal.run(typed_lines("> " if sys.stdin.isatty() else ""))

    if url is not None:
        converse(url)
        return
    from .runtime.processes.launch import Runtime

    with Runtime(model, port=0, **settings) as runtime:
        assert runtime.url is not None
        converse(runtime.url)


@app.command(cls=TranslatingCommand)
@with_settings(*MODEL_SETTINGS, *LOG_SETTINGS)
def info(model: ModelArgument = None, address: AddressOption = None, keys: KeysOption = None, **settings: Any) -> None:
    """Print the facts of a model, its cache and its device, as a runtime reports them."""
    if address is not None:
        from .lang.backends.backend import RuntimeEndpoint

        with RuntimeEndpoint(address, keys) as endpoint:
            _print_info(endpoint.connection())
        return
    from .runtime.processes.launch import Runtime

    with Runtime(model, **settings) as runtime:
        _print_info(runtime.connection())


def _print_info(connection: Any) -> None:
    model = connection.call("info").info
    stats = connection.call("stats").stats
    table = Table(title=f"ramiform {__version__}", show_header=False, title_justify="left")
    facts = msgspec.structs.asdict(model)
    if model.encoder is None:  # an encoder has no KV
        contexts = f"{model.num_slots / model.context_length:,.1f}"  # sequences of that length that fit
        facts |= {"num_slots": model.num_slots, "whole contexts": contexts}
        facts["kv_bytes_per_token"] = model.kv_bytes // model.num_slots
    load = {**msgspec.structs.asdict(stats), "cache_hit_rate": stats.cache_hit_rate, "kv_use": stats.kv_use}
    if stats.disk is not None:
        load |= {
            f"disk_{name.removeprefix('num_')}": value for name, value in msgspec.structs.asdict(stats.disk).items()
        }
    del load["disk"]
    for part in (facts, {name: value for name, value in load.items() if name not in facts}):
        for name, value in part.items():
            table.add_row(name, _shown(value))
        table.add_section()
    Console().print(table)


bench = typer.Typer(help="Measurements, and the analysis of recorded ones.", no_args_is_help=True)
app.add_typer(bench, name="bench")
bench.command()(replay)
bench.command("serve")(serve_load)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.1%}" if isinstance(value, float) else str(value)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command. A RamiformError is one line on standard error and status 1; other exceptions are bugs."""
    try:
        app()
    except RamiformError as error:
        notes = getattr(error, "__notes__", [])
        errors.print("[red]ramiform:[/red]", Text("\n".join([str(error), *notes])))
        sys.exit(1)


if __name__ == "__main__":
    main()
