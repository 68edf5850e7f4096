"""Entry point of the process that connects a core to NVIDIA Dynamo, with `serve --engine dynamo`.

Run as a module by the first frontend. Writes "ready" when requests may come, "drained" when none run any more. Dynamo
handles SIGTERM: the worker is removed from discovery, running requests end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

import zmq.asyncio

from ..frontend.core.client import CoreClient
from ..processes import logs, parent_watchdog
from ..processes.bounded_sleep import bounded_sleep
from ..protocol.config import RuntimeConfig
from ..protocol.errors import RamiformError

EXIT_SECONDS = 5.0  # after which a worker that is stuck exits


async def _serve(config: RuntimeConfig, reports: BinaryIO, is_urgent: Callable[[], bool]) -> None:
    from dynamo.common.backend import Worker

    from .engine import DynamoEngine, worker_config

    context = zmq.asyncio.Context()
    core = CoreClient(context, config.serve.core_address)
    core.start(takes_sessions=False)
    try:
        info = await core.ready()
        engine = DynamoEngine(config, core, info, lambda: reports.write(b"ready\n"), is_urgent)
        await Worker(engine, worker_config(info)).run()
    finally:
        await core.close()
        context.term()


def main() -> NoReturn:
    reports = parent_watchdog.redirect_stdout()
    config = parent_watchdog.read_config(sys.stdin.buffer)
    logs.set_up_logging(config.serve, "dynamo worker")
    ended = threading.Event()

    def on_end(requested: bool) -> None:
        ended.set()
        os.environ["DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"] = "0"
        os.kill(os.getpid(), signal.SIGTERM)
        bounded_sleep(EXIT_SECONDS)
        parent_watchdog.exit_now(0 if requested else 1)

    parent_watchdog.watch_parent(sys.stdin.buffer, on_end)
    status = 0
    try:
        import uvloop

        from .engine import set_environment

        set_environment(config.serve)
        uvloop.run(_serve(config, reports, ended.is_set))
        with contextlib.suppress(BrokenPipeError):
            reports.write(b"drained\n")
        ended.wait()  # the first frontend decides: its own clients may still use the core
    except ImportError as error:
        print(f"ramiform: --engine dynamo needs NVIDIA Dynamo ({error}): ramiform cluster --install", file=sys.stderr)
        status = 1
    except RamiformError as error:
        print(f"ramiform dynamo worker: {error}", file=sys.stderr)
        status = 1
    except Exception:
        traceback.print_exc()
        status = 1
    parent_watchdog.exit_now(status)


if __name__ == "__main__":
    main()
