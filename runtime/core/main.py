"""Entry point of the core process: receives requests, plans and runs steps, and sends tokens back.

Run as a module by the frontend. All I/O of the scheduler's side is here.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq

from ...radix.cache import PrefixCache
from ...radix.window_pages import WindowSizes
from ..compile_ahead import compile_loops
from ..engine import ForwardEngine, build_engine
from ..engine.build import choose_device
from ..models.checkpoint import find_checkpoint, listed_names, served_name
from ..models.gguf.file import is_gguf
from ..models.hub import hub_origin
from ..models.read_config import read_config
from ..parallel.rank_processes import RankProcesses
from ..parallel.rank_zero import MakeRankZeroEngine, RankZeroEngine, build_rank_zero_engine
from ..processes import logs, parent_watchdog
from ..protocol import wire
from ..protocol.config import SOURCES_ON_DEVICE, CoreConfig
from ..protocol.core import (
    Abort,
    AdaptersChanged,
    Answers,
    Attach,
    CoreFailed,
    CoreReady,
    CoreReply,
    FromCore,
    Generate,
    LoadAdapter,
    ModelInfo,
    MovePrefixes,
    RequestFailed,
    TakeSessions,
    ToCore,
    Tokens,
    UnloadAdapter,
)
from ..protocol.errors import ErrorInfo, RamiformError, RequestError, RuntimeFailed
from ..protocol.tree import GetTree, GetTreeNode
from ..protocol.version import __version__
from ..scheduler.jump_forward import Retokenise, Retokeniser
from ..scheduler.plan_log import LoggingScheduler, LogHeader, PlanLog
from ..scheduler.scheduler import Scheduler, VocabularyInfo, make_cache
from ..speculation.build import build_source, choose_source, draft_bytes, resolve_speculation
from ..tokenizer import load_tokenizer
from ..transfer.hub import TransferHub, cannot_move, uses_transfers
from ..transfer.pages import CachePages, layout_of
from . import load_progress
from .adapters import Adapters
from .cache_events import CacheEventPublisher
from .core_metrics import CoreMetricsRecorder, TimedGrammarCache
from .loop_loader import LoopLoader
from .pipeline import Pipeline
from .tree_view import TreeViewer

logger = logging.getLogger("ramiform.core")

GRAMMAR_POLL_MS = 2  # polling interval while the only work is a grammar being compiled
LOOPS_POLL_MS = 50  # polling interval of an idle core while compiled loops are being loaded
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
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
FAILURE_LINGER_MS = 10_000  # time that a core that cannot start waits for a frontend to attach


class FrontendSocket:
    """ROUTER socket to the frontends, and the frontend that each request came from."""

    def __init__(self, address: str, wake: int) -> None:
        """`wake` is a file descriptor; while it is readable, `receive` does not wait."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        wire.set_options(self._socket)
        self._socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(wake, zmq.POLLIN)
        self._takes_sessions: bytes | None = None  # the first frontend that can
        self._decoder = msgspec.msgpack.Decoder(ToCore)
        self._owners: dict[str, bytes] = {}
        self._attached: set[bytes] = set()

    def receive(self, timeout_ms: int | None) -> Iterator[tuple[bytes, ToCore]]:
        """Iterate over the pending messages. Waits for the first one up to `timeout_ms`, without limit when None."""
        if not self._poller.poll(timeout_ms):
            return
        while True:
            try:
                owner, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = wire.decode(self._decoder, b"".join(frames))
            except RequestError as error:
                logger.warning("dropped a message: %s", error)
                continue
            match message:
                case Attach(takes_sessions=takes_sessions):
                    self._attached.add(owner)
                    if takes_sessions:
                        self._takes_sessions = self._takes_sessions or owner
                case Generate(rid=rid) if rid in self._owners:
                    duplicate = RequestError(f"rid {rid!r} is already running", param="rid")
                    self.reply(owner, RequestFailed(rid, ErrorInfo.of(duplicate)))
                    continue
                case Generate(rid=rid):
                    self._owners[rid] = owner
                case _:
                    pass
            yield owner, message

    def has_messages(self) -> bool:
        """Return True if `receive` has something to read."""
        return bool(self._poller.poll(0))

    def wake_on(self, sockets: list[zmq.Socket[bytes]]) -> None:
        """Do not wait in `receive` while one of these sockets is readable either."""
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)

    def hand_over(self, message: TakeSessions) -> None:
        """Send sessions of another runtime to one frontend."""
        if self._takes_sessions is not None:
            self.reply(self._takes_sessions, message)

    def reply(self, owner: bytes, message: FromCore) -> None:
        """Send a message to one frontend."""
        self._socket.send_multipart([owner, wire.encode(message)])

    def send(self, messages: list[FromCore]) -> list[tuple[bytes, Abort]]:
        """Send each answer to the frontend that asked, all answers of one frontend at once.

        Finished requests are forgotten. A request whose answer is too long for a message fails. Returns aborts for the
        failed ones that still run.
        """
        answers: dict[bytes, list[Tokens | RequestFailed]] = {}
        for message in messages:
            assert isinstance(message, Tokens | RequestFailed)
            finished = isinstance(message, RequestFailed) or message.finish is not None
            owner = self._owners.pop(message.rid, None) if finished else self._owners.get(message.rid)
            if owner is not None:
                answers.setdefault(owner, []).append(message)
        return [abort for owner, owned in answers.items() for abort in self._send(owner, owned)]

    def _send(self, owner: bytes, answers: list[Tokens | RequestFailed]) -> list[tuple[bytes, Abort]]:
        try:
            self.reply(owner, answers[0] if len(answers) == 1 else Answers(answers))
            return []
        except RequestError as error:  # too long, e.g. log-probabilities of much forced text
            if len(answers) == 1:
                [answer] = answers
                self.reply(owner, RequestFailed(answer.rid, ErrorInfo.of(error)))
                return [] if self._owners.pop(answer.rid, None) is None else [(owner, Abort(answer.rid))]
        return [abort for answer in answers for abort in self._send(owner, [answer])]

    def tell_all(self, message: FromCore) -> None:
        """Send a message to every frontend."""
        for owner in self._attached:
            self.reply(owner, message)

    def fail(self, error: BaseException) -> None:
        """Tell every frontend that the core is going down, and give the bytes time to leave."""
        self.tell_all(CoreFailed(ErrorInfo.of(error)))
        self._socket.close(linger=500)
        self._context.term()


