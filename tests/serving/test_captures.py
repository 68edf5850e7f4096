"""Lark grammars capture parts of texts and set temperatures, over HTTP and in programs. Judge: the texts."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

import ramiform
from ramiform import gen

GRAMMAR = """
start: name ": " part{2} "."
name[capture]: /[A-Z][a-z]{1,5}/
part[capture]: word{1,2} ";"
word[capture="w"]: /[a-z]{1,4}/ " "
"""
PATTERN = re.compile(r"(?P<name>[A-Z][a-z]{1,5}): (?P<parts>(?:(?:[a-z]{1,4} ){1,2};){2})\.")
CHAT = [{"role": "user", "content": "Name a colour."}]


def expected(text: str) -> list[dict[str, str]]:
    """Return what the grammar captures of one of its texts, by patterns."""
    match = PATTERN.fullmatch(text)
    assert match is not None, text
    found = [("name", match["name"])]
    for part in re.findall("[^;]+;", match["parts"]):
        found += [("w", word) for word in re.findall("[a-z]+ ", part)] + [("part", part)]
    return [{"name": name, "text": value} for name, value in found]


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    with http.stream("POST", path, json=body | {"stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("seed", [1, 2])
def test_each_choice_has_its_captures(http: httpx.Client, seed: int) -> None:
    body = {"guided_grammar": GRAMMAR, "max_tokens": 80, "seed": seed, "n": 2}
    choices = http.post("/v1/completions", json=body | {"prompt": "The sky is"}).json()["choices"]
    texts = [choice["text"] for choice in choices]
    choices += (chat := http.post("/v1/chat/completions", json=body | {"messages": CHAT}).json()["choices"])
    texts += [choice["message"]["content"] for choice in chat]
    assert len({*texts}) > 1
    for choice, text in zip(choices, texts, strict=True):
        assert choice["captures"] == expected(text)


def test_the_last_event_of_a_stream_has_the_captures(http: httpx.Client) -> None:
    body = {"guided_grammar": GRAMMAR, "max_tokens": 80, "seed": 1}
    found = [
        event["choices"][0] for event in events(http, "/v1/completions", body | {"prompt": "a"}) if event["choices"]
    ]
    assert [choice["captures"] for choice in found if "captures" in choice] == [
        expected("".join(choice["text"] for choice in found))
    ]
    chat = [e["choices"][0] for e in events(http, "/v1/chat/completions", body | {"messages": CHAT}) if e["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in chat)
    assert [choice["captures"] for choice in chat if "captures" in choice] == [expected(text)]
    native = {"text": "a", "sampling_params": {"ebnf": GRAMMAR, "max_new_tokens": 80, "sampling_seed": 1}}
    answers = events(http, "/generate", native)
    assert answers[-1]["meta_info"]["captures"] == expected(answers[-1]["text"])
    assert not any("captures" in answer["meta_info"] for answer in answers[:-1])


def test_an_answer_that_is_cut_off_has_what_has_ended(http: httpx.Client) -> None:
    body = {"prompt": "a", "guided_grammar": GRAMMAR, "max_tokens": 80, "seed": 1}
    whole = http.post("/v1/completions", json=body).json()
    for num_tokens in range(1, whole["usage"]["completion_tokens"]):
        choice = http.post("/v1/completions", json=body | {"max_tokens": num_tokens}).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        found = [each["text"] for each in choice["captures"]]
        assert found == [each["text"] for each in whole["choices"][0]["captures"]][: len(found)]
        assert len(found) >= choice["text"].count(";") + choice["text"].count(": ")


def test_no_captures_are_named_where_a_grammar_has_none(http: httpx.Client) -> None:
    body = {"prompt": "a", "guided_grammar": 'start: "a"', "max_tokens": 4}
    assert "captures" not in http.post("/v1/completions", json=body).json()["choices"][0]


def test_a_program_has_the_captures_in_the_meta_info(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def named(s: Any) -> None:
        s += "The sky is " + gen("x", grammar=GRAMMAR, max_tokens=80, seed=1)

    state = named.run(backend=backend)
    assert state.get_meta_info("x")["captures"] == expected(state["x"])


@pytest.mark.parametrize("of_request", [0, 1.7])
def test_a_rule_is_sampled_at_its_temperature(http: httpx.Client, of_request: float) -> None:
    def ids(temperature: float, attribute: str) -> list[int]:
        grammar = f"%llguidance {{}}\nstart: x\nx{attribute}: /[a-z ]{{300}}/"
        body = {"prompt": "The sky is", "guided_grammar": grammar, "max_tokens": 40, "seed": 5}
        answer = http.post("/v1/completions", json=body | {"temperature": temperature, "return_token_ids": True})
        assert answer.status_code == 200, answer.text
        found: list[int] = answer.json()["choices"][0]["token_ids"]
        return found

    for of_rule in (0, 0.8, 1.5):
        assert ids(of_request, f"[temperature={of_rule}]") == ids(of_rule, "")
    assert ids(0, "[temperature=0.8]") != ids(0, "")
