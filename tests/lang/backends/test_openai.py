"""Programs on a small endpoint that speaks OpenAI's API over real sockets, and keeps the bodies that it received."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import ramiform
from ramiform import BusyError, OpenAI, ProgramState, RequestError, RuntimeFailed, assistant, gen, select, system, user

TOKEN = 4  # characters of a token of the endpoint


class Endpoint:
    """`model` writes what follows a prompt (a completion's text, or a chat's messages) if nothing stops it."""

    def __init__(self) -> None:
        self.model: Callable[[Any], str] = lambda prompt: " word" * 50
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failure: tuple[int, Any] | None = None
        self.scores = True
        self.held: threading.Event | None = None
        self.was_left = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.bodies.append({"path": self.path, **body})
                endpoint.keys.append(self.headers.get("Authorization"))
                if endpoint.failure is not None:
                    return self.answer(*endpoint.failure)
                if endpoint.held is not None:
                    endpoint.held.set()
                    assert self.connection.recv(1) == b""  # until the client leaves
                    endpoint.was_left.set()
                    self.close_connection = True
                    return None
                if body.get("stream"):
                    return self.stream(endpoint.events(body))
                return self.answer(200, endpoint.answer(body))

            def answer(self, status: int, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self, events: list[Any]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for event in events:
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

            def log_message(self, *arguments: Any) -> None:
                """Tests read `bodies`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body.get("messages") or body["prompt"]
        if body.get("echo"):
            return {"choices": [self.scored(index, text, body) for index, text in enumerate(prompt)]}
        found = [self.choice(body, index, *self.ended(prompt, body)) for index in range(body.get("n", 1))]
        num = sum(len(_text(one)) for one in found) // TOKEN
        return {"choices": found, "usage": {"prompt_tokens": len(str(prompt)), "completion_tokens": num}}

    def events(self, body: dict[str, Any]) -> list[Any]:
        text, finish = self.ended(body.get("messages") or body["prompt"], body)
        pieces = [text[start : start + TOKEN] for start in range(0, len(text), TOKEN)]
        events = [{"choices": [self.choice(body, 0, piece, None, "delta")]} for piece in pieces]
        events.append({"choices": [self.choice(body, 0, "", finish, "delta")]})
        return [*events, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(pieces)}}]

    def ended(self, prompt: Any, body: dict[str, Any]) -> tuple[str, str]:
        text = self.model(prompt)
        ends = [text.index(stop) for stop in body.get("stop", ()) if stop in text]
        most = body["max_tokens"] * TOKEN
        if ends and min(ends) <= most:
            return text[: min(ends)], "stop"
        return text[:most], "length" if len(text) > most else "stop"

    def choice(self, body: dict[str, Any], index: int, text: str, finish: Any, key: str = "message") -> dict[str, Any]:
        content = {key: {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        return {"index": index, "finish_reason": finish, **content}

    def scored(self, index: int, text: str, body: dict[str, Any]) -> dict[str, Any]:
        """Tokens are characters, the later in the alphabet the likelier; one more is generated, as asked."""
        assert body["max_tokens"] == 1
        values: list[float | None] = [(ord(one) - 200) / 10 for one in text + "~"]
        values[0] = None
        offsets = list(range(len(text) + 1))
        logprobs = {"token_logprobs": values, "text_offset": offsets, "tokens": list(text + "~")}
        return {"index": index, "text": text + "~", "logprobs": logprobs if self.scores else None}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _text(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


@pytest.fixture
def connect(endpoint: Endpoint) -> Iterator[Callable[..., OpenAI]]:
    made: list[OpenAI] = []

    def connect(**options: Any) -> OpenAI:
        made.append(OpenAI("tiny", base_url=endpoint.url, api_key="k", **options))
        return made[-1]

    yield connect
    for backend in made:
        backend.close()


def run(backend: OpenAI, body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(backend=backend, **arguments)


def test_without_roles_it_completes_text(endpoint: Endpoint, connect: Any) -> None:
    endpoint.model = lambda prompt: f"<{len(prompt)}>\nmore"

    def body(s: ProgramState) -> None:
        s += "Once" + gen("x", max_tokens=9, stop="\n", temperature=0.5, top_p=0.9, seed=3)
        s += "/" + gen("y", stop="\n", n=2)

    state = run(connect(), body)
    assert state["x"] == "<4>"
    assert state["y"] == ["<8>", "<8>"]
    assert state.text() == "Once<4>/<8>"
    assert endpoint.keys == ["Bearer k"] * 2
    first, second = endpoint.bodies
    assert first == {
        "path": "/v1/completions",
        "model": "tiny",
        "prompt": "Once",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["\n"],
    }
    assert (second["prompt"], second["n"]) == ("Once<4>/", 2)
    meta = state.get_meta_info("x")
    assert (meta["prompt_tokens"], meta["finish_reason"]["type"]) == (4, "stop")


def test_with_roles_it_chats(endpoint: Endpoint, connect: Any) -> None:
    endpoint.model = lambda messages: f"Answer {len(messages)}"

    def body(s: ProgramState) -> None:
        s += system("Be brief.") + user("Hi") + assistant(gen("x"))
        branches = s.fork(2)
        branches += lambda index: user(f"And {index}?") + assistant(gen("more"))
        branches.join()

    state = run(connect(), body)
    assert (state["x"], state["more"]) == ("Answer 2", ["Answer 4"] * 2)
    assert endpoint.bodies[0]["path"] == "/v1/chat/completions"
    assert endpoint.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    last = sorted(body["messages"][-1]["content"] for body in endpoint.bodies[1:])
    assert last == ["And 0?", "And 1?"]


@pytest.mark.parametrize("in_chat", [False, True])
def test_it_streams(endpoint: Endpoint, connect: Any, in_chat: bool) -> None:
    endpoint.model = lambda prompt: "One two three four"

    @ramiform.function
    def body(s: ProgramState) -> None:
        if in_chat:
            s += user("Count") + assistant(gen("x", max_tokens=3))
        else:
            s += "Count" + gen("x", max_tokens=3)

    state = body.run(stream=True, backend=connect())
    assert "".join(state.text_iter("x")) == state["x"] == "One two thre"
    assert state.get_meta_info("x")["finish_reason"]["type"] == "length"
    assert state.get_meta_info("x")["completion_tokens"] == 3
    assert endpoint.bodies[0]["stream_options"] == {"include_usage": True}


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = SCHEMA | {"additionalProperties": False}
WHOLE = CLOSED | {"required": ["a"]}  # OpenAI enforces schemas only whose members are all required


@pytest.mark.parametrize(
    ("dialect", "in_chat", "options", "sent"),
    [
        (
            "openai",
            True,
            {"json_schema": SCHEMA},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": WHOLE, "strict": True},
                }
            },
        ),
        ("openai", False, {"logit_bias": {7: -1.5}}, {"logit_bias": {"7": -1.5}}),
        ("vllm", False, {"regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
        ("vllm", False, {"json_schema": SCHEMA}, {"structured_outputs": {"json": CLOSED}}),
        (
            "vllm",
            False,
            {"json_schema": SCHEMA, "additional_properties": "schema"},
            {"structured_outputs": {"json": SCHEMA}},
        ),
        (
            "vllm",
            True,
            {"json_schema": SCHEMA, "json_whitespace": "compact"},
            {"structured_outputs": {"json": CLOSED, "disable_any_whitespace": True}},
        ),
        ("sglang", True, {"regex": "a+"}, {"regex": "a+"}),
        ("sglang", False, {"grammar": 'root ::= "a"'}, {"ebnf": 'root ::= "a"'}),
        ("sglang", False, {"top_k": 5, "min_tokens": 2}, {"top_k": 5, "min_tokens": 2}),
        ("vllm", True, {"ignore_eos": True, "stop_token_ids": [3]}, {"ignore_eos": True, "stop_token_ids": [3]}),
    ],
)
def test_the_parameters_of_a_program_are_sent(
    endpoint: Endpoint, connect: Any, dialect: Any, in_chat: bool, options: dict[str, Any], sent: dict[str, Any]
) -> None:
    def body(s: ProgramState) -> None:
        if in_chat:
            s += user("Hi") + assistant(gen("x", **options))
        else:
            s += "Hi" + gen("x", **options)

    run(connect(dialect=dialect), body)
    assert sent.items() <= endpoint.bodies[0].items()


@pytest.mark.parametrize(
    ("expr", "param"),
    [
        (gen("x", regex="a+"), "regex"),
        (gen("x", dtype=int), "regex"),
        (gen("x", json_schema=SCHEMA), "json_schema"),  # completions of OpenAI's own have no such thing
        (gen("x", grammar='root ::= "a"'), "grammar"),
        (gen("x", top_k=5), "top_k"),
        (gen("x", min_tokens=5), "min_new_tokens"),
        (gen("x", ignore_eos=True), "ignore_eos"),
        (gen("x", return_logprob=True), "return_logprob"),
        (select("x", ["a", "b"], choices_method=ramiform.unconditional_likelihood_normalized), "choices_method"),
    ],
)
def test_what_the_endpoint_cannot_do_is_refused_and_never_dropped(
    endpoint: Endpoint, connect: Any, expr: Any, param: str
) -> None:
    def body(s: ProgramState) -> None:
        s += "Hi" + expr

    with pytest.raises(RequestError, match=r"test_openai\.py:") as caught:
        run(connect(), body)
    assert (caught.value.param, caught.value.code) == (param, "unsupported")
    assert endpoint.bodies == []


@pytest.mark.parametrize(
    ("dialect", "option"),
    [
        ("openai", {"json_whitespace": "compact"}),
        ("vllm", {"json_whitespace": "spaced"}),
        ("vllm", {"json_whitespace": "compact", "number_digits": 3}),
        ("sglang", {"json_whitespace": "compact"}),
        ("openai", {"number_digits": 3}),
    ],
)
@pytest.mark.parametrize("given", [{"json_schema": SCHEMA}, {"schema": dict[str, int]}])
def test_how_json_is_written_is_refused_where_the_endpoint_cannot_be_told(
    endpoint: Endpoint, connect: Any, dialect: Any, option: dict[str, Any], given: dict[str, Any]
) -> None:
    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x", **given, **option))

    with pytest.raises(RequestError, match="how JSON is written") as caught:
        run(connect(dialect=dialect), body)
    assert (caught.value.param, caught.value.code) == ([*option][-1], "unsupported")
    assert endpoint.bodies == []


def test_chats_that_cannot_be_sent_are_refused(endpoint: Endpoint, connect: Any) -> None:
    def begun(s: ProgramState) -> None:
        s += user("Hi") + assistant("Well, " + gen("x"))

    def outside(s: ProgramState) -> None:
        s += user("Hi") + "lost" + assistant(gen("x"))

    def users(s: ProgramState) -> None:
        s += user("Hi" + gen("x"))

    def scores(s: ProgramState) -> None:
        s += user("Hi") + assistant(select("x", ["a", "b"], choices_method=ramiform.greedy_token_selection))

    for body, message in ((begun, "Well"), (outside, "lost"), (users, "'user'"), (scores, "have no scores")):
        with pytest.raises(RequestError, match=message):
            run(connect(), body)
    assert endpoint.bodies == []
    assert run(connect(continues_messages=True), begun)["x"]
    assert endpoint.bodies[0]["messages"][-1] == {"role": "assistant", "content": "Well, "}
    assert endpoint.bodies[0]["continue_final_message"] is True


def test_select_takes_the_likeliest_choice(endpoint: Endpoint, connect: Any) -> None:
    def body(s: ProgramState) -> None:
        s += "Which? " + select("x", ["abc", "xyz", "mn"]) + "!" + gen("y", max_tokens=1)

    state = run(connect(), body)
    assert state["x"] == "xyz"
    assert state.text() == "Which? xyz! wor"
    means = [sum((ord(one) - 200) / 10 for one in choice) / len(choice) for choice in ("abc", "xyz", "mn")]
    assert state.get_meta_info("x")["normalized_prompt_logprobs"] == pytest.approx(means)
    endpoint.scores = False
    with pytest.raises(RequestError, match="gives no log-probabilities"):
        run(connect(), body)


CARD = "Name: Ada Lovelace\nBorn: 1815\nField: mathematics\nDied: 1852\n"


def follow(prompt: Any) -> str:
    """A model that wants to write CARD, wherever it is asked to go on."""
    written = "" if isinstance(prompt, list) else prompt
    return CARD[len(written) :] if CARD.startswith(written) else "something else\n"


def card(s: ProgramState) -> None:
    s += "Name:" + gen("name", stop="\n") + "\nBorn:" + gen("born", stop="\n")
    s += "\nField:" + gen("field", stop="\n")


@pytest.mark.parametrize(("num_tokens", "num_calls"), [(None, 3), (200, 1)])
def test_speculation_makes_one_call_of_several_with_the_same_result(
    endpoint: Endpoint, connect: Any, num_tokens: int | None, num_calls: int
) -> None:
    endpoint.model = follow
    state = run(connect(num_speculative_tokens=num_tokens), card, temperature=0)
    assert [state[name] for name in ("name", "born", "field")] == [" Ada Lovelace", " 1815", " mathematics"]
    assert state.text() == "Name: Ada Lovelace\nBorn: 1815\nField: mathematics"
    assert len(endpoint.bodies) == num_calls
    if num_tokens is not None:
        assert endpoint.bodies[0]["max_tokens"] == num_tokens
        assert "stop" not in endpoint.bodies[0]


def test_at_the_first_mismatch_a_new_call_is_made(endpoint: Endpoint, connect: Any) -> None:
    endpoint.model = lambda prompt: follow(prompt) if "Age" not in prompt else " 36\nBorn: 1815\n"

    def body(s: ProgramState) -> None:
        s += "Name:" + gen("name", stop="\n") + "\nAge:" + gen("age", stop="\n") + "\nBorn:" + gen("born", stop="\n")

    state = run(connect(num_speculative_tokens=200), body)
    assert [state[name] for name in ("name", "age", "born")] == [" Ada Lovelace", " 36", " 1815"]
    assert [body["prompt"] for body in endpoint.bodies] == ["Name:", "Name: Ada Lovelace\nAge:"]


@pytest.mark.parametrize(
    "second", [{"temperature": 0.3}, {"n": 2}, {"stop": ()}, {"max_tokens": 2}], ids=["manner", "n", "no stop", "short"]
)
def test_only_what_would_have_been_generated_is_taken(endpoint: Endpoint, connect: Any, second: dict[str, Any]) -> None:
    endpoint.model = follow

    def body(s: ProgramState) -> None:
        s += "Name:" + gen("name", stop="\n") + "\nBorn:" + gen("born", **{"stop": "\n", **second})

    state, plain = run(connect(num_speculative_tokens=200), body), run(connect(), body)
    assert state["born"] == plain["born"]
    assert state.text() == plain.text()


def test_branches_do_not_share_speculated_text(endpoint: Endpoint, connect: Any) -> None:
    endpoint.model = follow

    def body(s: ProgramState) -> None:
        s += "Name:" + gen("name", stop="\n")
        branches = s.fork(2)
        branches += "\nBorn:" + gen("born", stop="\n")
        branches.join()

    assert run(connect(num_speculative_tokens=200), body)["born"] == [" 1815"] * 2
    assert len(endpoint.bodies) == 3


def test_a_chat_message_in_parts_needs_one_call(endpoint: Endpoint, connect: Any) -> None:
    endpoint.model = follow

    def body(s: ProgramState) -> None:
        s += user("A card, please")
        with s.assistant():
            card(s)
        s += user("Thanks")

    state = run(connect(num_speculative_tokens=200), body)
    assert [state[name] for name in ("name", "born", "field")] == [" Ada Lovelace", " 1815", " mathematics"]
    [sent] = endpoint.bodies
    assert sent["messages"] == [{"role": "user", "content": "A card, please"}]


@pytest.mark.parametrize(
    ("status", "answer", "kind", "message"),
    [
        (400, {"error": {"message": "bad top_p", "param": "top_p", "code": "c"}}, RequestError, "bad top_p"),
        (401, {"error": {"message": "who are you?"}}, RequestError, "who are you"),
        (429, {"error": {"message": "slow down"}}, BusyError, "slow down"),
        (500, {"error": {"message": "oops"}}, RuntimeFailed, "oops"),
        (200, {"choices": []}, RuntimeFailed, "1 choices were asked for"),
        (200, "nonsense", RuntimeFailed, "nonsense"),
    ],
)
def test_errors_of_the_endpoint_are_raised_with_the_programs_line(
    endpoint: Endpoint, connect: Any, status: int, answer: Any, kind: type[Exception], message: str
) -> None:
    endpoint.failure = (status, answer)

    def body(s: ProgramState) -> None:
        s += "Hi" + gen("x")

    with pytest.raises(kind, match=rf"test_openai\.py:.*{message}"):
        run(connect(max_retries=0), body)


def test_a_program_that_ends_leaves_the_endpoint_at_once(endpoint: Endpoint, connect: Any) -> None:
    endpoint.held = threading.Event()

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "Hi" + gen("x")

    state = body.run(stream=True, backend=connect())
    assert endpoint.held.wait(30)
    state.close()
    assert endpoint.was_left.wait(30)
    with pytest.raises(RuntimeFailed):
        state.text()


@pytest.mark.slow
def test_more_programs_than_threads_all_end(endpoint: Endpoint, connect: Any) -> None:
    endpoint.model = lambda prompt: prompt

    @ramiform.function
    def body(s: ProgramState, number: int) -> None:
        s += str(number) + gen("x")

    states = body.run_batch([{"number": n} for n in range(40)], backend=connect(num_threads=3))
    assert [state["x"] for state in states] == [str(n) for n in range(40)]


@pytest.mark.parametrize(
    "options", [{"dialect": "other"}, {"num_speculative_tokens": 0}, {"num_threads": 0}, {"base_url": "localhost:80"}]
)
def test_settings_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        OpenAI("tiny", **options)
