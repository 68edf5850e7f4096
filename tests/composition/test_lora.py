"""Whatever happens around them, requests with LoRA adapters get what merged weights give.

Judge: transformers, greedy, on the model that ships with each adapter merged into its weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from websockets.sync.client import connect

import ramiform
from ramiform import gen, select
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

from .lora_files import merged, write_adapter

torch.set_num_threads(1)  # threads that wait for each other on a busy machine cost more than this model

NAMES = ("sql", "chat", "law", "poem")
PROMPTS = (
    "Question: What is the capital of France?\nAnswer:",
    "Question: What is the capital of Italy?\nAnswer: It is a city on a river. Ada says that",
)
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    settings: list[dict[str, Any]] = [
        {"rank": 8},
        {"rank": 4, "targets": ["q_proj", "v_proj"], "use_rslora": True},
        {"rank": 16, "alpha_pattern": {"down_proj": 16}},
        {"rank": 3, "targets": ["gate_proj", "up_proj", "down_proj"]},
    ]
    return {
        name: write_adapter(folder / name, SHIPPED_MODEL, seed=seed, **own)
        for seed, (name, own) in enumerate(zip(NAMES, settings, strict=True))
    }


@pytest.fixture(scope="module")
def expected(adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[int]]:
    """The greedy tokens of each adapter, and of the base (""), after each prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    folder, found = tmp_path_factory.mktemp("merged"), {}
    for name in ("", *NAMES):
        path = SHIPPED_MODEL if not name else merged(folder / name, SHIPPED_MODEL, adapters[name])
        judge = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for prompt in PROMPTS:
            ids, cache = tokenizer(prompt, return_tensors="pt").input_ids, None
            found[name, prompt] = []
            for _ in range(NUM_TOKENS):
                with torch.inference_mode():
                    output = judge(ids, past_key_values=cache, use_cache=True)
                ids, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
                found[name, prompt].append(int(ids))
    return found


def start(adapters: dict[str, Path], **settings: Any) -> ramiform.Runtime:
    return ramiform.Runtime(
        port=0,
        dtype="float32",
        log_level="error",
        lora=[f"{name}={path}" for name, path in adapters.items()],
        **{"num_pages": 512, "speculative": "off"} | settings,
    )


@pytest.fixture(scope="module")
def served(adapters: dict[str, Path]) -> Iterator[ramiform.Runtime]:
    with start(adapters) as runtime:
        yield runtime


def generate(url: str, name: str, prompt: str) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {"text": prompt, "sampling_params": params, "lora_path": name or None}
    answer = httpx.post(f"{url}/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def server_info(runtime: ramiform.Runtime) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{runtime.url}/get_server_info").json()
    return found


def end_soon(url: str, expected: dict[tuple[str, str], list[int]]) -> None:
    """Run requests that end at their first token, so that the scheduler expects short outputs and starts too many."""
    params = [{"temperature": 0, "max_new_tokens": NUM_TOKENS, "stop_token_ids": ids[:1]} for ids in expected.values()]
    names, prompts = zip(*expected, strict=True)
    body = {"text": prompts * 3, "lora_path": [name or None for name in names] * 3, "sampling_params": params * 3}
    answers = httpx.post(f"{url}/generate", json=body, timeout=120).json()
    assert {answer["meta_info"]["completion_tokens"] for answer in answers} == {1}


def check_all(runtime: ramiform.Runtime, expected: dict[tuple[str, str], list[int]]) -> list[dict[str, Any]]:
    """Ask for everything at once, in one HTTP request; return the answers."""
    keys = [*expected, *expected]
    params = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {
        "text": [prompt for _, prompt in keys],
        "lora_path": [name or None for name, _ in keys],
        "sampling_params": params,
    }
    answer = httpx.post(f"{runtime.url}/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    answers: list[dict[str, Any]] = answer.json()
    for key, mine in zip(keys, answers, strict=True):
        assert mine["output_ids"] == expected[key], key
    return answers


@pytest.fixture
def client(served: ramiform.Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url or "", timeout=120) as http:
        yield http


def completion(client: httpx.Client, model: str, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body | {"return_token_ids": True} | fields)
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.exhaustive
def test_adapters_and_the_base_in_shared_steps_give_the_tokens_of_merged_weights(
    served: ramiform.Runtime, expected: dict[tuple[str, str], list[int]]
) -> None:
    check_all(served, expected)
    warm = check_all(served, expected)
    assert min(answer["meta_info"]["cached_tokens"] for answer in warm) > 5


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings",
    [
        {"num_pages": 16, "prefill_budget": 24, "max_running": 12, "host_kv_memory": 0.01},
        {"speculative": "suffix", "speculative_adaptive": False, "overlap": "on"},
        {"tp": 2},
    ],
    ids=["chunks, retractions, host memory", "speculation", "two ranks"],
)
def test_under_other_settings(
    adapters: dict[str, Path], expected: dict[tuple[str, str], list[int]], settings: dict[str, Any]
) -> None:
    with start(adapters, **settings) as runtime:
        if "num_pages" in settings:
            end_soon(runtime.url or "", expected)
        check_all(runtime, expected)
        check_all(runtime, expected)
        # The loops of drafts may still be compiled or loaded.
        while "speculative" in settings and not server_info(runtime)["num_accepted_tokens"]:
            check_all(runtime, expected)
        if "num_pages" in settings:
            assert server_info(runtime)["num_retractions"] > 0


