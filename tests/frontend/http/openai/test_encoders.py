"""Encoders over HTTP: rerankers, classifiers and sentence embeddings. Judge: transformers, and its tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

import ramiform
from ramiform.runtime.frontend.api.embeddings import checkpoint_pooling
from ramiform.runtime.protocol.core import ModelInfo
from ramiform.runtime.protocol.errors import RequestError
from ramiform.tests.frontend.served import check_error
from ramiform.tests.models.encoder_checkpoints import make_encoder

QUERY = "What is a panda?"
DOCUMENTS = ["hi", "The panda is a bear of China, black and white.", "It is [SEP] late", "how are you today?"]


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[httpx.Client]:
    with (
        ramiform.Runtime(str(folder), port=0, dtype="float32", log_level="error", **settings) as runtime,
        httpx.Client(base_url=str(runtime.url), timeout=120) as client,
    ):
        yield client


@pytest.mark.slow
def test_a_reranker_scores_pairs_and_generates_nothing(tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "BertForSequenceClassification", num_labels=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)

    def logit(first: str, second: str | None = None) -> float:
        # The name of a special token in a client's text is text; transformers reads it, and so is not given any.
        fields = tokenizer(first.replace("[SEP]", "[ SEP ]"), second and second.replace("[SEP]", "[ SEP ]"))
        with torch.inference_mode():
            return float(model(**fields.convert_to_tensors("pt", prepend_batch_axis=True)).logits[0, 0])

    scores = [torch.tensor(logit(QUERY, text)).sigmoid().item() for text in DOCUMENTS]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    with serving(tmp_path, prefill_budget=64) as client:
        # Jina's and Cohere's bodies, Text Embeddings Inference's, and vLLM's of pairs.
        for body in ({"documents": DOCUMENTS}, {"documents": [{"text": text} for text in DOCUMENTS]}):
            found = client.post("/v1/rerank", json={"query": QUERY, **body}).json()["results"]
            assert [each["index"] for each in found] == order
            assert [each["relevance_score"] for each in found] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
        raw = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json()
        assert {each["index"]: each["score"] for each in raw} == pytest.approx(
            {index: logit(QUERY, text) for index, text in enumerate(DOCUMENTS)}, abs=1e-4
        )
        for names in (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")):
            pairs = client.post("/v1/score", json=dict(zip(names, (QUERY, DOCUMENTS), strict=True))).json()["data"]
            assert [each["score"] for each in pairs] == pytest.approx(scores, abs=1e-5)
        [label] = client.post("/classify", json={"input": QUERY, "use_activation": False}).json()["data"]
        assert (label["label"], label["num_classes"]) == ("LABEL_0", 1)
        assert label["probs"] == pytest.approx([logit(QUERY)], abs=1e-4)
        assert client.post("/tokenize", json={"prompt": QUERY}).json()["tokens"] == tokenizer(QUERY).input_ids

        # Many at once, some of which are refused: each has its own answer.
        def ask(number: int) -> httpx.Response:
            text = "panda " * (70 if number % 5 == 0 else number)
            return client.post("/v1/score", json={"text_1": QUERY, "text_2": text})

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(1, 21)))
        for number, answer in enumerate(answers, start=1):
            if number % 5 == 0:
                check_error(answer, 400, "text_2", "maximum context length is 64")
            else:
                expected = torch.tensor(logit(QUERY, "panda " * number)).sigmoid().item()
                assert answer.json()["data"][0]["score"] == pytest.approx(expected, abs=1e-5)
        check_error(client.post("/classify", json={"input": [[2, 3], [9999]]}), 400, "input", "token id 9999")
        check_error(client.post("/classify", json={"input": "b " * 99}), 400, "input", "maximum context length is 64")
        said = [{"role": "user", "content": "a"}]
        generating: list[tuple[str, dict[str, Any]]] = [
            ("/generate", {"text": "a"}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/completions", {"prompt": "a", "stream": True}),
            ("/v1/chat/completions", {"messages": said}),
            ("/v1/chat/completions", {"messages": said, "stream": True}),
            ("/v1/responses", {"input": "a"}),
            ("/completion", {"prompt": "a"}),
            ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [1]}),
        ]
        for route, body in generating:
            check_error(client.post(route, json=body), 400, None, "classifies texts and generates none")
        body = {"prompt": "a", "continuations": ["b"]}
        check_error(client.post("/v1/score", json=body), 400, "continuations", "is an encoder")
        check_error(client.post("/v1/embeddings", json={"input": "a"}), 400, "model", "no embeddings")
        instructed = {"query": QUERY, "documents": ["a"], "instruction": "b"}
        check_error(client.post("/v1/rerank", json=instructed), 400, "instruction", "no instruction")
        for path in ("/health", "/health_generate", "/metrics", "/v1/models", "/props", "/slots", "/server_info"):
            assert client.get(path).status_code == 200, path
        assert client.get("/get_model_info").json()["is_generation"] is False


@pytest.mark.slow
def test_a_sentence_encoder_embeds_texts(tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "XLMRobertaModel")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with serving(tmp_path) as client:
        found = client.post("/v1/embeddings", json={"input": DOCUMENTS[:2]}).json()
        first = client.post("/v1/embeddings", json={"input": QUERY, "normalize": False, "pooling": "last"}).json()
        by_ollama = client.post("/api/embed", json={"model": tmp_path.name, "input": "panda " * 99}).json()
        check_error(client.post("/classify", json={"input": "a"}), 400, "model", "no classification head")
        check_error(client.post("/v1/completions", json={"prompt": "a"}), 400, None, "embeds texts")
    ids = [tokenizer(text).input_ids for text in (*DOCUMENTS[:2], QUERY)]
    cut = tokenizer("panda " * 99, truncation=True, max_length=62).input_ids
    with torch.inference_mode():
        states = [model(torch.tensor([each])).last_hidden_state[0] for each in (*ids, cut)]
    means = [torch.nn.functional.normalize(each.mean(0), dim=0).tolist() for each in states]
    assert [each["embedding"] for each in found["data"]] == [pytest.approx(mean, abs=1e-5) for mean in means[:2]]
    assert first["data"][0]["embedding"] == pytest.approx(states[2][-1].tolist(), abs=1e-4)
    assert by_ollama["embeddings"][0] == pytest.approx(means[3], abs=1e-5)
    assert found["usage"]["prompt_tokens"] == len(ids[0]) + len(ids[1])


POOLING: list[tuple[dict[str, Any] | None, str | None]] = [
    (None, "last"),
    ({"pooling_mode_mean_tokens": True}, "mean"),
    ({"pooling_mode": "mean"}, "mean"),
    ({"pooling_mode": "lasttoken"}, "last"),
    ({"pooling_mode": "cls"}, None),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None),
]


@pytest.mark.parametrize(("content", "expected"), POOLING)
def test_a_decoder_pools_as_its_file_says_or_refuses(
    tmp_path: Path, content: dict[str, Any] | None, expected: str | None
) -> None:
    if content is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(content), "utf-8")
    sizes: dict[str, Any] = {"num_parameters": 1, "vocab_size": 1, "context_length": 1, "page_size": 16, "num_pages": 1}
    names = {"name": "a", "architecture": "Qwen3ForCausalLM", "dtype": "float32", "device": "cpu", "version": "0"}
    info = ModelInfo(path=str(tmp_path), **sizes, **names)
    if expected is not None:
        assert checkpoint_pooling(info) == expected
        return
    with pytest.raises(RequestError, match="give pooling last or mean") as raised:
        checkpoint_pooling(info)
    assert raised.value.param == "pooling"
