"""Keeps the features of pictures, so that each is computed once for all chunks, branches and requests.

Legend: T tokens of a step, N of them that stand for features, E hidden size.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...protocol.metrics import WAIT_BUCKETS, Histogram
from ...protocol.pictures import Picture, RowPicture
from ..parallel.group import Group
from .tower import PictureTower

logger = logging.getLogger("ramiform.core")


class StepFeatures(NamedTuple):
    """Inputs of the first layer in place of tokens' embeddings, and what is added behind the first layers (DeepStack,
    Meng et al. 2024, section 3)."""

    tokens_N: torch.Tensor  # int64, indices among the step's tokens
    features_NX: torch.Tensor  # E for the first layer's input, then E for each layer that has some added

    def put_into(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input with the features in place of embeddings."""
        return x_TE.index_copy(0, self.tokens_N, self.features_NX[:, : x_TE.shape[1]].to(x_TE.dtype))

    def is_deep(self, hidden_size: int) -> bool:
        """Return True if layers have features added."""
        return self.features_NX.shape[1] > hidden_size

    def add_behind(self, layer: int, stream_TE: torch.Tensor) -> torch.Tensor:
        """Return the residual stream behind a layer, with the layer's features added."""
        E = stream_TE.shape[1]
        own_NE = self.features_NX[:, (layer + 1) * E : (layer + 2) * E]
        return stream_TE.index_add(0, self.tokens_N, own_NE.to(stream_TE.dtype)) if own_NE.shape[1] else stream_TE


class PictureFeatures:
    """Features of pictures by their keys, on the host, in at most `max_bytes`; those used last stay.

    Of the ranks of `group` the first has a `tower`; the others get its features, and keep the same ones.
    """

    def __init__(
        self,
        tower: PictureTower | None,
        max_bytes: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        group: Group,
    ) -> None:
        self.passes = Histogram.over(WAIT_BUCKETS)  # of the tower, in seconds
        self.num_reused = 0  # pictures of prompts whose features were kept
        self._tower, self._max_bytes, self._group = tower, max_bytes, group
        self._device, self._dtype = device, dtype
        width = torch.tensor([0 if tower is None else tower.width], dtype=torch.float32, device=device)
        self._width = int(group.all_reduce(width).item())
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._num_bytes = 0

    def of_step(self, pictures: Sequence[tuple[int, RowPicture]]) -> StepFeatures:
        """Return the features of a step. `pictures` are the parts of its rows, each with the row's first token."""
        tokens = [np.arange(start + part.start, start + part.start + part.count) for start, part in pictures]
        features = [self._of(part)[part.first : part.first + part.count] for _, part in pictures]
        tokens_N = torch.from_numpy(np.concatenate(tokens)).to(self._device)
        return StepFeatures(tokens_N, torch.cat(features).to(self._device))

    def _of(self, part: RowPicture) -> torch.Tensor:
        """Return the features of a part's whole picture."""
        key = part.picture.key
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._computed(part.picture)
            self._num_bytes += found.nbytes
        elif part.first == 0:  # further parts are of the same prompt
            self.num_reused += 1
        self._kept.move_to_end(key)
        while self._num_bytes > self._max_bytes and len(self._kept) > 1:
            self._num_bytes -= self._kept.popitem(last=False)[1].nbytes
        return found

    def _computed(self, picture: Picture) -> torch.Tensor:
        start = time.perf_counter()
        shape = picture.num_features, self._width
        if self._tower is None:  # the sum with the first rank's is the first rank's
            found = torch.zeros(shape, device=self._device, dtype=self._dtype)
        elif (found := self._tower.features(picture).to(self._dtype)).shape != shape:
            # Its requests fail by their logits, which are no numbers then; those beside them do not.
            logger.error("%d features for %d placeholders of an image", len(found), picture.num_features)
            found = found.new_full(shape, torch.nan)
        found = self._group.all_reduce(found).cpu()
        self.passes.observe(time.perf_counter() - start)
        return found
