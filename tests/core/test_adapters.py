"""Adapters of a core beside a stand-in for its engine: settings that are wrong, and when memory is freed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ramiform.runtime.core.adapters import Adapters
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.lora.peft import AdapterWeights
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import (
    AdaptersChanged,
    Attach,
    CoreReady,
    CoreReply,
    Finish,
    Generate,
    LoadAdapter,
    ModelInfo,
    RequestFailed,
    Tokens,
    UnloadAdapter,
)
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import SamplingParams


class Engine:
    """Engine that records the numbers of the adapters it holds."""

    model_config = read_config(SHIPPED_MODEL)

    def __init__(self) -> None:
        self.loaded: set[int] = set()

    def load_adapter(self, number: int, weights: AdapterWeights) -> None:
        self.loaded.add(number)

    def check_adapter(self, number: int, name: str) -> None:
        assert number in self.loaded

    def unload_adapter(self, number: int) -> None:
        self.loaded.remove(number)


INFO = ModelInfo(
    name="model",
    path="/model",
    architecture="",
    num_parameters=0,
    vocab_size=0,
    context_length=0,
    dtype="float32",
    device="cpu",
    page_size=16,
    num_pages=1,
    version="",
)


def adapters(engine: Any, **settings: Any) -> Adapters:
    return Adapters(CoreConfig(**settings), engine, INFO)


@pytest.mark.parametrize(
    ("settings", "param", "named"),
    [
        ({"lora": ["sql"]}, "lora", "NAME=PATH"),
        ({"lora": ["a b=/x"]}, "lora", "a b=/x"),
        ({"lora": ["model=/x"]}, "lora", "a name of the model itself"),
        ({"lora": ["sql=/x"]}, "lora", "sql=/x"),
        ({"lora": ["sql=/x"], "deterministic": True}, "deterministic", "deterministic mode"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], param: str, named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        adapters(Engine(), **settings)
    assert caught.value.param == param


def test_an_adapter_is_freed_when_its_last_request_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = AdapterWeights(4, {(0, "o"): (torch.ones(4, 8), torch.ones(4, 8))})
    monkeypatch.setattr("ramiform.runtime.core.adapters.read_adapter", lambda *given, **settings: weights)
    engine = Engine()
    loaded = adapters(engine, lora=[f"sql={tmp_path}"])
    plain = Generate(rid="c", tokens=[1], sampling=SamplingParams())
    with pytest.raises(RequestError, match="reserved"):
        loaded.resolve(msgspec.structs.replace(plain, namespace=f"\0lora\0sql\0{weights.digest}"))
    for rid in "ab":
        asked = loaded.resolve(msgspec.structs.replace(plain, rid=rid, adapter="sql"))
        assert asked.adapter_number in engine.loaded
        assert asked.namespace.endswith(f"sql\0{weights.digest}")
    assert loaded.handle(b"", UnloadAdapter(1, "sql")) == [("all", AdaptersChanged(())), (b"", CoreReply(1))]
    with pytest.raises(RequestError, match="no LoRA adapter 'sql'"):
        loaded.resolve(msgspec.structs.replace(plain, adapter="sql"))
    for rid in "ab":
        assert len(engine.loaded) == 1
        loaded.note_answers([Tokens(rid=rid, ids=[], num_cached=0, finish=Finish("abort"))])
    assert not engine.loaded


def test_every_frontend_is_told_of_an_adapter_once_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = AdapterWeights(4, {(0, "o"): (torch.ones(4, 8), torch.ones(4, 8))})
    monkeypatch.setattr("ramiform.runtime.core.adapters.read_adapter", lambda *given, **settings: weights)
    loaded = adapters(Engine())
    assert loaded.wait_ms is None
    assert loaded.handle(b"one", Attach()) == [(b"one", CoreReady(INFO))]
    assert loaded.handle(b"one", LoadAdapter(7, "sql", str(tmp_path))) == []
    while not (replies := list(loaded.advance())):
        assert loaded.wait_ms is not None  # an idle loop asks again soon
    (receiver, changed), answer = replies
    assert (receiver, answer) == ("all", (b"one", CoreReply(7)))
    assert isinstance(changed, AdaptersChanged)
    assert [adapter.name for adapter in changed.adapters] == ["sql"]
    [(_, ready)] = loaded.handle(b"two", Attach())
    assert ready.info.adapters == changed.adapters


def test_a_request_for_no_adapter_fails() -> None:
    message = Generate(rid="a", tokens=[1], sampling=SamplingParams(), adapter="sql")
    [(owner, failed)] = adapters(Engine()).handle(b"one", message)
    assert owner == b"one"
    assert isinstance(failed, RequestFailed)
    assert (failed.rid, failed.error.code) == ("a", "model_not_found")


def test_a_runtime_that_exchanges_kv_refuses_adapters(tmp_path: Path) -> None:
    exchanging = adapters(Engine(), transfer_bind=f"ipc://{tmp_path}/kv")
    for message in (LoadAdapter(1, "sql", "/x"), UnloadAdapter(1, "sql")):
        [(_, reply)] = exchanging.handle(b"one", message)
        assert "exchange KV" in reply.error.message
