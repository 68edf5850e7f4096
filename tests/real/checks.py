"""Checks every trained model has to pass. Judges: transformers' tokenizer, jsonschema, exact keys and values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema

import ramiform
from ramiform.kernels.cpu.products.amx import usable
from ramiform.runtime.engine.build import build_engine
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.tools.quantize.perplexity import perplexity

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2  # squared\n",
    "Übergrößenträger, naïve café, 東京タワー, 🙂🙃",
    "  two  spaces\t\ttabs\n\n\nlines 1234567890 3.14159",
    "It's what we'll do; they'd've said \"no\" (twice).",
)
PROSE = Path(__file__).parents[2] / "docs" / "learn" / "tutorial.md"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
PEOPLE = (
    ("Maria is 34 years old and lives in Lisbon.", {"name": "Maria", "age": 34, "city": "Lisbon"}),
    ("In Oslo lives Erik, who turned 51 last week.", {"name": "Erik", "age": 51, "city": "Oslo"}),
    ("Aiko, aged 27, moved to Kyoto.", {"name": "Aiko", "age": 27, "city": "Kyoto"}),
    ("My neighbour John (62) is from Dublin.", {"name": "John", "age": 62, "city": "Dublin"}),
)


@contextmanager
def served(file: Path, *, deterministic: bool = False) -> Iterator[httpx.Client]:
    settings: dict[str, Any] = {
        "served_model_name": "default",
        "num_pages": 512,
        "log_level": "error",
        "deterministic": deterministic,
    }
    with (
        ramiform.Runtime(str(file), port=0, **settings) as started,
        httpx.Client(base_url=started.url, timeout=900) as client,
    ):
        yield client


def ids_of(http: httpx.Client, text: str) -> list[int]:
    answer = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
    return list(answer.raise_for_status().json()["tokens"])


def chat(http: httpx.Client, question: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "default", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 96}
    answer = http.post("/v1/chat/completions", json=body | fields).raise_for_status().json()
    return dict(answer["choices"][0])


@cache  # it takes a minute
def tokenizer_of(file: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def check_ids(http: httpx.Client, file: Path) -> None:
    judge = tokenizer_of(file)
    for text in TEXTS:
        assert ids_of(http, text) == judge(text, add_special_tokens=False)["input_ids"], text
        assert http.post("/detokenize", json={"tokens": ids_of(http, text)}).json()["prompt"] == text


def continued(http: httpx.Client, prompt: str, max_tokens: int) -> str:
    body = {"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return str(http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"])


def check_template(http: httpx.Client, file: Path, messages: list[dict[str, str]], text: str) -> None:
    answer = http.post("/tokenize", json={"messages": messages}).raise_for_status().json()
    assert tokenizer_of(file).decode(answer["tokens"]) == text


def check_tool_calls(http: httpx.Client, cities: Iterable[str]) -> None:
    for city in cities:
        question = f"What is the weather in {city}, in celsius?"
        choice = chat(http, question, tools=[TOOL], tool_choice="required")
        [call] = choice["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "get_weather")
        jsonschema.validate(arguments, TOOL["function"]["parameters"])
        assert city in arguments["city"]


def extracted(http: httpx.Client) -> int:
    """Return how many of PEOPLE a schema extracts right. Every answer must fit it."""
    right = 0
    for text, expected in PEOPLE:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        found = json.loads(
            chat(http, f"Extract the person as JSON: {text}", response_format=form)["message"]["content"]
        )
        jsonschema.validate(found, PERSON)
        right += found == expected
    return right


def check_warm_bits(http: httpx.Client, file: Path, text: str) -> None:
    """A prompt whose prefix is cached gives the tokens and log-probabilities that it gave cold.

    Where many rows go by tiles, whose sums run in another order than those of few, a deterministic server keeps them.
    """
    with served(file, deterministic=True) if usable() else nullcontext(http) as client:

        def asked() -> tuple[Any, int]:
            body = {"model": "default", "prompt": text, "max_tokens": 12, "temperature": 0, "logprobs": 3}
            answer = client.post("/v1/completions", json=body).raise_for_status().json()
            return answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        cold, before = asked()
        warm, cached = asked()
    assert before <= 1 < cached, (before, cached)  # every prompt may begin with the same token
    assert warm == cold


def losses(file: Path, ids: list[int], formats: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return what each setting of CoreConfig adds to the perplexity of `ids`, as a part of it."""
    exact, found = 0.0, dict[str, float]()
    for setting, value in (("", ""), *formats):
        options: dict[str, Any] = {setting: value} if setting else {}
        engine = build_engine(CoreConfig(model=str(file), num_pages=128, window_ratio=1, **options), file)
        found[value] = perplexity(engine, ids, 512)
        exact = exact or found[value]
    print({value: round(one / exact - 1, 4) for value, one in found.items()})
    return {value: one / exact - 1 for value, one in found.items()}


def dense_copy(file: Path, folder: Path) -> Path:
    """Write the model in bfloat16 as transformers reads it."""
    from transformers import AutoModelForCausalLM, GgufConfig

    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=dense, dtype="bfloat16"
    )
    model.hf_quantizer = model.config.quantization_config = None  # or it would refuse to be saved
    model.save_pretrained(folder)
    return folder