@pytest.mark.exhaustive
def test_prefixes_on_disk_are_found_by_an_adapter_s_name_and_weights(
    adapters: dict[str, Path], expected: dict[tuple[str, str], list[int]], tmp_path: Path
) -> None:
    settings = {"disk_cache": str(tmp_path / "cache")}
    with start(adapters, **settings) as runtime:
        check_all(runtime, expected)
        time.sleep(1.5)  # until it is saved
    other = dict(zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True))
    renamed = {name: adapters[other[name]] for name in NAMES}
    with start(renamed, **settings) as runtime:
        check_all(runtime, {(name, prompt): expected[other.get(name, ""), prompt] for name, prompt in expected})
        assert server_info(runtime)["disk"]["num_hit_tokens"] == 16, "a page of the base's, which has its name still"
    with start(adapters, **settings) as runtime:
        answers = [each["meta_info"] for each in check_all(runtime, expected)]
        assert server_info(runtime)["disk"]["num_hit_tokens"] == 16 * (1 + len(NAMES))
    assert min(each["cached_tokens"] for each in answers if each["prompt_tokens"] > 16) == 16


@pytest.mark.slow
def test_an_adapter_is_a_model_beside_its_base(
    client: httpx.Client, served: ramiform.Runtime, expected: dict[tuple[str, str], list[int]]
) -> None:
    listed = {entry["id"]: entry for entry in client.get("/v1/models").json()["data"]}
    assert [listed[name]["parent"] for name in NAMES] == [served.info.name] * len(NAMES)
    assert client.get("/v1/models/sql").json()["id"] == "sql"
    assert f'running_lora_adapters="{",".join(NAMES)}"' in client.get("/metrics").text
    text = completion(client, "law", PROMPTS[0])
    assert text["model"] == "law"
    assert text["choices"][0]["text"] == generate(served.url or "", "law", PROMPTS[0])["text"]
    chat = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 12, "seed": 1}
    answers = [client.post("/v1/chat/completions", json=chat | {"model": name}).json() for name in ("sql", "")]
    assert [answer["model"] for answer in answers] == ["sql", served.info.name]
    assert answers[0]["choices"] != answers[1]["choices"]
    assert client.post("/v1/completions", json={"model": "none", "prompt": "a"}).status_code == 404
    refused = client.post("/generate", json={"text": "a", "lora_path": "none"})
    assert refused.status_code == 400
    assert "no LoRA adapter 'none'" in refused.text


