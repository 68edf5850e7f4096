"""The draft source that is chosen by default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.speculation import build
from ramiform.runtime.speculation.build import choose_source, resolve_speculation


def test_a_head_drafts_by_default_where_a_pass_of_the_model_is_worth_saving(tmp_path: Path) -> None:
    config = json.loads((SHIPPED_MODEL / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 100}), "utf-8")
    default = CoreConfig(device="cpu")
    assert choose_source(default, tmp_path) == "off"  # no head
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}", "utf-8")
    assert choose_source(default, tmp_path) == "eagle"
    assert choose_source(default, SHIPPED_MODEL) == "off"
    assert choose_source(CoreConfig(device="cpu", speculative="eagle"), SHIPPED_MODEL) == "eagle"


def test_the_default_source_of_models_without_a_head_is_one_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((SHIPPED_MODEL / "config.json").read_text("utf-8"))
    monkeypatch.setattr(build, "DEFAULT_SOURCE", "suffix")
    for scaling in ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}):
        (tmp_path / "config.json").write_text(json.dumps(config | scaling), "utf-8")
        assert choose_source(CoreConfig(device="cpu"), tmp_path) == "suffix"
    assert choose_source(CoreConfig(device="cpu", speculative="off"), tmp_path) == "off"


def test_heads_draft_chains_on_a_cpu_unless_told_otherwise() -> None:
    assert resolve_speculation(CoreConfig(device="cpu", speculative="eagle"), SHIPPED_MODEL).speculative_eagle_topk == 1
    asked = CoreConfig(device="cpu", speculative="eagle", speculative_eagle_topk=4)
    assert resolve_speculation(asked, SHIPPED_MODEL).speculative_eagle_topk == 4
    assert (
        resolve_speculation(CoreConfig(device="cpu", speculative="ngram"), SHIPPED_MODEL).speculative_eagle_topk is None
    )