@dataclass(frozen=True)
class LoadedCore:
    """Parts that the main loop drives."""

    engine: ForwardEngine | RankZeroEngine
    scheduler: Scheduler | LoggingScheduler
    info: ModelInfo
    cache: PrefixCache
    publisher: CacheEventPublisher | None
    recorder: CoreMetricsRecorder
    grammars: TimedGrammarCache
    adapters: Adapters
    ahead: bool  # plan a step while the previous one is computed
    transfers: TransferHub | None


def load_core(
    config: CoreConfig, lead: MakeRankZeroEngine | None = None, loader: LoopLoader | None = None
) -> LoadedCore:
    """Load the model and build a core. `lead` makes the engine when several ranks share the model.

    With `loader`, the core does not wait for compiled loops where plain torch can compute before they are loaded.

    Raises RamiformError when the checkpoint or a setting is at fault.
    """
    has_transfers = uses_transfers(config)
    if has_transfers and config.lora:
        raise RequestError("runtimes that exchange KV have no LoRA adapters: leave out lora", param="lora")
    path = find_checkpoint(config.model)
    name = served_name(config.model, config.served_model_name)
    tokenizer = load_tokenizer(path)
    if loader is not None and _computes_without_loops(config, path):
        loader.start(kernels=choose_device(config.device).type == "cpu")
    else:
        compile_loops()
    with load_progress.show_load_progress(name) as on_progress:
        make_source = partial(build_source, config, path)
        engine: ForwardEngine | RankZeroEngine
        if config.num_ranks > 1:
            assert lead is not None, "several ranks need sockets to meet at"
            engine = lead(path, on_progress, make_source)
        else:
            draft_memory = partial(draft_bytes, config, path)
            engine = build_engine(config, path, on_progress, make_source, draft_memory=draft_memory)
    config = msgspec.structs.replace(resolve_speculation(config, path), max_running=engine.info.max_running)
    engine.warm_up()
    origin = hub_origin(path)
    info = ModelInfo(
        name=name,
        aliases=listed_names(config.served_model_name)[1:],
        path=str(path),
        revision=None if origin is None else origin.commit,
        version=__version__,
        **asdict(engine.info),
    )
    adapters = Adapters(config, engine, (*info.names, info.path))
    token_bytes = (tokenizer.token_bytes + [None] * info.vocab_size)[: info.vocab_size]
    facts = VocabularyInfo(info.vocab_size, token_bytes, frozenset(tokenizer.eos_ids))
    publisher = None
    if config.kv_events is not None:
        publisher = CacheEventPublisher(
            config.kv_events, page_size=info.page_size, topic=config.kv_events_topic, layout=config.kv_events_format
        )
    shape: dict[str, Any] = {
        name: getattr(info, name) for name in ("num_pages", "num_host_pages", "page_size", "num_state_slots")
    }
    if info.num_window_pages:
        shape["windows"] = WindowSizes(info.num_window_pages, info.window, info.num_sinks)
    cache = make_cache(config, **shape, events=publisher is not None)
    recorder = CoreMetricsRecorder()
    retokenise: Retokenise = Retokeniser(
        token_bytes, lambda text: tokenizer.encode(text, parse_special=False, continues=True)
    )
    log = None
    if config.log_plans is not None:
        header = LogHeader.of(config, facts, **shape, context_length=info.context_length)
        log = PlanLog.open(config.log_plans, header)
        retokenise = log.retokenise(retokenise)
    grammars = TimedGrammarCache(
        facts.token_bytes,
        facts.eos_ids,
        recorder.measures,
        engine=config.grammar_backend,
        additional_properties=config.additional_properties,
        max_bytes=int(config.grammar_memory * (1 << 30)),
        wait_for_loops=None if loader is None or not loader.pending else loader.wait_for_grammars,
    )
    if loader is not None and loader.pending:
        loader.on_grammars = grammars.warm_up
    else:
        grammars.warm_up()
    transfers: TransferHub | None = None
    if has_transfers:
        transfers = TransferHub(
            config,
            layout_of(info, engine.kv_shape, config.quantize),
            CachePages(cache, engine),
            lambda message, owner: scheduler.handle(message, time.monotonic(), owner),
            lambda rid: scheduler.num_computed(rid),
            lambda: cache.num_free,
        )
    # On a CPU planning would compete with computing for the processors.
    on_gpu = info.device.startswith("cuda") and not info.num_state_slots
    ahead = config.overlap == "on" or (config.overlap == "auto" and on_gpu)
    scheduler = Scheduler(
        config,
        cache=cache,
        vocabulary=facts,
        grammars=grammars,
        context_length=info.context_length,
        retokenise=retokenise,
        prepare_masks=grammars.prepare if log is None else None,  # a replay could not tell when one was ready
        fetch_prefix=None if transfers is None else transfers.fetch,
        # How many steps fit depends on their time, which a replay does not know.
        continuous=info.device == "cpu" and config.num_ranks == 1 and not ahead and log is None,
    )
    logged = scheduler if log is None else LoggingScheduler(scheduler, log)
    return LoadedCore(engine, logged, info, cache, publisher, recorder, grammars, adapters, ahead, transfers)


