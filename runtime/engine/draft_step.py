"""What a draft source is told of a step once its result is known: what was computed for good.

Legend: R rows, T tokens of the step, E hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..scheduler.plan import Row, RowResult
from ..speculation.draft_source import DraftRow, DraftStep


def draft_step(
    rows: Sequence[Row], results: Sequence[RowResult], starts_R: Sequence[int], features_TE: torch.Tensor | None
) -> DraftStep:
    """`starts_R` says where each row's tokens start in the step; `features_TE` are those of all of them."""
    if all(row.parents is None for row in rows):
        return DraftStep(
            [
                DraftRow(
                    row.tokens, row.first_position, row.pages, result.tokens[-1] if result.tokens else None, row.draft
                )
                for row, result in zip(rows, results, strict=True)
            ],
            features_TE,
        )
    kept_rows, indices = [], []
    for index, row in enumerate(rows):
        tokens, num_committed = results[index].tokens, row.num_committed
        kept_rows.append(
            DraftRow(
                kept=row.tokens[:num_committed] + tokens[:-1],
                first_position=row.first_position,
                pages=row.pages,
                next_token=tokens[-1] if tokens else None,
                want=row.draft,
            )
        )
        start = starts_R[index]
        indices.extend(range(start, start + num_committed))
        node = -1
        for token in tokens[:-1]:
            node = next(
                child
                for child, parent in enumerate(row.parents or ())
                if parent == node and row.tokens[num_committed + child] == token
            )
            indices.append(start + num_committed + node)
    if features_TE is not None and len(indices) < len(features_TE):
        features_TE = features_TE[torch.tensor(indices, device=features_TE.device)]
    return DraftStep(kept_rows, features_TE)
