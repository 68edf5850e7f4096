"""Programs on a server that takes and answers Anthropic's messages as documented, and refuses anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel

import ramiform
from ramiform import Anthropic, BusyError, ProgramState, RequestError, assistant, gen, role, select, system, user
from ramiform.lang.backends.model import ModelCall
from ramiform.lang.backends.transcript import Transcript
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import Gen

from .conftest import Answer, JsonServer, Received


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: Annotated[str, msgspec.Meta(min_length=1)]


class Format(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    format: Format


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The documented fields, as far as this backend may send them."""

    model: str
    max_tokens: Annotated[int, msgspec.Meta(ge=0)]
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    stream: bool = False
    system: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    stop_sequences: list[Annotated[str, msgspec.Meta(pattern=r"\S")]] = []
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    output_config: OutputConfig | None = None


class Claude:
    """The endpoint; `model` writes what follows the messages. It ends texts as the documentation says."""

    def __init__(self, server: JsonServer) -> None:
        self.server = server
        self.model: Callable[[Request], str] = lambda request: "Paris."
        self.reason: str | None = None
        self.pieces = 3  # characters of an event
        server.reply = self._reply

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.server.requests]

    def _reply(self, request: Received) -> Answer:
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        version = request.headers.get("anthropic-version")
        if key != "k":
            return self._error(401, "authentication_error", "invalid x-api-key")
        if request.path != "/v1/messages" or version not in ("2023-06-01", "2026-10-21"):
            return self._error(404, "not_found_error", "no such route")
        try:
            asked = msgspec.convert(request.body, Request)
        except msgspec.ValidationError as error:
            return self._error(400, "invalid_request_error", str(error))
        if version == "2026-10-21" and {"temperature", "top_p", "top_k"} & set(request.body):
            return self._error(400, "invalid_request_error", "Extra inputs are not permitted")
        if asked.messages[-1].role == "assistant" and asked.messages[-1].content != asked.messages[-1].content.rstrip():
            return self._error(400, "invalid_request_error", "final assistant content cannot end with whitespace")
        text, reason, stop = self.model(asked), self.reason or "end_turn", None
        found = [(text.index(each), each) for each in asked.stop_sequences if each in text]
        if found:
            place, stop = min(found)
            text, reason = text[:place], "stop_sequence"
        assert asked.stream
        return Answer(events=self._events(text, reason, stop))

    def _events(self, text: str, reason: str, stop: str | None) -> list[Any]:
        usage = {"input_tokens": 9, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": usage}
        pieces = [text[at : at + self.pieces] for at in range(0, len(text), self.pieces)]
        return [
            {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                for piece in pieces
            ),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": stop},
                "usage": {"output_tokens": len(pieces)},
            },
            {"type": "message_stop"},
        ]

    def _error(self, status: int, kind: str, message: str) -> Answer:
        body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_body"}
        return Answer(body, status, {"request-id": "req_011"})


@pytest.fixture
def claude(server: JsonServer) -> Claude:
    return Claude(server)


@pytest.fixture
def backend(claude: Claude) -> Iterator[Anthropic]:
    made = Anthropic("claude-3-haiku", base_url=claude.server.url, api_key="k")
    yield made
    made.close()


def run(backend: Anthropic, body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(backend=backend, **arguments)


def test_a_chat_is_sent_with_its_system_prompt_apart(claude: Claude, backend: Anthropic) -> None:
    claude.model = lambda request: f"Answer {len(request.messages)}."

    def body(s: ProgramState) -> None:
        s += system("Be brief.") + system("Be kind.")
        s += user("Hi") + assistant(gen("x", max_tokens=40, temperature=0.5, top_p=0.9, top_k=3))
        branches = s.fork(2)
        branches += lambda index: user(f"And {index}?") + assistant(gen("more", stop=["END"]))
        branches.join()

    state = run(backend, body)
    assert (state["x"], state["more"]) == ("Answer 1.", ["Answer 3."] * 2)
    assert claude.bodies[0] == {
        "model": "claude-3-haiku",
        "system": "Be brief.\n\nBe kind.",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 40,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stream": True,
    }
    assert "temperature" not in claude.bodies[1]  # the default, which some models take only so
    assert claude.bodies[1]["stop_sequences"] == ["END"]
    meta = state.get_meta_info("x")
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["finish_reason"]["type"]) == (15, 4, "stop")
    usage = backend.usage
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (3, 45, 9)


