"""A cache of answers in a folder: requests that were answered before cost no generation."""

from __future__ import annotations

import functools
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from ..backends.backend import Backend, Channel, chosen_backend, unwrap_channels, wrap_channels
from .answers import Lookup, StoredAnswer, StoredRequest, identity_of
from .channel import StoredChannel
from .database import AnswerDatabase

logger = logging.getLogger("ramiform.programs")

ANSWERS_FILE = "answers.sqlite"


@dataclass
class RequestCounts:
    """Requests that a cache has answered and passed on. Any thread may count."""

    hits: int = 0
    misses: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, hit: bool) -> None:
        with self._lock:
            self.hits += hit
            self.misses += not hit


class Cache:
    """Answers of generations, selects and decides, kept in a folder.

    A request is known by its content: the state's texts, token ids and roles, the parameters, the seed, and what is
    known of the model. Requests at a temperature above 0 without a seed are draws: the n-th such request of a run gets
    the n-th answer that is kept for it, so that a run repeated gives the same and samples of one run differ.

    `with cache:` applies to all programs that begin inside, in any thread. A cache is also a backend, of `backend` or
    the default one. `hits` and `misses` count requests. The oldest answers beyond `max_entries` or `max_bytes` are
    removed. Raises RequestError if the folder holds another file of that name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        backend: Backend | None = None,
        *,
        max_entries: int = 100_000,
        max_bytes: int = 1 << 30,
    ) -> None:
        for name, value in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if not isinstance(value, int) or value < 1:
                raise RequestError(f"{name} must be a positive integer, got {value!r}", param=name)
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"{os.fspath(path)!r} is not a folder for a cache: {error}", param="path") from None
        self.path = folder / ANSWERS_FILE
        self._counts = RequestCounts()
        self.database = AnswerDatabase(self.path, max_entries, max_bytes)
        self._backend = backend
        self._lock = threading.Lock()
        self._channels: dict[Channel, StoredChannel] = {}

    def connection(self) -> Channel:
        """Return the channel that programs use, as a backend does."""
        backend = chosen_backend(self._backend)
        return self._wrapped(backend, backend.connection())

    @property
    def hits(self) -> int:
        """Return how many requests were answered from the cache."""
        return self._counts.hits

    @property
    def misses(self) -> int:
        """Return how many requests were passed on."""
        return self._counts.misses

    def clear(self) -> None:
        """Remove every answer."""
        self.database.clear()

    def close(self) -> None:
        """Close the file. Programs that still run open it again."""
        self.database.close()

    def __len__(self) -> int:
        """Return the number of answers."""
        return self.database.totals()[0]

    def __repr__(self) -> str:
        return f"<cache {str(self.path)!r}: {self.hits} hits, {self.misses} misses>"

    def __enter__(self) -> Cache:
        wrap_channels(self._wrapped)
        return self

    def __exit__(self, *error: object) -> None:
        unwrap_channels(self._wrapped)

    def _wrapped(self, backend: Backend, channel: Channel) -> Channel:
        """Return the channel with the cache before it: the same one for the same channel."""
        if isinstance(channel, StoredChannel):
            return channel  # the backend is a cache itself
        with self._lock:
            stored = self._channels.get(channel)
        if stored is None:
            identity = identity_of(backend, channel)
            with self._lock:
                stored = self._channels.get(channel)
                if stored is None:
                    stored = self._channels[channel] = StoredChannel(
                        CachedAnswers(self.database, self._counts, identity), channel
                    )
        return stored


class CachedAnswers:
    """The `AnswerStore` of a cache, for one model."""

    # It holds no Cache, whose channels would never be collected then: their threads hold it.
    def __init__(self, database: AnswerDatabase, counts: RequestCounts, identity: str) -> None:
        self._database = database
        self._counts = counts
        self._identity = identity

    def look_up(self, request: StoredRequest) -> Lookup:
        key = request.content.key(request.operation, self._identity)
        draw = 0
        if _is_drawn(request.operation):
            draw = request.run.num_draws.get(key, 0)
            request.run.num_draws[key] = draw + 1
        data = self._database.get(key, draw)
        if isinstance(request.operation, session.Gen | session.Select | session.Decide):
            self._counts.count(data is not None)
        return Lookup(None if data is None else _decoded(data), functools.partial(self._keep, key, draw))

    def note(self, request: StoredRequest, answer: StoredAnswer) -> None:
        """Do nothing: the operation was not asked for."""

    def _keep(self, key: bytes, draw: int, answer: StoredAnswer) -> None:
        try:
            self._database.put(key, draw, msgspec.msgpack.encode(answer))
        except RequestError as error:  # the program has its answer; the next run generates it again
            logger.warning("an answer was not kept: %s", error)


def cache(
    path: str | os.PathLike[str],
    backend: Backend | None = None,
    *,
    max_entries: int = 100_000,
    max_bytes: int = 1 << 30,
) -> Cache:
    """Return the cache in a folder, which is made if it is not there; `Cache` documents it."""
    return Cache(path, backend, max_entries=max_entries, max_bytes=max_bytes)


def _is_drawn(operation: session.Operation) -> bool:
    match operation:
        case session.Gen(sampling=sampling):
            return sampling.temperature > 0 and sampling.seed is None
        case session.Select(temperature=temperature, seed=seed):
            return temperature > 0 and seed is None
    return False


def _decoded(data: bytes) -> StoredAnswer:
    try:
        return msgspec.msgpack.decode(data, type=StoredAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            f"the cache holds an answer that cannot be read: {error}; clear it", param="path", code="invalid_cache"
        ) from None
