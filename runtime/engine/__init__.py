"""Engine: runs forward plans on a device with the model, its KV pool and the sampler."""

from __future__ import annotations

from .build import build_engine
from .engine import EngineInfo, ForwardEngine
from .kv_pool import PAGE_SIZE, KvMemory, KvPool

__all__ = ["PAGE_SIZE", "EngineInfo", "ForwardEngine", "KvMemory", "KvPool", "build_engine"]