def test_text_without_roles_is_one_user_message(claude: Claude, backend: Anthropic) -> None:
    claude.model = lambda request: " Washington\nHuman: what?"

    def body(s: ProgramState) -> None:
        s += "\n\nHuman: The capital?\n\nAssistant:" + gen("x", stop="\nHuman:", temperature=0)

    state = run(backend, body)
    assert state["x"] == " Washington"
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": "\nHuman:"}
    assert claude.bodies[0]["messages"] == [{"role": "user", "content": "\n\nHuman: The capital?\n\nAssistant:"}]


def test_a_streamed_program_gets_pieces(claude: Claude, backend: Anthropic) -> None:
    claude.model = lambda request: "one two three"

    def body(s: ProgramState) -> None:
        s += user("Count") + assistant(gen("x"))

    state = ramiform.function(body).run(stream=True, backend=backend)
    assert "".join(state.text_iter("x")) == state["x"] == "one two three"
    pieces: list[str] = []
    asked = Gen(sampling=SamplingParams(), stream=True)
    backend.generate(Transcript().add_text("Count"), asked, pieces.append, ModelCall())
    assert pieces == ["one", " tw", "o t", "hre", "e"]


def test_the_beginning_of_a_message_is_sent_without_its_last_space(claude: Claude, backend: Anthropic) -> None:
    def model(request: Request) -> str:
        last = request.messages[-1]
        assert last.role == "assistant"
        return {"Name:": " Ada\nBorn: 1815", "Name: Ada\nBorn:": " 1815"}[last.content]

    claude.model = model

    def body(s: ProgramState) -> None:
        s += user("A card") + assistant("Name: " + gen("name", stop="\nBorn") + "\nBorn:" + gen("born"))

    state = run(backend, body)
    assert (state["name"], state["born"]) == ("Ada", " 1815")
    assert state.messages()[-1]["content"] == "Name: Ada\nBorn: 1815"


@pytest.mark.parametrize("size", [1, 2, 100])
def test_stops_of_white_space_are_looked_for_here(claude: Claude, backend: Anthropic, size: int) -> None:
    claude.pieces = size
    claude.model = lambda request: "one\ntwo\n\nthree"

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("Go") + assistant(gen("x", stop=["\n\n", "four"]) + "!" + gen("y", stop="\n"))

    state = body.run(stream=True, backend=backend)
    assert "".join(state.text_iter("x")) == state["x"] == "one\ntwo"
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": "\n\n"}
    assert state["y"] == "one"
    assert claude.bodies[0]["stop_sequences"] == ["four"]
    assert "stop_sequences" not in claude.bodies[1]


def test_several_samples_are_several_requests(claude: Claude, backend: Anthropic) -> None:
    answers = iter(["a", "b", "c"])
    claude.model = lambda request: next(answers)

    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x", n=3))

    assert run(backend, body)["x"] == ["a", "b", "c"]
    assert len(claude.bodies) == 3


class Person(BaseModel):
    name: str
    age: int


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def test_schemas_and_tools_use_structured_output(claude: Claude, backend: Anthropic) -> None:
    def model(request: Request) -> str:
        assert request.output_config is not None
        schema = request.output_config.format.schema
        if "name" in json.dumps(schema) and "arguments" in json.dumps(schema):
            return '{"name": "add", "arguments": {"left": 2, "right": 3}}'
        assert schema["additionalProperties"] is False
        return '{"name": "Ada", "age": 36}'

    claude.model = model

    def body(s: ProgramState) -> None:
        s += user("Who?") + assistant(gen("who", schema=Person))
        s += user("Sum?") + assistant(gen("sum", tools=[add]))

    state = run(backend, body)
    assert state["who"] == Person(name="Ada", age=36)
    assert state["sum"] == 5


