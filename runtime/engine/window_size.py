"""Window pages: which models have pages of their own for their layers with a sliding window, and how many."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import ceil

import torch

from ..models.config import ModelConfig
from ..models.parallel.group import Group
from ..protocol.config import CoreConfig
from .kv_pool import PAGE_SIZE, bytes_per_page

logger = logging.getLogger("ramiform.engine")

DEFAULT_RATIO = 0.5  # short requests need as many pages of each kind, long ones few window pages
_STEP_SLACK = 4  # window pages that a sequence holds besides those of its window and of a step's tokens
_LEAST_RATIO = 1 / 1024  # where all layers have a window: other pages take no memory


@dataclass(frozen=True)
class WindowShare:
    """Division of the KV memory among layers without and with a window."""

    window: int  # the longest of the layers' windows
    has_window: tuple[bool, ...]  # by layer
    ratio: float  # window pages for each page
    num_step_pages: int  # pages of a step's tokens
    num_sink_pages: int = 0
    may_double: bool = False  # where pages are as many as are of use, there may be up to twice as many window pages

    @property
    def num_window_layers(self) -> int:
        return sum(self.has_window)

    @property
    def num_full_layers(self) -> int:
        return len(self.has_window) - self.num_window_layers

    def page_bytes(self, config: ModelConfig, dtype: torch.dtype, *, is_scaled: bool = False) -> int:
        """Return the bytes of a page of layers without a window, and of the window pages that come with it."""
        each = bytes_per_page(config, dtype, is_scaled=is_scaled) / config.num_kv_layers
        return max(1, ceil(each * (self.num_full_layers + self.ratio * self.num_window_layers)))

    def num_window_pages(self, num_pages: int) -> int:
        """Return the number of window pages beside `num_pages` pages."""
        count = ceil(self.ratio * num_pages)
        return min(max(count, self._least), 2 * count) if self.may_double else count

    @property
    def _least(self) -> int:
        """Window pages of one sequence and a step's tokens."""
        return (self.window - 1) // PAGE_SIZE + _STEP_SLACK + self.num_step_pages + self.num_sink_pages

    def suffices(self, num_pages: int) -> bool:
        """Return True, and log it, if the window pages beside `num_pages` pages hold a window and a step's tokens."""
        count = self.num_window_pages(num_pages)
        if self._least <= count < num_pages:
            logger.info("%d pages, and %d for the layers with a window of %d tokens", num_pages, count, self.window)
            return True
        logger.info("layers with a window keep all pages: %d window pages are too few, or as many as pages", count)
        return False


def default_ratio(model: ModelConfig, context_length: int) -> float:
    """Return the window pages for each page of a model with windows, where nothing is set."""
    windows = [window for window in model.windows if window is not None]
    if len(windows) < model.num_layers:
        return DEFAULT_RATIO
    return max(_LEAST_RATIO, min(DEFAULT_RATIO, max(windows) / context_length))  # other pages take no memory


def window_share(
    config: CoreConfig, model: ModelConfig, group: Group, device: torch.device, context_length: int
) -> WindowShare | None:
    """Return the division for a model whose windows are shorter than its context; None: pages hold all layers'."""
    windows = [window for window in model.windows if window is not None]
    if not windows or config.window_ratio == 1 or max(windows) >= context_length:
        return None
    reasons = {
        "--host-kv-memory": config.host_kv_memory > 0,
        "--disk-cache": config.disk_cache is not None,
        "--model-impl transformers": not model.is_native,
        "--pp": group.stage.size > 1,
        "--deterministic on CUDA devices": device.type == "cuda" and config.deterministic,
        "the transfer of pages": config.transfer_bind is not None or config.prefill_workers is not None,
        "recurrent layers": model.recurrent is not None,
        "latent attention": model.latent is not None,
    }
    used = [name for name, is_used in reasons.items() if is_used]
    if used:
        logger.info("layers with a window keep all pages: window pages do not go with %s", " and ".join(used))
        return None
    return WindowShare(
        int(max(windows)),  # a chunk sees no more than a window of its size
        tuple(window is not None for window in model.windows),
        config.window_ratio or default_ratio(model, context_length),
        -(-config.prefill_budget // PAGE_SIZE),
        0 if model.streaming is None else -(-model.streaming.num_sinks // PAGE_SIZE),
        may_double=len(windows) == model.num_layers and config.kv_memory is None and config.num_pages is None,
    )
