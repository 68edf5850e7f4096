"""Answers of llama-server's routes equal its own: recorded by `write_answers.py`, for the same file as a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ramiform
from ramiform.tests.frontend.http.llama_cpp.models import write_model

RECORDED = json.loads(Path(__file__).with_name("answers.json").read_text("utf-8"))
SAME = ("index", "content", "tokens", "stop", "tokens_predicted", "tokens_evaluated", "prompt", "has_new_line")
SAME += ("truncated", "stop_type", "stopping_word", "tokens_cached")
# Of llama-server's settings, those that the sampler does not have, and those of its slots, formats and drafts.
OTHERS = {"mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "preserved_tokens", "chat_format"}
OTHERS |= {"reasoning_format", "reasoning_in_content", "generation_prompt", "samplers", "speculative.types"}
OTHERS |= {"timings_per_token", "backend_sampling"}
OURS = {"seed": None, "repeat_last_n": -1, "dry_penalty_last_n": -1, "top_n_sigma": 0.0}  # other values of the same


@pytest.fixture(scope="module", params=["plain", "infill"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = write_model(tmp_path_factory.mktemp("gguf") / "model.gguf", fills_in=request.param == "infill")
    with (
        ramiform.Runtime(str(path), port=0, dtype="float32", num_pages=64, log_level="error") as runtime,
        httpx.Client(base_url=str(runtime.url), timeout=120) as opened,
    ):
        opened.headers["x-kind"] = request.param
        yield opened


def check_settings(given: dict[str, Any], recorded: dict[str, Any], *, without: frozenset[str] = frozenset()) -> None:
    assert set(recorded) - OTHERS <= set(given) | without
    for name in set(recorded) - OTHERS - OURS.keys() - without:
        if isinstance(recorded[name], float):
            assert given[name] == pytest.approx(recorded[name]), name
        elif name not in ("max_tokens", "n_predict") or recorded[name] >= 0:
            assert given[name] == recorded[name], name


def check_completion(given: dict[str, Any], recorded: dict[str, Any]) -> None:
    assert set(recorded) == set(given)
    for name in SAME:
        assert given[name] == recorded[name], name
    assert set(recorded["timings"]) <= set(given["timings"])
    check_settings(given["generation_settings"], recorded["generation_settings"])
    for ours, theirs in zip(
        given.get("completion_probabilities", []), recorded.get("completion_probabilities", []), strict=True
    ):
        assert [each["id"] for each in ours["top_logprobs"]] == [each["id"] for each in theirs["top_logprobs"]]
        for one, other in zip([ours, *ours["top_logprobs"]], [theirs, *theirs["top_logprobs"]], strict=True):
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-2)  # its keys and values are float16
            assert (one["token"], one["bytes"]) == (other["token"], other["bytes"])


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]


@pytest.mark.slow
def test_answers_are_llama_server_s(client: httpx.Client) -> None:
    for row in RECORDED[client.headers["x-kind"]]:
        body = row["body"] if row["method"] == "POST" else None
        answer, recorded = client.request(row["method"], row["route"], json=body), row["answer"]
        if row["status"] != 200:  # llama-server's 501 is a 400 here, as for all that a model cannot do
            assert (row["status"], answer.status_code) == (501, 400)
            assert answer.json()["error"]["code"] == "not_supported"
            continue
        assert answer.status_code == 200, answer.text
        if row["route"] == "/slots":
            assert [(slot["id"], slot["is_processing"]) for slot in answer.json()][:1] == [(0, False)]
        elif row["route"] == "/props":
            theirs = {"ui", "ui_settings", "media_marker", "cors_proxy_enabled", "chat_template_caps"}
            assert set(recorded) - theirs <= set(answer.json())
            for name in ("modalities", "chat_template", "bos_token", "eos_token", "is_sleeping"):
                assert answer.json()[name] == recorded[name]
            settings = [value["default_generation_settings"]["params"] for value in (answer.json(), recorded)]
            check_settings(*settings)
        elif isinstance(recorded, str):
            ours, theirs = events(answer.text), events(recorded)
            assert "".join(part["content"] for part in ours) == "".join(part["content"] for part in theirs)
            tokens = [[token for part in parts for token in part["tokens"]] for parts in (ours, theirs)]
            assert tokens[1][: len(tokens[0])] == tokens[0]  # a token that ends the answer is in no part here
            check_completion({**ours[-1], "id_slot": 0}, theirs[-1])
        elif row["route"].endswith("input_tokens"):
            assert answer.json() == recorded
        else:
            pair = (answer.json(), recorded) if isinstance(recorded, list) else ([answer.json()], [recorded])
            for one, other in zip(*pair, strict=True):
                check_completion(one, other | {"model": one["model"]})
