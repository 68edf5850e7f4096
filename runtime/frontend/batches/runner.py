"""Runs batches: at most one of each API key at a time, as requests of the background.

A row is answered by the code of its route. The core makes rows give way to live requests (`scheduler/background.py`).
Rows that are in flight when the server ends have no result and are
answered anew by the next server in the folder.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel

from ....radix.packed_tokens import TOKEN_BYTES, pack
from ...protocol.errors import BusyError, RamiformError, RequestError
from ..api.validation import validated
from ..core.client import CoreClient
from ..core.tenant import Tenant, current_tenant
from .lines import BatchLine, LineAnswer, read_rows, result_line, unanswered_line
from .order import num_abreast, trie_order
from .records import Ending, LineResult, RowPlace, RowState, StoredBatch
from .store import STORAGE_ERRORS, BatchStore

logger = logging.getLogger("ramiform.frontend")

LEAST_SHARE, MOST_SHARE = 1 / 4, 3 / 4  # of the places of running requests, that rows take at once
WATCH_SECONDS = 1.0  # between two looks at what other frontends have stored, and at what has expired
CLEAN_SECONDS = 600.0  # between two deletions of what has expired
RETRY_SECONDS = 5.0  # after the disk was full, or the core's queue
MAX_ORDER_BYTES = 256 << 20  # of the prompts that rows are ordered by; of more, each row's beginning
MAX_UNWRITTEN = 256  # rows of a batch that run or whose results wait for the disk
FETCHED = 256  # rows read from the store at once


@dataclass(frozen=True)
class Endpoint:
    """A route that rows may name: its body, what answers it, and how its errors read.

    `prompt` returns the token ids of a body's prompt and the tokens that its output may have, for the order of rows;
    None: rows of this route keep the order of their file.
    """

    body: type[BaseModel]
    answer: Callable[[Any], Awaitable[dict[str, Any]]]
    error: Callable[[Exception], tuple[int, dict[str, Any]]]
    prompt: Callable[[Any], Awaitable[tuple[list[int], int]]] | None = None

    def read(self, data: bytes) -> BaseModel:
        """Return the body of a row. Raises RequestError."""
        try:
            value = msgspec.json.decode(data)
        except RecursionError:
            raise RequestError("the body is nested too deep", param="body") from None
        body = validated(self.body, value)
        for name in ("stream", "background"):
            if getattr(body, name, False):
                raise RequestError(f"{name}: a row of a batch is answered in its result", param=name)
        return body


class _Places:
    """Places for rows in flight, given out in turn to the batches that wait for one."""

    def __init__(self, core: CoreClient) -> None:
        self._core = core
        self._places = asyncio.Semaphore(self.num_places(MOST_SHARE))

    async def take(self, own: asyncio.Semaphore) -> Callable[[], None]:
        """Wait for a place of the batch's `own` and one of all; return what gives both back, once."""
        await own.acquire()
        try:
            await self._places.acquire()
        except BaseException:
            own.release()
            raise
        is_taken = True

        def give_back() -> None:
            nonlocal is_taken
            if is_taken:
                is_taken = False
                self._places.release()
                own.release()

        return give_back

    def num_places(self, share: float) -> int:
        """Return how many rows a share of the places of running requests is."""
        return max(1, int(self._core.require_info().max_running * share))

    def num_abreast(self, prompts: list[bytes], limits: list[int]) -> int:
        """Return how many of these rows, in their order, should be in flight: as the pool holds, within bounds."""
        most = num_abreast(prompts, limits, self._core.require_info().num_slots, self.num_places(MOST_SHARE))
        return max(most, self.num_places(LEAST_SHARE))

    def check_alive(self) -> None:
        """Raise RuntimeFailed when the core is gone: then no row has an answer."""
        self._core.require_info()


