"""OpenAI's backend by SGLang's names: where requests go, with which keys, and in which form, on Azure and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai.types import CompletionCreateParams
from openai.types.chat import ChatCompletion
from openai.types.chat import CompletionCreateParams as ChatCreateParams
from pydantic import TypeAdapter

import ramiform as sgl
from ramiform import ProgramState, RequestError

from .conftest import Answer, JsonServer, Received

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def chat_answer(*contents: str) -> Answer:
    choices = [
        {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        for index, content in enumerate(contents)
    ]
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": USAGE}
    ChatCompletion.model_validate(body)
    return Answer(body)


def text_answer(text: str) -> Answer:
    return Answer({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}], "usage": USAGE})


def check(request: Received) -> None:
    """Judge: the types of OpenAI's own client."""
    kind: Any = ChatCreateParams if "messages" in request.body else CompletionCreateParams
    TypeAdapter(kind).validate_python(request.body)


@pytest.fixture
def open_ai(server: JsonServer) -> Iterator[Callable[..., sgl.OpenAI]]:
    made: list[sgl.OpenAI] = []

    def open_ai(*args: Any, **options: Any) -> sgl.OpenAI:
        made.append(sgl.OpenAI(*args, **options))
        return made[-1]

    yield open_ai
    for backend in made:
        backend.close()


@sgl.function
def chat(s: ProgramState) -> None:
    s += sgl.system("Be brief.") + sgl.user("Hi") + sgl.assistant(sgl.gen("x", max_tokens=20))


@sgl.function
def text(s: ProgramState) -> None:
    s += "Q: Hi\nA:" + sgl.gen("x", stop="\n", temperature=0)


def test_the_model_may_be_given_by_sglangs_name(server: JsonServer, open_ai: Any) -> None:
    server.answers = [chat_answer("Hello")]
    backend = open_ai(model_name="gpt-4", base_url=f"{server.url}/v1", api_key="k")
    assert chat.run(backend=backend)["x"] == "Hello"
    [request] = server.requests
    check(request)
    assert (request.path, request.body["model"]) == ("/v1/chat/completions", "gpt-4")
    for wrong in ({}, {"model": "a", "model_name": "b"}):
        with pytest.raises(RequestError, match="one of the two"):
            sgl.OpenAI(**wrong)


def test_the_address_and_the_key_come_from_variables(
    server: JsonServer, open_ai: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/elsewhere/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-variable")
    server.answers = [text_answer(" Hello")]
    assert text.run(backend=open_ai("gpt-3.5-turbo-instruct"))["x"] == " Hello"
    [request] = server.requests
    check(request)
    assert request.path == "/elsewhere/v1/completions"
    assert request.headers["authorization"] == "Bearer from-the-variable"


def test_a_deployment_on_azure_is_a_part_of_the_path(server: JsonServer, open_ai: Any) -> None:
    server.answers = [chat_answer("Hello")]
    options = {"is_azure": True, "azure_endpoint": f"{server.url}/", "api_version": "2023-07-01-preview"}
    backend = open_ai(model_name="my gpt/4", api_key="k", **options)
    assert chat.run(backend=backend)["x"] == "Hello"
    [request] = server.requests
    check(request)
    assert request.path == "/openai/deployments/my%20gpt%2F4/chat/completions?api-version=2023-07-01-preview"
    assert request.headers["api-key"] == "k"
    assert "authorization" not in request.headers


def test_azures_settings_come_from_variables_too(
    server: JsonServer, open_ai: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url)
    monkeypatch.setenv("OPENAI_API_VERSION", "v9")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a")
    server.answers = [chat_answer("Hello")]
    chat.run(backend=open_ai("gpt-4", is_azure=True))
    assert server.requests[0].path == "/openai/deployments/gpt-4/chat/completions?api-version=v9"
    assert server.requests[0].headers["api-key"] == "a"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"is_azure": True, "api_version": "v1"}, "azure_endpoint"),
        ({"is_azure": True, "azure_endpoint": "http://127.0.0.1:9"}, "api_version"),
        ({"azure_endpoint": "http://127.0.0.1:9"}, "is_azure"),
        ({"azure_ad_token": "t"}, "azure_ad_token"),
    ],
)
def test_half_of_azures_settings_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], param: str
) -> None:
    for name in ("AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RequestError) as caught:
        sgl.OpenAI("gpt-4", **options)
    assert caught.value.param == param


def test_accounts_and_headers_of_ones_own_are_sent(server: JsonServer, open_ai: Any) -> None:
    server.answers = [chat_answer("Hello")]
    headers = {"X-Title": "tests"}
    backend = open_ai("m", base_url=server.url, organization="o", project="p", default_headers=headers)
    chat.run(backend=backend)
    sent = server.requests[0].headers
    assert (sent["openai-organization"], sent["openai-project"], sent["x-title"]) == ("o", "p", "tests")


@pytest.mark.parametrize(
    ("model", "dialect", "field"),
    [
        ("o1", "openai", "max_completion_tokens"),
        ("o3-mini", "openai", "max_completion_tokens"),
        ("gpt-5-nano", "openai", "max_completion_tokens"),
        ("gpt-4o", "openai", "max_tokens"),
        ("o1", "vllm", "max_tokens"),
    ],
)
def test_reasoning_models_are_told_the_length_by_its_newer_name(
    server: JsonServer, open_ai: Any, model: str, dialect: Any, field: str
) -> None:
    server.answers = [chat_answer("Hello")]
    chat.run(backend=open_ai(model, base_url=server.url, dialect=dialect))
    check(server.requests[0])
    assert {"max_tokens", "max_completion_tokens"} & set(server.requests[0].body) == {field}
    assert server.requests[0].body[field] == 20


def test_a_chat_model_is_sent_text_without_roles_as_a_message(server: JsonServer, open_ai: Any) -> None:
    server.answers = [chat_answer(" Hello")]
    assert text.run(backend=open_ai("m", base_url=server.url, is_chat_model=True))["x"] == " Hello"
    [request] = server.requests
    check(request)
    assert request.path == "/chat/completions"
    assert request.body["messages"] == [{"role": "user", "content": "Q: Hi\nA:"}]


def test_a_model_without_chat_refuses_roles(server: JsonServer, open_ai: Any) -> None:
    with pytest.raises(RequestError, match="is_chat_model=False"):
        chat.run(backend=open_ai("m", base_url=server.url, is_chat_model=False))
    assert server.requests == []


CARD = "Name: Ada\nJob: writer\n"


@sgl.function(num_api_spec_tokens=64)
def card(s: ProgramState) -> None:
    s += sgl.user("A card") + sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n"))


@sgl.function(num_api_spec_tokens=200)
def plain_card(s: ProgramState, first: str) -> None:
    s += first + "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")


