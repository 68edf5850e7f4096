"""Starts, watches and ends the processes of a cluster on this machine: runtimes, and Dynamo's frontend with its router.

Nothing listens beyond this machine. Discovery and events go through a private folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import zmq

from ...runtime.processes.frontend_main import ShutdownSignals
from ...runtime.processes.launch import make_config
from ...runtime.processes.start_report import Started, StartFailed, StartReport
from ...runtime.processes.supervisor import ChildProcess
from ...runtime.protocol.config import RuntimeConfig
from ...runtime.protocol.errors import RamiformError, RequestError, RuntimeFailed

_HOST = "127.0.0.1"
POLL_SECONDS = 0.2
_HOST_VARIABLES = (
    *("DYN_HTTP_HOST", "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_SYSTEM_HOST"),
)
Show = Callable[[str], None]


@dataclass(frozen=True)
class ClusterPlan:
    """Configurations of the runtimes by name, the HTTP port, and the folder of discovery and events."""

    replicas: dict[str, RuntimeConfig]
    prefill: dict[str, RuntimeConfig]
    port: int
    folder: Path
    keep_going: bool

    @classmethod
    def make(
        cls, model: str | None, settings: dict[str, Any], *, replicas: int, prefill: int, port: int, keep_going: bool
    ) -> ClusterPlan:
        """Check the settings and make the folder. Raises RamiformError."""
        devices = _devices(settings, replicas + prefill)
        folder = Path(tempfile.mkdtemp(prefix="ramiform-cluster-"))
        addresses = [f"ipc://{folder}/prefill-{index}" for index in range(prefill)]
        apart = {"role": "decode", "prefill_workers": ",".join(addresses)} if addresses else {}
        answering = {f"replica {index}": {"engine": "dynamo", "port": 0, **apart} for index in range(replicas)}
        computing = {
            f"prefill {index}": {"role": "prefill", "transfer_bind": address} for index, address in enumerate(addresses)
        }
        for own, device in zip((*answering.values(), *computing.values()), devices, strict=False):
            own["device"] = device
        try:
            return cls(
                *(
                    {name: make_config(model, {"log_format": "json", **settings, **own}) for name, own in part.items()}
                    for part in (answering, computing)
                ),
                port=port or _free_port(),
                folder=folder,
                keep_going=keep_going,
            )
        except RamiformError:
            shutil.rmtree(folder)
            raise

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return Dynamo's settings. Those that the user has set stand, except where sockets listen."""
        chosen = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self.folder / "discovery"),
            "DYN_EVENT_PLANE": "zmq",
            # Without a broker, Dynamo's publishers of events listen at all addresses.
            "DYN_ZMQ_BROKER_URL": f"xsub={self._broker('xsub')} , xpub={self._broker('xpub')}",
            "DYN_HTTP_PORT": str(self.port),
            **dict.fromkeys(_HOST_VARIABLES, _HOST),
        }
        defaults = {
            "DYN_ROUTER_MODE": "kv",
            "DYN_SELF_HOST_METADATA": "0",  # the frontend reads the model's files where they are
            "DYN_LOG": "warn",
            "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        }
        return defaults | dict(os.environ) | chosen

    def start_broker(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Forward events from all publishers to all subscribers in a thread, until the context is terminated."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        incoming, outgoing = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
        for end, name in ((incoming, "xsub"), (outgoing, "xpub")):
            end.linger = 0
            end.sndhwm = end.rcvhwm = 0
            end.bind(self._broker(name))

        def forward() -> None:
            try:
                zmq.proxy(incoming, outgoing)
            except zmq.ContextTerminated:
                incoming.close()
                outgoing.close()

        threading.Thread(target=forward, name="event broker", daemon=True).start()
        return context

    def _broker(self, end: str) -> str:
        return f"ipc://{self.folder}/events-{end}"


async def run_cluster(plan: ClusterPlan, signals: ShutdownSignals, show: Show) -> None:
    """Serve until a shutdown is requested. Raises RamiformError when a part cannot start or dies.

    `show` is given lines for the user: the processes' logs with their names, and where the cluster serves.
    """
    os.environ.update(plan.environment())  # children inherit it
    broker = plan.start_broker()
    runtimes: dict[str, ChildProcess] = {}
    parts: dict[str, ChildProcess] = {}
    logs: list[asyncio.Future[None]] = []
    requests = [asyncio.ensure_future(event.wait()) for event in (signals.end, signals.drain)]
    try:
        serving = asyncio.ensure_future(_start(plan, runtimes, parts, logs, show))
        await _watch(plan, runtimes, parts, {serving, *requests}, serving, show)
        if signals.drain.is_set() and not signals.end.is_set():
            for name in runtimes:
                if parts[name].process.returncode is None:
                    parts[name].process.terminate()
            ends = [asyncio.ensure_future(parts[name].process.wait()) for name in runtimes]
            await asyncio.wait([asyncio.gather(*ends), requests[0]], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for request in requests:
            request.cancel()
        # The frontend first: it answers the clients whose replicas end.
        for group in ([child for name, child in parts.items() if name not in runtimes], list(runtimes.values())):
            await asyncio.gather(*(child.end() for child in group))
        await asyncio.gather(*logs)
        broker.term()
        for config in (*plan.replicas.values(), *plan.prefill.values()):
            shutil.rmtree(config.serve.socket_dir, ignore_errors=True)
        shutil.rmtree(plan.folder, ignore_errors=True)


async def _start(
    plan: ClusterPlan,
    runtimes: dict[str, ChildProcess],
    parts: dict[str, ChildProcess],
    logs: list[asyncio.Future[None]],
    show: Show,
) -> None:
    """Start all processes and wait until the router has found every replica."""
    names: list[str] = []
    for name, config in (plan.prefill | plan.replicas).items():
        module = "ramiform.runtime.processes.frontend_main"
        child = await ChildProcess.start(name, module, config=config, reports=True, logs=True)
        parts[name] = runtimes[name] = child
        logs.append(asyncio.ensure_future(_show_log(child, show)))
    module = "ramiform.tools.cluster.dynamo_frontend"
    config = next(iter(plan.replicas.values()))
    frontend = parts["router"] = await ChildProcess.start("router", module, config=config, reports=False, logs=True)
    logs.append(asyncio.ensure_future(_show_log(frontend, show)))
    for name, child in runtimes.items():
        started = await _report_of(child)
        names.append(started.info.name)
        if name in plan.replicas:
            show(f"{name}: {plan.replicas[name].serve.url(started.http_port)} (process {child.process.pid})")
    await _found_by_router(plan.url, len(plan.replicas))
    helpers = f", {_runtimes(len(plan.prefill))} for prompts" if plan.prefill else ""
    show(f"serving {names[-1]} at {plan.url}/v1 by {_runtimes(len(plan.replicas))}{helpers}")


async def _report_of(child: ChildProcess) -> Started:
    """Wait for a runtime's report. Raises RamiformError when it cannot start."""
    assert child.process.stdout is not None
    line = await child.process.stdout.readline()
    if not line:
        raise await child.wait_for_death()
    report: Started | StartFailed = msgspec.json.decode(line, type=StartReport)
    if isinstance(report, StartFailed):
        raise report.error.to_exception()
    return report


async def _found_by_router(url: str, num_replicas: int) -> None:
    """Wait until the router lists that many replicas, and the model."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        while True:
            try:
                instances = (await client.get("/health")).json().get("instances") or []
                found = {each["instance_id"] for each in instances if each.get("endpoint") == "generate"}
                if len(found) >= num_replicas and (await client.get("/v1/models")).json()["data"]:
                    return
            except (httpx2.HTTPError, ValueError):  # not listening yet
                pass
            await asyncio.sleep(POLL_SECONDS)


async def _watch(
    plan: ClusterPlan,
    runtimes: dict[str, ChildProcess],
    parts: dict[str, ChildProcess],
    until: set[asyncio.Future[Any]],
    serving: asyncio.Future[None],
    show: Show,
) -> None:
    """Wait for a request to end. Raises RuntimeFailed when a part dies that the cluster cannot do without."""
    deaths: dict[str, asyncio.Future[RuntimeFailed]] = {}
    waited = set(until)
    try:
        while True:
            for name, child in parts.items():
                if name not in deaths:
                    deaths[name] = asyncio.ensure_future(child.wait_for_death())
            pending = [death for death in deaths.values() if not death.done()]
            await asyncio.wait({*waited, *pending}, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if serving in waited and serving.done():
                serving.result()
                waited.discard(serving)
            if any(request.done() for request in waited - {serving}):
                return
            for name in [name for name, death in deaths.items() if death.done() and name in parts]:
                _part_died(plan, name, deaths[name].result(), parts, has_started=serving.done(), show=show)
                runtimes.pop(name, None)
    finally:
        for task in (*deaths.values(), serving):
            task.cancel()


def _part_died(
    plan: ClusterPlan, name: str, error: RuntimeFailed, parts: dict[str, ChildProcess], *, has_started: bool, show: Show
) -> None:
    """Go on without a part where the plan allows it; otherwise raise the error."""
    del parts[name]
    left: Sequence[str] = [each for each in parts if each in plan.replicas]
    if not (plan.keep_going and has_started and name != "router" and left):
        raise error
    show(f"{name} is gone, going on with {_runtimes(len(left))}: {error}")


async def _show_log(child: ChildProcess, show: Show) -> None:
    """Show the lines that a process writes to its standard error, after its name."""
    assert child.process.stderr is not None
    async for line in child.process.stderr:
        show(f"{child.name} | {line.decode(errors='replace').rstrip()}")


def _runtimes(num: int) -> str:
    return f"{num} runtime{'s' if num > 1 else ''}"


def _devices(settings: dict[str, Any], num_runtimes: int) -> list[str]:
    """Return a CUDA device for each runtime, the first of its `tp` x `pp`; none where there is one device or none.

    Raises RequestError when there are several devices, and fewer than the runtimes need.
    """
    if settings.get("device", "auto") not in ("auto", "cuda") or not Path("/dev/nvidiactl").exists():
        return []
    import torch

    num_devices, each = torch.cuda.device_count(), settings.get("tp", 1) * settings.get("pp", 1)
    if num_devices < 2:
        return []
    if num_runtimes * each > num_devices:
        raise RequestError(
            f"{num_runtimes} runtimes of {each} devices need {num_runtimes * each}, and there are {num_devices}: "
            "fewer replicas, or one device for all by --device cuda:0",
            param="replicas",
        )
    return [f"cuda:{index * each}" for index in range(num_runtimes)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
