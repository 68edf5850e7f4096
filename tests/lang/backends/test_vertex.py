"""Gemini by Google's OpenAI-compatible endpoint: its address, and tokens that are asked for again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ramiform as sgl
from ramiform import ProgramState, RequestError, VertexAI
from ramiform.lang.backends.vertex import TOKEN_SECONDS, RenewedToken, vertex_url

from .conftest import Answer, JsonServer, Received

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
HELLO = Answer(
    {
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": " Hello"}}],
        "usage": USAGE,
    }
)


@sgl.function
def text(s: ProgramState) -> None:
    s += "Q: Hi\nA:" + sgl.gen("x", stop="\n", temperature=0)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        (None, "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1/endpoints/openapi"),
        (
            "europe-west4",
            "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4/endpoints/openapi",
        ),
        ("global", "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi"),
    ],
)
def test_the_address_names_project_and_location(location: str | None, url: str) -> None:
    assert vertex_url("p", location) == url


def test_programs_run_by_chat_with_a_token(server: JsonServer) -> None:
    server.answers = [HELLO]
    backend = VertexAI("gemini-pro", base_url=server.url, access_token="t")
    assert text.run(backend=backend)["x"] == " Hello"
    [request] = server.requests
    assert request.path == "/chat/completions"
    assert request.headers["authorization"] == "Bearer t"
    assert request.body["model"] == "google/gemini-pro"
    assert request.body["messages"] == [{"role": "user", "content": "Q: Hi\nA:"}]
    assert backend.usage.total_tokens == 10
    backend.close()


def test_a_refused_token_is_asked_for_again_once(server: JsonServer) -> None:
    tokens = iter(["old", "new", "newer"])

    def reply(request: Received) -> Answer:
        if request.headers["authorization"] == "Bearer new":
            return HELLO
        return Answer([{"error": {"code": 401, "message": "expired", "status": "UNAUTHENTICATED"}}], 401)

    server.reply = reply
    backend = VertexAI("gemini-pro", base_url=server.url, access_token=lambda: next(tokens))
    assert text.run(backend=backend)["x"] == " Hello"
    server.reply = lambda request: Answer({"error": {"message": "expired"}}, 401)
    with pytest.raises(RequestError, match="comes from the function access_token"):
        text.run(backend=backend)
    assert len(server.requests) == 4
    backend.close()


def test_a_token_is_kept_for_half_an_hour() -> None:
    now = 0.0
    tokens = iter("abc")
    token = RenewedToken(lambda: next(tokens), lambda: now)
    assert (token.get(), token.get()) == ("a", "a")
    now = TOKEN_SECONDS + 1
    assert token.get() == "b"
    token.forget()
    assert token.get() == "c"


def test_the_command_is_asked_for_a_token(server: JsonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_ACCESS_TOKEN", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GCP_PROJECT_ID", "p")
    command = tmp_path / "gcloud"
    command.write_text("#!/bin/sh\necho printed\n")
    command.chmod(0o755)
    server.answers = [HELLO]
    backend = VertexAI("gemini-pro", base_url=server.url)
    assert text.run(backend=backend)["x"] == " Hello"
    assert server.requests[0].headers["authorization"] == "Bearer printed"
    command.write_text("#!/bin/sh\necho no account >&2\nexit 1\n")
    with pytest.raises(RequestError, match="failed: no account"):
        text.run(backend=VertexAI("gemini-pro", base_url=server.url))
    backend.close()


@pytest.mark.parametrize("name", ["api_key", "safety_settings", "is_azure", "num_threads"])
def test_arguments_of_other_backends_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match=f"VertexAI has no argument '{name}'"):
        VertexAI("gemini-pro", project="p", **{name: True})


def test_without_project_or_token_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GCP_PROJECT_ID", "GOOGLE_ACCESS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RequestError, match="GCP_PROJECT_ID"):
        VertexAI("gemini-pro")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="set GOOGLE_ACCESS_TOKEN"):
        text.run(backend=VertexAI("gemini-pro", project="p"))
