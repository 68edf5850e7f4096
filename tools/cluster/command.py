"""`ramiform cluster`: replicas of a model behind NVIDIA Dynamo's frontend and router, on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.protocol.errors import RamiformError

REQUIREMENTS = Path(__file__).with_name("dynamo-requirements.txt")


def cluster(
    model: Annotated[
        str | None, typer.Argument(help="Path or hub id of a model in a folder; default: the one that ships.")
    ] = None,
    *,
    replicas: Annotated[int, typer.Option(min=1, max=256, help="Runtimes that answer requests.")] = 2,
    prefill: Annotated[
        int, typer.Option(min=0, max=256, help="Further runtimes, which compute prompts for those that answer.")
    ] = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP port on 127.0.0.1; 0: any free one.")] = 8000,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on without a replica that dies, as long as one is left.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Install the parts of NVIDIA Dynamo that are needed, and exit.")
    ] = False,
    **settings: Any,
) -> None:
    """Serve a model by several runtimes of this machine, behind NVIDIA Dynamo's router, until Ctrl-C.

    Only this machine can connect. Other settings are those of each runtime; DYN_* variables are Dynamo's.
    """
    if install:
        install_dynamo()
        return
    if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.frontend") is None:
        raise RamiformError("a cluster needs NVIDIA Dynamo: ramiform cluster --install")
    from ...runtime.processes.frontend_main import ShutdownSignals
    from .local_cluster import ClusterPlan, run_cluster

    plan = ClusterPlan.make(model, settings, replicas=replicas, prefill=prefill, port=port, keep_going=keep_going)

    async def until_signalled() -> None:
        signals = ShutdownSignals()
        signals.install()
        await run_cluster(plan, signals, lambda line: print(line, flush=True))

    asyncio.run(until_signalled())


def install_dynamo() -> None:
    """Install the pinned parts of Dynamo into this environment. Raises RamiformError when pip cannot."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-r", str(REQUIREMENTS)]
    if importlib.util.find_spec("pip") is None:
        raise RamiformError(
            f"this environment has no pip; install there by other means, without dependencies: {REQUIREMENTS}"
        )
    if subprocess.run(command).returncode:
        raise RamiformError(f"could not install NVIDIA Dynamo: {' '.join(command)}")
