"""Rank 0's side of a model on several ranks: the engine that the core drives, and how it comes about."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import torch.distributed as dist

from ..engine import Engine, EngineInfo, build_engine
from ..engine.build import MakeSource
from ..engine.in_flight_step import Launched
from ..models.decoder import Decoder
from ..models.load import load_ends
from ..models.weights import Progress
from ..protocol.config import RuntimeConfig
from ..scheduler.plan import ForwardPlan, ForwardResult, SamplingPlan
from ..speculation.build import draft_page_bytes
from ..speculation.draft_source import DraftSource
from .collectives import ProcessGroup, join, keep_store
from .master_address import Master
from .messages import Begin, Decide, Rendezvous, Step
from .placement import Place, place_of
from .rank_processes import Ranks
from .rendezvous import write_rendezvous

_CAUSE = 3.0  # seconds that the end of a rank may be heard of later than the collective that it broke
_LOOK = 0.1  # seconds between looks at the other ranks while all of them meet


@contextmanager
def _cause_of_failure(ranks: Ranks) -> Iterator[None]:
    """Raises RuntimeFailed in the place of a broken collective, which says less than its cause."""
    try:
        yield
    except RuntimeError:
        ranks.check(seconds=_CAUSE)
        raise


class LeadLaunched:
    """As a `Launched`; what is sampled goes to the other ranks first."""

    def __init__(self, launched: Launched, ranks: Ranks) -> None:
        self._launched = launched
        self._ranks = ranks

    def sample(self, sampling: SamplingPlan) -> None:
        self._ranks.send(Decide(sampling))
        with _cause_of_failure(self._ranks):
            self._launched.sample(sampling)

    def wait(self) -> ForwardResult:
        with _cause_of_failure(self._ranks):
            return self._launched.wait()


class LeadEngine:
    """As an Engine; every plan goes to the other ranks first."""

    def __init__(self, engine: Engine, ranks: Ranks, store: dist.Store | None) -> None:
        """`store` is where the ranks met, and may still look things up."""
        self._engine = engine
        self._ranks = ranks
        self._store = store

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def launch(self, plan: ForwardPlan) -> LeadLaunched:
        """Raises RuntimeFailed, which says how, when a rank has died."""
        self._ranks.send(Step(plan))
        with _cause_of_failure(self._ranks):
            return LeadLaunched(self._engine.launch(plan), self._ranks)

    def run(self, plan: ForwardPlan) -> ForwardResult:
        return self.launch(plan).wait()

    def warm_up(self) -> None:
        self.run(Engine.warm_up_plan())


class MakeLead(Protocol):
    def __call__(self, path: Path, on_progress: Progress, make_source: MakeSource) -> LeadEngine:
        """`build_lead_engine` for the model in directory `path`."""


def build_lead_engine(
    config: RuntimeConfig, ranks: Ranks, path: Path, on_progress: Progress, make_source: MakeSource
) -> LeadEngine:
    """Starts the other ranks and loads this one's part. Raises RamiformError when a setting or the checkpoint is at
    fault, or a rank fails."""
    place = place_of(config.core, path, 0)
    store, rendezvous = None, None
    if config.core.nnodes > 1:
        ip = Master.of(config.core).ip
        store = keep_store(ip)
        rendezvous = Rendezvous(ip, store.port, secrets.token_hex(16))
        write_rendezvous(config.serve.socket_dir, rendezvous)
    ranks.start(config, rendezvous)
    group = _meet(place, config, ranks)

    def progress(done: int, total: int) -> None:
        ranks.check()
        on_progress(done, total)

    def source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        # What drafts for the model stands on this rank alone, and may want the model's own embedding and head.
        whole = load_ends(path, device=target.device, dtype=target.dtype)
        made = make_source(whole, num_pages=num_pages, num_host_pages=num_host_pages)
        ranks.send(Begin(() if made is None else made.captures))
        return made

    core = msgspec.structs.replace(config.core, device=str(place.device))
    # All ranks count the memory of what drafts on this one: pages must have the same numbers everywhere.
    engine = build_engine(core, path, progress, source, group, partial(draft_page_bytes, core, path))
    ranks.wait_ready()
    return LeadEngine(engine, ranks, store)


def _meet(place: Place, config: RuntimeConfig, ranks: Ranks) -> ProcessGroup:
    """Beside a look at whether all of them are still there: meeting would wait for the dead."""
    met: list[ProcessGroup | BaseException] = []
    meet = partial(join, place, config)

    def run() -> None:
        try:
            met.append(meet())
        except BaseException as error:  # handed on to the thread that waits
            met.append(error)

    thread = threading.Thread(target=run, name="meeting", daemon=True)
    thread.start()
    while thread.is_alive():
        ranks.check(seconds=_LOOK)
        thread.join(timeout=0)
    (result,) = met
    if isinstance(result, BaseException):
        ranks.check(seconds=_CAUSE)
        raise result
    return result
