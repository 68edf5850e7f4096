"""Cores of runtimes in one process, without their frontends, whose steps a test takes in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ramiform.runtime.core.pipeline import Pipeline
from ramiform.runtime.engine import build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import FromCore, Generate, ModelInfo, Tokens
from ramiform.runtime.protocol.pictures import Picture
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.scheduler import CacheSizes, Scheduler, SchedulerCalls, VocabularyInfo, make_cache
from ramiform.runtime.transfer.hub import TransferHub
from ramiform.runtime.transfer.pages import CachePages, layout_of

PATIENCE = 60.0  # seconds
opened: list[Core] = []  # by the test that runs


class Core:
    """A core: engine, scheduler, cache and transfers, as `core/main.py` puts them together."""

    def __init__(
        self, *, path: Path = SHIPPED_MODEL, clock: Callable[[], float] = time.monotonic, **settings: Any
    ) -> None:
        defaults = {"device": "cpu", "dtype": "float32", "num_pages": 128, "transfer": "zmq", "speculative": "off"}
        self.config = CoreConfig(**defaults | {"remote_prefill_tokens": 16} | settings)
        self.engine = build_engine(self.config, path)
        info = self.engine.info
        self.info = ModelInfo(
            name="model",
            path=str(path),
            version="",
            **{name: getattr(info, name) for name in info.__dataclass_fields__},
        )
        facts = VocabularyInfo(info.vocab_size, [b"x"] * info.vocab_size, frozenset())
        self.cache = make_cache(self.config, CacheSizes(info.num_pages, info.num_host_pages))
        self.pages = CachePages(self.cache, self.engine)
        self.layout = layout_of(self.info, self.engine.kv_shape, self.config.quantize)
        self.hub = TransferHub(
            self.config,
            self.layout,
            self.pages,
            lambda message, owner: self.scheduler.handle(message, time.monotonic(), owner),
            lambda rid: self.scheduler.num_computed(rid),
            lambda: self.cache.num_free,
            clock,
        )
        self.scheduler = Scheduler(
            self.config,
            cache=self.cache,
            vocabulary=facts,
            grammars=None,  # type: ignore[arg-type]  # no request of these tests has one
            context_length=info.context_length,
            calls=SchedulerCalls(lambda before, data: [], fetch_prefix=self.hub.fetch),
        )
        self._pipeline = Pipeline(self.engine, self.scheduler, ahead=False)
        opened.append(self)
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, FromCore] = {}
        self.num_steps = 0

    def ask(self, rid: str, tokens: list[int], pictures: Sequence[Picture] = (), **sampling: Any) -> None:
        """Let a request arrive."""
        self.outputs[rid] = []
        params = SamplingParams(**{"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True} | sampling)
        message = Generate(rid=rid, tokens=tokens, sampling=params, pictures=[*pictures])
        assert not self.scheduler.handle(message, time.monotonic())

    def step(self) -> None:
        """Exchange what is there, and compute a step."""
        self.hub.advance()
        for answers in self._pipeline.advance():
            self.num_steps += bool(answers)
            self.hub.note_answers(answers)
            for answer in answers:
                if isinstance(answer, Tokens) and answer.rid in self.outputs:
                    self.outputs[answer.rid] += answer.ids
                    if answer.finish is not None:
                        self.finished[answer.rid] = answer

    def assert_no_page_is_lost(self) -> None:
        """Assert that every page is free once the cache is emptied."""
        self.cache.flush()
        assert self.cache.num_free == self.cache.num_pages


def run(cores: list[Core], until: Callable[[], object]) -> None:
    """Step the cores in turn until something is true."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, "it does not come"
        for core in cores:
            core.step()


def alone(core: Core, tokens: list[int], pictures: Sequence[Picture] = (), **sampling: Any) -> list[int]:
    """Return what a core answers by itself, with an empty cache before and after."""
    remote = core.scheduler._remote
    fetch, remote._fetch = remote._fetch, None
    core.cache.flush()
    core.ask("alone", tokens, pictures, **sampling)
    run([core], lambda: "alone" in core.finished)
    del core.finished["alone"]
    core.cache.flush()
    remote._fetch = fetch
    return core.outputs.pop("alone")
