"""Loading of a core: model, prefix cache, grammars, scheduler, and the services beside it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zmq
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as ProgressBar

from ...radix.cache import PrefixCache
from ...radix.window_pages import WindowSizes
from ..compile_ahead import compile_loops
from ..engine import ForwardEngine, build_engine
from ..engine.build import choose_device
from ..models.checkpoint import find_checkpoint, listed_names, served_name
from ..models.gguf.file import is_gguf, open_gguf
from ..models.hub import hub_origin
from ..models.read_config import read_config
from ..models.stored.weights import Progress
from ..parallel.rank_zero import MakeRankZeroEngine, RankZeroEngine
from ..protocol.config import SOURCES_ON_DEVICE, CoreConfig
from ..protocol.core import FromCore, ModelInfo, ToCore
from ..protocol.errors import RequestError
from ..protocol.version import __version__
from ..scheduler.jump_forward import Retokenise, Retokeniser
from ..scheduler.plan_log import LoggingScheduler, LogHeader, PlanLog
from ..scheduler.remote_prefixes import FetchPrefix
from ..scheduler.scheduler import CacheSizes, Scheduler, SchedulerCalls, VocabularyInfo, make_cache
from ..speculation.build import build_source, choose_source, draft_bytes, resolve_speculation
from ..tokenizer import load_tokenizer
from ..transfer.hub import TransferHub, uses_transfers
from ..transfer.pages import CachePages, layout_of
from .adapters import Adapters
from .cache_events import CacheEventPublisher, CacheEventService
from .core_metrics import CoreMetricsRecorder, TimedGrammarCache
from .disk_cache import DiskCache, open_disk_cache, uses_disk
from .grammar_cache import JsonDefaults
from .loop_loader import KernelSwitch, LoopLoader
from .service import Service, Services
from .transfers import NoTransfers, Transfers
from .tree_view import TreeViewer
from .weight_updates import WeightUpdates

logger = logging.getLogger("ramiform.core")


@dataclass(frozen=True)
class LoadedCore:
    """Parts that the main loop drives."""

    engine: ForwardEngine | RankZeroEngine
    scheduler: Scheduler | LoggingScheduler
    info: ModelInfo
    cache: PrefixCache
    recorder: CoreMetricsRecorder
    grammars: TimedGrammarCache
    services: Services
    ahead: bool  # plan a step while the previous one is computed
    wake_sockets: list[zmq.Socket[Any]]  # what arrives on them is for the services


def load_core(
    config: CoreConfig, lead: MakeRankZeroEngine | None = None, loader: LoopLoader | None = None
) -> LoadedCore:
    """Load the model and build a core. `lead` makes the engine when several ranks share the model.

    With `loader`, the core does not wait for compiled loops where plain torch can compute before they are loaded.

    Raises RamiformError when the checkpoint or a setting is at fault.
    """
    has_transfers, has_disk = uses_transfers(config), uses_disk(config)
    if has_transfers and config.lora:
        raise RequestError("runtimes that exchange KV have no LoRA adapters: leave out lora", param="lora")
    path = find_checkpoint(config.model)
    name = served_name(config.model, config.served_model_name)
    awaiting = _awaiting_loops(config, path)
    if loader is not None and awaiting is None:
        _start_loops(loader, config, path)
    else:
        compile_loops(awaiting)
    tokenizer = load_tokenizer(path)
    if not tokenizer.eos_ids:
        raise RequestError(
            f"{path}: no token ends an output: its files name none of the {tokenizer.vocab_size} tokens, and no "
            "special token has a usual name. Set eos_token_id in generation_config.json, or "
            "tokenizer.ggml.eos_token_id in a GGUF file",
            param="model",
        )
    engine = _load_engine(config, path, name, lead)
    config = msgspec.structs.replace(resolve_speculation(config, path), max_running=engine.info.max_running)
    if loader is not None:
        loader.wait_for_products()
    engine.warm_up()
    info = _model_info(config, path, name, engine)
    token_bytes = (tokenizer.token_bytes + [None] * info.vocab_size)[: info.vocab_size]
    vocabulary = VocabularyInfo(
        info.vocab_size, token_bytes, frozenset(tokenizer.eos_ids), tokenizer.special_ids, tokenizer.usual_end
    )
    engine.rule_out(textless_tokens(vocabulary))
    adapters = Adapters(config, engine, info)
    sizes = _cache_sizes(info)
    cache = make_cache(config, sizes, events=config.kv_events is not None)
    publishers = _cache_event_services(config, info, cache)
    retokenise: Retokenise = Retokeniser(
        token_bytes, lambda text: tokenizer.encode(text, parse_special=False, continues=True)
    )
    rope = read_config(path, config.model_impl).rope.within(info.context_length).switch
    log = None
    if config.log_plans is not None:
        header = LogHeader.of(config, vocabulary, sizes, info.context_length, rope, engine.info.widened_from)
        log = PlanLog.open(config.log_plans, header)
        retokenise = log.retokenise(retokenise)
    recorder = CoreMetricsRecorder(engine.pictures)
    grammars = _grammar_cache(config, vocabulary, recorder, loader)
    pages = CachePages(cache, engine)
    transfers = _connect_transfers(config, info, engine, pages, cache, lambda: scheduler) if has_transfers else None
    disk = open_disk_cache(config, info, cache, pages) if has_disk else None
    ahead = _plans_ahead(config, info)
    scheduler = Scheduler(
        config,
        cache=cache,
        vocabulary=vocabulary,
        grammars=grammars,
        context_length=info.context_length,
        calls=SchedulerCalls(
            retokenise,
            prepare_masks=grammars.prepare if log is None else None,  # a replay could not tell when one was ready
            fetch_prefix=_fetch_from(disk, transfers),
        ),
        # How many steps fit depends on their time, which a replay does not know.
        continuous=info.device == "cpu" and config.num_ranks == 1 and not ahead and log is None,
        rope=rope,
        route_shape=info.route_shape,
        widened_from=engine.info.widened_from,
    )
    services: list[Service] = [
        WeightUpdates(config, engine, adapters, scheduler, is_logged=log is not None),
        adapters,
        NoTransfers() if transfers is None else Transfers(transfers),
        *([] if disk is None else [disk]),
        TreeViewer(cache),
        recorder,
        grammars,
        *_kernel_switches(loader, engine),
        *publishers,
    ]
    return LoadedCore(
        engine,
        scheduler if log is None else LoggingScheduler(scheduler, log),
        info,
        cache,
        recorder,
        grammars,
        Services(services),
        ahead,
        wake_sockets=[] if transfers is None else transfers.wake_sockets,
    )


def _awaiting_loops(config: CoreConfig, path: Path) -> str | None:
    """Return the setting with which the first answer waits for the compiled loops; None: plain torch can serve until
    then.

    It rounds differently, so deterministic results need the loops from the first token on. Other ranks and draft
    sources are set up once, with the loops.
    """
    if config.wait_for_loops:
        return "wait_for_loops"
    if config.deterministic:
        return "deterministic"
    if config.num_ranks > 1:
        return "several ranks"
    return "a draft source" if choose_source(config, path) in SOURCES_ON_DEVICE else None


def _start_loops(loader: LoopLoader, config: CoreConfig, path: Path) -> None:
    """Compute without loops from now on, except for the products of quantised weights on a CPU."""
    on_cpu = choose_device(config.device).type == "cpu"
    loader.start(kernels=on_cpu)
    stored = read_config(path, config.model_impl).quantisation
    if on_cpu and (stored is not None or config.quantize is not None):
        formats = set() if stored is None or config.quantize is not None else set(stored.block_formats.values())
        if stored is not None and stored.scheme.kind == "mxfp4":
            formats.add("MXFP4")
        loader.start_products(formats)


def _load_engine(
    config: CoreConfig, path: Path, name: str, lead: MakeRankZeroEngine | None
) -> ForwardEngine | RankZeroEngine:
    """Load the model, and the draft source beside it."""
    with _show_progress(name) as on_progress:
        make_source = partial(build_source, config, path)
        if config.num_ranks > 1:
            assert lead is not None, "several ranks need sockets to meet at"
            return lead(path, on_progress, make_source)
        return build_engine(config, path, on_progress, make_source, draft_memory=partial(draft_bytes, config, path))


@contextmanager
def _show_progress(name: str) -> Iterator[Progress]:
    """Show a bar on a terminal for the block, which calls the yielded function; the log has the time in any case."""
    start = time.monotonic()
    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with ProgressBar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
    logger.info("loaded %s in %.1f s", name, time.monotonic() - start)


def _model_info(config: CoreConfig, path: Path, name: str, engine: ForwardEngine | RankZeroEngine) -> ModelInfo:
    origin = hub_origin(path)
    return ModelInfo(
        name=name,
        aliases=listed_names(config.served_model_name)[1:],
        path=str(path),
        revision=None if origin is None else origin.commit,
        version=__version__,
        quantisation=_quantisation(config, path),
        is_classifier=read_config(path, config.model_impl).classifies,
        **asdict(engine.info),
    )


def textless_tokens(vocabulary: VocabularyInfo) -> list[int]:
    """Return the ids that have neither bytes nor a special token's name, as those behind the tokenizer's last one."""
    named = vocabulary.eos_ids.union(vocabulary.special_ids.values())
    return [token for token, data in enumerate(vocabulary.token_bytes) if data is None and token not in named]


def _quantisation(config: CoreConfig, path: Path) -> str | None:
    """Return how the weights are quantised, None if they are not or if a GGUF file does not tell."""
    if is_gguf(path):
        return open_gguf(path).file_type
    stored = read_config(path, config.model_impl).quantisation
    return config.quantize or (None if stored is None else stored.scheme.kind)


def _cache_sizes(info: ModelInfo) -> CacheSizes:
    windows = WindowSizes(info.num_window_pages, info.window, info.num_sinks) if info.num_window_pages else None
    return CacheSizes(info.num_pages, info.num_host_pages, info.page_size, info.num_state_slots, windows)


def _cache_event_services(config: CoreConfig, info: ModelInfo, cache: PrefixCache) -> list[CacheEventService]:
    if config.kv_events is None:
        return []
    publisher = CacheEventPublisher(
        config.kv_events, page_size=info.page_size, topic=config.kv_events_topic, layout=config.kv_events_format
    )
    return [CacheEventService(cache, publisher)]


def _grammar_cache(
    config: CoreConfig, vocabulary: VocabularyInfo, recorder: CoreMetricsRecorder, loader: LoopLoader | None
) -> TimedGrammarCache:
    """Make the grammar cache, which warms up as soon as its loops are there."""
    awaited = loader if loader is not None and loader.pending else None
    grammars = TimedGrammarCache(
        vocabulary.token_bytes,
        vocabulary.eos_ids,
        recorder.measures,
        special_ids=vocabulary.special_ids,
        engine=config.grammar_backend,
        defaults=JsonDefaults.of(config),
        max_bytes=int(config.grammar_memory * (1 << 30)),
        wait_for_loops=None if awaited is None else awaited.wait_for_grammars,
    )
    if awaited is not None:
        awaited.on_grammars = grammars.warm_up
    else:
        grammars.warm_up()
    return grammars


def _connect_transfers(
    config: CoreConfig,
    info: ModelInfo,
    engine: ForwardEngine | RankZeroEngine,
    pages: CachePages,
    cache: PrefixCache,
    scheduler: Callable[[], Scheduler],
) -> TransferHub:
    """Open the sockets to other runtimes. `scheduler` is called once there is one."""

    def submit(message: ToCore, owner: bytes) -> list[FromCore]:
        return scheduler().handle(message, time.monotonic(), owner)

    return TransferHub(
        config,
        layout_of(info, engine.kv_shape, config.quantize),
        pages,
        submit,
        lambda rid: scheduler().num_computed(rid),
        lambda: cache.num_free,
    )


def _fetch_from(disk: DiskCache | None, transfers: TransferHub | None) -> FetchPrefix | None:
    """Return what brings prompts' pages: the disk, if it has any of a prompt, else other runtimes."""
    sources = [source.fetch for source in (disk, transfers) if source is not None]
    if not sources:
        return None
    return lambda request: next(filter(None, (fetch(request) for fetch in sources)), None)


def _plans_ahead(config: CoreConfig, info: ModelInfo) -> bool:
    # On a CPU planning would compete with computing for the processors.
    on_gpu = info.device.startswith("cuda") and not info.num_state_slots
    return config.overlap == "on" or (config.overlap == "auto" and on_gpu)


def _kernel_switches(loader: LoopLoader | None, engine: ForwardEngine | RankZeroEngine) -> list[KernelSwitch]:
    if loader is None or not loader.pending:
        return []
    assert isinstance(engine, ForwardEngine)
    return [KernelSwitch(loader, engine)]
