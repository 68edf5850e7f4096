"""`/v1/rerank`, vLLM's `/v1/score` and `/classify` equal plain transformers: heads, and logits of "yes" and "no"."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

import ramiform
from ramiform.runtime.frontend.text import relevance
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.tests.frontend.harness import run, says
from ramiform.tests.frontend.served import check_error, served

QUERY = "What is a panda?"
DOCUMENTS = ["hi", "The panda is a bear of China.", "It is <|eos|> late"]
KINDS = [("LlamaForSequenceClassification", 1), ("Qwen2ForSequenceClassification", 3)]


def make_classifier(folder: Path, kind: str, labels: int) -> Any:
    """Save a small decoder with a head of so many labels, and the tokenizer of the model that ships."""
    config_class = getattr(transformers, kind.replace("ForSequenceClassification", "Config"))
    config = config_class(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_labels=labels,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(3)
    model = getattr(transformers, kind)(config).eval()
    torch.nn.init.normal_(model.score.weight, std=0.5)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((SHIPPED_MODEL / name).read_bytes())
    return model


@contextmanager
def serving(model: str, **settings: Any) -> Iterator[httpx.Client]:
    with (
        ramiform.Runtime(model, port=0, dtype="float32", num_pages=64, log_level="error", **settings) as runtime,
        httpx.Client(base_url=str(runtime.url), timeout=120) as client,
    ):
        yield client


def ids_of(client: httpx.Client, text: str, *, special: bool = True) -> list[int]:
    body = {"prompt": text, "add_special_tokens": special}
    ids: list[int] = client.post("/tokenize", json=body).json()["tokens"]
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "labels"), KINDS)
def test_a_classification_head_is_transformers_s(tmp_path: Path, kind: str, labels: int) -> None:
    model = make_classifier(tmp_path, kind, labels)
    with serving(str(tmp_path)) as client:

        def expected(ids: list[int]) -> list[float]:
            with torch.no_grad():
                logits: list[float] = model(torch.tensor([ids])).logits[0].tolist()
            return logits

        texts = [QUERY, *DOCUMENTS[:2]]
        answer = client.post("/classify", json={"input": texts, "use_activation": False}).json()
        assert answer["usage"]["prompt_tokens"] == sum(len(ids_of(client, text)) for text in texts)
        logits = [expected(ids_of(client, text)) for text in texts]
        for entry, own in zip(answer["data"], logits, strict=True):
            assert entry["probs"] == pytest.approx(own, abs=1e-4)
            assert entry["label"] == f"LABEL_{own.index(max(own))}"
            assert entry["num_classes"] == labels
        own_ids = client.post("/v1/classify", json={"input": ids_of(client, QUERY)}).json()["data"][0]["probs"]
        values = torch.tensor(logits[0])
        probs = values.sigmoid() if labels == 1 else values.softmax(-1)
        assert own_ids == pytest.approx(probs.tolist(), abs=1e-4)
        check_error(client.post("/v1/completions", json={"prompt": "a"}), 400, None, "classifies")
        pair = client.post("/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS[:2]})
        if labels > 1:
            check_error(pair, 400, "model", "3 labels")
            return
        ids = [[*ids_of(client, QUERY), *ids_of(client, text, special=False)] for text in DOCUMENTS[:2]]
        scores = [torch.tensor(expected(each)).sigmoid().item() for each in ids]
        assert [entry["score"] for entry in pair.json()["data"]] == pytest.approx(scores, abs=1e-4)


def prompt_of(form: str, document: str) -> str:
    """Return the prompt as model cards write it, with the names of special tokens in a document taken apart."""
    known = relevance.FORMS[form]
    return known.text.format(query=QUERY, document=document, instruction=known.instruction)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["qwen3", "bge"])
def test_a_reranker_s_score_is_that_of_two_logits(form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
    tokenizer = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    words = relevance.FORMS[form].match, relevance.FORMS[form].mismatch
    for word, token in zip(words, sorted(vocabulary, key=vocabulary.__getitem__)[-2:], strict=True):
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": vocabulary[token], "content": word})
        vocabulary[word] = vocabulary.pop(token)
        tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) != token]
    for file in SHIPPED_MODEL.glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for entry in tokenizer["added_tokens"][-2:]:
        entry["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    with serving(str(tmp_path), reranker=form) as client:
        matches = [vocabulary[word] for word in words]
        scores = []
        for document in DOCUMENTS[:2]:
            with torch.no_grad():
                logits = model(torch.tensor([ids_of(client, prompt_of(form, document))])).logits[0, -1]
            scores.append(logits[matches].softmax(-1)[0].item())
        found = client.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS[:2]}).json()
        by_index = {entry["index"]: entry["relevance_score"] for entry in found["results"]}
        assert [by_index[0], by_index[1]] == pytest.approx(scores, abs=1e-4)
        assert [entry["relevance_score"] for entry in found["results"]] == sorted(by_index.values(), reverse=True)
        compared = client.post("/v1/score", json={"queries": [QUERY], "documents": DOCUMENTS[:2]}).json()
        assert [entry["score"] for entry in compared["data"]] == pytest.approx(scores, abs=1e-5)
        of_tei = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "return_text": True}).json()
        assert {entry["text"] for entry in of_tei} == set(DOCUMENTS)
        labels = client.post("/classify", json={"input": prompt_of(form, DOCUMENTS[0])}).json()["data"][0]
        assert labels["probs"] == pytest.approx([scores[0], 1 - scores[0]], abs=1e-4)
        # The name of a special token in a document is text: it ends nothing.
        raw = client.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS, "top_n": 1, "use_activation": False})
        assert len(raw.json()["results"]) == 1


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("/rerank", {"query": "a", "documents": ["b"]}, "model", "no reranker"),
    ("/rerank", {"query": "a"}, "documents", "either documents or texts"),
    ("/rerank", {"query": "a", "documents": ["b"], "texts": ["b"]}, "documents", "either"),
    ("/rerank", {"query": "a", "documents": []}, "documents", "1 to 1024"),
    ("/classify", {"input": "a"}, "model", "no classification head"),
    ("/v1/score", {"text_1": "a", "documents": ["b"]}, "text_1", "text_1 and text_2"),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["b"] * 3}, "text_2", "give one and any number"),
    ("/v1/score", {"text_1": "a", "text_2": "b", "prompt": "c"}, "text_1", "prompt"),
    ("/v1/score", {"queries": "a", "items": [[1]]}, "items", "not token ids"),
]


@pytest.mark.parametrize(("route", "body", "param", "words"), REFUSED)
def test_what_cannot_be_scored_is_refused_by_name(route: str, body: dict[str, Any], param: str, words: str) -> None:
    async def main() -> None:
        async with served(says("a")) as (_, client):
            check_error(await client.post(route, json=body), 400, param, words)

    run(main())


ROUTES: list[tuple[str, str]] = [
    *(("POST", path) for path in ("/v1/rerank", "/rerank", "/v2/rerank", "/reranking", "/v1/reranking")),
    *(("POST", path) for path in ("/classify", "/v1/classify", "/score", "/v1/score")),
    *(("POST", path) for path in ("/completion", "/completions", "/infill", "/v1/completions/render")),
    *(("POST", f"{path}/input_tokens") for path in ("/v1/chat/completions", "/chat/completions")),
    ("POST", "/v1/chat/completions/render"),
    ("GET", "/props"),
    ("GET", "/slots"),
]
KEYS: list[tuple[dict[str, str], Callable[[str], bool]]] = [
    ({}, lambda key: True),
    ({"api_key": "a"}, lambda key: key == "a"),
    ({"api_key": "a,b"}, lambda key: key in "ab" and key != ""),
    ({"admin_key": "boss"}, lambda key: True),
    ({"api_key": "a,b", "admin_key": "boss"}, lambda key: key in ("a", "b", "boss")),
]


@pytest.mark.parametrize(("settings", "may"), KEYS)
def test_every_route_asks_for_a_key(settings: dict[str, str], may: Callable[[str], bool]) -> None:
    async def main() -> None:
        async with served(says("a"), **settings) as (_, client):
            for method, path in ROUTES:
                for key in ("", "a", "b", "boss", "wrong"):
                    headers = {"authorization": f"Bearer {key}"} if key else {}
                    answer = await client.request(method, path, json={} if method == "POST" else None, headers=headers)
                    assert (answer.status_code != 401) == may(key), (path, key, answer.text)

    run(main())
