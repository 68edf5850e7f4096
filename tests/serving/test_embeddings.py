"""Embeddings through the official client. Judge: transformers' hidden states of the same model."""

from __future__ import annotations

import array
import base64
from typing import Any

import httpx
import pytest
import torch
import transformers
from openai import BadRequestError, OpenAI

import ramiform

TEXTS = ["Paris is the capital of France.", "The Nile flows through Egypt." * 20]


@pytest.fixture(scope="module")
def states(runtime: ramiform.Runtime) -> list[torch.Tensor]:
    """The final hidden states of each text, a row a token."""
    path = runtime.info.path
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    judge = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        return [judge.model(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0] for text in TEXTS]


@pytest.mark.parametrize("pooling", ["last", "mean", None])
@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_embeddings_are_the_models_hidden_states(
    client: OpenAI, model: str, states: list[torch.Tensor], pooling: Any, encoding_format: Any
) -> None:
    extra = {} if pooling is None else {"pooling": pooling}
    asked: dict[str, Any] = {"model": model, "encoding_format": encoding_format, "extra_body": extra}
    for _ in range(2):  # again, now that the cache knows the texts
        answer = client.embeddings.create(input=TEXTS, **asked)
        for each, states_TE in zip(answer.data, states, strict=True):
            pooled_E = states_TE.mean(dim=0) if pooling == "mean" else states_TE[-1]
            got: Any = each.embedding
            if encoding_format == "base64":
                got = array.array("f", base64.b64decode(got)).tolist()
            torch.testing.assert_close(
                torch.tensor(got), torch.nn.functional.normalize(pooled_E, dim=0), atol=1e-4, rtol=1e-3
            )
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(each) for each in states)
    assert [each.index for each in answer.data] == [0, 1]


def test_texts_and_token_ids_one_or_many_are_the_same(client: OpenAI, http: httpx.Client, model: str) -> None:
    ids = [http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]
    forms: list[Any] = [TEXTS[0], [TEXTS[0]], ids[0], [ids[0]]]
    first, *others = [client.embeddings.create(model=model, input=form).data[0].embedding for form in forms]
    assert all(other == pytest.approx(first, abs=1e-5) for other in others)
    whole = client.embeddings.create(model=model, input=TEXTS[0], extra_body={"normalize": False}).data[0].embedding
    assert sum(value * value for value in first) == pytest.approx(1.0, abs=1e-4)
    assert sum(value * value for value in whole) != pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"dimensions": 7}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"extra_body": {"pooling": "cls"}}, "pooling"),
        ({"input": [[1 << 30]]}, "input"),
        ({"input": "a " * 100_000}, "input"),
    ],
    ids=["none", "empty", "one empty", "dimensions", "no dimensions", "encoding", "pooling", "no token", "too long"],
)
def test_what_cannot_be_embedded_is_a_400(client: OpenAI, model: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(**{"model": model, "input": "a"} | fields)
    assert caught.value.param == param
