"""Positions at which a step samples, and verification of draft trees by the samples.

A row has one output for its last committed token and one for each node of its draft tree. Each output is sampled by
itself, with the parameters and the random seed that plain decoding would use there. The walk along the samples then
gives plain decoding's tokens, so drafts change the cost of a step and never its tokens (docs/inside/decisions/0009).

Legend: O outputs, N nodes, M moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch

from ...kernels import Deferred, Ops, compact_kv, to_device, to_host
from ..scheduler.drafts.tree import depths, is_chain
from ..scheduler.plan import Row, Sample
from .kv_pool import PAGE_SIZE, KvPool


class SampledPositions(msgspec.Struct, frozen=True):
    """Outputs of the rows that sample, in order: row r has the outputs [starts[r], starts[r + 1])."""

    rows: list[Row]
    samples: list[Sample]
    masks: list[bytes | None]
    starts: list[int]

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> SampledPositions:
        samples: list[Sample] = []
        masks: list[bytes | None] = []
        starts = [0]
        sampling = list(rows)
        for row in sampling:
            assert row.sample is not None
            samples.append(row.sample)
            masks.append(row.mask)
            if row.parents is not None:
                assert len(row.nodes) == len(row.parents) < len(row.tokens), (
                    "a node lacks its sampling, or the tree has no root"
                )
                samples += _node_samples(row)
                masks += [node.mask for node in row.nodes]
            starts.append(len(samples))
        return cls(sampling, samples, masks, starts)

    def __len__(self) -> int:
        return len(self.samples)

    def verify(self, ops: Ops, tokens_O: torch.Tensor, pool: KvPool) -> Deferred[tuple[list[int], list[list[int]]]]:
        """Return the sampled tokens, and for each row its outputs on the path that they confirm, the root first.

        The KV of confirmed nodes is moved behind that of the committed tokens.
        """
        trees = [r for r, row in enumerate(self.rows) if row.parents]
        if not trees:
            pending = to_host([tokens_O])
            return lambda: (pending()[0].tolist(), [[output] for output in range(len(self))])
        device, guessed, parents, max_depth = tokens_O.device, [-1] * len(self), list(range(len(self))), 0
        for r in trees:
            row, root = self.rows[r], self.starts[r]
            assert row.parents is not None
            guessed[root + 1 : self.starts[r + 1]] = row.tokens[row.num_committed :]
            parents[root + 1 : self.starts[r + 1]] = [root + 1 + parent for parent in row.parents]
            max_depth = max(max_depth, *depths(row.parents))
        guessed_O, parents_O = to_device([np.array(guessed), np.array(parents)], device)
        on_way_O = ops.walk_trees(tokens_O, guessed_O, parents_O, max_depth=max_depth)
        routes = () if pool.routes is None else (pool.routes.memory_1SLK,)
        self._compact(on_way_O, trees, [row.pages for row in self.rows], [*routes, *pool.memories])
        if pool.windows is not None:
            self._compact(on_way_O, trees, [row.window_pages for row in self.rows], pool.windows.memory.parts)
        pending = to_host([tokens_O, on_way_O])

        def read() -> tuple[list[int], list[list[int]]]:
            tokens, on_way = (array.tolist() for array in pending())
            spans = zip(self.starts[:-1], self.starts[1:], strict=True)
            return tokens, [[output for output in range(*span) if on_way[output]] for span in spans]

        return read

    def _compact(
        self,
        on_way_O: torch.Tensor,
        trees: Sequence[int],
        pages_R: Sequence[Sequence[int]],
        memories: Sequence[torch.Tensor],
    ) -> None:
        nodes: list[int] = []
        slots, moves, targets = ([np.empty(0, dtype=np.int64)] for _ in range(3))
        num_moves = 0
        for r in trees:
            row = self.rows[r]
            assert row.parents is not None
            if is_chain(row.parents):
                continue  # a chain's KV is in place
            depth_N = np.array(depths(row.parents))
            places = row.first_position + row.num_committed + np.arange(len(depth_N))
            own = np.asarray(pages_R[r])[places // PAGE_SIZE] * PAGE_SIZE + places % PAGE_SIZE
            nodes.extend(range(self.starts[r] + 1, self.starts[r + 1]))
            slots.append(own)
            moves.append(num_moves + depth_N - 1)
            targets.append(own[: depth_N.max()])
            num_moves += int(depth_N.max())
        if not nodes or not len(memories[0]):
            return
        columns = [np.array(nodes), *(np.concatenate(column) for column in (slots, moves, targets))]
        nodes_N, slots_N, moves_N, targets_M = to_device(columns, on_way_O.device)
        on_way_N = on_way_O[nodes_N]
        compact_kv(memories, on_way_N, slots_N, moves_N, targets_M)


def _node_samples(row: Row) -> list[Sample]:
    """Return the Sample of each node: the row's, with the node's draw and DRY, and the penalties of the path to it."""
    base = row.sample
    assert base is not None
    assert row.parents is not None
    own = [
        msgspec.structs.replace(
            base,
            draw=node.draw,
            dry=node.dry,
            temperature=base.temperature if node.temperature is None else node.temperature,
        )
        for node in row.nodes
    ]
    if base.penalties is None:
        return own
    samples: list[Sample] = []
    outputs: list[list[int]] = []
    draft_tokens = row.tokens[row.num_committed :]
    for token, parent, sample in zip(draft_tokens, row.parents, own, strict=True):
        before = base.penalties.output if parent < 0 else outputs[parent]
        outputs.append([*before, token])
        penalties = msgspec.structs.replace(base.penalties, output=outputs[-1])
        samples.append(msgspec.structs.replace(sample, penalties=penalties))
    return samples
