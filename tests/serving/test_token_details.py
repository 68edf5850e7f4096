"""Details of tokens: what rules did to the model's distribution. Judge: all logits in plain torch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import torch
import transformers

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.tokenizer import load_tokenizer

from .prompts import CAPITAL, CHAT, PERSON
from .test_peer_routes import chunks, post

TOKENIZER = load_tokenizer(SHIPPED_MODEL)
CHOICES = [" Paris is the capital.", " Paris, of course.", " Oslo"]
Logits = Callable[[list[int], list[int]], torch.Tensor]


@pytest.fixture(scope="module")
def logits_of() -> Logits:
    """Return a function from a prompt and an output to the logits [number of output tokens, V] in float64."""
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)

    def compute(prompt: list[int], output: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([[*prompt, *output]])).logits[0]
        return logits[len(prompt) - 1 : -1].double()

    return compute


def allowed_by_choices(before: bytes) -> set[int]:
    """Return the tokens with which a text goes on as one of CHOICES, token by token."""
    texts = [choice.encode() for choice in CHOICES]
    allowed = {
        token
        for token, data in enumerate(TOKENIZER.token_bytes)
        if data and any(text.startswith(before + data) for text in texts)
    }
    return allowed | set(TOKENIZER.eos_ids) if before in texts else allowed


def check_entry(
    entry: dict[str, Any], token: int, logits: torch.Tensor, processed: torch.Tensor, allowed: set[int] | None
) -> None:
    """Compare with the raw and processed logits, of which those of tokens that are not allowed are -inf."""
    raw, masked = logits.log_softmax(0), processed.log_softmax(0)
    assert entry["id"] == token
    assert entry["bytes"] == list(TOKENIZER.token_bytes[token] or entry["token"].encode())
    assert entry["logprob"] == pytest.approx(raw[token].item(), abs=1e-4)
    assert entry["entropy"] == pytest.approx(-(raw.exp() * raw).sum().item(), abs=1e-3)
    for alternative in entry["top_logprobs"]:
        own = alternative["id"]
        assert alternative["logprob"] == pytest.approx(raw[own].item(), abs=1e-4)
        if entry["origin"] == "forced":
            assert (alternative["allowed"], alternative["masked_logprob"]) == (
                (True, 0.0) if own == token else (False, None)
            )
            continue
        assert alternative["allowed"] == (allowed is None or own in allowed)
        value = pytest.approx(masked[own].item(), abs=1e-4) if alternative["allowed"] else None
        assert alternative["masked_logprob"] == value
    if entry["origin"] == "forced":
        assert (entry["masked_logprob"], entry["num_allowed"], entry["drawn_logprob"]) == (0.0, 1, 0.0)
        assert entry["allowed_mass"] == pytest.approx(math.exp(entry["logprob"]))
        return
    assert entry["masked_logprob"] == pytest.approx(masked[token].item(), abs=1e-4)
    assert entry["num_allowed"] == (None if allowed is None else len(allowed))
    mass = 1.0 if allowed is None else raw[sorted(allowed)].exp().sum().item()
    assert entry["allowed_mass"] == pytest.approx(mass, abs=1e-5)


def rounded(value: Any) -> Any:
    """Return JSON with approximate numbers: with other tokens in the cache, sums are rounded otherwise."""
    match value:
        case float():
            return pytest.approx(value, abs=1e-3)
        case list():
            return [rounded(each) for each in value]
        case dict():
            return {key: rounded(each) for key, each in value.items()}
        case _:
            return value


def test_details_without_rules_repeat_the_models_distribution(http: httpx.Client, logits_of: Logits) -> None:
    body = {"messages": CHAT, "max_tokens": 9, "logprobs": True, "top_logprobs": 3, "return_token_ids": True, "seed": 1}
    plain = post(http, "/v1/chat/completions", **body)
    answer = post(http, "/v1/chat/completions", **body, token_details=True)
    [choice] = answer["choices"]
    ids = choice["token_ids"]
    assert ids == plain["choices"][0]["token_ids"]
    assert all("id" not in entry for entry in plain["choices"][0]["logprobs"]["content"])
    all_logits = logits_of(answer["prompt_token_ids"], ids)
    for entry, token, logits in zip(choice["logprobs"]["content"], ids, all_logits, strict=True):
        check_entry(entry, token, logits, logits, None)
        assert (entry["origin"], entry["masked_logprob"], entry["allowed_mass"]) == ("sampled", entry["logprob"], 1.0)
        assert entry["drawn_logprob"] == entry["logprob"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_details_show_what_choices_penalties_and_biases_do(http: httpx.Client, logits_of: Logits) -> None:
    prompt = TOKENIZER.encode(CAPITAL, add_bos=True)
    bias = {TOKENIZER.encode(CHOICES[2])[0]: 3.5, 70: -2.0}
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "logprobs": 5, "return_token_ids": True}
    body |= {"guided_choice": CHOICES, "logit_bias": {str(token): value for token, value in bias.items()}}
    body |= {"frequency_penalty": 0.5, "repetition_penalty": 1.3, "logprob_token_ids": [5, 300], "token_details": True}
    [choice] = post(http, "/v1/completions", **body)["choices"]
    details, ids, text = choice["logprobs"]["details"], choice["token_ids"], b""
    assert len(details) == len(choice["logprobs"]["tokens"]) == len(ids) - (ids[-1] in TOKENIZER.eos_ids)
    for place, (entry, logits) in enumerate(zip(details, logits_of(prompt, ids), strict=False)):
        processed, before = logits.clone(), Counter(ids[:place])
        for token, value in bias.items():
            processed[token] += value
        for token in {*prompt, *before}:
            processed[token] *= 1 / 1.3 if processed[token] > 0 else 1.3
            processed[token] -= 0.5 * before[token]
        allowed = allowed_by_choices(text)
        processed[[token for token in range(len(logits)) if token not in allowed]] = -torch.inf
        check_entry(entry, ids[place], logits, processed, allowed)
        assert {alternative["id"] for alternative in entry["top_logprobs"]} >= {5, 300}
        text += TOKENIZER.token_bytes[ids[place]] or b""
    assert text.decode() == choice["text"] in CHOICES
    assert {entry["origin"] for entry in details} >= {"sampled", "forced"}


@pytest.mark.parametrize("n", [1, 2])
def test_streams_and_the_native_route_give_the_same_details(http: httpx.Client, n: int) -> None:
    prompt = TOKENIZER.encode(CAPITAL, add_bos=True)
    body = {"prompt": prompt, "max_tokens": 40, "logprobs": 2, "token_details": True, "seed": 4, "n": n}
    whole = post(http, "/v1/completions", **body, json_schema=PERSON, return_token_ids=True)["choices"]
    streamed: list[list[Any]] = [[] for _ in range(n)]
    for chunk in chunks(http, "/v1/completions", **body, json_schema=PERSON):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += (choice["logprobs"] or {}).get("details", [])
    assert streamed == rounded([choice["logprobs"]["details"] for choice in whole])
    params = {"max_new_tokens": 40, "json_schema": json.dumps(PERSON), "sampling_seed": 4, "n": n}
    native = {"input_ids": prompt, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 2}
    answers: Any = post(http, "/generate", **native, token_details=True)
    for answer, choice in zip(answers if n > 1 else [answers], whole, strict=True):
        details = answer["meta_info"]["output_token_details"]
        assert [entry["id"] for entry in details] == answer["output_ids"] == choice["token_ids"]
        assert details[: len(choice["logprobs"]["details"])] == rounded(choice["logprobs"]["details"])


def test_no_alternatives_are_needed_for_details(http: httpx.Client) -> None:
    body = {"prompt": CAPITAL, "max_tokens": 3, "temperature": 0, "logprobs": 0, "token_details": True}
    [choice] = post(http, "/v1/completions", **body)["choices"]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["details"]] == [[]] * 3


def test_echoed_prompts_have_no_details(http: httpx.Client) -> None:
    body = {"prompt": CAPITAL, "max_tokens": 3, "temperature": 0, "logprobs": 1, "echo": True, "token_details": True}
    [choice] = post(http, "/v1/completions", **body)["choices"]
    num_prompt = len(choice["logprobs"]["tokens"]) - 3
    assert [entry is None for entry in choice["logprobs"]["details"]] == [True] * num_prompt + [False] * 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 1}),
        ("/v1/chat/completions", {"messages": CHAT}),
        ("/generate", {"text": ["a", "b"], "return_logprob": [True, False]}),
    ],
)
def test_details_need_log_probabilities(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = http.post(path, json=body | {"token_details": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "token_details"
