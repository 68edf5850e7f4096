"""What can be a tool: functions, methods, partial and callable objects, declarations, definitions by schemas."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Annotated, Any

import jsonschema
import pydantic
import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, UnansweredCall, gen, tool, tool_schemas
from ramiform.lang.tools.declaration import MAX_KEPT_RESULTS
from ramiform.lang.tools.tool_set import ToolSet


class Address(pydantic.BaseModel):
    """Where someone lives."""

    street: str
    number: Annotated[int, pydantic.Field(ge=1, le=9)]


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def result(tools: Any, text: str, **options: Any) -> Any:
    def body(s: ProgramState) -> None:
        s += "Call: " + gen("x", tools=tools, **options)

    return ramiform.function(body).run(backend=Scripted([text]))["x"]


def offered(one: Any) -> dict[str, Any]:
    [described] = tool_schemas([one])
    return described["function"]  # type: ignore[no-any-return]


class Shop:
    """Sells things."""

    def __init__(self, name: str) -> None:
        self.name = name

    def price(self, item: str, count: int = 1) -> str:
        """Get the price of an item.

        item: what to buy
        """
        return f"{self.name}: {count} {item}"

    async def order(self, item: str) -> str:
        """Order an item."""
        await asyncio.sleep(0)
        return f"{self.name} ordered {item}"

    def __call__(self, item: str) -> str:
        """Ask for an item."""
        return f"{self.name} has {item}"

    @staticmethod
    def greet(who: str) -> str:
        """Greet."""
        return f"Hello {who}"


def test_methods_are_tools_without_their_object() -> None:
    shop = Shop("Ada's")
    assert offered(shop.price)["name"] == "price"
    assert offered(shop.price)["description"] == "Get the price of an item."
    properties = offered(shop.price)["parameters"]["properties"]
    assert list(properties) == ["item", "count"]
    assert properties["item"]["description"] == "what to buy"
    assert result([shop.price], call("price", item="tea")) == "Ada's: 1 tea"
    assert result([shop.order], call("order", item="tea")) == "Ada's ordered tea"
    assert result([Shop.greet], call("greet", who="Bo")) == "Hello Bo"


def test_a_method_without_its_object_is_refused_with_what_to_write() -> None:
    with pytest.raises(RequestError, match=r"argument 'self' .*tools=\[thing.method\]"):
        gen("x", tools=[Shop.price])


def test_a_callable_object_is_a_tool_by_the_name_of_its_class() -> None:
    one = offered(Shop("Ada's"))
    assert (one["name"], list(one["parameters"]["properties"])) == ("Shop", ["item"])
    assert result([Shop("Ada's")], call("Shop", item="tea")) == "Ada's has tea"


def test_the_arguments_that_a_partial_binds_are_not_offered() -> None:
    def send(sender: str, to: str, text: str = "", *, urgent: bool = False) -> str:
        """Send a message."""
        return f"{sender} > {to}: {text} {urgent}"

    partial = functools.partial(functools.partial(send, "Ada"), urgent=True)
    one = offered(partial)
    assert (one["name"], one["description"]) == ("send", "Send a message.")
    assert list(one["parameters"]["properties"]) == ["to", "text"]
    assert result([partial], call("send", to="Bo", text="hi")) == "Ada > Bo: hi True"
    # A partial of a keyword in the middle makes the arguments after it keyword arguments.
    middle = functools.partial(send, to="Bo")
    assert list(offered(middle)["parameters"]["properties"]) == ["sender", "text", "urgent"]
    assert result([middle], call("send", sender="Cy")) == "Cy > Bo:  False"
    assert result([functools.partial(Shop("Ada's").price, count=3)], call("price", item="tea")) == "Ada's: 3 tea"
    told = result([partial], call("send", to="Bo", urgent=False))
    assert "is not a call" in told
    assert "urgent" in told


def test_pydantic_arguments_arrive_as_instances() -> None:
    def move(to: Address, others: list[Address] | None = None) -> str:
        assert isinstance(to, Address)
        assert others is None or all(isinstance(one, Address) for one in others)
        return f"{to.number} {to.street}"

    schema = offered(move)["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = {"to": {"street": "Elm", "number": 3}, "others": [{"street": "Oak", "number": 1}]}
    assert validator.is_valid(good)
    assert not validator.is_valid({"to": {"street": "Elm", "number": 0}})
    assert result([move], call("move", **good)) == "3 Elm"
    told = result([move], call("move", to={"street": "Elm", "number": 0}))
    assert "is not a call" in told
    assert "number" in told


def test_tools_with_types_of_one_name_do_not_mix_them_up() -> None:
    def make(kind: type) -> Any:
        def take(to: Any) -> str:
            return type(to).__module__ + str(to)

        take.__annotations__["to"] = kind
        return take

    first = pydantic.create_model("Same", a=(int, ...))
    second = pydantic.create_model("Same", b=(str, ...))
    tools = ToolSet([tool(make(first), name="one"), tool(make(second), name="two")])
    validator = jsonschema.Draft202012Validator(json.loads(tools.constraint.source))
    assert validator.is_valid({"name": "one", "arguments": {"to": {"a": 1}}})
    assert validator.is_valid({"name": "two", "arguments": {"to": {"b": "x"}}})
    assert not validator.is_valid({"name": "two", "arguments": {"to": {"a": 1}}})


def test_a_declaration_names_and_describes_and_can_still_be_called() -> None:
    @tool(name="plus", description="Add up")
    def add(a: int, b: int) -> int:
        return a + b

    @tool
    def minus(a: int, b: int) -> int:
        """Subtract"""
        return a - b

    assert add(1, 2) + minus(5, 1) == 7
    assert (offered(add)["name"], offered(add)["description"]) == ("plus", "Add up")
    assert (offered(minus)["name"], offered(minus)["description"]) == ("minus", "Subtract")
    assert result([add, minus], call("plus", a=2, b=3)) == 5


OPENAI = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a thing",
        "parameters": {
            "type": "object",
            "properties": {"what": {"$ref": "#/$defs/Thing"}, "limit": {"type": "integer", "maximum": 3}},
            "required": ["what"],
            "$defs": {"Thing": {"enum": ["book", "pen"]}},
        },
    },
}
MCP = {"name": "find", "description": "Find a thing", "inputSchema": OPENAI["function"]["parameters"]}  # type: ignore[index]


@pytest.mark.parametrize("definition", [OPENAI, OPENAI["function"], MCP])
def test_definitions_of_openai_and_mcp_are_tools_with_their_handler(definition: Any) -> None:
    found: list[dict[str, Any]] = []

    def find(**arguments: Any) -> str:
        found.append(arguments)
        return "here"

    declared = tool(definition, find)
    assert offered(declared) == OPENAI["function"]
    validator = jsonschema.Draft202012Validator(json.loads(ToolSet([declared]).constraint.source))
    assert validator.is_valid({"name": "find", "arguments": {"what": "pen"}})
    assert not validator.is_valid({"name": "find", "arguments": {"what": "cup"}})
    assert result([declared], call("find", what="pen", limit=2)) == "here"
    assert found == [{"what": "pen", "limit": 2}]
    for wrong in ({"limit": 1}, {"what": "pen", "other": 1}, {"what": "cup"}, {"what": "pen", "limit": 4}):
        assert "is not a call" in result([declared], call("find", **wrong))
    assert len(found) == 1


def test_the_call_of_a_definition_without_a_handler_is_the_value() -> None:
    def body(s: ProgramState) -> None:
        s += gen("x", tools=[OPENAI])

    state = ramiform.function(body).run(backend=Scripted([call("find", what="pen")]))
    assert state["x"] == UnansweredCall("find", {"what": "pen"})
    assert state.text() == call("find", what="pen")  # no result is appended: the program has it
    with pytest.raises(RequestError, match="the tool find has no function"):
        tool(OPENAI)()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({}, "needs a name"),
        ({"name": ""}, "needs a name"),
        ({"function": "f"}, "must be a dict"),
        ({"name": "f", "description": 3}, "description of the tool f"),
        ({"name": "f", "parameters": {"type": "array"}}, "the schema of an object"),
        ({"name": "f", "parameters": 3}, "the schema of an object"),
        ({"name": "f", "parameters": {"properties": {"a": {"const": {1, 2}}}}}, "is not JSON"),
    ],
)
def test_an_invalid_definition_is_refused(definition: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        gen("x", tools=[definition])
    assert caught.value.param == "tools"


def test_invalid_declarations_are_refused() -> None:
    def f(a: int) -> int:
        return a

    for arguments, options, param in (
        ((3,), {}, "tools"),
        ((f, f), {}, "handler"),
        ((OPENAI, 3), {}, "handler"),
        ((f,), {"name": ""}, "name"),
        ((f,), {"description": 3}, "description"),
        ((f,), {"pure": "yes"}, "pure"),
        ((OPENAI,), {"pure": True}, "pure"),
    ):
        with pytest.raises(RequestError) as caught:
            tool(*arguments, **options)  # type: ignore[call-overload]
        assert caught.value.param == param, arguments


def test_the_results_of_a_pure_tool_are_kept_but_never_its_errors() -> None:
    made: list[int] = []

    @tool(pure=True)
    def half(of: int, digits: int = 0) -> float:
        made.append(of)
        if of < 0:
            raise ValueError("negative")
        return of / 2

    assert result([half], call("half", of=4, digits=1)) == 2
    assert result([half], '{"arguments": {"digits":1,  "of":4}, "name": "half"}') == 2
    assert made == [4]
    assert result([half], call("half", of=6)) == 3
    assert made == [4, 6]
    for _ in range(2):
        assert "negative" in result([half], call("half", of=-1))
    assert made == [4, 6, -1, -1]


@pytest.mark.exhaustive
def test_an_async_pure_tool_is_kept_and_the_number_of_results_is_bounded() -> None:
    made: list[int] = []

    @tool(pure=True)
    async def twice(of: int) -> int:
        made.append(of)
        return 2 * of

    for of in [*range(MAX_KEPT_RESULTS + 1), MAX_KEPT_RESULTS, 0]:
        assert result([twice], call("twice", of=of)) == 2 * of
    assert made == [*range(MAX_KEPT_RESULTS + 1), 0]  # the oldest was dropped, the newest kept


def test_a_call_that_was_cut_off_says_so_on_the_model_that_ships(backend: ramiform.Runtime) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    def body(s: ProgramState) -> None:
        s += "Question: What is 3 plus 4?\nCall:"
        s.tool("sum", [add], max_tokens=3, temperature=0)
        s += "Answer:" + gen("answer", max_tokens=2, temperature=0)

    state = ramiform.function(body).run()
    assert "cut off at max_tokens, is not a call" in state["sum"]
    assert isinstance(state["answer"], str)


def test_definitions_and_pydantic_arguments_constrain_the_model_that_ships(backend: ramiform.Runtime) -> None:
    def deliver(to: Address) -> int:
        return to.number

    def body(s: ProgramState) -> None:
        s += "Deliver to Elm street 20. Call:"
        s.tool("number", [deliver], max_tokens=100, temperature=0)
        s += "Find a pen. Call:"
        s.tool("found", [tool(OPENAI, lambda **given: given["what"])], max_tokens=100, temperature=0)

    state = ramiform.function(body).run()
    assert 1 <= state["number"] <= 9
    assert state["found"] in ("book", "pen")
