"""Judges: the bytes of the tensors, the same engine with keys and values in the model's dtype."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from ramiform.runtime.engine import ForwardEngine, build_engine, kv_format
from ramiform.runtime.engine.kv_format import KV_DTYPES, choose_kv_dtype
from ramiform.runtime.engine.kv_ranges import KV_SCALES_FILE, KvRanges, measure, read_constants, write_ranges
from ramiform.runtime.engine.kv_statistics import (
    divergence,
    layer_frequencies,
    measure_statistics,
    start_text,
    write_statistics,
)
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig, KvDtypeName
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.plan import ForwardPlan, PageCopy, Row, Sample, Score
from ramiform.tests.composition.lora_files import merged, write_adapter

QUANTISED = pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
GREEDY = Sample(temperature=0.0, draw=0)
PROMPT = [(7 * i * i + 3 * i) % 150 for i in range(100)]


def build(checkpoint: Path, **settings: Any) -> ForwardEngine:
    return build_engine(CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 16} | settings), checkpoint)


def logprobs(engine: ForwardEngine, adapter: int = 0) -> list[float]:
    """Return the prompt's log-probabilities, computed in two chunks, so that the second reads the first one's KV."""
    entries = []
    for start, end in ((0, 60), (60, 99)):
        score = Score(first=0, targets=PROMPT[start + 1 : end + 1], num_top=0)
        pages = [3, 1, 7, 5, 0, 2, 9]
        row = Row(rid="", tokens=PROMPT[start:end], first_position=start, pages=pages, score=score, adapter=adapter)
        entries += engine.run(ForwardPlan(step=0, copies=[], rows=[row])).rows[0].scores
    return [entry.logprob for entry in entries]


@pytest.mark.parametrize(
    ("kv_dtype", "size"),
    [("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 14 / 12), ("fp8_e5m2", 1), ("int8", 14 / 12), ("int4", 7 / 12)],
)
def test_smaller_dtypes_give_more_pages_in_the_same_memory(
    kv_dtype: KvDtypeName, size: float, checkpoint: Path
) -> None:
    engine = build(checkpoint, kv_dtype=kv_dtype, num_pages=None, kv_memory=0.01, host_kv_memory=0.005)
    page_bytes = sum(tensor.nbytes for tensor in engine._runner.pool._memory.page(0))
    assert page_bytes == round(2 * 2 * 16 * 2 * 12 * size)  # keys and values, layers, slots, KV heads, head size
    assert engine.info.num_pages == int(0.01 * 2**30) // page_bytes
    assert engine.info.num_host_pages == int(0.005 * 2**30) // page_bytes
    assert engine._runner.pool._host is not None
    assert engine._runner.pool._host.k_LSKD.dtype == KV_DTYPES[kv_dtype]
    assert engine.info.kv_dtype == kv_dtype


def test_auto_is_the_dtype_of_the_model(checkpoint: Path) -> None:
    assert build(checkpoint).info.kv_dtype == "fp32"
    info = build(checkpoint, dtype="bfloat16").info
    assert (info.kv_dtype, info.kv_scales) == ("bf16", "none")


@pytest.mark.parametrize(
    ("kv_dtype", "tolerance"),
    [("fp32", 1e-5), ("fp16", 0.02), ("bf16", 0.1), ("fp8", 0.4), ("fp8_e5m2", 1.0), ("int8", 0.1), ("int4", 2.0)],
)
def test_log_probabilities_are_close_to_those_of_the_model_s_dtype(
    kv_dtype: KvDtypeName, tolerance: float, checkpoint: Path
) -> None:
    exact, got = logprobs(build(checkpoint)), logprobs(build(checkpoint, kv_dtype=kv_dtype))
    errors = [abs(a - b) for a, b in zip(exact, got, strict=True)]
    assert max(errors) < tolerance
    assert (max(errors) > 0) == (kv_dtype != "fp32")


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "int4"])
def test_the_compiled_step_computes_what_plain_torch_does(kv_dtype: KvDtypeName, checkpoint: Path) -> None:
    engine, plain = build(checkpoint, kv_dtype=kv_dtype), build(checkpoint, kv_dtype=kv_dtype, kernels="reference")
    kv = engine._runner.pool.layers
    assert kv[0].basis is not None
    layers = engine._runner.model._compiled
    assert layers is not None
    assert layers.supports_caches(kv)
    # A number that lies between two codes may fall on either side.
    errors = [abs(a - b) for a, b in zip(logprobs(engine), logprobs(plain), strict=True)]
    assert sum(error < 1e-3 for error in errors) > 0.7 * len(errors)
    assert max(errors) < {"fp8": 0.2, "int8": 0.05, "int4": 1.0}[kv_dtype]
    rows = [Row(rid="a", tokens=PROMPT[:40], first_position=0, pages=[3, 5, 1], sample=GREEDY)]
    for one in (engine, plain):
        one.run(ForwardPlan(step=0, copies=[], rows=rows))
    mine, theirs = (one._runner.pool._memory.page(5)[0].view(torch.uint8) for one in (engine, plain))
    assert (mine == theirs).double().mean() > 0.95


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "fp8_e5m2"])
def test_static_scales_stay_in_the_compiled_step_with_the_tokens_of_plain_torch(
    kv_dtype: KvDtypeName, tmp_path: Path
) -> None:
    model = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    write_ranges(measure(model, [start_text(SHIPPED_MODEL, model.config)]), tmp_path / "ranges")
    settings = {"kv_dtype": str(kv_dtype)}
    if kv_dtype != "fp8_e5m2":
        settings["kv_scales"] = str(tmp_path / "ranges")
    engine, plain = build(SHIPPED_MODEL, **settings), build(SHIPPED_MODEL, kernels="reference", **settings)
    assert engine._runner.pool.layers[0].basis is None
    outputs: list[list[int]] = [[], []]
    for one, tokens in zip((engine, plain), outputs, strict=True):
        text = start_text(SHIPPED_MODEL, one.model_config)[:40]
        fed, position = text, 0
        for _ in range(20):
            row = Row(rid="a", tokens=fed, first_position=position, pages=[3, 5, 1, 0], sample=GREEDY)
            step = one.launch(ForwardPlan(step=0, copies=[], rows=[row]))
            position, fed = position + len(fed), step.wait().rows[0].tokens
            tokens += fed
            if one is engine:
                assert step._path.name == ("compiled" if len(tokens) == 1 else "kept arrays")
    assert outputs[0] == outputs[1]
    mine, theirs = (one._runner.pool._memory.page(5)[0].view(torch.uint8) for one in (engine, plain))
    assert (mine == theirs).double().mean() > 0.97


@pytest.mark.slow
def test_layers_of_transformers_keep_the_row_of_position_0_alone() -> None:
    """How they rotate is not known here."""
    settings = {"model_impl": "transformers", "num_pages": 16}
    engine = build(SHIPPED_MODEL, kv_dtype="int8", **settings)
    basis = engine._runner.pool.layers[2].basis
    assert basis is not None
    assert not basis.mean_KD.any()
    assert basis.first_KD.any()
    errors = [abs(a - b) for a, b in zip(logprobs(build(SHIPPED_MODEL, **settings)), logprobs(engine), strict=True)]
    assert 0 < max(errors) < 0.3


def test_a_start_warns_of_a_format_that_moves_predictions(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    statistics, _ = measure_statistics(model, [PROMPT])
    lost = {name: divergence(model, PROMPT, KV_DTYPES[name], statistics) for name in ("int8", "fp8", "int4")}
    assert 0 < lost["int8"] < lost["fp8"] < lost["int4"]
    monkeypatch.setattr(kv_format, "_LOSS_BOUND", (lost["int4"] * lost["int8"]) ** 0.5)
    with caplog.at_level(logging.WARNING):
        build(checkpoint, kv_dtype="int8")
        assert caplog.text == ""
        build(checkpoint, kv_dtype="int4")
    assert "kv_dtype int4 moves the predictions of this model" in caplog.text
    assert "int8 stays below" in caplog.text


@pytest.mark.parametrize("kv_dtype", ["int8", "int4"])
def test_keys_of_an_adapter_are_stored_by_the_base_s_statistics_and_a_loss_is_told_by_its_name(
    kv_dtype: KvDtypeName,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Judge: the adapter merged into the weights, with the statistics of the base."""
    folder = write_adapter(tmp_path / "adapter", checkpoint, seed=3, targets=("k_proj", "v_proj"))
    model = load_model(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    statistics, _ = measure_statistics(model, [PROMPT])
    write_statistics(statistics, len(PROMPT), tmp_path / "base")
    settings = {"kv_dtype": kv_dtype, "kv_scales": str(tmp_path / "base")}
    engine = build(checkpoint, **settings)
    engine.load_adapter(1, read_adapter(folder, engine.model_config, max_rank=8))
    whole = merged(tmp_path / "merged", checkpoint, folder)
    judge = build(whole, **settings)
    errors = [abs(a - b) for a, b in zip(logprobs(engine, adapter=1), logprobs(judge), strict=True)]
    # A number that lies between two codes may fall on either side.
    assert sum(error < 1e-3 for error in errors) > 0.7 * len(errors)
    assert max(abs(a - b) for a, b in zip(logprobs(engine), logprobs(judge), strict=True)) > 0.3, "the adapter is weak"
    text = start_text(checkpoint, engine.model_config)
    lost = divergence(engine._runner.model, text, KV_DTYPES[kv_dtype], statistics, adapter=1)
    assert lost == pytest.approx(divergence(judge._runner.model, text, KV_DTYPES[kv_dtype], statistics), rel=0.3)
    caplog.clear()  # starts may have warned
    monkeypatch.setattr(kv_format, "_LOSS_BOUND", 1.01 * lost)
    engine.check_adapter(1, "sql")
    assert caplog.text == ""
    monkeypatch.setattr(kv_format, "_LOSS_BOUND", 0.99 * lost)
    engine.check_adapter(1, "sql")
    assert f"kv_dtype {kv_dtype} moves the predictions of the LoRA adapter 'sql'" in caplog.text


@QUANTISED
def test_pages_go_to_the_host_and_come_back_as_they_were(kv_dtype: KvDtypeName, checkpoint: Path) -> None:
    engine = build(checkpoint, num_pages=8, host_kv_memory=0.001, kv_dtype=kv_dtype)
    whole = Row(rid="a", tokens=PROMPT[:40], first_position=0, pages=[3, 5, 1], sample=GREEDY)
    expected = engine.run(ForwardPlan(step=0, copies=[], rows=[whole])).rows[0].tokens
    before = [
        tensor.view(torch.int8).clone() for page in (3, 5, 1) for tensor in engine._runner.pool._memory.page(page)
    ]
    down = [PageCopy(page, 8 + i, 16) for i, page in enumerate([3, 5, 1])]
    other = Row(rid="b", tokens=[9] * 48, first_position=0, pages=[1, 3, 5], sample=GREEDY)
    engine.run(ForwardPlan(step=0, copies=down, rows=[other]))
    up = [PageCopy(8 + i, page, 16) for i, page in enumerate([6, 0, 7])]
    last = Row(rid="a", tokens=PROMPT[39:40], first_position=39, pages=[6, 0, 7], sample=GREEDY)
    assert engine.run(ForwardPlan(step=0, copies=up, rows=[last])).rows[0].tokens == expected
    after = [tensor.view(torch.int8) for page in (6, 0, 7) for tensor in engine._runner.pool._memory.page(page)]
    for index in range(4):  # the third page's last slots were never written
        assert torch.equal(before[index], after[index])


def test_factors_of_channels_come_from_a_file_of_version_1(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "scales"
    model = load_model(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    ranges = measure(model, [PROMPT])
    assert ranges.k_LKD is not None
    ranges = dataclasses.replace(ranges, k_LKD=ranges.k_LKD.clone())
    assert ranges.k_LKD is not None
    ranges.k_LKD[1, 0, 3] *= 64
    write_ranges(ranges, file)
    assert build(checkpoint, kv_dtype="int4").info.kv_scales == "built-in text"
    engine = build(checkpoint, kv_dtype="int4", kv_scales=str(file))
    basis = engine._runner.pool.layers[1].basis
    assert basis is not None
    assert not basis.mean_KD.any()
    ratios_D = basis.factor_KD[0].square() / ranges.k_LKD[1, 0]
    torch.testing.assert_close(ratios_D, ratios_D[:1].expand(len(ratios_D)))
    write_ranges(dataclasses.replace(ranges, k_LKD=None), file)
    with pytest.raises(CheckpointError, match="k_channel_absmax"):
        build(checkpoint, kv_dtype="int4", kv_scales=str(file))
    write_ranges(dataclasses.replace(ranges, k_LKD=ranges.k_LKD[:, :, :5]), file)
    with pytest.raises(CheckpointError, match="of another model"):
        build(checkpoint, kv_dtype="int4", kv_scales=str(file))


def test_four_bits_need_heads_of_a_multiple_of_four() -> None:
    with pytest.raises(RequestError, match="multiple of 4, this model's is 18"):
        choose_kv_dtype("int4", torch.float32, torch.device("cpu"), head_dim=18)


@QUANTISED
def test_no_number_seen_is_out_of_range(kv_dtype: KvDtypeName, checkpoint: Path) -> None:
    model = load_model(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    ranges = measure(model, [PROMPT[:50], PROMPT[50:]])
    assert ranges.num_tokens == 100
    largest = {"int8": 127.0, "fp8": 448.0}[kv_dtype]
    scales = ranges.scales(KV_DTYPES[kv_dtype])
    for range_LK, scale_LK in ((ranges.k_LK, scales.k_LK), (ranges.v_LK, scales.v_LK)):
        assert (range_LK > 0).all()
        assert (scale_LK * largest > range_LK).all()


def test_a_long_text_is_measured_to_its_end_and_in_parts_as_in_one(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    whole = measure(model, [PROMPT])
    monkeypatch.setattr("ramiform.runtime.engine.kv_ranges.TOKENS_AT_ONCE", 13)
    parts = measure(model, [PROMPT])
    torch.testing.assert_close(parts.k_LK, whole.k_LK)
    torch.testing.assert_close(parts.v_LK, whole.v_LK)
    each = [measure(model, [PROMPT[:end]]).k_LK for end in range(1, 101, 11)]
    assert all((a <= b + 1e-5).all() for a, b in itertools.pairwise(each))


def test_a_model_without_a_tokenizer_is_measured_on_random_tokens_of_its_vocabulary(checkpoint: Path) -> None:
    config = read_config(checkpoint)
    text = start_text(checkpoint, config)
    assert text == start_text(checkpoint, config)
    assert len(text) == 128  # the context
    assert set(text) <= set(range(150))


def test_statistics_are_those_of_the_keys_that_transformers_computes(tmp_path: Path) -> None:
    """Judge: transformers' keys after rope, turned back by complex numbers; its queries, from a hook."""
    model = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    text = start_text(SHIPPED_MODEL, model.config)
    found, count = measure_statistics(model, [text])
    assert count == len(text) - 4
    judge = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
    queries: list[torch.Tensor] = []
    for layer in judge.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda _module, _inputs, output: queries.append(output[0]))
    with torch.inference_mode():
        layers = judge(torch.tensor([text]), use_cache=True).past_key_values.layers
    frequencies = layer_frequencies(model.config)
    assert torch.equal(frequencies[0], judge.model.rotary_emb.inv_freq)
    for place, layer in enumerate(layers):
        k_KTD, K = layer.keys[0].double(), layer.keys.shape[1]
        low, high = k_KTD.chunk(2, dim=-1)
        phase = torch.arange(len(text), dtype=torch.float64)[:, None] * frequencies[place].double()
        turned = torch.complex(low, high) * torch.exp(-1j * phase)
        mean = turned[:, 4:].mean(1)
        for name, want in (("mean_LKD", mean), ("first_LKD", turned[:, 0])):
            got = getattr(found, name)[place]
            torch.testing.assert_close(got.double(), torch.cat((want.real, want.imag), -1), rtol=1e-3, atol=1e-3)
        deviation = (turned[:, 4:] - mean[:, None]).abs().square().mean(1).sqrt()
        q = (
            queries[place][4:]
            .unflatten(1, (K, -1, 2, frequencies.shape[1]))
            .double()
            .square()
            .mean((0, 2))
            .sum(1)
            .sqrt()
        )
        sizes = [x.maximum(1e-2 * x.square().mean(-1, keepdim=True).sqrt()) for x in (deviation, q)]
        f = (sizes[0] / sizes[1]).sqrt()
        f = f / f.log().mean(-1, keepdim=True).exp()
        torch.testing.assert_close(found.factor_LKD[place].double(), torch.cat((f, f), -1), rtol=2e-3, atol=1e-4)


def test_statistics_of_a_text_are_read_as_they_were_written_and_kept_on_disk(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    statistics, count = measure_statistics(model, [PROMPT[:60], PROMPT[60:]])
    assert count == 92
    write_statistics(statistics, 100, tmp_path / "f")
    read = read_constants(tmp_path / "f", model.config, torch.int8)
    assert read is not None
    for mine, theirs in zip(statistics.tensors, read.tensors, strict=True):
        assert torch.equal(mine, theirs)
    asked = build(checkpoint, kv_dtype="int8", kv_scales=str(tmp_path / "f"))
    assert asked.info.kv_scales == str(tmp_path / "f")
    content = json.loads((tmp_path / "f").read_text())
    for change, message in (
        ({"k_mean": [[]]}, "k_mean must have 2 layers"),
        ({"k_factor": content["k_mean"]}, "above 0"),
    ):
        (tmp_path / "g").write_text(json.dumps(content | change))
        with pytest.raises(CheckpointError, match=message):
            build(checkpoint, kv_dtype="int4", kv_scales=str(tmp_path / "g"))
    monkeypatch.setattr("ramiform.loops.cache_directory", lambda _: tmp_path)
    monkeypatch.setattr("ramiform.runtime.engine.kv_statistics._KEPT_SECONDS", 0)
    shapes = [build(checkpoint, kv_dtype=kv_dtype).kv_shape.scales for kv_dtype in ("int8", "int4")]
    assert len(set(shapes)) == 1
    [file] = tmp_path.glob("kv-*.safetensors")
    file.write_bytes(b"nothing")
    assert build(checkpoint, kv_dtype="int8").kv_shape.scales == shapes[0]
    monkeypatch.setattr("ramiform.runtime.engine.kv_statistics.measure_statistics", None)
    assert build(checkpoint, kv_dtype="int8").kv_shape.scales == shapes[0]


@QUANTISED
def test_scales_come_from_the_file_asked_for_then_the_one_beside_the_model_then_a_text(
    kv_dtype: KvDtypeName, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).symlink_to(file)
    with caplog.at_level(logging.WARNING):
        assert build(tmp_path, kv_dtype=kv_dtype).info.kv_scales == "built-in text"
    assert caplog.text == ""
    ranges = KvRanges(torch.full((2, 2), 3.0), torch.full((2, 2), 5.0), num_tokens=7)
    write_ranges(ranges, tmp_path / KV_SCALES_FILE)
    with caplog.at_level(logging.WARNING):
        beside = build(tmp_path, kv_dtype=kv_dtype)
    assert "static scales" in caplog.text
    assert beside.info.kv_scales == str(tmp_path / KV_SCALES_FILE)
    assert beside._runner.pool.layers[0].v_scale_K is not None
    assert torch.equal(beside._runner.pool.layers[0].v_scale_K, ranges.scales(KV_DTYPES[kv_dtype]).v_LK[0])
    elsewhere = tmp_path / "elsewhere"
    write_ranges(KvRanges(ranges.k_LK * 2, ranges.v_LK * 2, num_tokens=7), elsewhere)
    asked = build(tmp_path, kv_dtype=kv_dtype, kv_scales=str(elsewhere))
    assert asked._runner.pool.layers[1].k_scale_K is not None
    assert torch.equal(asked._runner.pool.layers[1].k_scale_K, ranges.scales(KV_DTYPES[kv_dtype]).k_LK[1] * 2)


def test_ranges_are_read_as_they_were_written(checkpoint: Path, tmp_path: Path) -> None:
    ranges = KvRanges(torch.rand(2, 2), torch.rand(2, 2) * 1e4, num_tokens=12)
    write_ranges(ranges, tmp_path / "f")
    read = read_constants(tmp_path / "f", read_config(checkpoint), torch.int8)
    assert read is not None
    assert all(map(torch.equal, read.tensors, ranges.scales(torch.int8).tensors))
    assert read_constants(tmp_path / "f", read_config(checkpoint), KV_DTYPES["int4"]) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "vllm"}, r"format"),
        ({"k_absmax": [[1.0, 2.0]]}, r"k_absmax must have 2 layers of 2 KV heads"),
        ({"v_absmax": [[1.0, 2.0], [3.0]]}, r"v_absmax must have 2 layers of 2 KV heads"),
        ({"k_absmax": [[1.0, -2.0], [3.0, 4.0]]}, r">= 0.*k_absmax\[0\]\[1\]"),
        ({"k_absmax": [[1.0, None], [3.0, 4.0]]}, r"k_absmax"),
        ({"num_tokens": 0}, r"num_tokens"),
        ({"scales": []}, r"unknown field `scales`"),
    ],
)
def test_a_file_that_is_not_of_this_model_is_refused_by_its_field(
    change: dict[str, Any], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    write_ranges(KvRanges(torch.ones(2, 2), torch.ones(2, 2), num_tokens=1), file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=message) as caught:
        build(checkpoint, kv_dtype="int8", kv_scales=str(file))
    assert caught.value.file == file


@pytest.mark.parametrize("content", [b"", b"[1", b"\xff\xfe", None])
def test_a_missing_or_malformed_file_is_named_in_the_error(
    content: bytes | None, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        build(checkpoint, kv_dtype="fp8", kv_scales=str(file))
    assert caught.value.file == file


def test_scales_without_a_use_are_refused(checkpoint: Path) -> None:
    with pytest.raises(RequestError, match="not 'bf16'") as caught:
        build(checkpoint, kv_dtype="bf16", kv_scales="x")
    assert caught.value.param == "kv_scales"


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"kv_dtype"):
        msgspec.convert({"kv_dtype": "fp4"}, CoreConfig)


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (7, 5)])
def test_a_device_without_fp8_is_refused(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_format.torch.cuda, "get_device_capability", lambda _: capability)
    device = torch.device("cuda:0")
    with pytest.raises(RequestError, match=r"capability 8\.9, cuda:0 has \d\.\d: use int8") as caught:
        choose_kv_dtype("fp8", torch.bfloat16, device)
    assert caught.value.param == "kv_dtype"
    assert choose_kv_dtype("int8", torch.bfloat16, device) == torch.int8
    monkeypatch.setattr(kv_format.torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert choose_kv_dtype("fp8", torch.bfloat16, device) == torch.float8_e4m3fn


def test_ranges_of_infinite_numbers_are_refused(checkpoint: Path) -> None:
    model = load_model(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    model.parameters.embedding_VE[3] = float("inf")
    with pytest.raises(RequestError, match="not finite") as caught:
        measure(model, [[1, 2, 3]])
    assert caught.value.param == "dtype"
