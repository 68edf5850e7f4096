"""The frontend process: starts the core, serves until told to end or until the core dies, and leaves nothing behind.

`ramify serve` runs `serve` in its own process; `launch.Runtime` runs this module as a child, which reports on its
standard output, in one line of JSON, a `StartReport`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import sys
import time
import traceback
from asyncio.subprocess import Process
from collections.abc import Callable
from typing import NoReturn

import msgspec

from . import lifeline
from .checkpoint import find_checkpoint
from .frontend.process import Frontend
from .protocol.config import RuntimeConfig
from .protocol.errors import ErrorInfo, RamifyError, RuntimeFailed
from .protocol.start import Started, StartFailed, StartReport
from .tokenizer import load_tokenizer

CORE_GRACE = 2.0  # seconds a core may take to leave before it is killed
STUCK = 10.0  # seconds after which a frontend that was to end does so, whatever it is busy with


async def serve(config: RuntimeConfig, end: asyncio.Event, on_start: Callable[[Started], None]) -> None:
    """Serve until `end` is set. Raises RamifyError when starting fails, RuntimeFailed when the core dies.

    The directory of the sockets is removed at the end, however it ends.
    """
    try:
        frontend = Frontend(config, load_tokenizer(find_checkpoint(config.core.model)))
        core = await _start_core(config)
        error: RamifyError | None = None
        try:
            await frontend.start()
            await _supervise(frontend, core, end, on_start)
        except RamifyError as caught:
            error = caught
            raise
        finally:
            await frontend.stop(None if error is None else ErrorInfo.of(error))
            await _end_core(core)
    finally:
        shutil.rmtree(config.serve.socket_dir, ignore_errors=True)


async def _supervise(
    frontend: Frontend, core: Process, end: asyncio.Event, on_start: Callable[[Started], None]
) -> None:
    died = asyncio.ensure_future(core.wait())
    ended = asyncio.ensure_future(end.wait())
    ready = asyncio.ensure_future(frontend.core_ready())
    try:
        await asyncio.wait({died, ended, ready}, return_when=asyncio.FIRST_COMPLETED)
        if died.done():
            # A core that fails says why before it leaves; the message may still be on its way.
            await asyncio.wait({ready}, timeout=1.0)
        if ready.done():
            on_start(Started(ready.result(), frontend.http_port))
            await asyncio.wait({died, ended}, return_when=asyncio.FIRST_COMPLETED)
        if died.done() and not ended.done():
            raise RuntimeFailed(f"the core (process {core.pid}) {_how_it_ended(died.result())}; the runtime is down")
    finally:
        for task in (died, ended, ready):
            task.cancel()


async def _start_core(config: RuntimeConfig) -> Process:
    core = await asyncio.create_subprocess_exec(
        *lifeline.child_command("ramify.runtime.core"),
        stdin=asyncio.subprocess.PIPE,
        stdout=sys.stderr.fileno(),  # ours may be the parent's to read, for one report
        start_new_session=True,  # a terminal's Ctrl-C is ours to answer, also while the core still starts
        env=lifeline.child_environment(),
    )
    assert core.stdin is not None
    core.stdin.write(lifeline.first_line(config))
    await core.stdin.drain()
    return core


async def _end_core(core: Process) -> None:
    assert core.stdin is not None
    if core.returncode is None:
        core.stdin.write(lifeline.QUIT)
        try:
            await asyncio.wait_for(core.wait(), CORE_GRACE)
        except TimeoutError:
            core.kill()
            await core.wait()
    core.stdin.close()


def _how_it_ended(returncode: int) -> str:
    return f"was killed by signal {-returncode}" if returncode < 0 else f"ended with status {returncode}"


async def _child(config: RuntimeConfig) -> int:
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)

    def on_end(asked: bool) -> None:
        if not asked:
            print("ramify frontend: the program that started it is gone; leaving", file=sys.stderr, flush=True)
        loop.call_soon_threadsafe(end.set)
        time.sleep(STUCK)
        lifeline.leave(1)  # the event loop does not look up; the core follows by its own lifeline

    lifeline.watch(sys.stdin.buffer, on_end)
    started = False

    def on_start(report: Started) -> None:
        nonlocal started
        started = True
        _report(report)

    try:
        await serve(config, end, on_start)
    except RamifyError as error:
        if started:
            print(f"ramify frontend: {error}", file=sys.stderr)
        else:
            _report(StartFailed(ErrorInfo.of(error)))
        return 1
    return 0


def _report(value: StartReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def main() -> NoReturn:
    config = lifeline.read_config(sys.stdin.buffer)
    logging.basicConfig(level=config.serve.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        status = asyncio.run(_child(config))
    except Exception:
        traceback.print_exc()
        status = 1
    lifeline.leave(status)


if __name__ == "__main__":
    main()
