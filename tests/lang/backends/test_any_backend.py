"""One program a feature, on every backend: against the runtime's own routes, and Scripted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import ramiform
from ramiform import Anthropic, OpenAI, ProgramState, RequestError, Scripted, VertexAI, assistant, gen, select, user
from ramiform.lang.backends.backend import Backend

BACKENDS = ("openai", "responses", "anthropic", "vertex", "vllm", "sglang", "scripted")


@dataclass
class Service:
    """A backend by name; a scripted one answers with what the test gives."""

    name: str
    url: str

    def __call__(self, *answers: Any) -> Any:
        match self.name:
            case "openai":
                return OpenAI("ramiform-demo", base_url=f"{self.url}/v1", is_chat_model=True)
            case "responses":
                return OpenAI("ramiform-demo", base_url=f"{self.url}/v1", api="responses")
            case "anthropic":
                return Anthropic("ramiform-demo", base_url=self.url)
            case "vertex":
                return VertexAI(
                    "ramiform-demo", base_url=f"{self.url}/v1", access_token="t", extra_body={"model": "ramiform-demo"}
                )
            case "vllm":
                return OpenAI("ramiform-demo", base_url=f"{self.url}/v1", dialect="vllm", is_chat_model=True)
            case "sglang":
                return OpenAI("ramiform-demo", base_url=f"{self.url}/v1", dialect="sglang", is_chat_model=True)
        return Scripted(answers)


@pytest.fixture(params=BACKENDS)
def service(request: pytest.FixtureRequest, url: str, runtime: ramiform.Runtime) -> Service:
    return Service(request.param, url)


@pytest.fixture
def on(service: Service) -> Iterator[Callable[..., Backend]]:
    made: list[Any] = []

    def connect(*answers: Any) -> Backend:
        made.append(service(*answers))
        return made[-1]  # type: ignore[no-any-return]

    yield connect
    for backend in made:
        backend.close()


class City(BaseModel):
    name: Literal["Rome", "Oslo"]
    people: int = 0


class Sky(BaseModel):
    sky: Literal["sunny", "grey"]


class Search(BaseModel):
    kind: Literal["search"] = "search"
    query: Literal["x", "y"]


class Calculate(BaseModel):
    kind: Literal["calculate"] = "calculate"
    left: int
    right: int


@ramiform.function
def whole(s: ProgramState, question: str) -> int:
    """Answer with a number."""


@ramiform.function
def fraction(s: ProgramState, question: str) -> float:
    """Answer with a number."""


@ramiform.function
def truth(s: ProgramState, question: str) -> bool:
    """Is it so?"""


@ramiform.function
def words(s: ProgramState, question: str) -> str:
    """Answer."""


@ramiform.function
def colour(s: ProgramState, question: str) -> Literal["red", "blue"]:
    """Name the colour."""


@ramiform.function
def city(s: ProgramState, question: str) -> City:
    """Name the city."""


@ramiform.function
def cities(s: ProgramState, question: str) -> Annotated[list[City], Field(max_length=2)]:
    """Name the cities."""


@ramiform.function
def action(s: ProgramState, question: str) -> Search | Calculate:
    """Choose what to do."""


@ramiform.function
def maybe(s: ProgramState, question: str) -> City | None:
    """Name the city, if there is one."""


SIGNATURES: list[tuple[Any, Any, str]] = [
    (whole, int, "7"),
    (fraction, float, "7.5"),
    (truth, bool, "True"),
    (words, str, "Paris"),
    (colour, str, '"red"'),
    (city, City, '{"name": "Rome", "people": 3}'),
    (cities, list, '[{"name": "Rome"}]'),
    (action, (Search, Calculate), '{"kind": "search", "query": "x"}'),
    (maybe, (City, type(None)), "null"),
]


@pytest.mark.parametrize(("program", "kind", "answer"), SIGNATURES, ids=lambda one: getattr(one, "__name__", ""))
def test_signatures_of_every_type(service: Service, on: Any, program: Any, kind: Any, answer: str) -> None:
    if service.name == "anthropic" and program is cities:
        pytest.skip("the API takes no bound of a list, and this model ends none by itself")
    value = program("What?", backend=on(answer), temperature=0, max_tokens=150)
    assert isinstance(value, kind)


def test_choices_are_one_of_them(on: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("Pick") + assistant(gen("x", choices=["yes", "no"])) + user("Again")
        s += assistant(select("y", [' a"b', "c"]))

    state = body.run(backend=on("no", 1))
    assert state["x"] in ("yes", "no")
    assert state["y"] in (' a"b', "c")
    assert state.messages()[1]["content"] == state["x"]
    assert isinstance(state.get_meta_info("x")["index"], int)


def test_regexes_and_dtypes_hold(on: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("A code") + assistant(gen("code", regex="[A-C]{2}-[0-9]{3}", max_tokens=40, temperature=0))
        s += user("A number") + assistant(gen("number", dtype=int, max_tokens=40, temperature=0))

    state = body.run(backend=on("AB-123", "12"))
    assert re.fullmatch("[A-C]{2}-[0-9]{3}", state["code"])
    assert isinstance(state["number"], int)
    assert state.messages()[1]["content"] == state["code"]


def test_a_tool_is_called(on: Any) -> None:
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    def half(number: int, up: bool = False) -> int:
        """Halve a number."""
        return (number + up) // 2

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("Double 4") + assistant(gen("x", tools=[double, half], max_tokens=120, temperature=0))

    state = body.run(backend=on('{"name": "double", "arguments": {"number": 4}}'))
    call = state.get_meta_info("x")["tool_call"]
    assert call["name"] in ("double", "half")
    assert call["error"] is None
    assert isinstance(state["x"], int)


def test_an_agent_calls_and_answers(on: Any) -> None:
    asked = []

    def weather(place: Literal["Oslo", "Rome"]) -> str:
        """Return the weather at a place.

        place: a city
        """
        asked.append(place)
        return "sunny"

    @ramiform.function
    def body(s: ProgramState) -> Any:
        return s.agent([weather], "Weather in Oslo?", tool_choice="required", max_steps=3, schema=Sky, temperature=0)

    call = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>'
    state = body.run(backend=on(call, "It is sunny.", '{"sky": "sunny"}'))
    result = state.ret_value
    assert isinstance(result.value, Sky)
    assert result.calls[0].name == "weather"
    assert result.calls[0].error is None
    assert result.calls[0].text == "sunny"
    assert asked
    assert asked[0] == result.calls[0].arguments["place"]
    assert [message["role"] for message in state.messages()][:3] == ["user", "assistant", "tool"]
    assert "<tool_call>" in state.messages()[1]["content"]


def test_text_streams(on: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("Count") + assistant(gen("x", max_tokens=6, temperature=0))

    state = body.run(stream=True, backend=on(["one", " two"]))
    assert "".join(state.text_iter("x")) == state["x"] != ""


def test_stops_end_the_text(on: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x", max_tokens=30, temperature=0, stop=["e", "\n"]))

    state = body.run(backend=on("On"))
    assert not set(state["x"]) & {"e", "\n"}


def test_a_message_may_begin_before_the_gen_where_the_service_goes_on(service: Service, on: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("The capital of France?") + assistant("It is" + gen("x", max_tokens=5, temperature=0))

    if service.name in ("openai", "responses", "vertex"):
        with pytest.raises(RequestError, match=r"test_any_backend\.py:\d+: .*let the gen stand first"):
            body.run(backend=on())
        return
    state = body.run(backend=on(" Paris"))
    assert state.messages()[1]["content"] == "It is" + state["x"]


CANNOT: dict[str, tuple[str, ...]] = {
    "grammar": ("openai", "responses", "anthropic", "vertex"),
    "top_k": ("openai", "responses", "vertex"),
    "decide": tuple(set(BACKENDS) - {"scripted"}),
    "choices_method": tuple(set(BACKENDS) - {"scripted"}),
    "return_logprob": tuple(set(BACKENDS) - {"scripted"}),
}
EXPRESSIONS: dict[str, Any] = {
    "grammar": gen("x", grammar='root ::= "a"', max_tokens=5),
    "top_k": gen("x", top_k=3, max_tokens=5),
    "choices_method": select("x", ["a", "b"], choices_method="greedy_token_selection"),
    "return_logprob": gen("x", return_logprob=True, max_tokens=5),
}


@pytest.mark.parametrize("feature", CANNOT)
def test_what_a_service_cannot_is_refused_at_its_line_before_anything_is_asked(
    service: Service, on: Any, feature: str
) -> None:
    seen: list[str] = []

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("before", max_tokens=2))
        if feature == "decide":
            s.decide(urgent="Is it urgent?")
        else:
            s += user("And") + assistant(EXPRESSIONS[feature])

    backend: Any = on("a", "no" if feature == "decide" else "a")
    if service.name not in CANNOT[feature]:
        body.run(backend=backend)
        return
    with pytest.raises(RequestError, match=r"test_any_backend\.py:\d+: ") as caught:
        body.run(backend=backend)
    assert re.search("leave|give|use|run on|choose|let", str(caught.value))
    assert caught.value.code == "unsupported"
    assert backend.usage.requests == 0
    assert not seen
