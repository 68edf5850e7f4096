"""The disk cache as a service of the core's loop: what it needs of the settings, its folder, its turns."""

from __future__ import annotations

import math
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from ...radix.cache import PrefixCache
from ..disk.page_keys import PageKeys, format_of
from ..disk.segment import SegmentFormat
from ..disk.store import MIN_RECORDS, PageStore
from ..disk.tier import DiskTier
from ..protocol.config import DEFAULT_DISK_MEMORY, CoreConfig
from ..protocol.core import CoreReply, DiskStats, FlushCache, ModelInfo, ToCore
from ..protocol.errors import RequestError
from ..transfer.pages import CachePages, layout_of
from .service import POLL_MS, Reply, Service, shortest

_GIB = 1 << 30
_SECRET_BYTES = 32


def uses_disk(config: CoreConfig) -> bool:
    """Return True if the settings ask for a disk cache. Raises RequestError for settings that do not go together."""
    if config.disk_cache is None:
        if config.disk_memory is not None:
            raise RequestError("disk_memory is the room of disk_cache, a folder: set that too", param="disk_memory")
        return False
    reasons = {
        "prefix_cache": None if config.prefix_cache else "it keeps what the prefix cache has",
        "log_plans": None if config.log_plans is None else "a plan log could not be replayed",
        "nnodes": None if config.nnodes == 1 else "ranks of other machines do not send their pages yet",
        "streaming_window": None if config.streaming_window is None else "pages behind the window are given up",
    }
    for setting, reason in reasons.items():
        if reason is not None:
            raise RequestError(f"{setting} does not go with disk_cache: {reason}", param=setting)
    return True


class DiskCache(Service):
    """Saves new pages of the prefix cache after steps, and brings back those of requests before them."""

    def __init__(self, tier: DiskTier, max_bytes: int) -> None:
        self._tier = tier
        self._max_bytes = max_bytes
        self.fetch = tier.fetch

    @property
    def wait_ms(self) -> int | None:
        left = self._tier.seconds_to_save
        return shortest(POLL_MS if self._tier.is_fetching else None, None if left is None else math.ceil(1e3 * left))

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        if isinstance(message, FlushCache):
            self._tier.clear()
        return message

    def advance(self) -> Iterator[Reply]:
        self._tier.advance()
        yield from ()

    def after_step(self) -> Iterator[Reply]:
        self._tier.save()
        yield from ()

    def close(self) -> None:
        """Save what is new, and let another process write."""
        self._tier.close()

    def count(self, reply: CoreReply) -> CoreReply:
        assert reply.stats is not None
        store = self._tier.store
        found = DiskStats(
            num_pages=store.num_pages,
            num_bytes=store.num_bytes,
            max_bytes=self._max_bytes,
            is_writer=store.is_writer,
            has_failed=store.has_failed,
            num_hit_tokens=self._tier.num_hit_tokens,
            num_ahead_tokens=self._tier.num_ahead_tokens,
            num_saved=store.counters.num_saved,
            num_evicted=store.counters.num_evicted,
            num_damaged=store.counters.num_damaged,
        )
        return replace(reply, stats=replace(reply.stats, disk=found))


def open_disk_cache(config: CoreConfig, info: ModelInfo, cache: PrefixCache, pages: CachePages) -> DiskCache:
    """Open the folder of the settings, and read what it has for the model. Raises RequestError when it cannot be used,
    or not for this model."""
    assert config.disk_cache is not None
    if cache.states is not None:
        raise RequestError(
            "disk_cache keeps keys and values; the states of this model's recurrent layers are not kept yet: "
            "leave it out",
            param="disk_cache",
        )
    assert cache.windows is None, "layers with a window keep all pages"
    folder = Path(config.disk_cache).expanduser().resolve()
    kv_format = format_of(
        config,
        layout_of(info, pages.shape, config.quantize),
        version=info.version,
        device=info.device,
        path=Path(info.path),
    )
    memory = DEFAULT_DISK_MEMORY if config.disk_memory is None else config.disk_memory
    try:
        secret = _open_folder(folder)
        keys = PageKeys(secret, kv_format)
        form = SegmentFormat(secret, keys.format_digest, pages.shape.page_bytes)
        least = MIN_RECORDS * form.record_bytes
        if memory * _GIB < least:
            raise RequestError(
                f"disk_memory {memory:g} GiB is too little: this model needs {math.ceil(1e3 * least / _GIB) / 1e3:g} "
                "or more",
                param="disk_memory",
            )
        store = PageStore(folder, form, int(memory * _GIB))
    except OSError as error:
        raise RequestError(
            f"cannot use the folder {config.disk_cache!r}: {error.strerror}", param="disk_cache"
        ) from None
    pages.outlive_cache = True
    return DiskCache(DiskTier(store, keys, cache, pages, time.monotonic), int(memory * _GIB))


def _open_folder(folder: Path) -> bytes:
    """Make the folder if there is none, and return its secret. Raises OSError, and RequestError when others may read
    or change it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(folder, 0o022)
    file = folder / "secret"
    if not file.exists():
        own = folder / f"secret-{os.getpid()}"
        with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as made:
            made.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            file.hardlink_to(own)  # whole or not at all: another runtime may do the same
        except FileExistsError:
            pass
        finally:
            own.unlink()
    _check_private(file, 0o077)
    secret = file.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise RequestError(f"{file} is no secret of a disk cache: remove the folder", param="disk_cache")
    return secret


def _check_private(path: Path, forbidden: int) -> None:
    found = path.lstat()
    if found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode) or found.st_mode & forbidden:
        mode = "0600" if forbidden == 0o077 else "0700"
        raise RequestError(
            f"{path} must belong to this user, with mode {mode}: others could read prompts, or change answers",
            param="disk_cache",
        )