class BatchRunner:
    """Runs the batches of a store in this process, once started. `tenants`: those that may ask this server."""

    def __init__(
        self, store: BatchStore, endpoints: Mapping[str, Endpoint], core: CoreClient, tenants: Iterable[Tenant]
    ) -> None:
        self.store = store
        self._endpoints = endpoints
        self._core = core
        self._tenants = {tenant.owner: tenant._replace(in_batch=True) for tenant in tenants}
        self._woken = asyncio.Event()
        self._runs: dict[str, _BatchRun] = {}  # by owner
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="batches")

    def wake(self) -> None:
        """Look at once for batches that were created or cancelled."""
        self._woken.set()

    async def stop(self) -> None:
        """Stop the rows in flight, which another server answers anew."""
        tasks = [each for each in (self._task, *(run.task for run in self._runs.values())) if each is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._task = None
        self._runs.clear()

    async def _watch(self) -> None:
        await self._core.ready()
        places = _Places(self._core)
        cleaned = 0.0
        while True:
            self._woken.clear()
            try:
                if time.monotonic() - cleaned > CLEAN_SECONDS or not cleaned:
                    cleaned = time.monotonic()
                    await asyncio.to_thread(self.store.remove_expired)
                self._look(await asyncio.to_thread(self.store.open_batches), places)
            except STORAGE_ERRORS as error:
                logger.warning("the batches cannot be read: %s", error)
            except Exception:
                logger.exception("batches failed with an internal error")
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def _look(self, batches: list[StoredBatch], places: _Places) -> None:
        """Begin the oldest batch of each owner, and end what was cancelled or has expired."""
        for owner, run in list(self._runs.items()):
            if run.task.done() and run.may_be_forgotten:
                del self._runs[owner]
        for batch in batches:
            tenant = self._tenants.get(batch.owner)
            run = self._runs.get(batch.owner)
            if run is None and (tenant is not None or _ending(batch) is not None):
                run = _BatchRun(self.store, batch, self._endpoints, tenant or Tenant(in_batch=True), places)
                run.task.add_done_callback(lambda _: self.wake())
                self._runs[batch.owner] = run
            if run is not None and run.name == batch.id and (ending := _ending(batch)) is not None:
                run.end(ending)


def _ending(batch: StoredBatch) -> Ending | None:
    if batch.status == "cancelling":
        return "cancelled"
    return "expired" if batch.expires_at <= time.time() else None


class _BatchRun:
    """One batch that runs: its task, its rows in flight, and results that wait to be written."""

    def __init__(
        self,
        store: BatchStore,
        batch: StoredBatch,
        endpoints: Mapping[str, Endpoint],
        tenant: Tenant,
        places: _Places,
    ) -> None:
        self.name = batch.id
        self._store = store
        self._batch = batch
        self._endpoints = endpoints
        self._tenant = tenant
        self._places = places
        self._ending: Ending | None = None
        self._rows: asyncio.Task[None] | None = None
        self._results: list[LineResult] = []
        self._writing = asyncio.Lock()
        self._failed_at: float | None = None
        self.task = asyncio.create_task(self._run(), name=f"batch {batch.id}")

    @property
    def may_be_forgotten(self) -> bool:
        """True once the batch is over, or may be tried again."""
        return self._failed_at is None or time.monotonic() - self._failed_at > RETRY_SECONDS

    def end(self, ending: Ending) -> None:
        """Stop the rows in flight, and end the batch without them."""
        if self._ending is None:
            self._ending = ending
            if self._rows is not None:
                self._rows.cancel()

    async def _run(self) -> None:
        current_tenant.set(self._tenant)
        try:
            if self._batch.has_order or await self._prepare():
                await self._answer_rows()
                ending = self._ending or "completed"
                if self._ending is not None:
                    await self._write_unanswered("cancelled" if ending == "cancelled" else "expired")
                await asyncio.to_thread(self._store.finish, self.name, ending)
        except STORAGE_ERRORS as error:
            self._failed_at = time.monotonic()
            logger.warning("the batch %s waits: %s", self.name, error)
        except RamiformError as error:  # the core is gone
            self._failed_at = time.monotonic()
            logger.warning("the batch %s stops: %s", self.name, error)
        except Exception:
            self._failed_at = time.monotonic()
            logger.exception("the batch %s failed with an internal error, and is tried again", self.name)

    async def _prepare(self) -> bool:
        """Check the input file and store the order of its rows. Returns False for a file that is no batch."""
        path = self._store.path(self._batch.input_file)
        rows, errors = await asyncio.to_thread(read_rows, path, self._endpoints.keys(), self._batch.endpoint)
        if errors:
            await asyncio.to_thread(self._store.refuse, self.name, errors)
            return False
        order, abreast = (range(len(rows)), 1) if self._ending is not None else await self._order(rows)
        ordered = [rows[number]._replace(position=position) for position, number in enumerate(order)]
        self._batch = await asyncio.to_thread(self._store.begin_rows, self.name, ordered, abreast)
        return True

    async def _order(self, rows: list[RowPlace]) -> tuple[Sequence[int], int]:
        """Return the numbers of rows in the order in which they should start, and how many should be in flight."""
        prompts, limits = [], []
        most = max(1, MAX_ORDER_BYTES // (TOKEN_BYTES * len(rows)))
        for begin in range(0, len(rows), FETCHED):
            for line in await asyncio.to_thread(self._store.read_lines, self._batch, rows[begin : begin + FETCHED]):
                tokens, limit = await self._prompt(line)
                prompts.append(pack(tokens[:most]))
                limits.append(limit)
                await asyncio.sleep(0)  # others' requests go first
        order = await asyncio.to_thread(trie_order, prompts, limits)
        ordered = [prompts[number] for number in order], [limits[number] for number in order]
        return order, await asyncio.to_thread(self._places.num_abreast, *ordered)

    async def _prompt(self, line: BatchLine) -> tuple[list[int], int]:
        endpoint = self._endpoints[line.url]
        if endpoint.prompt is None:
            return [], 0
        try:
            return await endpoint.prompt(endpoint.read(line.body))
        except RamiformError:
            return [], 0  # its result will say so
        except Exception:
            logger.exception("a row of the batch %s failed with an internal error", self.name)
            return [], 0

    async def _answer_rows(self) -> None:
        """Answer the rows without a result until there are none, or the batch ends."""
        if self._ending is not None:
            return
        self._rows = asyncio.create_task(self._feed())
        try:
            await self._rows
        except asyncio.CancelledError:
            if self._ending is None or not self._rows.done():
                self._rows.cancel()
                await asyncio.wait({self._rows})
                raise
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _feed(self) -> None:
        position = -1
        unwritten, places = asyncio.Semaphore(MAX_UNWRITTEN), asyncio.Semaphore(self._batch.num_abreast)
        async with asyncio.TaskGroup() as tasks:
            while rows := await asyncio.to_thread(self._store.open_rows, self.name, position, FETCHED):
                lines = await asyncio.to_thread(self._store.read_lines, self._batch, rows)
                for row, line in zip(rows, lines, strict=True):
                    await unwritten.acquire()
                    give_back = await self._places.take(places)
                    answering = tasks.create_task(self._answer_row(row.position, line, give_back))
                    # Also here: a task may be cancelled before it begins.
                    answering.add_done_callback(lambda _, give_back=give_back: (give_back(), unwritten.release()))
                    position = row.position

    async def _answer_row(self, position: int, line: BatchLine, give_back: Callable[[], None]) -> None:
        outcome = await self._outcome(self._endpoints[line.url], line.body)
        give_back()  # the next row is computed while this one's result is written
        state, result = result_line(self._batch.kind, line.custom_id, outcome)
        self._results.append(LineResult(position, state, result))
        async with self._writing:
            await self._write()

    async def _outcome(self, endpoint: Endpoint, data: bytes) -> LineAnswer:
        """Return a row's answer. Raises RamiformError when there is nobody to answer."""
        while True:
            try:
                return LineAnswer(200, await endpoint.answer(endpoint.read(data)))
            except BusyError:
                await asyncio.sleep(RETRY_SECONDS)
            except RamiformError as error:
                self._places.check_alive()
                return LineAnswer(*endpoint.error(error))
            except Exception as error:
                logger.exception("a row of the batch %s failed with an internal error", self.name)
                return LineAnswer(*endpoint.error(error))

    async def _write(self) -> None:
        """Write the results that wait, unless a task before this one has; wait for room on the disk."""
        results, self._results = self._results, []
        while results:
            try:
                await asyncio.to_thread(self._store.commit, self.name, results)
                return
            except STORAGE_ERRORS as error:
                logger.warning("results of the batch %s wait to be written: %s", self.name, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _write_unanswered(self, state: RowState) -> None:
        """Write what became of the rows without a result; OpenAI's clients are not told of cancelled ones."""
        if state == "cancelled" and self._batch.kind == "openai":
            return
        while rows := await asyncio.to_thread(self._store.open_rows, self.name, -1, FETCHED):
            await asyncio.to_thread(self._write_rows, rows, state)

    def _write_rows(self, rows: list[RowPlace], state: RowState) -> None:
        results = [
            LineResult(row.position, state, unanswered_line(self._batch.kind, line.custom_id, state))
            for row, line in zip(rows, self._store.read_lines(self._batch, rows), strict=True)
        ]
        self._store.commit(self.name, results)
