"""Reads and writes whole pages of token sequences in the prefix cache, between steps. Knows nothing of sockets."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from ...radix.cache import PrefixCache
from ...radix.tree import TreeNode
from ..engine.kv_pool import PAGE_SIZE, KvShape
from ..models.stored.digest import weights_digest
from ..models.stored.kv_scales import constants_digest, numbers_from
from ..protocol.core import ModelInfo
from ..scheduler.plan import PageCopy, Row
from .messages import PROTOCOL, KvLayout


class PagedEngine(Protocol):
    """Interface of an engine that reads and writes whole pages, on one rank or several."""

    @property
    def kv_shape(self) -> KvShape: ...
    @property
    def adopts_constants(self) -> bool: ...
    @property
    def device(self) -> torch.device: ...
    def read_constants(self) -> torch.Tensor | None: ...
    def adopt_constants(self, numbers: torch.Tensor) -> None: ...
    def copy_pages(self, copies: Sequence[PageCopy]) -> None: ...
    def read_pages(self, pages: Sequence[int]) -> torch.Tensor: ...
    def write_pages(self, row: Row, first: int, bytes_P: torch.Tensor) -> None: ...


class CachePages:
    """Whole pages of the sequences in a prefix cache. Every call leaves nothing pinned."""

    def __init__(self, cache: PrefixCache, engine: PagedEngine) -> None:
        self._cache = cache
        self._engine = engine
        self.shape = engine.kv_shape
        self.device = engine.device
        self.outlive_cache = False  # they are on disk too

    def constants(self) -> torch.Tensor | None:
        """Return the scales or statistics of stored keys and values, float32 [N, L, K, ...]; None: there are none."""
        return self._engine.read_constants()

    def reason_to_keep(self) -> str | None:
        """Return why other scales or statistics cannot be adopted; None: they can."""
        if not self._engine.adopts_constants:
            return "those here are a file's or the checkpoint's"
        if self.outlive_cache:
            return "pages on disk are stored by those here"
        if self._cache.num_free < self._cache.num_pages or any(True for _ in self._cache.tree.nodes()):
            return "pages are held here already"
        return None

    def adopt(self, data: bytes, digest: str) -> bool:
        """Store keys and values by scales or statistics of this digest from now on. Returns False, with nothing
        changed, if the data are others."""
        own = self._engine.read_constants()
        numbers = None if own is None else numbers_from(data, own.shape)
        if numbers is None or constants_digest(numbers) != digest:
            return False
        self._engine.adopt_constants(numbers)
        self.shape = self._engine.kv_shape
        return True

    def num_cached(self, tokens: Sequence[int], namespace: str) -> int:
        """Return the number of whole pages at the start of `tokens` that are cached."""
        return self._cache.match(tokens, namespace) // PAGE_SIZE

    def read(self, tokens: Sequence[int], namespace: str, first: int) -> torch.Tensor | None:
        """Return the pages of `tokens` from index `first` on, as bytes [P, page_bytes]; None if they are not cached, or
        are on the host and the device has no room for them. `tokens` fill whole pages."""
        lease = self._cache.acquire(tokens, namespace, counted=False)
        if lease is None:
            return None
        self._settle()
        found = None
        if lease.matched == len(tokens):
            found = self._engine.read_pages(lease.pages[first:]).flatten(1)
        self._cache.release(lease, tokens[: lease.matched])
        return found

    def read_places(self, pages: Sequence[int]) -> torch.Tensor:
        """Return pages of the tree, of either tier, as bytes [P, page_bytes] in host memory."""
        self._settle()
        if max(pages) < self._cache.num_pages or min(pages) >= self._cache.num_pages:
            return self._engine.read_pages(pages).flatten(1).cpu()
        found_PB = torch.empty(len(pages), self.shape.page_bytes, dtype=torch.uint8)
        for on_host in (False, True):
            own = [at for at, page in enumerate(pages) if (page >= self._cache.num_pages) == on_host]
            if own:
                found_PB[own] = self._engine.read_pages([pages[at] for at in own]).flatten(1).cpu()
        return found_PB

    def write(
        self,
        tokens: Sequence[int],
        namespace: str,
        first: int,
        bytes_PB: torch.Tensor,
        pin: tuple[Hashable, int] | None = None,
    ) -> bool:
        """Cache the pages of `tokens` from index `first` on. Returns False, with nothing changed, if the pages before
        them are not cached or there is no room.

        `pin` is the owner and rank of a soft pin on the whole prefix, which replaces the owner's earlier one.
        """
        start = first * PAGE_SIZE
        lease = self._cache.acquire(tokens, namespace, limit=start, num_tokens=len(tokens), counted=False)
        if lease is None:
            return False
        self._settle()  # the pages may have been given away while a copy still has to read them
        is_whole = lease.matched == start
        if is_whole:
            row = Row(rid="", tokens=list(tokens[start:]), first_position=start, pages=lease.pages)
            self._engine.write_pages(row, first, bytes_PB.view(-1, *self.shape.page_shape))
            self._cache.commit(lease, tokens)
            if pin is not None:
                self._cache.set_soft_pin(lease, pin[0], len(tokens), pin[1])
        self._cache.release(lease, tokens if is_whole else tokens[: lease.matched])
        return is_whole

    def sequences(self) -> list[TreeNode]:
        """List the last node of every cached sequence, the one used last first."""
        leaves = [node for node in self._cache.tree.nodes() if not node.children]
        return sorted(leaves, key=lambda node: -node.last_used)

    def tokens(self, sequence: TreeNode) -> tuple[str, list[int]]:
        """Return the namespace and tokens of a sequence that `sequences` has listed, as far as they fill pages.

        One that was evicted since has no tokens.
        """
        if not sequence.attached:
            return "", []
        namespace, tokens = self._cache.tree.path_tokens(sequence)
        return namespace, tokens[: len(tokens) // PAGE_SIZE * PAGE_SIZE]

    def _settle(self) -> None:
        """Make the copies that the cache has decided on."""
        if copies := self._cache.take_copies():
            self._engine.copy_pages([PageCopy(*copy) for copy in copies])


def layout_of(info: ModelInfo, shape: KvShape, quantize: str | None) -> KvLayout:
    """Return the layout of a loaded model's pages. Reads parts of its files."""
    return KvLayout(
        protocol=PROTOCOL,
        model=weights_digest(Path(info.path)),
        dtype=info.dtype,
        quantize=quantize,
        context_length=info.context_length,
        kv_dtype=info.kv_dtype,
        kv_scales=shape.scales,
        page_size=info.page_size,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_bytes=shape.head_bytes,
    )
