"""EAGLE draft heads: one decoder layer that continues the target's hidden states. Knows tensors, pages and a target's
features; knows no requests, and nothing of verification."""

from __future__ import annotations

from .config import HeadConfig
from .head import EagleHead
from .load import load_head, read_fitting_config
from .source import EagleSource

__all__ = ["EagleHead", "EagleSource", "HeadConfig", "load_head", "read_fitting_config"]