@pytest.mark.parametrize(
    ("expr", "param"),
    [
        (gen("x", grammar='root ::= "a"'), "grammar"),
        (gen("x", seed=3), "seed"),
        (gen("x", min_p=0.1), "min_p"),
        (gen("x", min_tokens=5), "min_new_tokens"),
        (gen("x", frequency_penalty=1.0), "frequency_penalty"),
        (gen("x", logit_bias={3: 1.0}), "logit_bias"),
        (gen("x", stop_regex="a+"), "stop_regex"),
        (gen("x", ignore_eos=True), "ignore_eos"),
        (gen("x", temperature=1.5), "temperature"),
        (gen("x", return_logprob=True), "return_logprob"),
        (select("x", ["a", "b"], choices_method=ramiform.greedy_token_selection), "choices_method"),
    ],
)
def test_what_the_api_lacks_is_refused_by_name(claude: Claude, backend: Anthropic, expr: Any, param: str) -> None:
    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(expr)

    with pytest.raises(RequestError, match=r"test_anthropic\.py:") as caught:
        run(backend, body)
    assert caught.value.param == param
    assert claude.bodies == []


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_p": 0.5}, {"top_k": 3}])
def test_newer_versions_of_the_api_take_no_parameters_of_the_draw(claude: Claude, options: dict[str, Any]) -> None:
    backend = Anthropic("claude-sonnet-5-5", base_url=claude.server.url, api_key="k", api_version="2026-10-21")

    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x"))

    assert run(backend, body)["x"] == "Paris."
    with pytest.raises(RequestError, match="no such parameter in this version") as caught:
        run(backend, body, **options)
    assert caught.value.param == next(iter(options))
    assert len(claude.bodies) == 1
    backend.close()


def test_chats_that_cannot_be_sent_are_refused(claude: Claude, backend: Anthropic) -> None:
    def tool(s: ProgramState) -> None:
        s += user("Hi") + role("tool", "5") + assistant(gen("x"))

    def users(s: ProgramState) -> None:
        s += user("Hi" + gen("x"))

    for body, message in ((tool, "no role 'tool'"), (users, "'user' is open")):
        with pytest.raises(RequestError, match=message):
            run(backend, body)
    assert claude.bodies == []


def test_a_key_that_is_refused_is_told_by_its_variable(claude: Claude, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.server.url)

    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x"))

    backend = Anthropic("claude-3-haiku")
    with pytest.raises(RequestError, match=r"401 invalid x-api-key .request req_011. .*ANTHROPIC_API_KEY") as caught:
        run(backend, body)
    assert "wrong-key" not in str(caught.value)
    backend.close()
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.delenv("ANTHROPIC_BASE_URL")
    with pytest.raises(RequestError, match="needs an API key: set ANTHROPIC_API_KEY"):
        run(Anthropic("claude-3-haiku"), body)


def test_an_overloaded_stream_is_busy(claude: Claude, backend: Anthropic) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    starts = claude._events("well", "end_turn", None)[:4]
    claude.server.reply = lambda request: Answer(events=[*starts, error])

    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x"))

    with pytest.raises(BusyError, match="529 Overloaded"):
        run(backend, body)
    assert len(claude.bodies) == 1  # text had come


@pytest.mark.parametrize(("reason", "kind"), [("max_tokens", "length"), ("refusal", "abort"), ("end_turn", "stop")])
def test_how_a_message_ended_is_told(claude: Claude, backend: Anthropic, reason: str, kind: str) -> None:
    claude.reason = reason

    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x"))

    assert run(backend, body).get_meta_info("x")["finish_reason"]["type"] == kind