@pytest.mark.slow
def test_every_dialect_answers_with_the_adapter_that_is_its_model(
    client: httpx.Client, served: ramiform.Runtime, expected: dict[tuple[str, str], list[int]]
) -> None:
    messages = [{"role": "user", "content": "Hello"}]

    def chat(model: str) -> str:
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12, "exact_history": False}
        text: str = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        return text

    texts = {model: chat(model) for model in ("sql", served.info.name)}
    assert len(set(texts.values())) == 2
    for model, text in texts.items():
        anthropic = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12}
        message = client.post("/v1/messages", json=anthropic).json()
        assert (message["model"], message["content"][0]["text"]) == (model, text)
        responses = {"model": model, "input": messages, "temperature": 0, "max_output_tokens": 12}
        response = client.post("/v1/responses", json=responses).json()
        assert (response["model"], response["output"][0]["content"][0]["text"]) == (model, text)
        options = {"temperature": 0, "num_predict": 12}
        ollama = {"model": model, "messages": messages, "stream": False, "options": options}
        assert client.post("/api/chat", json=ollama).json()["message"]["content"] == text
    asked: list[tuple[str, dict[str, Any], Any]] = [
        ("/v1/constrained", {"prompt": PROMPTS[0], "regex": "[a-z ]{24}"}, lambda answer: answer["value"]),
        ("/v1/score", {"prompt": "a", "continuations": [" b"]}, lambda answer: answer["data"]),
        ("/v1/embeddings", {"input": "Hello"}, lambda answer: answer["data"]),
        ("/api/embed", {"input": "Hello"}, lambda answer: answer["embeddings"]),
        ("/api/embeddings", {"prompt": "Hello"}, lambda answer: answer["embedding"]),
        (
            "/v1/decisions",
            {"input": "Hello", "questions": [{"type": "predicate", "instructions": "Is it good?"}]},
            lambda answer: answer["answers"],
        ),
    ]
    for route, body, value in asked:
        answers = [client.post(route, json=body | {"model": model}).json() for model in texts]
        assert value(answers[0]) != value(answers[1]), route
        if "model" in answers[0]:
            assert [answer["model"] for answer in answers] == list(texts)


def test_responses_on_one_socket_name_their_own_models(client: httpx.Client, served: ramiform.Runtime) -> None:
    with connect(f"{served.url}/v1/responses".replace("http", "ws", 1), open_timeout=120) as socket:
        answers = []
        for model in ("sql", served.info.name, "sql"):
            body = {"model": model, "input": "Hello", "temperature": 0, "max_output_tokens": 12}
            socket.send(json.dumps(body | {"type": "response.create"}))
            events = map(json.loads, iter(socket))
            done = next(event for event in events if event["type"] in ("response.incomplete", "response.completed"))
            answers.append((done["response"]["model"], done["response"]["output"][0]["content"][0]["text"]))
    assert [model for model, _ in answers] == ["sql", served.info.name, "sql"]
    assert answers[0] == answers[2] != answers[1]


@pytest.mark.exhaustive
def test_adapters_come_and_go_while_requests_run(
    client: httpx.Client, adapters: dict[str, Path], tmp_path: Path
) -> None:
    for route in ("/v1/load_lora_adapter", "/load_lora_adapter"):
        wrong = client.post(route, json={"lora_name": "new", "lora_path": str(tmp_path)})
        assert wrong.status_code == 400
        assert "adapter_config.json" in wrong.text
    first = {"lora_name": "new", "lora_path": str(adapters["sql"])}
    assert "Success" in client.post("/v1/load_lora_adapter", json=first).text
    assert client.post("/v1/load_lora_adapter", json=first).status_code == 400  # it is loaded
    sql = completion(client, "new", PROMPTS[1])
    assert sql["choices"] == completion(client, "sql", PROMPTS[1])["choices"]
    body = {"model": "new", "prompt": PROMPTS[0], "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        unloaded = client.post("/unload_lora_adapter", json={"lora_name": "new"}).json()
        assert "new" not in unloaded["loaded_adapters"]
        assert client.post("/v1/completions", json=body).status_code == 404
        rest = [line for line in lines if line.startswith("data:")]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    # The same name with other weights reuses nothing.
    assert client.post("/load_lora_adapter", json=first | {"lora_path": str(adapters["law"])}).json()["success"]
    law = completion(client, "new", PROMPTS[1])
    assert law["choices"] == completion(client, "law", PROMPTS[1])["choices"]
    assert law["choices"] != sql["choices"]
    client.post("/v1/unload_lora_adapter", json={"lora_name": "new"})


@pytest.mark.exhaustive
def test_programs_fork_select_and_generate_with_an_adapter(
    served: ramiform.Runtime, expected: dict[tuple[str, str], list[int]]
) -> None:
    texts = {name: generate(served.url or "", name, PROMPTS[0])["text"] for name in ("", "chat", "sql")}

    @ramiform.function
    def ask(s: ramiform.ProgramState) -> None:
        s += PROMPTS[0]
        forks = s.fork(2)
        forks[0] += gen("own", max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
        forks[1] += gen("other", max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, lora="sql")
        forks.join()
        s += select("choice", [texts["chat"], texts["sql"]])

    state = ask.run(lora="chat", backend=served)
    assert (state["own"], state["other"]) == ([texts["chat"]], [texts["sql"]])
    assert state["choice"] == texts["chat"]
    with pytest.raises(ramiform.RequestError, match="no LoRA adapter 'none'"):
        ask.run(lora="none", backend=served).text()