def _computes_without_loops(config: CoreConfig, path: Path) -> bool:
    """Return True if plain torch can serve until the compiled loops are loaded.

    It rounds differently, so deterministic results need the loops from the first token on. Other ranks, draft sources
    and quantised weights are set up once, with the loops.
    """
    if config.wait_for_loops or config.deterministic or config.num_ranks > 1:
        return False
    if config.quantize is not None or is_gguf(path) or read_config(path, config.model_impl).quantisation is not None:
        return False
    return choose_source(config, path) not in SOURCES_ON_DEVICE


def received(link: FrontendSocket, timeout_ms: int | None) -> list[tuple[bytes, ToCore]]:
    """Receive messages as `FrontendSocket.receive` does. If a full garbage collection is due, wait only
    COLLECTION_DELAY_MS, and collect and return memory if none came."""
    if timeout_ms is not None or gc.get_count()[2] < IDLE_COLLECTION_INTERVAL:
        return list(link.receive(timeout_ms))
    messages = list(link.receive(COLLECTION_DELAY_MS))
    if not messages:
        gc.collect()
        _give_back_memory()
    return messages


def _give_back_memory() -> None:
    """Return freed memory to the system: glibc keeps what lies between allocations that live on.

    A large grammar that is dropped leaves such gaps, so without this a core keeps the memory of the largest it has had.
    """
    if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def run_loop(link: FrontendSocket, core: LoadedCore, ranks: RankProcesses, loader: LoopLoader) -> None:
    """Repeat: messages in, one forward, tokens out. Raises RuntimeFailed when a rank dies."""
    scheduler, recorder = core.scheduler, core.recorder
    pipeline = Pipeline(core.engine, scheduler, ahead=core.ahead, on_step=recorder.record_step)
    viewer, transfers, adapters = TreeViewer(core.cache), core.transfers, core.adapters
    if isinstance(core.engine, ForwardEngine):
        core.engine.interrupt_when(link.has_messages)
    if transfers is not None:
        link.wake_on(transfers.wake_sockets)

    def send(answers: list[FromCore]) -> None:
        recorder.record_answers(answers)
        adapters.note_answers(answers)
        if transfers is not None:
            transfers.note_answers(answers)
        unsent.extend(link.send(answers))

    def reply_adapter(owner: bytes, reply: CoreReply | None) -> None:
        if reply is not None:
            if reply.error is None:
                link.tell_all(AdaptersChanged(adapters.listed))
            link.reply(owner, reply)

    unsent: list[tuple[bytes, Abort]] = []
    while True:
        is_polled = scheduler.pending_grammars or adapters.is_busy or (transfers is not None and transfers.active)
        wait = 0 if not scheduler.idle else GRAMMAR_POLL_MS if is_polled else None
        if wait is None and loader.pending:
            wait = LOOPS_POLL_MS
        for owner, message in received(link, 0 if viewer.busy else wait):
            if isinstance(message, Attach):
                link.reply(owner, CoreReady(msgspec.structs.replace(core.info, adapters=adapters.listed)))
                continue
            if isinstance(message, LoadAdapter | UnloadAdapter):
                reply_adapter(owner, _without_adapters(message) if transfers else adapters.handle(message, owner))
                continue
            if isinstance(message, Generate):
                try:
                    message = adapters.resolve(message)
                except RequestError as error:
                    send([RequestFailed(message.rid, ErrorInfo.of(error))])
                    continue
            if isinstance(message, GetTree | GetTreeNode):
                viewer.ask(owner, message)
                continue
            if isinstance(message, MovePrefixes):
                if transfers is None:
                    link.reply(owner, CoreReply(message.call, error=ErrorInfo.of(cannot_move())))
                else:
                    transfers.move(owner, message)
                continue
            for answer in scheduler.handle(message, time.monotonic(), owner):
                if isinstance(answer, CoreReply):
                    if answer.stats is not None:
                        core.grammars.record_totals()
                        viewer.note_time()
                        stats = answer.stats if transfers is None else transfers.count(answer.stats)
                        answer = msgspec.structs.replace(answer, stats=stats, measures=recorder.measures)
                    link.reply(owner, answer)
                else:
                    send([answer])
        ranks.check()
        if adapters.is_busy:
            for owner, reply in adapters.advance():
                reply_adapter(owner, reply)
        if transfers is not None:
            transfers.advance()
            for owner, reply in transfers.take_replies():
                link.reply(owner, reply)
            for sessions in transfers.take_sessions():
                link.hand_over(TakeSessions(sessions))
        if loader.take():
            assert isinstance(core.engine, ForwardEngine)
            core.engine.use_loops()
        if wait != 0:
            pipeline.reset_clock()
        for answers in pipeline.advance():
            if answers:
                send(answers)
        if viewer.active:
            for owner, reply in viewer.work():
                link.reply(owner, reply)
        for owner, abort in unsent:
            aborted = scheduler.handle(abort, time.monotonic(), owner)
            recorder.record_answers(aborted)
            adapters.note_answers(aborted)
        unsent.clear()
        if core.publisher is not None:
            core.publisher.publish(core.cache.take_events())


