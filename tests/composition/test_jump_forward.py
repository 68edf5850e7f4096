"""Jump-forward and grammar engines on the real runtime. Judges: the runtime without jumps, and `jsonschema`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

import ramiform
from ramiform import gen, select

PROMPT = "Question: What is the capital of France?\nAnswer:"
# Nothing is left open, or nothing after one choice: then the text cannot depend on which ids it is made of.
FORCED: list[dict[str, Any]] = [
    {"regex": " The capital of France is Paris, which lies on the Seine\\."},
    {"regex": "(Yes, that is what they say|No, they say something else)\\."},
    {"json_schema": json.dumps({"const": "Ada keeps a spider, and\na fox."})},
    {"regex": " The capital of France is Paris, which lies on the Seine\\.", "stop": ["pital of"]},
    {"regex": " The capital of France is Paris, which lies on the Seine\\.", "frequency_penalty": 0.5, "n": 2},
]
LONG = "As everybody in the city knows, the seven spiders live under the blue lamps near the river\\. "
SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"type": "string", "maxLength": 4}, "number_of_legs": {"enum": [2, 4, 8]}},
    "required": ["first_name", "number_of_legs"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def cramped() -> Iterator[ramiform.Runtime]:
    """A runtime with steps shorter than the forced text, and with less memory than all requests need."""
    small = {"num_pages": 24, "prefill_budget": 24, "max_running": 16}
    with ramiform.Runtime(port=0, dtype="float32", log_level="error", **small) as started:
        yield started


@pytest.fixture(scope="module")
def plain() -> Iterator[ramiform.Runtime]:
    with ramiform.Runtime(port=0, dtype="float32", num_pages=256, jump_forward=False, log_level="error") as started:
        yield started


def ask(runtime: ramiform.Runtime, params: dict[str, Any], **fields: Any) -> httpx.Response:
    sampling = {"temperature": 0.0, "max_new_tokens": 60, **params}
    body = {"text": PROMPT, "sampling_params": sampling, **fields}
    return httpx.post(f"{runtime.url}/generate", json=body, timeout=120)


def texts(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    answer = response.json()
    return [part["text"] for part in (answer if isinstance(answer, list) else [answer])]


def stats(runtime: ramiform.Runtime) -> dict[str, Any]:
    figures: dict[str, Any] = httpx.get(f"{runtime.url}/get_server_info", timeout=120).json()
    return figures


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", range(len(FORCED)))
def test_forced_text_is_the_same_with_and_without_jumps(
    runtime: ramiform.Runtime, plain: ramiform.Runtime, index: int
) -> None:
    assert texts(ask(runtime, FORCED[index])) == texts(ask(plain, FORCED[index]))


@pytest.mark.exhaustive
def test_forced_text_is_the_same_when_memory_runs_out_and_rows_are_cut(
    cramped: ramiform.Runtime, plain: ramiform.Runtime
) -> None:
    drawn: dict[str, Any] = {"temperature": 1.0, "sampling_seed": 1}
    writer: dict[str, Any] = {"max_new_tokens": 120, "ignore_eos": True}
    mix = [writer | {"frequency_penalty": 0.1 * index} for index in range(14)]
    # What follows the choice is not known before: nobody can keep memory for it.
    long: dict[str, Any] = {"regex": f"(One|Two|Six): ({LONG}){{3}}", "max_new_tokens": 330}
    mix += [long, long | drawn, *FORCED, *[params | drawn for params in FORCED]]
    before = stats(cramped)
    with ThreadPoolExecutor(len(mix)) as threads:
        expected = list(threads.map(lambda params: texts(ask(plain, params)), mix))
        for _ in range(20):  # who comes when is chance; most times somebody has to give up its place
            assert list(threads.map(lambda params: texts(ask(cramped, params)), mix)) == expected
            after = stats(cramped)
            assert after["num_forced_tokens"] - before["num_forced_tokens"] > 2 * 3 * len(LONG) / 8
            if after["num_retractions"] > before["num_retractions"]:
                return
            for params in 3 * FORCED:  # short outputs, lest too few be let in for fear of long ones
                ask(cramped, params)
    pytest.fail("nobody ever had to give up its place")


@pytest.mark.exhaustive
def test_programs_whose_texts_are_forced_are_the_same_with_and_without_jumps(
    runtime: ramiform.Runtime, plain: ramiform.Runtime, cramped: ramiform.Runtime
) -> None:
    @ramiform.function
    def interview(s: ramiform.ProgramState) -> None:
        s += PROMPT + gen("head", regex=FORCED[0]["regex"], max_tokens=60, temperature=0)
        forks = s.fork(3)
        for index, fork in enumerate(forks):
            fork += f"\nWitness {index}: " + gen("says", regex=FORCED[1]["regex"], max_tokens=60, temperature=0)
            # As text: what the model reads from here on is the same, whatever ids the answer was made of.
            fork += "\nIs it true? " + gen("samples", choices=["Certainly so."], temperature=1.0, seed=index)
        forks.join()
        s += "\nTo sum up: " + gen(
            "record", json_schema=json.loads(FORCED[2]["json_schema"]), max_tokens=80, temperature=0
        )

    @ramiform.function
    def verdict(s: ramiform.ProgramState, text: str) -> None:
        s += text + "\nGood:" + select("good", choices=[" yes", " no", " maybe"])

    found = []
    for backend in (runtime, plain, cramped):
        state = interview.run(backend=backend)
        told = [state[name] for name in ("head", "says", "samples", "record")]
        found.append([state.text(), told, verdict.run(text=state.text(), backend=backend)["good"]])
    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunks", ["whole", "cut"])
def test_forced_tokens_have_the_log_probabilities_of_a_prompt(request: pytest.FixtureRequest, chunks: str) -> None:
    runtime = request.getfixturevalue({"whole": "runtime", "cut": "cramped"}[chunks])
    answer = ask(runtime, FORCED[0], return_logprob=True).json()
    found = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    ids = httpx.post(f"{runtime.url}/tokenize", json={"prompt": PROMPT}, timeout=120).json()["tokens"]
    whole = {
        "input_ids": ids + answer["output_ids"],
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": len(ids),
    }
    scored = httpx.post(f"{runtime.url}/generate", json=whole, timeout=120).json()["meta_info"]["input_token_logprobs"]
    assert found == pytest.approx([entry[0] for entry in scored], abs=1e-3)
    assert stats(runtime)["num_forced_tokens"] > 0


@pytest.mark.exhaustive
def test_40_mixed_requests_at_once_and_the_wrong_ones_are_told_where(runtime: ramiform.Runtime) -> None:
    good: list[dict[str, Any]] = [{}, {"json_schema": json.dumps(SCHEMA)}, *FORCED]
    wrong = {"json_schema": json.dumps({"properties": {"a": {"type": "strin"}}})}
    mix = [wrong if index % 5 == 4 else good[index % len(good)] for index in range(40)]
    alone = [None if params is wrong else texts(ask(runtime, params)) for params in mix]
    with ThreadPoolExecutor(40) as threads:
        together = list(threads.map(lambda params: ask(runtime, params), mix))
    for params, response, expected in zip(mix, together, alone, strict=True):
        if expected is None:
            assert response.status_code == 400
            assert "/properties/a" in response.text
        else:
            assert texts(response) == expected, params


@pytest.mark.exhaustive
def test_another_engine_of_grammars_end_to_end() -> None:
    with ramiform.Runtime(
        port=0, dtype="float32", num_pages=64, grammar_backend="llguidance", log_level="error"
    ) as started:
        answer = ask(started, {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 120})
        [text] = texts(answer)
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "stop"
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.exhaustive
def test_the_outlines_engine_end_to_end() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 12]}}, "required": ["ok"]}
    with ramiform.Runtime(
        port=0, dtype="float32", num_pages=64, grammar_backend="outlines", log_level="error"
    ) as started:
        refused: list[dict[str, Any]] = [
            {"json_schema": json.dumps({"type": "integer", "minimum": 3})},
            {"regex": r'"([^"\\]|\\.){0,60}"'},
        ]
        for params in refused:
            response = ask(started, params)
            assert (response.status_code, "outlines: " in response.text) == (400, True), response.text
        [text] = texts(ask(started, {"json_schema": json.dumps(schema), "max_new_tokens": 60}))
        jsonschema.validate(json.loads(text), schema)
        [text] = texts(ask(started, {"regex": "[0-9]{3}", "max_new_tokens": 60}))
        assert len(text) == 3
        assert text.isdecimal()
