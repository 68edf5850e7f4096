"""Entry point of further frontends: the same HTTP socket and core as the first, and programs that the first sends on.

Run as a module by the first frontend: `frontend_worker INDEX [FD]`; FD is the listening HTTP socket. SIGTERM drains.
When the first frontend asks for the end, or dies, it ends at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import traceback
from typing import BinaryIO, NoReturn

from ..frontend.process import Frontend
from ..models.checkpoint import find_checkpoint
from ..protocol.config import RuntimeConfig
from ..protocol.errors import RamiformError
from ..tokenizer import load_tokenizer
from . import logs, parent_watchdog
from .bounded_sleep import bounded_sleep

WORKER_EXIT_SECONDS = 5.0  # after which a frontend that is stuck exits


async def _serve(config: RuntimeConfig, index: int, listener: socket.socket | None, reports: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    end, drain = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, drain.set)

    def on_end(requested: bool) -> None:
        if not requested:
            parent_watchdog.say(f"ramiform frontend {index}: the first frontend is gone; leaving")
        loop.call_soon_threadsafe(end.set)
        bounded_sleep(WORKER_EXIT_SECONDS)
        parent_watchdog.exit_now(0 if requested else 1)

    parent_watchdog.watch_parent(sys.stdin.buffer, on_end)
    frontend = Frontend(config, load_tokenizer(find_checkpoint(config.core.model)), index=index, listener=listener)
    try:
        await frontend.start()
        frontend.begin_collections()
        reports.write(b"ready\n")
        end_requested = asyncio.ensure_future(end.wait())
        drain_requested = asyncio.ensure_future(drain.wait())
        await asyncio.wait({end_requested, drain_requested}, return_when=asyncio.FIRST_COMPLETED)
        if drain.is_set():
            drain_done = asyncio.ensure_future(frontend.drain(config.serve.drain_seconds))
            await asyncio.wait({end_requested, drain_done}, return_when=asyncio.FIRST_COMPLETED)
            drain_done.cancel()
            reports.write(b"drained\n")
            await end_requested  # the first frontend decides: other frontends may still use the core
        drain_requested.cancel()
    finally:
        await frontend.stop()


def main() -> NoReturn:
    reports = parent_watchdog.redirect_stdout()
    config = parent_watchdog.read_config(sys.stdin.buffer)
    index = int(sys.argv[1])
    logs.set_up_logging(config.serve, f"frontend {index}")
    listener = socket.socket(fileno=int(sys.argv[2])) if len(sys.argv) > 2 else None
    status = 0
    try:
        asyncio.run(_serve(config, index, listener, reports))
    except RamiformError as error:
        parent_watchdog.say(f"ramiform frontend {index}: {error}")
        status = 1
    except Exception:
        parent_watchdog.say(traceback.format_exc())
        status = 1
    parent_watchdog.exit_now(status)


if __name__ == "__main__":
    main()
