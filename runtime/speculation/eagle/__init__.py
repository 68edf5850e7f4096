"""EAGLE draft heads: one decoder layer that continues the target's hidden states."""

from __future__ import annotations

from .config import HeadConfig
from .head import EagleHead
from .load import load_head, read_fitting_config, tensor_names
from .source import EagleSource

__all__ = ["EagleHead", "EagleSource", "HeadConfig", "load_head", "read_fitting_config", "tensor_names"]
