"""Programs of the kinds that DSPy, SGLang, LangGraph, BAML, instructor, Marvin and pydantic-ai show."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

import ramiform
from ramiform import (
    Agent,
    Demonstration,
    RequestError,
    assistant,
    best_of,
    evaluate,
    gen,
    select,
    signature,
    user,
    vote,
)
from ramiform.tests.lang.ported.common import LYON, City, Mood, Ported, call, find_city, into, shorten, weather

PORTED: list[Ported] = []
ported = into(PORTED)

# DSPy


@ported("DSPy", "a signature", [LYON], City("Lyon", 5))
def _(s: Any) -> Any:
    return find_city("Lyon has five people.")


@ported("DSPy", "a signature as text", ['{"mood": "glad", "stars": 4}'], ("glad", 4))
def _(s: Any) -> Any:
    judge = signature("text -> mood, stars: int", "Judge it.")
    mood, stars = judge(text="Fine.")
    return mood, stars


@ported("DSPy", "a chain of thought", ['{"reasoning": "2 and 2", "answer": 4}'], 4)
def _(s: Any) -> Any:
    class Thought(BaseModel):
        reasoning: str
        answer: int

    s += "2 + 2?\n" + gen("x", schema=Thought)
    return s["x"].answer


@ported("DSPy", "ReAct", [call(), "It is sunny."], "It is sunny.")
def _(s: Any) -> Any:
    return s.agent([weather], "Weather in Oslo?").answer


@ported("DSPy", "a module of modules", [LYON, "L."], "L.")
def _(s: Any) -> Any:
    return shorten(find_city("Lyon").name)


@ported("DSPy", "demonstrations", lambda prompt: LYON if "Paris" in prompt else "{}", City("Lyon", 5))
def _(s: Any) -> Any:
    return find_city.with_prompt(demonstrations=[Demonstration({"text": "Paris!"}, City("Paris", 2))])("Lyon")


@ported("DSPy", "a majority", {"So: ": "4"}, 4)
def _(s: Any) -> Any:
    return vote(s, 3, "So: " + gen("n", dtype=int)).value


@ported("DSPy", "the best of several", lambda prompt: "ab", "ab")
def _(s: Any) -> Any:
    return best_of(s, 3, gen("x", max_tokens=5), score=lambda branch: len(branch["x"]))["x"]


@ported("DSPy", "refined until it holds", ['{"name": "", "people": 5}', LYON], "Lyon")
def _(s: Any) -> Any:
    careful = find_city.bind(check=lambda city: city.name, retries=2, on_invalid="tell")
    return careful("Lyon").name


@ported("DSPy", "an evaluation", lambda prompt: LYON, 0.5)
def _(s: Any) -> Any:
    examples = [{"text": "Lyon", "name": "Lyon"}, {"text": "Oslo", "name": "Oslo"}]
    return evaluate(find_city, examples, lambda example, s: s.ret_value.name == example["name"]).score


# SGLang


@ported("SGLang", "branches that are joined", lambda prompt: prompt[-1], ["0", "1"])
def _(s: Any) -> Any:
    forks = s.fork(2)
    forks += lambda index: str(index) + gen("x")
    forks.join()
    return s["x"]


@ported("SGLang", "a chat of several turns", ["a", "b"], ["a", "b"])
def _(s: Any) -> Any:
    for number in range(2):
        s += user(f"Question {number}") + assistant(gen(f"a{number}"))
    return [s["a0"], s["a1"]]


# LangGraph


@ported("LangGraph", "a router", ["b", "done"], "done")
def _(s: Any) -> Any:
    s += select("kind", ["a", "b"])
    if s["kind"] == "b":
        s += gen("more")
    return s["more"]


@ported("LangGraph", "a writer and a critic in a loop", ["draft", "no", "better", "yes"], "better")
def _(s: Any) -> Any:
    for _ in range(3):
        s += "\nText: " + gen("text", stop="\n") + "\nGood? " + select("good", ["yes", "no"])
        if s["good"] == "yes":
            return s["text"]


@ported("LangGraph", "map and reduce", lambda prompt: "sum" if "All:" in prompt else prompt[-1], "All: a,b sum")
def _(s: Any) -> Any:
    readers = s.fork(2)
    readers += ["a" + gen("x"), "b" + gen("x")]
    readers.join()
    s += f"All: {','.join(s['x'])} " + gen("sum")
    return s.text()


@ported("LangGraph", "a person who approves", ["draft", "Ada"], "Ada")
def _(s: Any) -> Any:
    path, approved = Path(tempfile.mkdtemp(prefix="rt")) / "kept", []

    @ramiform.function
    def letter(s: Any) -> Any:
        s += "Letter:" + gen("draft")
        if s["draft"] not in approved:
            raise PermissionError(s["draft"])
        s += "\nSigned:" + gen("name")
        return s["name"]

    try:
        letter.run(checkpoint=path)
    except PermissionError as waiting:
        approved.append(str(waiting))
    return letter.run(checkpoint=path).ret_value


@ported(
    "LangGraph",
    "a supervisor",
    [call(name="hand_over_to_shop").replace('"city": "Oslo"', ""), "Hello."],
    ("shop", "Hello."),
)
def _(s: Any) -> Any:
    desk = Agent("desk", [weather], handoffs=[Agent("shop", [weather])])
    result = s.agent(desk, "I want to buy.")
    return result.agent, result.answer


@ported("LangGraph", "a subgraph on the same state", ["short"], "Text\nShorten: x\nshort")
def _(s: Any) -> Any:
    s += "Text\n"
    shorten(s, "x")
    return s.text()


@ported("LangGraph", "back to a checkpoint", ["1", "2"], "Q2")
def _(s: Any) -> Any:
    s += "Q"
    mark = s.mark()
    s += gen("x")
    assert s["x"] == "1"
    s.rollback(mark)
    s += gen("x")
    return s.text()


@ported("LangGraph", "updates while it runs", ["short"], ["line", "text", "variable", "value", "end"])
def _(s: Any) -> Any:
    kinds = [event.type for event in shorten.run("x", stream=True).events()]
    return [kind for kind in dict.fromkeys(kinds) if kind != "piece"]


# BAML


@ported("BAML", "an enum", ['"glad"'], Mood.GLAD)
def _(s: Any) -> Any:
    s += gen("mood", schema=Mood)
    return s["mood"]


@ported("BAML", "an alias and a description", ['{"full_name": "Lyon"}'], "Lyon")
def _(s: Any) -> Any:
    class Town(BaseModel):
        name: Annotated[str, Field(alias="full_name", description="its name")]

    s += gen("town", schema=Town)
    return s["town"].name


@ported("BAML", "a type made at run time", ['{"age": 3}'], 3)
def _(s: Any) -> Any:
    s += gen("x", schema=create_model("Dynamic", age=(int, ...)))
    return s["x"].age


@ported("BAML", "partial objects", [LYON], City("Lyon", 5))
def _(s: Any) -> Any:
    return [*find_city.run("Lyon", stream=True).value_iter("find_city")][-1]


# instructor


@ported("instructor", "a model of a chat", [LYON], "Lyon")
def _(s: Any) -> Any:
    s += user("Where?") + assistant(gen("city", schema=City))
    return s["city"].name


@ported("instructor", "items as they come", [f"[{LYON}, {LYON}]"], ["Lyon", "Lyon"])
def _(s: Any) -> Any:
    @ramiform.function
    def find_cities(s: Any, text: str) -> list[City]:
        """Find the cities."""

    return [city.name for city in find_cities.run("Lyon", stream=True).value_iter("find_cities")]


@ported("instructor", "perhaps nothing", ["null"], None)
def _(s: Any) -> Any:
    s += gen("city", schema=City | None)
    return s["city"]


# Marvin


@ported("Marvin", "a class of a text", lambda prompt: "sad", Mood.SAD)
def _(s: Any) -> Any:
    s += "It rains." + select("mood", Mood)
    return s["mood"]


@ported("Marvin", "several made at once", [[LYON, LYON]], [City("Lyon", 5)] * 2)
def _(s: Any) -> Any:
    s += gen("cities", schema=City, n=2)
    return s["cities"]


# pydantic-ai


@ported("pydantic-ai", "an agent with a typed answer", [call(), "It is sunny.", LYON], City("Lyon", 5))
def _(s: Any) -> Any:
    return s.agent([weather], "Weather in Oslo?", schema=City).value


@ported("pydantic-ai", "dependencies of tools", [call(name="price"), "3."], [3])
def _(s: Any) -> Any:
    class Shop:
        def price(self, city: str) -> int:
            """The price in a city."""
            return 3

    return [one.result for one in s.agent([Shop().price], "Price?").calls]


@ported("pydantic-ai", "a history that goes on", ["Hi Ada."], "Hi Ada.")
def _(s: Any) -> Any:
    s += [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello."}]
    s += user("Who am I?") + assistant(gen("a"))
    return s["a"]


@ported("pydantic-ai", "a limit of tokens", lambda prompt: "a b c d e f", "max_total_tokens")
def _(s: Any) -> Any:
    try:
        return shorten.run("x", max_total_tokens=1).text()
    except RequestError as error:
        return error.param


@ported(
    "pydantic-ai",
    "an agent as a tool",
    ['<tool_call>\n{"name": "shorten", "arguments": {"text": "x"}}\n</tool_call>', "s", "Done."],
    "Done.",
)
def _(s: Any) -> Any:
    return s.agent([shorten], "Shorten x.").answer
