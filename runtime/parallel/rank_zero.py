"""The engine of rank 0: it sends every plan to the other ranks before it computes its own part."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from ..engine import EngineInfo, ForwardEngine, build_engine
from ..engine.build import DraftSourceFactory
from ..engine.draft_source import DraftSource
from ..engine.in_flight_step import InFlightStep
from ..engine.kv_pool import KvShape
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.load import load_embedding_and_head
from ..models.lora.peft import AdapterWeights
from ..models.pictures.features import PictureFeatures
from ..models.stored.weight_source import Fingerprint
from ..models.stored.weights import Progress
from ..protocol.config import RuntimeConfig
from ..protocol.errors import RamiformError, RequestError
from ..protocol.sampling import MemoryTag
from ..scheduler.plan import ForwardPlan, ForwardResult, PageCopy, Row, SamplingPlan
from ..speculation.build import draft_bytes
from .collectives import DistributedGroup, host_store, join_group
from .master_address import MasterAddress
from .messages import (
    AdoptConstants,
    CopyPages,
    DropAdapter,
    DropWeights,
    PagesPart,
    PrepareWeights,
    PutAdapter,
    ReadConstants,
    ReadPages,
    ReleaseRankMemory,
    Rendezvous,
    RunPlan,
    SampleStep,
    StartSteps,
    TakeWeights,
    WritePages,
    without_pixels,
)
from .placement import RankPlacement, placement_of
from .rank_processes import RankProcesses
from .rendezvous import write_rendezvous

_CAUSE_TIMEOUT = 3.0  # seconds: a rank's exit may be noticed after the collective that it broke
_CHECK_INTERVAL = 0.1  # seconds between checks of the other ranks while they join
_ADAPTER_PART_BYTES = 32 << 20  # of an adapter in one message: the sockets between nodes bound theirs


@contextmanager
def _cause_of_failure(ranks: RankProcesses) -> Iterator[None]:
    """Raise RuntimeFailed with the cause of a broken collective, whose own error says less."""
    try:
        yield
    except RuntimeError:
        ranks.check(seconds=_CAUSE_TIMEOUT)
        raise


class RankZeroStep:
    """A launched step of rank 0, which sends what is to be sampled to the other ranks."""

    def __init__(self, launched: InFlightStep, ranks: RankProcesses) -> None:
        self._launched = launched
        self._ranks = ranks

    def sample(self, sampling: SamplingPlan) -> None:
        self._ranks.send(SampleStep(sampling))
        with _cause_of_failure(self._ranks):
            self._launched.sample(sampling)

    def wait(self) -> ForwardResult:
        with _cause_of_failure(self._ranks):
            return self._launched.wait()


class RankZeroEngine:
    """An engine on several ranks; it has the interface of `ForwardEngine`."""

    def __init__(self, engine: ForwardEngine, ranks: RankProcesses, store: dist.Store | None) -> None:
        """`store` is where the ranks met, and stays open for their lookups."""
        self._engine = engine
        self._ranks = ranks
        self._store = store

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def launch(self, plan: ForwardPlan) -> RankZeroStep:
        """Send the plan, and start rank 0's part. Raises RuntimeFailed, with the cause, when a rank has died."""
        self._ranks.send(RunPlan(without_pixels(plan)))
        with _cause_of_failure(self._ranks):
            return RankZeroStep(self._engine.launch(plan), self._ranks)

    def run(self, plan: ForwardPlan) -> ForwardResult:
        return self.launch(plan).wait()

    @property
    def kv_shape(self) -> KvShape:
        return self._engine.kv_shape

    @property
    def pictures(self) -> PictureFeatures | None:
        """Module that computes features of pictures on this rank, which embeds tokens."""
        return self._engine.pictures

    @property
    def device(self) -> torch.device:
        """Device on which `read_pages` returns pages: ranks put theirs together in host memory."""
        return torch.device("cpu")

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages on every rank, as `ForwardEngine.copy_pages` does."""
        self._ranks.send(CopyPages(list(copies)))
        self._engine.copy_pages(copies)

    def read_pages(self, pages: Sequence[int]) -> torch.Tensor:
        """Return whole device pages of all ranks, as `ForwardEngine.read_pages` does."""
        self._ranks.send(ReadPages(list(pages)))
        whole = torch.empty((len(pages), *self.kv_shape.page_shape), dtype=torch.uint8)
        own = self._engine.read_part(pages).cpu()
        parts = [(PagesPart(*self._engine.own_part), own)]
        for part, data in self._ranks.receive_parts():
            parts.append((part, torch.frombuffer(bytearray(data), dtype=torch.uint8)))
        for part, data_P in parts:
            target = whole[:, :, slice(*part.layers), :, slice(*part.heads)]
            target.copy_(data_P.view(target.shape))
        return whole

    def write_pages(self, row: Row, first: int, bytes_P: torch.Tensor) -> None:
        """Overwrite pages on every rank, as `ForwardEngine.write_pages` does."""
        self._ranks.send(WritePages(row, first, bytes_P.cpu().contiguous().numpy().tobytes()))
        self._engine.write_pages(row, first, bytes_P)

    @property
    def adopts_constants(self) -> bool:
        return self._engine.adopts_constants

    def read_constants(self) -> torch.Tensor | None:
        """Return the whole model's scales or statistics, as `ForwardEngine.read_constants` does of a part."""
        own = self._engine.read_constants()
        if own is None:
            return None
        self._ranks.send(ReadConstants())
        shape = self._engine.kv_shape
        whole = torch.empty((len(own), shape.num_layers, shape.num_kv_heads, *own.shape[3:]))
        parts = [(PagesPart(*self._engine.own_part), own)]
        for part, data in self._ranks.receive_parts():
            parts.append((part, torch.frombuffer(bytearray(data), dtype=torch.float32)))
        for part, numbers in parts:
            target = whole[:, slice(*part.layers), slice(*part.heads)]
            target.copy_(numbers.view(target.shape))
        return whole

    def adopt_constants(self, numbers: torch.Tensor) -> None:
        """Store keys and values by other scales or statistics on every rank, as `ForwardEngine` does."""
        self._ranks.send(AdoptConstants(tuple(numbers.shape), numbers.contiguous().numpy().tobytes()))
        self._engine.adopt_constants(numbers)

    @property
    def model_config(self) -> ModelConfig:
        """The whole model's config."""
        return self._engine.model_config

    def rule_out(self, tokens: Sequence[int]) -> None:
        """Draw none of these ids, as `ForwardEngine.rule_out` does: this rank draws for all."""
        self._engine.rule_out(tokens)

    def load_adapter(self, number: int, weights: AdapterWeights) -> None:
        """Put a LoRA adapter on every rank, as `ForwardEngine.load_adapter` does."""
        self._engine.load_adapter(number, weights)
        data = weights.to_bytes()
        for start in range(0, len(data), _ADAPTER_PART_BYTES):
            end = start + _ADAPTER_PART_BYTES
            self._ranks.send(PutAdapter(number, weights.rank, data[start:end], is_last=end >= len(data)))

    def check_adapter(self, number: int, name: str) -> None:
        """Do nothing: no rank has all logits."""

    def unload_adapter(self, number: int) -> None:
        """Remove an adapter from every rank."""
        self._engine.unload_adapter(number)
        self._ranks.send(DropAdapter(number))

    def prepare_weights(self, path: str | None) -> Fingerprint:
        """Load other weights on every rank, as `ForwardEngine.prepare_weights` does.

        Raises RamiformError, with nothing changed on any, when one of them refuses its part, or they read files that
        were changed meanwhile.
        """
        self._ranks.send(PrepareWeights(path))
        refusals: list[RamiformError] = []
        fingerprint: Fingerprint = ()
        try:
            fingerprint = self._engine.prepare_weights(path)
        except RamiformError as error:
            refusals.append(error)
        prepared = self._ranks.receive_prepared()
        refusals += [each.error.to_exception() for each in prepared if each.error is not None]
        if not refusals and any(each.fingerprint != fingerprint for each in prepared):
            refusals.append(
                RequestError(f"{path or 'the checkpoint'} was changed while the ranks read it", param="model_path")
            )
        if refusals:
            self.drop_weights()
            raise refusals[0]
        return fingerprint

    def check_tensors(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise RequestError for tensors, by name, that could not take the place of the whole model's."""
        self._engine.check_tensors(shapes)

    def take_weights(self) -> object:
        """Compute with the prepared weights on every rank from the next step on, as `ForwardEngine.take_weights`."""
        self._ranks.send(TakeWeights())
        return self._engine.take_weights()

    def drop_weights(self) -> None:
        """Forget the prepared weights on every rank."""
        self._ranks.send(DropWeights())
        self._engine.drop_weights()

    def check_release(self) -> None:
        """Raise RequestError if the ranks keep their memory, which all do for the same reasons."""
        self._engine.check_release()

    def release_memory(self, tags: Collection[MemoryTag]) -> None:
        """Return memory of every rank to the system, as `ForwardEngine.release_memory` does."""
        self._ranks.send(ReleaseRankMemory(list(tags)))
        self._engine.release_memory(tags)

    def warm_up(self) -> None:
        self.run(ForwardEngine.warm_up_plan())


# `build_rank_zero_engine` of a model path, with configuration and ranks bound.
MakeRankZeroEngine = Callable[[Path, Progress, DraftSourceFactory], RankZeroEngine]


def build_rank_zero_engine(
    config: RuntimeConfig, ranks: RankProcesses, path: Path, on_progress: Progress, make_source: DraftSourceFactory
) -> RankZeroEngine:
    """Start the other ranks and load this one's part.

    Raises RamiformError when a setting or the checkpoint is wrong, or a rank fails.
    """
    place = placement_of(config.core, path, 0)
    store, rendezvous = None, None
    if config.core.nnodes > 1:
        ip = MasterAddress.of(config.core).ip
        store = host_store(ip)
        rendezvous = Rendezvous(ip, store.port, secrets.token_hex(16))
        write_rendezvous(config.serve.socket_dir, rendezvous)
    ranks.start(config, rendezvous)
    group = _join_group(place, config, ranks)

    def progress(done: int, total: int) -> None:
        ranks.check()
        on_progress(done, total)

    def source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        # The draft source runs on rank 0 only; it may need the model's own embedding and head.
        whole = load_embedding_and_head(path, device=target.device, dtype=target.dtype)
        made = make_source(whole, num_pages=num_pages, num_host_pages=num_host_pages)
        ranks.send(StartSteps(() if made is None else made.captures))
        return made

    core = msgspec.structs.replace(config.core, device=str(place.device))
    # All ranks count the memory of rank 0's draft source: they must have the same number of pages.
    engine = build_engine(core, path, progress, source, group, partial(draft_bytes, core, path))
    ranks.wait_ready()
    made = RankZeroEngine(engine, ranks, store)
    if (numbers := made.read_constants()) is not None:
        engine.identify_constants(numbers)  # of which each rank has measured a part
    return made


def _join_group(place: RankPlacement, config: RuntimeConfig, ranks: RankProcesses) -> DistributedGroup:
    """Join the ranks' group in a thread, while this one checks that the ranks are alive: joining would wait for a dead
    rank."""
    results: list[DistributedGroup | BaseException] = []
    join = partial(join_group, place, config)

    def run() -> None:
        try:
            results.append(join())
        except BaseException as error:  # re-raised in the waiting thread
            results.append(error)

    thread = threading.Thread(target=run, name="join group", daemon=True)
    thread.start()
    while thread.is_alive():
        ranks.check(seconds=_CHECK_INTERVAL)
        thread.join(timeout=0)
    (result,) = results
    if isinstance(result, BaseException):
        ranks.check(seconds=_CAUSE_TIMEOUT)
        raise result
    return result
