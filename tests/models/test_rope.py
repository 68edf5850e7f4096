"""Rope frequencies. Judge: transformers, for the same config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ramiform.runtime.models.config_fields import ConfigFields
from ramiform.runtime.models.rope.angles import Rope, rope_amplitude, rope_frequencies
from ramiform.runtime.models.rope.config import parse_rope

factors = st.floats(1.0, 40.0)
originals = st.integers(16, 8192)
llama3 = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "factor": factors,
        "low_freq_factor": st.floats(0.5, 2.0),
        "high_freq_factor": st.floats(2.5, 8.0),
        "original_max_position_embeddings": originals,
    }
)
yarn = st.fixed_dictionaries(
    {"rope_type": st.just("yarn"), "factor": factors, "original_max_position_embeddings": originals},
    optional={
        "beta_fast": st.floats(2.0, 64.0),
        "beta_slow": st.floats(0.1, 1.5),
        "truncate": st.booleans(),
        "attention_factor": st.floats(0.5, 2.0),
        "mscale": st.floats(0.5, 2.0),
        "mscale_all_dim": st.floats(0.5, 2.0),
    },
)
linear = st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": factors})
dynamic = st.fixed_dictionaries({"rope_type": st.just("dynamic"), "factor": factors})


@pytest.mark.slow
@given(
    rope=llama3 | yarn | linear | dynamic,
    head_dim=st.sampled_from([4, 16, 64, 128]),
    theta=st.sampled_from([100.0, 10_000.0, 1e6]),
    length=st.integers(1, 500),
)
@settings(max_examples=150, deadline=None)
def test_frequencies_and_amplitude_equal_those_of_transformers(
    rope: dict[str, Any], head_dim: int, theta: float, length: int
) -> None:
    parameters = {**rope, "rope_theta": theta}
    raw = {"rope_parameters": parameters, "max_position_embeddings": 128}
    config = parse_rope(ConfigFields(raw, Path("config.json")), 128, head_dim)
    judge = LlamaConfig(head_dim=head_dim, max_position_embeddings=128, rope_parameters=dict(parameters))
    want, want_amplitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](judge, torch.device("cpu"), seq_len=length)
    if rope["rope_type"] == "dynamic":
        got = Rope(config, head_dim, device=torch.device("cpu"), dtype=torch.float32)
        cos, _ = got.angles(torch.tensor([1]), torch.tensor([length]))
        torch.testing.assert_close(cos[0, 0, : head_dim // 2], want.cos(), atol=1e-5, rtol=1e-5)
    else:
        torch.testing.assert_close(rope_frequencies(config, head_dim), want, atol=1e-7, rtol=1e-4)
    assert rope_amplitude(config) == pytest.approx(want_amplitude)
