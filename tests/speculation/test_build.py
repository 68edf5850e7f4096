"""The draft source that is chosen by default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.speculation import build
from ramiform.runtime.speculation.build import choose_source, head_folder, resolve_speculation


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


def test_the_head_of_a_file_lies_beside_it(tmp_path: Path) -> None:
    assert head_folder(SHIPPED_MODEL) == SHIPPED_MODEL / "draft"
    assert head_folder(tmp_path / "a.Q4_0.gguf") == tmp_path / "a.Q4_0-draft"
    assert head_folder(tmp_path / "big-00001-of-00003.gguf") == tmp_path / "big-draft"


@pytest.mark.parametrize(
    ("given", "source", "message"),
    [
        (SHIPPED_MODEL / "draft", "draft", "an EAGLE head, which --speculative eagle drafts with"),
        (SHIPPED_MODEL / "draft", "medusa", "an EAGLE head, which --speculative eagle drafts with"),
        (SHIPPED_MODEL, "eagle", "a whole model, which --speculative draft drafts with"),
        (SHIPPED_MODEL, "medusa", "a whole model"),
        ("medusa", "draft", "a folder of Medusa heads, which --speculative medusa drafts with"),
        ("small.gguf", "eagle", "a whole model"),
    ],
)
def test_a_head_given_as_a_model_and_a_model_given_as_a_head_are_named(
    given: Path | str, source: str, message: str, tmp_path: Path
) -> None:
    if given == "medusa":
        (tmp_path / given).mkdir()
        (tmp_path / given / "config.json").write_text('{"medusa_num_heads": 2}', "utf-8")
    path = str(tmp_path / given)
    config = CoreConfig(device="cpu", speculative=source, speculative_draft_model=path)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=message) as refused:
        choose_source(config, SHIPPED_MODEL)
    assert refused.value.param == "speculative_draft_model"
    right = message.removeprefix("a").split("--speculative ")[-1].split()[0] if "--speculative" in message else "draft"
    own = CoreConfig(device="cpu", speculative=right, speculative_draft_model=path)  # type: ignore[arg-type]
    assert choose_source(own, SHIPPED_MODEL) == right


@pytest.mark.parametrize("other", ["size", "tokens"])
def test_a_draft_model_of_another_vocabulary_is_refused_before_anything_is_loaded(other: str, tmp_path: Path) -> None:
    target = read_config(SHIPPED_MODEL)
    raw = json.loads((SHIPPED_MODEL / "config.json").read_text("utf-8"))
    tokenizer = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text("utf-8"))
    if other == "size":
        raw["vocab_size"] += 64
    else:
        vocabulary = tokenizer["model"]["vocab"]
        first, second = list(vocabulary)[300:302]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    for name, content in (("config.json", raw), ("tokenizer.json", tokenizer)):  # and no weights
        (tmp_path / name).write_text(json.dumps(content), "utf-8")
    config = CoreConfig(device="cpu", speculative="draft", speculative_draft_model=str(tmp_path))
    message = f"has {target.vocab_size + 64} tokens, the model" if other == "size" else "has other tokens than"
    with pytest.raises(RequestError, match=message) as refused:
        build.draft_bytes(config, SHIPPED_MODEL, target, torch.float32)
    assert refused.value.param == "speculative_draft_model"
