"""A frontend beside the first one: the same HTTP socket, the same core, programs that the first one sends on.

Run as a module by the first frontend: `sibling INDEX [FD]`, FD being the listening socket of HTTP. SIGTERM lets what
runs end; its lifeline ends it at once.
"""

from __future__ import annotations

import asyncio
import gc
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
from . import logs
from . import parent_watchdog as lifeline
from .bounded_sleep import bounded_sleep

WORKER_EXIT_SECONDS = 5.0  # seconds after which a frontend that was to end does so, whatever it is busy with


async def _serve(config: RuntimeConfig, index: int, listener: socket.socket | None, reports: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    end, drain = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, drain.set)

    def on_end(asked: bool) -> None:
        if not asked:
            print(f"ramiform frontend {index}: the first frontend is gone; leaving", file=sys.stderr, flush=True)
        loop.call_soon_threadsafe(end.set)
        bounded_sleep(WORKER_EXIT_SECONDS)
        lifeline.exit_now(0 if asked else 1)

    lifeline.watch_parent(sys.stdin.buffer, on_end)
    frontend = Frontend(config, load_tokenizer(find_checkpoint(config.core.model)), index=index, listener=listener)
    try:
        await frontend.start()
        gc.collect()
        gc.freeze()  # as the first frontend does
        reports.write(b"ready\n")
        ending = asyncio.ensure_future(end.wait())
        draining = asyncio.ensure_future(drain.wait())
        await asyncio.wait({ending, draining}, return_when=asyncio.FIRST_COMPLETED)
        if drain.is_set():
            emptied = asyncio.ensure_future(frontend.drain(config.serve.drain_seconds))
            await asyncio.wait({ending, emptied}, return_when=asyncio.FIRST_COMPLETED)
            emptied.cancel()
            reports.write(b"drained\n")
            await ending  # the first frontend says when: the others may still work, and the core is everybody's
        draining.cancel()
    finally:
        await frontend.stop()


def main() -> NoReturn:
    reports = lifeline.redirect_stdout()
    config = lifeline.read_config(sys.stdin.buffer)
    index = int(sys.argv[1])
    logs.set_up_logging(config.serve, f"frontend {index}")
    listener = socket.socket(fileno=int(sys.argv[2])) if len(sys.argv) > 2 else None
    status = 0
    try:
        asyncio.run(_serve(config, index, listener, reports))
    except RamiformError as error:
        print(f"ramiform frontend {index}: {error}", file=sys.stderr)
        status = 1
    except Exception:
        traceback.print_exc()
        status = 1
    lifeline.exit_now(status)


if __name__ == "__main__":
    main()
