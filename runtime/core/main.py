"""Entry point of the core process: receives requests, plans and runs steps, and sends tokens back.

`processes.core_main` calls it. All I/O of the scheduler's side is here.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import traceback
from functools import partial

import torch
import zmq

from ..engine import ForwardEngine
from ..models.checkpoint import find_checkpoint
from ..models.encoders.table import encoder_class
from ..parallel.rank_processes import RankProcesses
from ..parallel.rank_zero import build_rank_zero_engine
from ..processes import logs, parent_watchdog
from ..processes.memory import give_back_memory
from ..protocol.config import RuntimeConfig
from ..protocol.core import Abort, CoreReply, FromCore, RequestFailed, ToCore, Tokens
from ..protocol.errors import RamiformError, RuntimeFailed
from .encoder import EncoderCore, load_encoder_core
from .frontend_socket import FrontendSocket
from .load import LoadedCore, load_core
from .loop_loader import LoopLoader
from .pipeline import Pipeline
from .service import POLL_MS, shortest

__all__ = ["LoadedCore", "load_core", "main", "run_loop", "start_collections"]

# Seconds for which a thread may hold the interpreter lock when another waits. A step releases and takes it dozens
# of times; with Python's 5 ms, a grammar that compiles for a second would delay every request by that second. Where
# nobody waits, it costs nothing.
SWITCH_INTERVAL = 1e-6
# New objects before a collection of them, and collections before one of the objects that the last ones kept, which
# takes half a millisecond. A grammar keeps nearly all that it makes: with Python's 700 a tenth of its compilation went
# into collections.
NEW_OBJECTS, YOUNG_COLLECTION_INTERVAL = 7000, 1
# Number of collections of younger garbage before a full one is due. With grammars of many states a full one takes a
# third of a second, so it waits until the core is idle; if it never is, for a hundred times as many.
IDLE_COLLECTION_INTERVAL = 50
BUSY_COLLECTION_INTERVAL = 5_000
COLLECTION_DELAY_MS = 100  # time without a request before a full collection
CLOSING_SECONDS = 5.0  # time for the loop to end when the parent asks for it
FAILURE_LINGER_SECONDS = 10.0  # time that a core that cannot start waits for the frontends to attach


class QuietEnd:
    """The end of the process that the parent asks for: behind a step, when the services are closed.

    `wake` is a file descriptor that becomes readable when it is asked for.
    """

    def __init__(self, ranks: RankProcesses) -> None:
        self.is_asked = self.has_loop = False
        self.wake, self._waker = os.pipe()
        self._ranks = ranks

    def ask(self) -> None:
        """Let the loop end the process. Returns when there is none, or when it takes too long."""
        self.is_asked = True
        os.write(self._waker, b"\0")
        if self.has_loop:
            time.sleep(CLOSING_SECONDS)  # the main thread ends the process meanwhile
        self._ranks.quit()


def received(link: FrontendSocket, timeout_ms: int | None) -> list[tuple[bytes, ToCore]]:
    """Receive messages as `FrontendSocket.receive` does. If a full garbage collection is due, wait only
    COLLECTION_DELAY_MS, and collect and return memory if none came."""
    if timeout_ms is not None or gc.get_count()[2] < IDLE_COLLECTION_INTERVAL:
        return list(link.receive(timeout_ms))
    messages = list(link.receive(COLLECTION_DELAY_MS))
    if not messages:
        gc.collect()
        give_back_memory()
    return messages


def run_loop(link: FrontendSocket, core: LoadedCore, ranks: RankProcesses, end: QuietEnd) -> None:
    """Repeat until the parent asks for the end: messages in, services, one step, tokens out. Raises RuntimeFailed when
    a rank dies."""
    scheduler, services = core.scheduler, core.services
    pipeline = Pipeline(core.engine, scheduler, ahead=core.ahead, on_step=core.recorder.record_step)
    if isinstance(core.engine, ForwardEngine):
        core.engine.interrupt_when(link.has_messages)
    link.wake_on([*core.wake_sockets, end.wake])
    unsent: list[tuple[bytes, Abort]] = []

    def send(answers: list[FromCore]) -> None:
        services.note_answers(answers)
        unsent.extend(link.send(answers))

    end.has_loop = True
    while not end.is_asked:
        is_idle = scheduler.idle
        wait_ms = shortest(services.wait_ms, POLL_MS if scheduler.pending_grammars else None) if is_idle else 0
        for owner, message in received(link, wait_ms):
            handled = services.handle(owner, message)
            if isinstance(handled, list):
                link.deliver(handled)
                continue
            for answer in scheduler.handle(handled, time.monotonic(), owner):
                if isinstance(answer, CoreReply):
                    link.reply(owner, answer if answer.stats is None else services.count(answer))
                else:
                    send([answer])
        ranks.check()
        link.deliver(services.advance())
        if is_idle:
            pipeline.reset_clock()
        for answers in pipeline.advance():
            if answers:
                send(answers)
        for owner, abort in unsent:
            services.note_answers(scheduler.handle(abort, time.monotonic(), owner))
        unsent.clear()
        link.deliver(services.after_step())
    services.close()
    ranks.quit()


def run_encoder_loop(link: FrontendSocket, core: EncoderCore) -> None:
    """Repeat: messages in, one batch, answers out."""
    while True:
        for owner, message in received(link, None if core.idle else 0):
            for answer in core.handle(owner, message, time.monotonic()):
                if isinstance(answer, Tokens | RequestFailed):
                    link.send([answer])
                else:
                    link.reply(owner, answer)
        link.send(core.step())


def start_collections() -> None:
    """Enable garbage collection, except of the objects that exist now, which are permanent."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(NEW_OBJECTS, YOUNG_COLLECTION_INTERVAL, BUSY_COLLECTION_INTERVAL)


def main(config: RuntimeConfig, products: subprocess.Popen[bytes] | None = None) -> int:
    """Load a core and serve until the end; return the exit status. `products` compiles loops that its model needs."""
    ranks = RankProcesses()
    end = QuietEnd(ranks)
    parent_watchdog.exit_with_parent(
        sys.stdin.buffer, who="core", parent="frontend", socket_dir=config.serve.socket_dir, on_quit=end.ask
    )
    logs.set_up_logging(config.serve, "core")
    try:
        link = FrontendSocket(config.serve.core_address, ranks.wake)
    except zmq.ZMQError as error:  # the directory is gone: the frontend died meanwhile
        parent_watchdog.say(f"ramiform core: cannot listen: {error}")
        return 1
    try:
        sys.setswitchinterval(SWITCH_INTERVAL)
        if encoder_class(find_checkpoint(config.core.model)) is not None:
            run = partial(run_encoder_loop, link, load_encoder_core(config.core))
            start_collections()
        else:
            loader = LoopLoader(products=products)
            core = load_core(config.core, partial(build_rank_zero_engine, config, ranks), loader)
            run = partial(run_loop, link, core, ranks, end)
            ranks.serve()
            start_collections()
            loader.load()
    except Exception as error:
        if not isinstance(error, RamiformError):
            parent_watchdog.say(traceback.format_exc())
        link.fail(error, num_frontends=config.serve.frontends, seconds=FAILURE_LINGER_SECONDS)
        return 1
    try:
        with torch.inference_mode():  # once for all steps
            run()
    except RuntimeFailed as error:  # of another rank
        parent_watchdog.say(f"ramiform core: {error}")
        link.fail(error)
        return 1
    except Exception as error:
        parent_watchdog.say(traceback.format_exc())
        link.fail(RuntimeFailed(f"the core stopped on an error of its own: {type(error).__name__}: {error}"))
        return 1
    return 0
