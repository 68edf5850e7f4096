"""The draft source that is chosen by default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ramiform import loops
from ramiform.runtime.engine import build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.packed_linear import PackedLinear
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.speculation import build
from ramiform.runtime.speculation.build import build_source, choose_source, head_folder, resolve_speculation
from ramiform.tests.composition.naive_mtp import make_checkpoint


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


def parts_of(value: object, seen: set[int]) -> Iterator[object]:
    """Iterate over the objects of this package that a value is made of."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, list | tuple):
        inside = list(value)
    elif type(value).__module__.startswith("ramiform."):
        yield value
        slots = [getattr(value, name, None) for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        inside = [*getattr(value, "__dict__", {}).values(), *slots]
    else:
        return
    for part in inside:
        yield from parts_of(part, seen)


@pytest.mark.parametrize("source", ["draft", "early-exit", "eagle", "medusa", "mtp"])
def test_sources_draft_with_the_loops_that_are_loaded_after_them(source: str, tmp_path: Path) -> None:
    """A runtime loads its loops when it is ready: a source that did not hear of them drafted with plain torch."""
    model, draft = SHIPPED_MODEL, {"draft": SHIPPED_MODEL, "medusa": tmp_path}.get(source)
    if source == "medusa":
        (tmp_path / "config.json").write_text('{"medusa_num_heads": 1, "medusa_num_layers": 1}', "utf-8")
        config = read_config(model)
        E, V = config.hidden_size, config.vocab_size
        heads = {"0.0.linear.weight": torch.zeros(E, E), "0.1.weight": torch.zeros(V, E)}
        save_file(heads, tmp_path / "medusa_lm_head.safetensors")
    if source == "mtp":
        make_checkpoint("deepseek", tmp_path, 1)
        model = tmp_path
    settings = CoreConfig(
        device="cpu",
        dtype="float32",
        num_pages=128,
        speculative=source,  # type: ignore[arg-type]
        speculative_draft_model=None if draft is None else str(draft),
    )
    loops.postpone("ramiform.kernels")
    try:
        resolved = resolve_speculation(settings, model)
        engine = build_engine(resolved, model, make_source=partial(build_source, resolved, model))
    finally:
        loops.allow("ramiform.kernels")
    made = engine._runner.source
    before = list(parts_of(made, set()))
    assert any(isinstance(part, PackedLinear) and part.matrix is None for part in before)
    engine.use_loops()
    parts = list(parts_of(made, set()))
    assert all(part.matrix is not None for part in parts if isinstance(part, PackedLinear))
    assert not [part for part in parts if getattr(part, "name", None) == "plain-cpu"]
    if source == "eagle":
        assert made._compiled is not None  # type: ignore[union-attr]
