"""Prefixes from the disk change no token, whatever form keys and values have, and beside whatever else.

Requests run once with an empty disk cache and once with what that left. Judge: each request by itself, without any
cache, with keys and values of the same format.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ramiform.runtime.disk.segment import HEAD_BYTES
from ramiform.runtime.engine import build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import CoreStats, DiskStats
from ramiform.runtime.protocol.errors import RequestError
from ramiform.tests.disk.damage import damage

from .alone import run
from .one_model import TO_RUN, alone
from .test_hybrid import FIELDS as HYBRID_FIELDS
from .test_hybrid import make_model
from .test_latent import FIELDS as LATENT_FIELDS
from .test_speculation import check
from .test_windows import FIELDS as WINDOW_FIELDS
from .test_windows import KINDS

PLAIN: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_pages": 512, "speculative": "off"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "few pages, chunks, drafts": {"speculative": "ngram", "num_pages": 24, "prefill_budget": 48},
    "few pages, host memory": {"num_pages": 24, "host_kv_memory": 0.002},
    "overlap": {"overlap": "on"},
    "deterministic": {"deterministic": True},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(kind: str) -> Path:
        if kind == "shipped":
            return SHIPPED_MODEL
        torch.set_num_threads(1)
        torch.manual_seed(3)
        folder = tmp_path_factory.mktemp("checkpoint")
        if kind == "latent":
            config: Any = transformers.DeepseekV3Config(**LATENT_FIELDS)
        else:
            config = transformers.Gemma3TextConfig(**{**WINDOW_FIELDS, "vocab_size": 2048, **KINDS["Gemma3Text"]})
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    return make


def engine_of(path: Path, **settings: Any) -> Any:
    return build_engine(CoreConfig(**PLAIN | settings), path)


def disk_of(stats: CoreStats) -> DiskStats:
    assert stats.disk is not None
    assert stats.disk.is_writer is False, "it is closed"
    assert not stats.disk.has_failed
    assert stats.disk.num_damaged == 0
    return stats.disk


def check_twice(path: Path, folder: Path, expected: Any, tolerance: float, **settings: Any) -> None:
    """Run requests with an empty disk cache, and again in a new process's state with a full one."""
    settings = {**PLAIN, "disk_cache": str(folder), "disk_memory": 1.0} | settings
    engine = engine_of(path, **settings)
    for is_full in (False, True):
        got, stats, _ = run(TO_RUN, engine=engine, path=path, **settings)
        check(got, expected, tolerance)
        disk = disk_of(stats)
        assert is_full == (disk.num_hit_tokens > 0) or settings["num_pages"] < 64
    assert disk.num_hit_tokens >= 0.6 * sum(
        len(request.tokens) // 16 * 16 for request in TO_RUN if len(request.tokens) > 32
    )


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["auto", "bf16", "fp8", "fp8_e5m2", "int8", "int4"])
def test_any_format_of_keys_and_values_comes_back(kv_dtype: str, models: Any, tmp_path: Path) -> None:
    plain = {**PLAIN, "kv_dtype": kv_dtype, "prefix_cache": False}
    engine = engine_of(SHIPPED_MODEL, **plain)
    expected = {request.rid: run([request], engine=engine, **plain)[0][request.rid] for request in TO_RUN}
    check_twice(SHIPPED_MODEL, tmp_path / "disk", expected, 1e-3, kv_dtype=kv_dtype)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latent", "windows"])
def test_latent_pages_and_windows_come_back(kind: str, models: Any, tmp_path: Path) -> None:
    path = models(kind)
    check_twice(path, tmp_path / "disk", alone(path), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_requests_get_the_same_in_any_schedule(name: str, tmp_path: Path) -> None:
    settings = SCHEDULES[name]
    plain = {**PLAIN, "prefix_cache": False, "deterministic": settings.get("deterministic", False)}
    engine = engine_of(SHIPPED_MODEL, **plain)
    expected = {request.rid: run([request], engine=engine, **plain)[0][request.rid] for request in TO_RUN}
    check_twice(SHIPPED_MODEL, tmp_path / "disk", expected, 1e-3, **settings)


def test_another_format_finds_nothing(tmp_path: Path) -> None:
    settings = {**PLAIN, "disk_cache": str(tmp_path), "disk_memory": 1.0}
    run(TO_RUN[:2], **settings)
    _, stats, _ = run(TO_RUN[:2], **settings)
    assert disk_of(stats).num_hit_tokens > 0
    for other in ({"kv_dtype": "bf16"}, {"context_length": 512}, {"deterministic": True}):
        _, stats, _ = run(TO_RUN[:2], **settings | other)
        assert disk_of(stats).num_hit_tokens == 0, other


def test_hybrid_models_are_refused_by_name(tmp_path: Path) -> None:
    _, path = make_model(transformers.Qwen3NextConfig(**HYBRID_FIELDS), tmp_path / "model")
    settings = {**PLAIN, "disk_cache": str(tmp_path / "disk")}
    with pytest.raises(RequestError, match="recurrent") as refused:
        run(TO_RUN[:1], engine=engine_of(path, **settings), path=path, **settings)
    assert refused.value.param == "disk_cache"


def check_damaged(folder: Path, seed: int, expected: Any, engine: Any) -> int:
    """Damage the files of a disk cache, and run requests with it. Returns the number of tokens from the disk."""
    luck = random.Random(seed)
    for _ in range(luck.randint(1, 4)):
        damage(folder, HEAD_BYTES + engine.kv_shape.page_bytes, luck)
    settings = {**PLAIN, "disk_cache": str(folder), "disk_memory": 1.0}
    got, stats, _ = run(TO_RUN, engine=engine, **settings)
    check(got, expected, 1e-3)
    assert stats.disk is not None
    return stats.disk.num_hit_tokens


@pytest.mark.slow
def test_damaged_files_change_no_token(tmp_path: Path) -> None:
    engine = engine_of(SHIPPED_MODEL)
    run(TO_RUN, engine=engine, **PLAIN, disk_cache=str(tmp_path), disk_memory=1.0)
    found = [check_damaged(tmp_path, seed, alone(SHIPPED_MODEL), engine) for seed in range(6)]
    assert sum(found) > 0
