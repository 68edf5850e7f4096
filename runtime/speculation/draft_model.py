"""A smaller model of the same vocabulary as draft source (Leviathan et al. 2023). It decodes greedily; the likeliest
alternatives along the path are leaves of the tree.

Its KV cache has the target's page ids, so what a prefix or a fork shares is computed once. KV of draft tokens goes to
scratch pages beyond those. It reads prompts in chunks beside the target, and whatever else a sequence lacks when a tree
is requested.

Legend: B rows that want a tree, V vocabulary, K children of a node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import torch

from ...kernels.widening import WIDENED_FROM
from ..engine.draft_source import DraftRow, DraftStep
from ..engine.inputs import decoder_inputs
from ..engine.kv_pool import PAGE_SIZE, KvMemory, KvPool
from ..engine.last_tokens import NO_LAST_TOKENS
from ..engine.paths.step_graphs import StepGraphs
from ..models.decoder import Decoder
from ..scheduler.drafts.tree import DraftTree
from ..scheduler.plan import DraftSpec, PageCopy, Row
from .slot_ledger import SkippedRows, SlotLedger

CATCH_UP_TOKENS = 1024  # tokens computed at once while catching up
MIN_CATCH_UP = 16  # tokens; fewer are those of the last steps, which each draft begins with


@dataclass
class GrowingTree:
    """The unfinished tree of one row: a path of the likeliest tokens, and alternatives beside it."""

    want: DraftSpec
    row: Row  # the next token to run
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    last_node: int = -1  # last node of the path
    depth: int = 0  # of `last_node`

    def add(self, top: Sequence[tuple[float, int]]) -> None:
        """Add children of the last path node, the likeliest first; the path continues with that one."""
        before = self.scores[self.last_node] if self.last_node >= 0 else 0.0
        parent, self.last_node = self.last_node, len(self.tokens)
        self.depth += 1
        for logprob, token in top[: self.want.top_k]:
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(before + min(0.0, logprob))

    @property
    def is_complete(self) -> bool:
        """True if the tree is deep enough, its path too unlikely, or if it is full of nodes that are likelier than any
        that could follow."""
        if self.depth >= self.want.steps or self.scores[self.last_node] < self.want.least_score:
            return True
        better = sum(score > self.scores[self.last_node] for score in self.scores)
        return better >= self.want.num_tokens

    @property
    def finished(self) -> DraftTree:
        """The likeliest of its nodes, as many as are wanted."""
        return DraftTree(self.tokens, self.parents, self.scores).best(self.want.num_tokens)


def add_children(growing: Sequence[GrowingTree], logits_BV: torch.Tensor) -> None:
    """Add children of each tree's last path node by its logits, and make the likeliest the next token to run."""
    temperature_B1 = torch.tensor([[tree.want.temperature] for tree in growing], device=logits_BV.device)
    logprobs_BV = (logits_BV / temperature_B1).log_softmax(dim=-1)
    most = max(tree.want.top_k for tree in growing)
    top_BK, ids_BK = logprobs_BV.topk(min(most, logprobs_BV.shape[1]), dim=-1)
    for tree, top, ids in zip(growing, top_BK.tolist(), ids_BK.tolist(), strict=True):
        tree.add(list(zip(top, ids, strict=True)))
        tree.row = msgspec.structs.replace(
            tree.row, tokens=[tree.tokens[tree.last_node]], first_position=tree.row.first_position + 1
        )


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield rows that may be computed together, in order: of so many tokens, and none that reads pages of another."""
    batch: list[Row] = []
    pages: set[int] = set()
    for row in rows:
        too_many = sum(len(each.tokens) for each in batch) + len(row.tokens) > CATCH_UP_TOKENS
        if batch and (too_many or not pages.isdisjoint(row.pages)):
            yield batch
            batch, pages = [], set()
        batch.append(row)
        pages.update(row.pages)
    if batch:
        yield batch


class DraftModelSource:
    """Draft source that runs `model` for a target with `num_pages` device pages. See `DraftSource`.

    With `make_graphs` decode steps of the model are graphs, over `num_scratch` scratch pages; without it these are
    allocated on demand.
    """

    captures: tuple[int, ...] = ()

    def __init__(
        self,
        model: Decoder,
        num_pages: int,
        num_host_pages: int = 0,
        *,
        num_scratch: int = 0,
        make_graphs: Callable[[Decoder, KvPool], StepGraphs] | None = None,
    ) -> None:
        self._model = model
        self._num_pages = num_pages
        self._scratch = num_scratch  # number of scratch pages
        self._memory = KvMemory(model.config, num_pages + num_scratch, device=model.device, dtype=model.dtype)
        self._host = KvMemory(model.config, num_host_pages, device=torch.device("cpu"), dtype=model.dtype)
        self._pool = KvPool(self._memory, self._host)
        self._graphs = None
        if make_graphs is not None and StepGraphs.supports(model, self._pool.layers):
            self._graphs = make_graphs(model, self._pool)
            self._graphs.capture_all()
        self._ledger = SlotLedger(num_pages + num_host_pages, PAGE_SIZE)
        self._skipped = SkippedRows(PAGE_SIZE)
        self.caught_up = 0.0

    def use_loops(self) -> None:
        self._model.use_loops()

    def copy(self, copies: Sequence[PageCopy]) -> None:
        self._record_skipped()
        self._ledger.copy(copies)
        # The target's host pages follow its device pages; here scratch pages are in between.
        self._pool.copy(
            [PageCopy(self._page_id(copy.source), self._page_id(copy.target), copy.num_tokens) for copy in copies]
        )

    def skip(self, rows: Sequence[Row]) -> None:
        if self._skipped.add(rows):
            self._record_skipped()

    def _record_skipped(self) -> None:
        if self._skipped:
            self._ledger.write(*self._skipped.take())

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        self._record_skipped()
        for row in step.rows:
            self._ledger.write(self._ledger.slots(row.pages, row.first_position, row.end), row.kept)
        growing: dict[int, GrowingTree] = {}
        num_scratch, self.caught_up = 0, 0.0
        for index, row in enumerate(step.rows):
            if row.want is None or row.next_token is None:
                continue
            if row.end + row.want.steps > self._model.config.context_length:
                continue
            needed = -(-(row.end % PAGE_SIZE + 1 + row.want.steps) // PAGE_SIZE)
            growing[index] = self._begin(row, row.want, row.next_token, range(num_scratch, num_scratch + needed))
            num_scratch += needed
        # Chunks of prompts: their requests want trees when they are computed.
        chunks = [row for row in step.rows if row.next_token is None and row.end <= self._model.config.context_length]
        self._catch_up([*chunks, *(step.rows[index] for index in growing)])
        if growing:
            self._make_scratch(num_scratch)
            self._copy_unfinished([step.rows[index] for index in growing], list(growing.values()))
            self._grow(list(growing.values()))
        trees = [growing.get(index) for index in range(len(step.rows))]
        return [None if tree is None else tree.finished for tree in trees]

    def _begin(self, row: DraftRow, want: DraftSpec, next_token: int, scratch: range) -> GrowingTree:
        """Start a tree. The unfinished page and the following ones are replaced by scratch pages in the page table."""
        pages = row.pages[: row.end // PAGE_SIZE] + [self._num_pages + page for page in scratch]
        return GrowingTree(want, Row(rid="", tokens=[next_token], first_position=row.end, pages=pages))

    def _catch_up(self, rows: Sequence[DraftRow]) -> None:
        """Compute the tokens that the target has and this model lacks, those of several sequences together."""
        missing = []
        for row in rows:
            slots = self._ledger.slots(row.pages, 0, row.end)
            first = self._ledger.num_computed(slots)
            tokens = self._ledger.tokens(slots).tolist()
            for start in range(first, row.end, CATCH_UP_TOKENS):
                end = min(row.end, start + CATCH_UP_TOKENS)
                missing.append(Row(rid="", tokens=tokens[start:end], first_position=start, pages=row.pages))
            self._ledger.note_computed(slots)  # so that a later row does not compute what it shares with this one
        began = time.perf_counter()
        for batch in _batches(missing):
            self._run(batch)
        if max((len(row.tokens) for row in missing), default=0) >= MIN_CATCH_UP:
            if self._model.device.type == "cuda":
                torch.cuda.synchronize(self._model.device)
            self.caught_up = time.perf_counter() - began

    def _copy_unfinished(self, rows: Sequence[DraftRow], growing: Sequence[GrowingTree]) -> None:
        """Copy the last pages, which are not full, to where the drafts go on."""
        copies = [
            PageCopy(row.pages[row.end // PAGE_SIZE], tree.row.pages[row.end // PAGE_SIZE], row.end % PAGE_SIZE)
            for row, tree in zip(rows, growing, strict=True)
            if row.end % PAGE_SIZE
        ]
        self._pool.copy(copies)

    def _grow(self, growing: list[GrowingTree]) -> None:
        while growing:
            add_children(growing, self._model.logits(self._run([tree.row for tree in growing])))
            growing = [tree for tree in growing if not tree.is_complete]

    def _run(self, rows: list[Row]) -> torch.Tensor:
        """Return the hidden states of the rows' last tokens."""
        last = np.cumsum([len(row.tokens) for row in rows]) - 1
        kv = self._pool.layers
        if self._graphs is not None:
            replayed = self._graphs.hidden_and_features(rows, last, NO_LAST_TOKENS, features=False)
            if replayed is not None:
                return replayed[0]
        inputs = decoder_inputs(rows, self._model, last, kv[0])
        return self._model.hidden(replace(inputs, widened=last[-1] >= WIDENED_FROM), kv)  # guesses need no exactness

    def _make_scratch(self, num_pages: int) -> None:
        if num_pages <= self._scratch:
            return
        config, device, dtype = self._model.config, self._model.device, self._model.dtype
        self._scratch, self._graphs = 2 * num_pages, None  # graphs are of the old memory
        larger = KvMemory(config, self._num_pages + self._scratch, device=device, dtype=dtype)
        kept = slice(0, self._num_pages * PAGE_SIZE)
        larger.k_LSKD[:, kept] = self._memory.k_LSKD[:, kept]
        larger.v_LSKD[:, kept] = self._memory.v_LSKD[:, kept]
        self._memory, self._pool = larger, KvPool(larger, self._host)

    def _page_id(self, page: int) -> int:
        return page if page < self._num_pages else page + self._scratch