def _without_adapters(message: LoadAdapter | UnloadAdapter) -> CoreReply:
    error = RequestError("runtimes that exchange KV have no LoRA adapters", param="lora_name")
    return CoreReply(message.call, error=ErrorInfo.of(error))


def start_collections() -> None:
    """Enable garbage collection, except of the objects that exist now, which are permanent."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(NEW_OBJECTS, YOUNG_COLLECTION_INTERVAL, BUSY_COLLECTION_INTERVAL)


def main() -> int:
    config = parent_watchdog.read_config(sys.stdin.buffer)
    ranks = RankProcesses()
    parent_watchdog.exit_with_parent(
        sys.stdin.buffer, who="core", parent="frontend", socket_dir=config.serve.socket_dir, on_quit=ranks.quit
    )
    logs.set_up_logging(config.serve, "core")
    try:
        link = FrontendSocket(config.serve.core_address, ranks.wake)
    except zmq.ZMQError as error:  # the directory is gone: the frontend died meanwhile
        parent_watchdog.say(f"ramiform core: cannot listen: {error}")
        return 1
    try:
        sys.setswitchinterval(SWITCH_INTERVAL)
        loader = LoopLoader()
        core = load_core(config.core, partial(build_rank_zero_engine, config, ranks), loader)
        ranks.serve()
        start_collections()
        loader.load()
    except Exception as error:
        if not isinstance(error, RamiformError):
            parent_watchdog.say(traceback.format_exc())
        for _ in link.receive(FAILURE_LINGER_MS):
            pass
        link.fail(error)
        return 1
    try:
        with torch.inference_mode():  # once for all steps
            run_loop(link, core, ranks, loader)
    except RuntimeFailed as error:  # of another rank
        parent_watchdog.say(f"ramiform core: {error}")
        link.fail(error)
        return 1
    except Exception as error:
        parent_watchdog.say(traceback.format_exc())
        link.fail(RuntimeFailed(f"the core stopped on an error of its own: {type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    parent_watchdog.exit_now(main())
