"""Weights that change under load: every token is of the version that its answer names, and no request is lost.

Judge: transformers' log-probabilities of the answers' tokens, by the weights of each version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save, save_file

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.errors import BusyError, RequestError

from .prompts import CAPITAL

NUM_TOKENS, NUM_UPDATES = 48, 24
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
PROMPTS = [f"{CAPITAL} {number % 3}{' and so on' * (number % 5)}" for number in range(40)]


@pytest.fixture(scope="module")
def weights() -> dict[str, dict[str, torch.Tensor]]:
    """All tensors of two versions."""
    plain = load_file(SHIPPED_MODEL / "model.safetensors")
    return {
        "even": plain,
        "odd": plain | {name: 1.3 * tensor for name, tensor in plain.items() if "q_proj" in name},
    }


@pytest.fixture(scope="module")
def engine() -> Iterator[ramiform.Engine]:
    with ramiform.Engine(port=0, dtype="float32", num_pages=512, speculative="off", log_level="error") as made:
        yield made


def logprobs(engine: ramiform.Engine) -> list[float]:
    """Return the log-probabilities of a greedy answer."""
    result = engine.generate(CAPITAL, GREEDY, return_logprob=True)
    return [value for value, _, _ in result["meta_info"]["output_token_logprobs"]]


def judge_of(tensors: dict[str, torch.Tensor]) -> transformers.PreTrainedModel:
    judge = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
    judge.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
    return judge


def test_under_many_updates_every_token_is_of_the_version_it_names(
    engine: ramiform.Engine, weights: dict[str, dict[str, torch.Tensor]]
) -> None:
    results: list[dict[str, Any]] = []
    sampling = {"temperature": 0.9, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}

    prompts = [engine.tokenizer.encode(prompt) for prompt in PROMPTS]

    def ask() -> None:
        results.extend(engine.generate(input_ids=prompts, sampling_params=sampling, return_logprob=True))

    engine.update_weights(weights["even"], version="even")
    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(NUM_UPDATES):
        name = ("odd", "even")[number % 2]
        changed = {key: tensor for key, tensor in weights[name].items() if "q_proj" in key}
        assert engine.update_weights(changed, mode=("retract", "finish")[number % 7 == 6], version=name) == name
    asking.join()
    judges = {name: judge_of(tensors) for name, tensors in weights.items()}
    num_mixed = 0
    for prompt, result in zip(prompts, results, strict=True):
        ids, meta = result["output_ids"], result["meta_info"]
        assert len(ids) == NUM_TOKENS
        runs = meta.get("weight_versions") or [(meta["weight_version"], NUM_TOKENS)]
        assert sum(count for _, count in runs) == NUM_TOKENS
        num_mixed += len(runs) > 1
        tokens = torch.tensor([prompt + ids])
        with torch.inference_mode():
            expected = {name: judge(tokens).logits[0, :-1].log_softmax(-1) for name, judge in judges.items()}
        versions = [name for name, count in runs for _ in range(count)]
        for place, (version, (logprob, token, _)) in enumerate(
            zip(versions, meta["output_token_logprobs"], strict=True), tokens.shape[1] - 1 - NUM_TOKENS
        ):
            assert logprob == pytest.approx(float(expected[version][place, token]), abs=2e-3)
    assert num_mixed > 0


def test_running_requests_do_as_the_update_says(
    engine: ramiform.Engine, weights: dict[str, dict[str, torch.Tensor]]
) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 300, "ignore_eos": True}
    for mode in ("keep", "retract", "finish", "abort"):
        engine.update_weights(weights["even"], version="even")
        stream = engine.generate(CAPITAL, sampling, stream=True)
        next(stream)
        engine.update_weights(weights["odd"], mode=mode, version="odd")
        *_, last = stream
        meta = last["meta_info"]
        versions = [version for version, _ in meta.get("weight_versions", [])]
        assert meta["finish_reason"]["type"] == ("abort" if mode == "abort" else "length")
        assert versions == (["even", "odd"] if mode in ("keep", "retract") else [])
        assert (meta["num_retractions"] > 0) == (mode == "retract")
    again = engine.generate(CAPITAL, sampling | {"max_new_tokens": 1})["meta_info"]
    assert (again["cached_tokens"], again["weight_version"]) == (0, "odd")  # what `keep` left is nobody's


def test_the_routes_are_those_of_sglang(
    engine: ramiform.Engine, weights: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    with httpx.Client(base_url=engine.runtime.url, timeout=60) as http:
        save_file(weights["odd"], tmp_path / "model.safetensors")
        body = {"model_path": str(tmp_path), "weight_version": "step 7", "abort_all_requests": True}
        answer = http.post("/update_weights_from_disk", json=body).json()
        assert (answer["success"], answer["weight_version"]) == (True, "step 7")
        assert http.get("/get_weight_version").json() == {"weight_version": "step 7"}
        assert http.get("/model_info").json()["weight_version"] == "step 7"
        for wrong, param in (
            ({"model_path": str(tmp_path / "no")}, "model_path"),
            ({"model_path": str(tmp_path), "load_format": "dummy"}, "load_format"),
            ({"model_path": str(tmp_path), "mode": "hope"}, "mode"),
        ):
            refused = http.post("/update_weights_from_disk", json=wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert http.get("/weight_version").json() == {"weight_version": "step 7"}


def test_an_update_that_would_wait_for_a_pause_is_refused(
    engine: ramiform.Engine, weights: dict[str, dict[str, torch.Tensor]]
) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 300, "ignore_eos": True}
    with httpx.Client(base_url=engine.runtime.url, timeout=60) as http:
        stream = engine.generate(CAPITAL, sampling, stream=True)
        next(stream)
        assert http.post("/pause_generation", json={"mode": "in_place"}).status_code == 200
        try:
            with pytest.raises(RequestError, match="paused"):
                engine.update_weights(weights["even"], version="even")
            assert engine.update_weights(weights["even"], mode="keep", version="kept") == "kept"
        finally:
            assert http.post("/continue_generation").status_code == 200
        *_, last = stream
        assert last["meta_info"]["completion_tokens"] == 300


def test_tensors_come_by_the_name_of_their_shared_memory(
    engine: ramiform.Engine, weights: dict[str, dict[str, torch.Tensor]]
) -> None:
    data = save({name: tensor for name, tensor in weights["odd"].items() if "q_proj" in name})
    shared = SharedMemory(create=True, size=len(data))
    try:
        shared.buf[: len(data)] = data
        with httpx.Client(base_url=engine.runtime.url, timeout=60) as http:
            engine.update_weights(weights["even"])
            before = logprobs(engine)
            body = {"shared_memory": shared.name, "weight_version": "shared"}
            answer = http.post("/update_weights_from_tensor", json=body).json()
            assert (answer["success"], answer["weight_version"]) == (True, "shared")
            after = logprobs(engine)
            for wrong, param, named in (
                ({"serialized_named_tensors": ["gASV"]}, "serialized_named_tensors", "pickled"),
                ({"shared_memory": "../etc/passwd"}, "shared_memory", "pattern"),
                ({"shared_memory": ".."}, "shared_memory", "/dev/shm"),
                ({"shared_memory": "ramiform-no-such"}, "shared_memory", "no file"),
                ({}, "shared_memory", "/dev/shm"),
            ):
                refused = http.post("/update_weights_from_tensor", json=wrong)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
                assert named in refused.json()["error"]["message"]
            shared.buf[:8] = b"\x80\x05pickle"
            refused = http.post("/update_weights_from_tensor", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model_path")
    finally:
        shared.close()
        shared.unlink()
    engine.update_weights(weights["odd"])
    assert logprobs(engine) == pytest.approx(after, abs=1e-3)
    assert after != pytest.approx(before, abs=1e-3)


def test_a_sleeping_runtime_refuses_requests_and_wakes_with_the_same_answers(
    engine: ramiform.Engine, weights: dict[str, dict[str, torch.Tensor]]
) -> None:
    engine.update_weights(weights["even"], version="even")
    expected, other = logprobs(engine), engine.generate("Once upon a time there was", GREEDY)
    with httpx.Client(base_url=engine.runtime.url, timeout=60) as http:
        assert http.get("/is_sleeping").json() == {"is_sleeping": False, "released": []}
        stream = engine.generate(CAPITAL + " and", GREEDY | {"max_new_tokens": 300}, stream=True)
        next(stream)
        assert http.post("/sleep", params={"level": 1, "mode": "keep"}).json() == {"status": "sleeping"}
        assert http.get("/is_sleeping").json() == {"is_sleeping": True, "released": ["kv_cache", "weights"]}
        assert http.get("/health").status_code == 200
        assert http.get("/health_generate").status_code == 503
        refused = http.post("/generate", json={"text": CAPITAL, "sampling_params": GREEDY})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "asleep")
        assert "/wake_up" in refused.json()["error"]["message"]
        with pytest.raises(BusyError, match="sleeps"):
            engine.generate(CAPITAL, GREEDY)
        assert http.post("/wake_up", params={"tags": "kv_cache"}).json() == {"status": "sleeping"}
        assert http.post("/generate", json={"text": CAPITAL}).status_code == 503
        assert http.post("/wake_up").json() == {"status": "awake"}
        *_, last = stream
        assert last["meta_info"]["completion_tokens"] == 300
        assert last["meta_info"]["num_retractions"] == 1
        assert logprobs(engine) == pytest.approx(expected, abs=1e-3)
        again = engine.generate("Once upon a time there was", GREEDY)
        assert again["output_ids"] == other["output_ids"]
        assert again["meta_info"]["cached_tokens"] <= 1  # a first token that both prompts have
        assert again["meta_info"]["weight_version"] == "even"
        whole = engine.generate(CAPITAL + " and", GREEDY | {"max_new_tokens": 300})
        assert whole["output_ids"] == last["output_ids"]


def test_an_update_brings_the_weights_of_a_runtime_that_sleeps(
    engine: ramiform.Engine, weights: dict[str, dict[str, torch.Tensor]]
) -> None:
    engine.update_weights(weights["odd"])
    expected = logprobs(engine)
    engine.update_weights(weights["even"])
    with httpx.Client(base_url=engine.runtime.url, timeout=60) as http:
        cached = logprobs(engine)
        assert http.post("/release_memory_occupation", json={"tags": ["weights"]}).json()["success"]
        engine.resume_memory_occupation()
        assert engine.generate(CAPITAL, GREEDY)["meta_info"]["cached_tokens"] > 0  # keys and values have stayed
        assert logprobs(engine) == pytest.approx(cached, abs=1e-3)
        assert http.post("/release_memory_occupation", json={}).json()["success"]
        for wrong in ({"tags": ["cuda_graph"]}, {"mode": "keep"}):
            assert http.post("/release_memory_occupation", json=wrong).status_code == 400
        engine.update_weights(weights["odd"], version="while asleep")
        assert http.get("/is_sleeping").json() == {"is_sleeping": True, "released": ["kv_cache"]}
        assert http.post("/resume_memory_occupation", json={"tags": ["kv_cache"]}).json()["success"]
        assert engine.generate(CAPITAL, GREEDY)["meta_info"]["weight_version"] == "while asleep"
        assert logprobs(engine) == pytest.approx(expected, abs=1e-3)
        assert expected != pytest.approx(cached, abs=1e-3)
    stream = engine.generate(CAPITAL, GREEDY | {"max_new_tokens": 300}, stream=True)
    next(stream)
    engine.sleep(level=2)
    *_, last = stream
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    engine.wake_up(["weights"])
    engine.wake_up(["kv_cache"])
    assert logprobs(engine) == pytest.approx(expected, abs=1e-3)