def test_a_function_says_how_far_one_call_goes(server: JsonServer, open_ai: Any) -> None:
    backend = open_ai("m", base_url=server.url)
    server.answers = [chat_answer(CARD)]
    state = card.run(backend=backend)
    assert (state["name"], state["job"]) == (" Ada", " writer")
    assert state.messages()[-1] == {"role": "assistant", "content": "Name: Ada\nJob: writer"}
    server.answers = [text_answer(" Bob\nJob: cook\n")]
    bound = plain_card.bind(first="Go. ")
    assert bound.run(backend=backend)["job"] == " cook"
    assert [request.body["max_tokens"] for request in server.requests] == [128, 200]
    assert all("stop" not in request.body for request in server.requests)


def test_speculated_text_can_be_followed(server: JsonServer, open_ai: Any) -> None:
    server.answers = [chat_answer(CARD)]
    state = card.run(backend=open_ai("m", base_url=server.url), stream=True)
    assert "".join(state.text_iter("job")) == " writer"
    assert len(server.requests) == 1


def test_a_message_that_begins_otherwise_is_drawn_again_a_few_times(server: JsonServer, open_ai: Any) -> None:
    server.answers = [chat_answer("Sure! " + CARD), chat_answer("Sure!"), chat_answer(CARD)]
    backend = open_ai("m", base_url=server.url)
    state = card.run(backend=backend)
    assert (state["name"], len(server.requests), backend.usage.completion_tokens) == (" Ada", 3, 9)
    assert state.get_meta_info("name")["completion_tokens"] == 9


@pytest.mark.parametrize(("options", "num_calls"), [({}, 3), ({"temperature": 0}, 1), ({"seed": 1}, 1)])
def test_a_message_that_never_begins_so_is_an_error(
    server: JsonServer, open_ai: Any, options: dict[str, Any], num_calls: int
) -> None:
    server.answers = [chat_answer("Sure! " + CARD)]
    with pytest.raises(RequestError, match=r"begins with 'Sure! .* not as the program's, 'Name:'") as caught:
        card.run(backend=open_ai("m", base_url=server.url), **options)
    assert caught.value.code == "speculation_failed"
    assert len(server.requests) == num_calls


def test_backends_that_keep_a_state_need_no_speculation() -> None:
    state = card.run(backend=sgl.Scripted([" Ada", " writer"]))
    assert (state["name"], state["job"]) == (" Ada", " writer")


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_the_number_is_checked(value: Any) -> None:
    with pytest.raises(RequestError, match="num_api_spec_tokens must be a positive int"):

        @sgl.function(num_api_spec_tokens=value)
        def program(s: ProgramState) -> None:
            """Never made."""
