"""Weights that change under load: every token is of the version that its answer names, and no request is lost.

Judge: transformers' log-probabilities of the answers' tokens, by the weights of each version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.errors import RequestError

from .prompts import CAPITAL

NUM_TOKENS, NUM_UPDATES = 48, 24
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
