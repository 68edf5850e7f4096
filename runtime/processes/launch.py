"""Starts a runtime from a program: `Runtime` owns the frontend process, which owns the core."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from ..models.checkpoint import find_checkpoint
from ..models.hub import local_model, parse_hub_id
from ..parallel.master_address import check_nodes
from ..protocol.client import Connection
from ..protocol.config import CoreConfig, RuntimeConfig, ServeConfig
from ..protocol.errors import RamiformError, RequestError, RuntimeFailed
from ..protocol.setting_aliases import suggest_setting, value_for_alias
from ..protocol.transport import check_bind
from . import parent_watchdog
from .start_report import Started, StartFailed, StartReport

MAX_TMPDIR_LENGTH = 80  # characters; the kernel allows 107 bytes for a socket's path
RUNTIME_EXIT_SECONDS = 30.0  # then the processes are killed; stuck ones exit by themselves sooner

T = TypeVar("T")

_CORE_FIELDS = frozenset(CoreConfig.__struct_fields__)
_SERVE_FIELDS = frozenset(ServeConfig.__struct_fields__) - {"socket_dir"}


class Runtime:
    """A runtime of one's own. Its processes end with `shutdown`, the `with` block, or the program.

    `settings` are the fields of CoreConfig and ServeConfig (`num_pages=...`, `port=...`). `model_path` is SGLang's name
    of `model`. Raises RamiformError when the model cannot be loaded, RequestError for an unknown or ill-typed setting.
    """

    def __init__(self, model: str | None = None, *, model_path: str | None = None, **settings: Any) -> None:
        if model is not None and model_path is not None:
            raise RequestError("model and model_path are two names of one setting", param="model_path")
        config = make_config(model_path if model is None else model, settings)
        if config.core.node_rank > 0:
            shutil.rmtree(config.serve.socket_dir)
            raise RequestError(
                "a program's runtime is node 0; the other nodes are started with `ramiform serve`", param="node_rank"
            )
        self.address = config.serve.client_address
        self.config = config
        self.serve_config = config.serve
        self._process = subprocess.Popen(
            parent_watchdog.child_command("ramiform.runtime.processes.frontend_main"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=parent_watchdog.child_environment(),
            start_new_session=True,  # a terminal's Ctrl-C is handled by this program
        )
        self._connection: Connection | None = None
        self._connecting = threading.Lock()
        self._finalizer = weakref.finalize(self, _end_process, self._process, config.serve.socket_dir, os.getpid())
        try:
            report = _await_start(self._process, config)
        except BaseException:
            self._finalizer()
            raise
        self.info, self.http_port = report.info, report.http_port
        self.tcp_address = report.tcp_address  # address for programs of other machines, with `bind`

    @property
    def url(self) -> str | None:
        """URL of the HTTP server, or None without a port."""
        return None if self.http_port is None else self.serve_config.url(self.http_port)

    @property
    def pid(self) -> int:
        """Process id of the frontend."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Return True while the runtime's processes run."""
        return self._process.poll() is None

    def connection(self) -> Connection:
        """Return the connection that all programs of this process share."""
        with self._connecting:
            if self._connection is None:
                self._connection = Connection(self.address)
            return self._connection

    def shutdown(self) -> None:
        """End the processes. Requests still running fail. Calling it again does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._finalizer()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def make_config(model: str | None, settings: dict[str, Any]) -> RuntimeConfig:
    """Make the configuration from keyword settings, with a new private directory for sockets.

    A model of the Hugging Face Hub is downloaded; the configuration has its local path.

    Raises RequestError naming the setting at fault, RamiformError when there is no such model; then no directory is
    made.
    """
    if model is not None and parse_hub_id(model) is None:
        find_checkpoint(model)  # the most common mistake, reported before a process starts
    for name in settings:
        if name not in _CORE_FIELDS | _SERVE_FIELDS:
            known = sorted(_CORE_FIELDS | _SERVE_FIELDS)
            ours = suggest_setting(name, known)
            hint = f"the settings are {', '.join(known)}" if ours is None else f"here it is {ours!r}"
            raise RequestError(f"unknown setting {name!r}; {hint}", param=name)
    settings = {name: value_for_alias(name, value) for name, value in settings.items()}
    core = _convert({"model": model} | {n: value for n, value in settings.items() if n in _CORE_FIELDS}, CoreConfig)
    serve = {n: value for n, value in settings.items() if n in _SERVE_FIELDS}
    checked = _convert({"socket_dir": ""} | serve, ServeConfig)
    for name, keys in (("api_key", checked.api_key), ("admin_key", checked.admin_key)):
        if keys is not None and not keys.strip(", "):
            # For example an unset shell variable: serving everybody is certainly not intended.
            raise RequestError(f"{name} is empty, so no key would be required: leave it out, or set it", param=name)
    if checked.ssl_certfile is not None or checked.ssl_keyfile is not None:
        from ..frontend.http.transport.listener import check_certificate  # with `ssl`, which most scripts do not need

        check_certificate(checked.ssl_certfile, checked.ssl_keyfile)
    check_nodes(core)
    if core.lora and checked.engine != "http":
        raise RequestError("workers of Dynamo have no LoRA adapters: leave out lora", param="lora")
    draft = local_model(core.speculative_draft_model, param="speculative_draft_model")
    core = msgspec.structs.replace(core, model=local_model(core.model), speculative_draft_model=draft)
    find_checkpoint(core.model)
    if checked.bind is not None:
        check_bind(checked.bind, checked.keys)
    config = RuntimeConfig(core=core, serve=_convert({"socket_dir": _make_socket_dir()} | serve, ServeConfig))
    return config if config.serve.engine == "http" else _with_kv_events(config)


def _with_kv_events(config: RuntimeConfig) -> RuntimeConfig:
    """Let the core publish cache events for the engine's router, in the layout that names namespaces."""
    if config.core.kv_events is not None:
        return config
    address = f"ipc://{config.serve.socket_dir}/events"
    core = msgspec.structs.replace(config.core, kv_events=address, kv_events_format="vllm", kv_events_topic="")
    return msgspec.structs.replace(config, core=core)


def _make_socket_dir() -> str:
    parent = tempfile.gettempdir()
    if len(parent) > MAX_TMPDIR_LENGTH:
        raise RamiformError(f"the directory for sockets has too long a path: {parent!r}; set TMPDIR to a shorter one")
    return tempfile.mkdtemp(prefix="ramiform-", dir=parent)


def _convert(values: dict[str, Any], struct: type[T]) -> T:
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        # msgspec ends its message with the path of the field: "... - at `$.num_pages`"
        field = str(error).rpartition("$.")[2].rstrip("`")
        raise RequestError(f"bad setting {field} = {values.get(field)!r}: {error}", param=field) from None


def _await_start(process: subprocess.Popen[bytes], config: RuntimeConfig) -> Started:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(parent_watchdog.config_line(config))
        process.stdin.flush()
    except BrokenPipeError:
        raise RuntimeFailed(f"the frontend ended with status {process.wait()} before it started") from None
    line = process.stdout.readline()
    if not line:
        raise RuntimeFailed(f"the frontend ended with status {process.wait()} before it was ready")
    report: StartReport = msgspec.json.decode(line, type=StartReport)
    if isinstance(report, StartFailed):
        raise report.error.to_exception()
    return report


def _end_process(process: subprocess.Popen[bytes], socket_dir: str, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the program exits; the runtime belongs to the program
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(parent_watchdog.QUIT)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has exited already
    try:
        process.wait(RUNTIME_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    shutil.rmtree(socket_dir, ignore_errors=True)
