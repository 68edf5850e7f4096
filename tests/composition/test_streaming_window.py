"""`--streaming-window`: outputs beyond the model's context, with sinks and a rolling window.

Judge: StreamingLLM in plain torch with the modules of transformers, token by token: a list of unrotated keys, of which
the first and the last ones are kept and rotated by their places in that list.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import ramiform
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.replay.replay import replay
from ramiform.runtime.scheduler.plan_log import read_log
from ramiform.runtime.speculation.build import choose_source

from .alone import run
from .test_any_model import SIZES
from .test_windows import request, some_tokens

WINDOW, SINKS = 30, 5
SHAPE: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "num_pages": 64,
    "prefill_budget": 32,
    "max_running": 4,
    "speculative": "off",
    "window_ratio": 0.3,
    "streaming_window": WINDOW,
    "streaming_sinks": SINKS,
}
Model = tuple[PreTrainedModel, Path]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.set_num_threads(1)
    torch.manual_seed(6)
    config = transformers.LlamaConfig(**{**SIZES, "max_position_embeddings": 64})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    path = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(path)
    return model.eval(), path


def kept(count: int) -> list[int]:
    """Places of the tokens that the last of `count` tokens attends to."""
    first = min(SINKS, count)
    return [*range(first), *range(max(first, count - WINDOW), count)]


@torch.inference_mode()
def streamed(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    """Continue by the likeliest tokens of StreamingLLM."""
    body, config = model.model, model.config
    K, D = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    keys: list[list[torch.Tensor]] = [[] for _ in body.layers]
    values: list[list[torch.Tensor]] = [[] for _ in body.layers]
    ids = list(tokens)
    for place in range(len(tokens) + count - 1):
        x = body.embed_tokens(torch.tensor([[ids[place]]]))
        own = kept(place + 1)
        cos, sin = body.rotary_emb(x, torch.arange(len(own))[None])
        for layer, layer_keys, layer_values in zip(body.layers, keys, values, strict=True):
            normed, part = layer.input_layernorm(x), layer.self_attn
            q_HD = part.q_proj(normed).view(-1, 1, D)
            layer_keys.append(part.k_proj(normed).view(K, D))
            layer_values.append(part.v_proj(normed).view(K, D))
            k_KLD = torch.stack([layer_keys[other] for other in own], dim=1)
            v_KLD = torch.stack([layer_values[other] for other in own], dim=1)
            q_HD, _ = apply_rotary_pos_emb(q_HD[None], q_HD[None], cos[:, -1:], sin[:, -1:])
            _, k_KLD = apply_rotary_pos_emb(k_KLD[None], k_KLD[None], cos, sin)
            groups = len(q_HD[0]) // K
            k_HLD, v_HLD = k_KLD[0].repeat_interleave(groups, 0), v_KLD.repeat_interleave(groups, 0)
            weights = (q_HD[0] @ k_HLD.transpose(1, 2) * D**-0.5).softmax(dim=-1)
            x = x + part.o_proj((weights @ v_HLD).reshape(1, 1, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        if place + 1 >= len(tokens):
            ids.append(int(model.lm_head(body.norm(x))[0, -1].argmax()))
    return ids[len(tokens) :]


def make_engine(path: Path, **settings: Any) -> ForwardEngine:
    return build_engine(CoreConfig(**SHAPE | settings), path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [{}, {"prefix_cache": False}, {"window_ratio": 1.0}])
def test_outputs_of_several_windows_and_contexts_are_those_of_a_naive_rolling_window(
    shape: dict[str, Any], llama: Model
) -> None:
    model, path = llama
    long, short = some_tokens(97, seed=2), some_tokens(11, seed=3)
    prompts = {"short": short, "long": long, "again": long}
    wanted = {rid: streamed(model, tokens, 160) for rid, tokens in (("short", short), ("long", long))}
    wanted["again"] = wanted["long"]
    prompts["next turn"] = [*short, *wanted["short"], *some_tokens(20, seed=4)]
    wanted["next turn"] = streamed(model, prompts["next turn"], 20)
    requests = [request(rid, tokens, len(wanted[rid])) for rid, tokens in prompts.items()]
    engine = make_engine(path, **shape)
    got, stats, plans = run(requests, engine=engine, stagger=200, **SHAPE | shape)
    assert {rid: mine.ids for rid, mine in got.items()} == wanted
    assert (stats.num_cached_tokens > 200) == shape.get("prefix_cache", True)
    if not shape:
        # The first page with the sinks, those of the window, the one it begins in, and one more.
        assert max(len(set(plan.rows[0].window_pages)) for plan in plans if plan.num_tokens == 1) <= 1 + 2 + 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deterministic": True}, "deterministic does not go with streaming_window"),
        ({"streaming_window": 61}, "what is kept is longer than its context of 64 tokens"),
    ],
)
def test_what_a_rolling_window_cannot_do_is_refused(settings: dict[str, Any], message: str, llama: Model) -> None:
    with pytest.raises(RequestError, match=message):
        make_engine(llama[1], **settings)


def test_speculation_is_refused_beside_a_rolling_window(llama: Model) -> None:
    assert choose_source(CoreConfig(**SHAPE), llama[1]) == "off"
    with pytest.raises(RequestError, match="speculation does not go with streaming_window"):
        choose_source(CoreConfig(**SHAPE | {"speculative": "ngram"}), llama[1])


@pytest.mark.exhaustive
def test_a_runtime_reports_its_window_and_holds_no_pages_when_requests_have_gone(tmp_path: Path) -> None:
    settings = {"num_pages": 128, "prefill_budget": 64, "window_ratio": 0.3, "streaming_window": 64}
    body = {"prompt": some_tokens(150, seed=7), "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    logged = tmp_path / "plans"
    with (
        ramiform.Runtime(port=0, dtype="float32", log_level="error", log_plans=str(logged), **settings) as runtime,
        httpx.Client(base_url=runtime.url, timeout=60) as client,
    ):

        def figure(name: str) -> float:
            found = re.search(rf"^ramiform_{name}(?:{{.*}})? (\S+)$", client.get("/metrics").text, re.MULTILINE)
            assert found is not None, name
            return float(found[1])

        answer = client.post("/v1/completions", json={**body, "n": 2}).json()
        first, second = (choice["text"] for choice in answer["choices"])
        assert first == second
        assert answer["usage"]["completion_tokens"] == 120
        long, num_held = {**body, "max_tokens": 1500, "stream": True}, 0.0
        while not num_held:  # it may have ended before it was looked at
            with client.stream("POST", "/v1/completions", json=long) as response:
                lines = response.iter_lines()
                assert next(lines).startswith("data:")
                num_held = figure("window_pages_held")
        assert num_held <= 1 + 4 + 2 + 4, "sinks, the window and its ends, and a step"
        while figure("requests_running"):
            time.sleep(0.02)
        assert (figure("window_pages"), figure("window_pages_held")) == (39, 0)
        model = client.get("/v1/models").json()["data"][0]
        assert (model["streaming_window"], model["approximate"]) == (64, True)
    with logged.open("rb") as log:
        replay(read_log(log))
