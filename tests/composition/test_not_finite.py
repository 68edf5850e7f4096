"""A request whose logits are NaN or infinite fails by name, and harms no other, whatever runs beside it.

The model has finite weights, but scales the embedding of one token beyond float32: all that comes after it is NaN.
Judge: the same requests without the bad ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

import ramiform
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams, SamplingParams

from .alone import AnyTree, Got, run
from .threads import RanksEngine

BAD = 1999  # the token whose embedding is infinite
PREFIX = list(range(100, 148))  # that good and bad requests share, three pages


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    config = transformers.GraniteConfig(
        vocab_size=2048,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        embedding_multiplier=12.0,
        tie_word_embeddings=False,
        eos_token_id=1,
    )
    model = transformers.GraniteForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[BAD] = 1e38
    folder = tmp_path_factory.mktemp("not-finite")
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED_MODEL / name, folder)
    return folder


def requests(*, bad: bool) -> list[Generate]:
    """Requests of each kind of sampling, good ones and, with BAD in the prompt, bad ones."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.0, "constraint": Constraint("regex", "( [a-z]{2,7}){3,9}")},
        {"temperature": 0.0, "repetition_penalty": 1.2, "logit_bias": {200: 3.0}},
    ]
    made = []
    for index, kind in enumerate(kinds):
        sampling = SamplingParams(max_new_tokens=12, ignore_eos=True, seed=index, **kind)
        logprobs = LogprobParams(num_top=2, details=index == 2) if index % 2 == 0 else None
        for prompt, is_bad in (([*PREFIX, 300 + index], False), ([*PREFIX, BAD, *range(300, 330)], True)):
            if not is_bad or bad:
                rid = f"{'bad' if is_bad else 'good'} {index}"
                made.append(Generate(rid=rid, tokens=prompt, sampling=sampling, logprobs=logprobs))
    return made


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[str, Got]:
    config = CoreConfig(device="cpu", dtype="float32", num_pages=128)
    return run(requests(bad=False), engine=build_engine(config, checkpoint), **vars_of(config))[0]


def vars_of(config: CoreConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def make_engine(config: CoreConfig, checkpoint: Path, source: DraftSource | None) -> ForwardEngine | RanksEngine:
    def make(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        return source

    if config.num_ranks > 1:
        return RanksEngine(config, checkpoint, config.tp, make, stages=config.pp)
    return build_engine(config, checkpoint, make_source=make)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ahead, in chunks": {"overlap": "on", "prefill_budget": 20},
    "n-grams": {"speculative": "ngram"},
    "trees": {"speculative": "eagle", "speculative_adaptive": False},
    "deterministic": {"deterministic": True},
    "two ranks": {"tp": 2},
    "two stages": {"pp": 2, "speculative": "eagle", "speculative_adaptive": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_only_the_requests_whose_logits_are_no_numbers_fail(
    checkpoint: Path, expected: dict[str, Got], shape: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_pages": 128} | shape
    config = CoreConfig(**settings)
    outputs = [(request.tokens, expected[request.rid].ids) for request in requests(bad=False)]
    source = AnyTree(1, outputs) if shape.get("speculative") == "eagle" else None
    engine = make_engine(config, checkpoint, source)
    got, _, _ = run(requests(bad=True), engine=engine, errors=["model"], stagger=2, **settings)
    for rid, mine in got.items():
        if rid.startswith("good"):
            assert (mine.ids, mine.finish) == (expected[rid].ids, expected[rid].finish), rid
        else:
            assert mine.error is not None, rid
            assert (mine.error.kind, mine.error.code, mine.ids) == ("model", "not_finite", []), rid
            assert "NaN or infinite" in mine.error.message


@pytest.fixture(scope="module")
def client(checkpoint: Path) -> Iterator[httpx.Client]:
    with ramiform.Runtime(str(checkpoint), port=0, dtype="float32", num_pages=64, log_level="error") as runtime:
        assert runtime.url is not None
        with httpx.Client(base_url=runtime.url, timeout=120) as client:
            yield client


def generate(client: httpx.Client, tokens: Sequence[int], **fields: Any) -> httpx.Response:
    sampling = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    return client.post("/generate", json={"input_ids": list(tokens), "sampling_params": sampling, **fields})


@pytest.mark.exhaustive
def test_over_http_the_answer_is_an_internal_error_with_a_code(client: httpx.Client) -> None:
    answer = generate(client, [*PREFIX, BAD, 5])
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "not_finite"
    assert "the model's logits after 50 tokens are NaN or infinite" in answer.json()["error"]["message"]


def test_a_stream_ends_with_the_error(client: httpx.Client) -> None:
    answer = generate(client, [BAD, 5], stream=True)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    errors = [json.loads(event)["error"]["code"] for event in events] or [answer.json()["error"]["code"]]
    assert errors == ["not_finite"]


@pytest.mark.slow
def test_scores_and_embeddings_that_are_no_numbers_fail_too(client: httpx.Client) -> None:
    scored = generate(client, [*PREFIX, BAD, 5, 6], return_logprob=True, logprob_start_len=1)
    assert (scored.status_code, scored.json()["error"]["code"]) == (500, "not_finite")
    model = client.get("/v1/models").json()["data"][0]["id"]
    embedded = client.post("/v1/embeddings", json={"model": model, "input": [PREFIX[0], BAD, 5]})
    assert (embedded.status_code, embedded.json()["error"]["code"]) == (500, "not_finite"), embedded.text


@pytest.mark.exhaustive
def test_nothing_that_a_failed_request_computed_is_reused(client: httpx.Client) -> None:
    assert generate(client, [900, BAD, *range(400, 440)]).status_code == 500
    again = generate(client, [900, *range(400, 440)])
    assert again.json()["meta_info"]["cached_tokens"] == 0
    used = client.get("/metrics").text
    assert "ramiform_requests_running" in used
