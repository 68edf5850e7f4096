"""Memory that an engine gives back: the system has it, and afterwards the engine computes the same bits."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ramiform.kernels.huge_pages import give_back, zeros_in_huge_pages
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, Sample

MIB = 1 << 20


def resident() -> int:
    """Bytes of this process that the system holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 100 MiB."""
    path = tmp_path_factory.mktemp("checkpoint")
    config = transformers.Qwen2Config(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def computed(engine: ForwardEngine) -> list[tuple[float, int]]:
    sample = Sample(temperature=0.0, draw=0, num_top_logprobs=8)
    row = Row(rid="a", tokens=list(range(5, 15)), first_position=0, pages=[2], sample=sample)
    return engine.run(ForwardPlan(step=1, copies=[], rows=[row])).rows[0].logprobs[0].top


@pytest.mark.slow
def test_the_system_has_what_an_engine_releases(checkpoint: Path) -> None:
    engine = build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=256), checkpoint)
    before = computed(engine)
    for memory in engine._runner.pool.memories:
        memory.fill_(1.0)  # all of it is resident
    kv_bytes, weight_bytes = engine.info.kv_bytes, 4 * engine.info.num_parameters
    assert min(kv_bytes, weight_bytes) > 60 * MIB
    model, start = weakref.ref(engine._runner.model), resident()
    engine.check_release()
    engine.release_memory(["kv_cache"])
    without_kv = resident()
    assert start - without_kv > 0.9 * kv_bytes
    assert computed(engine) == before
    engine.release_memory(["weights"])
    gc.collect()
    assert model() is None
    assert without_kv - resident() > 0.8 * weight_bytes
    engine.use_loops()  # which come while there are no weights
    engine.prepare_weights(None)
    engine.take_weights()
    assert computed(engine) == before


def test_weights_come_from_where_they_were_or_from_an_update(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    for file in ("config.json", "model.safetensors"):
        (served / file).write_bytes((SHIPPED_MODEL / file).read_bytes())
    engine = build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=16), served)
    before = computed(engine)
    tensors = load_file(served / "model.safetensors")
    save_file({name: 1.3 * tensor for name, tensor in tensors.items() if "q_proj" in name}, tmp_path / "some")
    engine.prepare_weights(str(tmp_path / "some"))
    engine.take_weights()
    (tmp_path / "some").unlink()
    changed = computed(engine)
    assert changed != before
    engine.release_memory(["weights", "kv_cache"])
    engine.release_memory(["weights"])  # again
    engine.prepare_weights(None)  # those of the update
    engine.take_weights()
    assert computed(engine) == changed
    engine.release_memory(["weights"])
    (served / "model.safetensors").unlink()
    with pytest.raises(RequestError, match="cannot be read"):
        engine.prepare_weights(None)
    engine.prepare_weights(str(SHIPPED_MODEL))
    engine.take_weights()
    assert computed(engine) == before


def test_an_engine_that_keeps_its_weights_keeps_its_memory() -> None:
    with pytest.raises(RequestError, match="speculative eagle"):
        build_engine(CoreConfig(device="cpu", num_pages=16, speculative="eagle"), SHIPPED_MODEL).check_release()


@pytest.mark.parametrize("size", [100, 5000, 40 * MIB])
def test_what_lies_beside_released_memory_stays(size: int) -> None:
    before, released, behind = (zeros_in_huge_pages([size], torch.uint8).fill_(7) for _ in range(3))
    give_back(released)
    assert before.eq(7).all()
    assert behind.eq(7).all()
    assert released.eq(0).sum() in range(max(0, size - 2 * 4096), size + 1)
    assert released.fill_(3).eq(3).all()
