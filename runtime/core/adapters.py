"""The LoRA adapters of a core, as a service: loading and unloading while requests run, and the adapter of each request.

An adapter has a number of its own, which no other adapter gets. Cached prefixes are in a namespace of their weights: a
name whose weights change never finds old ones. Files are read in a thread, between steps the matrices are put on the
devices.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace

from ...radix.events import ADAPTER_MARK
from ..engine import ForwardEngine
from ..models.lora.peft import AdapterWeights, read_adapter
from ..parallel.rank_zero import RankZeroEngine
from ..protocol.config import CoreConfig
from ..protocol.core import (
    AdapterInfo,
    AdaptersChanged,
    Attach,
    CoreReady,
    CoreReply,
    FromCore,
    Generate,
    LoadAdapter,
    ModelInfo,
    RequestFailed,
    ToCore,
    Tokens,
    UnloadAdapter,
)
from ..protocol.errors import ErrorInfo, RamiformError, RequestError
from ..transfer.hub import uses_transfers
from .service import POLL_MS, Reply, Service

logger = logging.getLogger("ramiform.core")

_NAME = re.compile(r"[^\x00-\x20\x7f,=]{1,200}")


@dataclass(frozen=True)
class _Loaded:
    """A loaded adapter."""

    number: int
    info: AdapterInfo


class Adapters(Service):
    """The adapters of one core, and the facts about its model, which name them."""

    def __init__(self, config: CoreConfig, engine: ForwardEngine | RankZeroEngine, info: ModelInfo) -> None:
        """Raises RamiformError when an adapter of the settings is wrong."""
        self._config, self._engine, self._info = config, engine, info
        self._exchanges_kv = uses_transfers(config)
        self._taken = frozenset((*info.names, info.path))
        self._numbers = itertools.count(1)
        self._loaded: dict[str, _Loaded] = {}
        self._numbers_in_use: dict[str, int] = {}  # by request
        self._retired: set[int] = set()  # unloaded, but requests use them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._reading: dict[str, tuple[bytes, LoadAdapter, Future[AdapterWeights]]] = {}
        for setting in config.lora:
            name, is_pair, path = setting.partition("=")
            if not is_pair:
                raise RequestError(f"lora must be NAME=PATH, got {setting!r}", param="lora")
            try:
                self._check_free(name)
                self._install(name, path, self._read(path))
            except RequestError as error:  # not by the fields of the routes
                param = "lora" if error.param in ("lora_name", "lora_path") else error.param
                raise RequestError(f"{setting}: {error}", param=param) from None

    @property
    def wait_ms(self) -> int | None:
        return POLL_MS if self._reading else None

    def resolve(self, message: Generate) -> Generate:
        """Return the request with the number and the namespace of its adapter. Raises RequestError if none has the
        name."""
        if ADAPTER_MARK in message.namespace:
            raise RequestError("cache_salt holds a reserved sequence of characters", param="cache_salt")
        if message.adapter is None:
            return message
        if (loaded := self._loaded.get(message.adapter)) is None:
            raise RequestError(f"no LoRA adapter {message.adapter!r} is loaded", param="lora", code="model_not_found")
        self._numbers_in_use[message.rid] = loaded.number
        namespace = f"{message.namespace}{ADAPTER_MARK}{message.adapter}\0{loaded.info.digest}"
        return replace(message, adapter_number=loaded.number, namespace=namespace)

    def note_weights(self, version: str) -> None:
        """Note the version of the weights that adapters add to from now on."""
        self._info = replace(self._info, weight_version=version)

    def note_answers(self, answers: Iterable[FromCore]) -> None:
        """Note which requests have ended; unloaded adapters that no request uses any more are removed."""
        if not self._numbers_in_use:
            return
        for answer in answers:
            if isinstance(answer, RequestFailed) or (isinstance(answer, Tokens) and answer.finish is not None):
                self._numbers_in_use.pop(answer.rid, None)
        if self._retired:
            self._remove_unused()

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        """Tell a frontend the model's facts, add its adapter to a request, or begin to load an adapter, or unload one:
        running requests finish with it."""
        match message:
            case Attach():
                return [(owner, CoreReady(replace(self._info, adapters=self._listed)))]
            case Generate():
                try:
                    return self.resolve(message)
                except RequestError as error:
                    return [(owner, RequestFailed(message.rid, ErrorInfo.of(error)))]
            case LoadAdapter() | UnloadAdapter():
                try:
                    return self._begin(owner, message)
                except RamiformError as error:
                    return [(owner, CoreReply(message.call, error=ErrorInfo.of(error)))]
            case _:
                return message

    def advance(self) -> Iterator[Reply]:
        """Put adapters that have been read on the devices."""
        for name, (owner, message, future) in list(self._reading.items()):
            if not future.done():
                continue
            del self._reading[name]
            try:
                self._install(name, message.path, future.result())
            except RamiformError as error:
                yield owner, CoreReply(message.call, error=ErrorInfo.of(error))
            else:
                yield from self._changed(owner, message.call)

    @property
    def _listed(self) -> tuple[AdapterInfo, ...]:
        """The adapters that requests may name, in the order of loading."""
        return tuple(loaded.info for loaded in self._loaded.values())

    def _begin(self, owner: bytes, message: LoadAdapter | UnloadAdapter) -> list[Reply]:
        """Unload an adapter, or begin to read one. Raises RamiformError."""
        if self._exchanges_kv:
            raise RequestError("runtimes that exchange KV have no LoRA adapters", param="lora_name")
        if isinstance(message, UnloadAdapter):
            self._unload(message.name)
            return self._changed(owner, message.call)
        self._check_free(message.name)
        self._reading[message.name] = owner, message, self._thread.submit(self._read, message.path)
        return []

    def _changed(self, owner: bytes, call: int) -> list[Reply]:
        """Tell all frontends the adapters, and answer the one that asked for the change."""
        return [("all", AdaptersChanged(self._listed)), (owner, CoreReply(call))]

    def _check_free(self, name: str) -> None:
        if _NAME.fullmatch(name) is None:
            raise RequestError(
                f"an adapter's name has 1 to 200 characters without spaces, commas and '=', got {name!r}",
                param="lora_name",
            )
        if name in self._taken:
            raise RequestError(f"{name!r} is a name of the model itself", param="lora_name")
        if name in self._loaded or name in self._reading:
            raise RequestError(f"the adapter {name!r} is loaded already: unload it first", param="lora_name")
        if self._config.deterministic:
            raise RequestError("adapters are not computed in deterministic mode", param="deterministic")
        num_loaded = len(self._loaded) + len(self._reading) + len(self._retired)
        if num_loaded >= self._config.max_loras:
            raise RequestError(f"{num_loaded} adapters are loaded: max_loras is reached", param="max_loras")

    def _read(self, path: str) -> AdapterWeights:
        """Read an adapter. Raises RequestError."""
        try:
            return read_adapter(Path(path).expanduser(), self._engine.model_config, max_rank=self._config.max_lora_rank)
        except RamiformError as error:
            raise RequestError(f"cannot load the adapter: {error}", param="lora_path") from None

    def _install(self, name: str, path: str, weights: AdapterWeights) -> None:
        number = next(self._numbers)
        try:
            self._engine.load_adapter(number, weights)
        except torch.OutOfMemoryError:
            raise RequestError(
                f"the device has no {weights.nbytes / 2**20:,.0f} MiB for the adapter: lower mem_fraction",
                param="lora_path",
            ) from None
        self._loaded[name] = _Loaded(number, AdapterInfo(name, path, weights.rank, weights.digest))
        logger.info("loaded the adapter %s of rank %d from %s", name, weights.rank, path)
        self._engine.check_adapter(number, name)

    def _unload(self, name: str) -> None:
        if (loaded := self._loaded.pop(name, None)) is None:
            raise RequestError(f"no LoRA adapter {name!r} is loaded", param="lora_name", code="model_not_found")
        self._retired.add(loaded.number)
        self._remove_unused()

    def _remove_unused(self) -> None:
        for number in self._retired - set(self._numbers_in_use.values()):
            self._retired.remove(number)
            self._engine.unload_adapter(number)
