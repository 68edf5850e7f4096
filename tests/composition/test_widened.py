"""Weights of codes, requests together and alone: a row's products are a matter of its own request.

Where the processor has tiles, layers widen such weights for the rows of long prompts and for no others, so a step may
compute both. Judge: each request alone, without guesses, in one chunk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from ramiform.kernels.cpu.products.amx import usable
from ramiform.kernels.widening import WIDENED_FROM
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.tests.models.gguf_files import write_gguf

from .alone import run
from .test_speculation import check, make_requests

TOLERANCE = 1e-5  # of log-probabilities: those of widened weights and of codes differ by more
SETTINGS: dict[str, Any] = {"prefix_cache": False, "speculative": "off"}
CELLS: dict[str, dict[str, Any]] = {
    "mixed steps": {},
    "chunks": {"prefill_budget": 40},
    "guesses": {"speculative": "ngram", "speculative_adaptive": False},
    "overlap": {"overlap": "on"},
    "few pages": {"num_pages": 24},
}
REQUESTS = make_requests(16, seed=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dense = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return write_gguf(dense, path, lambda name: Type.Q4_0 if "attn_" in name or "ffn_" in name else Type.F32)


def engine_of(model: Path, **settings: Any) -> ForwardEngine:
    config = {"device": "cpu", "dtype": "float32", "num_pages": 512} | SETTINGS | settings
    return build_engine(CoreConfig(**config), model)


@pytest.mark.exhaustive
@pytest.mark.skipif(not usable(), reason="needs a processor with tiles")
@pytest.mark.parametrize("cell", CELLS)
def test_requests_together_answer_as_each_does_alone(cell: str, model: Path) -> None:
    engine, alone = engine_of(model, **CELLS[cell]), engine_of(model)
    assert engine.info.widened_from == WIDENED_FROM
    wanted = {request.rid: run([request], engine=alone, **SETTINGS)[0][request.rid] for request in REQUESTS}
    for stagger in (0, 1):
        got, _, plans = run(REQUESTS, engine=engine, stagger=stagger, **SETTINGS | CELLS[cell])
        check(got, wanted, TOLERANCE)
        assert {True, False} in [{row.widened for row in plan.rows} for plan in plans]


@pytest.mark.exhaustive
def test_deterministic_mode_widens_nothing(model: Path) -> None:
    assert engine_of(model, deterministic=True).info.widened_from == 0
