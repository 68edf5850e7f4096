"""Runs forward plans on a device: the model, its KV pool and the sampler. Knows no requests, queues or sockets."""

from __future__ import annotations

from .build import build_engine
from .engine import Engine, EngineInfo
from .kv_pool import PAGE_SIZE, KvMemory, KvPool

__all__ = ["PAGE_SIZE", "Engine", "EngineInfo", "KvMemory", "KvPool", "build_engine"]
