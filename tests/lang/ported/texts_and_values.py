"""Programs of the kinds that guidance, outlines and LMQL show."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from ramiform import (
    assistant,
    beam,
    gen,
    one_or_more,
    optional,
    pick,
    recursive,
    repeat,
    rx,
    select,
    seq,
    substring,
    system,
    user,
    zero_or_more,
)
from ramiform.tests.lang.ported.common import LYON, City, Person, Ported, into, shorten, weather

PORTED: list[Ported] = []
ported = into(PORTED)

# guidance


@ported("guidance", "text up to a stop", ["Ada"], "Ada")
def _(s: Any) -> Any:
    s += "Name:" + gen("name", stop="\n", max_tokens=20)
    return s["name"]


@ported("guidance", "one of several texts", ["red"], "red")
def _(s: Any) -> Any:
    s += "Colour:" + select("colour", ["red", "blue"])
    return s["colour"]


@ported("guidance", "a pattern", ["042"], "042")
def _(s: Any) -> Any:
    s += gen("code", regex=r"\d{3}")
    return s["code"]


@ported("guidance", "a chat with roles", ["Hi."], [("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi.")])
def _(s: Any) -> Any:
    s += system("Be brief.") + user("Hello") + assistant(gen("a"))
    return [(one["role"], one["content"]) for one in s.messages()]


@ported("guidance", "a list of any length", ["- a\n- b\n"], ["a", "b"])
def _(s: Any) -> Any:
    s += one_or_more("- ", gen("item", regex="[a-z]+"), "\n")
    return s["item"]


@ported("guidance", "a capture around captures", ["Total: 12"], ("Total: 12", 12))
def _(s: Any) -> Any:
    s += seq("Total: ", gen("total", dtype=int), name="line")
    return s["line"], s["total"]


@ported(
    "guidance", "a grammar that contains itself", ["(1(2)(3))"], {"n": 1, "e": [{"n": 2, "e": []}, {"n": 3, "e": []}]}
)
def _(s: Any) -> Any:
    s += recursive("e", lambda e: seq("(", gen("n", dtype=int), zero_or_more(e), ")"))
    return s["e"]


@ported("guidance", "a quote of a text", ["a mat"], "a mat")
def _(s: Any) -> Any:
    s += substring("The cat sat on a mat.", "quote", max_tokens=20)
    return s["quote"]


@ported("guidance", "a function that returns text", ["1", "2"], "a=1 b=2 ")
def _(s: Any) -> Any:
    def line(name: str) -> Any:
        return f"{name}=" + gen(name, dtype=int) + " "

    s += line("a") + line("b")
    return s.text()


@ported("guidance", "two ways from one prompt", {"QL": "1", "QR": "2"}, ["1", "2"])
def _(s: Any) -> Any:
    s += "Q"
    branches = s.fork(2)
    branches += ["L" + gen("x"), "R" + gen("x")]
    return [branch["x"] for branch in branches]


@ported("guidance", "a tool in the text", ['{"name": "weather", "arguments": {"city": "Oslo"}}'], "sunny in Oslo")
def _(s: Any) -> Any:
    s += gen("x", tools=[weather])
    return s["x"]


# outlines


@ported("outlines", "a number", ["7"], 7)
def _(s: Any) -> Any:
    s += "2 + 5 =" + gen("n", dtype=int)
    return s["n"]


@ported("outlines", "a literal", ["yes"], "yes")
def _(s: Any) -> Any:
    s += select("x", Literal["yes", "no"])
    return s["x"]


@ported("outlines", "a dataclass", [LYON], City("Lyon", 5))
def _(s: Any) -> Any:
    s += gen("x", schema=City)
    return s["x"]


@ported("outlines", "a list of them", [f"[{LYON}]"], [City("Lyon", 5)])
def _(s: Any) -> Any:
    s += gen("x", schema=list[City])
    return s["x"]


@ported("outlines", "one of two classes", ['{"name": "Ada", "age": 3}'], Person("Ada", 3))
def _(s: Any) -> Any:
    s += gen("x", schema=City | Person)
    return s["x"]


@ported("outlines", "a JSON schema", ['{"a": 1}'], '{"a": 1}')
def _(s: Any) -> Any:
    s += gen("x", json_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
    return s["x"]


@ported("outlines", "a context-free grammar", ["((1))"], "((1))")
def _(s: Any) -> Any:
    s += gen("x", grammar='root ::= "(" root ")" | "1"')
    return s["x"]


@ported("outlines", "a date", ['"2026-11-29"'], datetime.date(2026, 11, 29))
def _(s: Any) -> Any:
    s += gen("x", schema=datetime.date)
    return s["x"]


@ported("outlines", "a pattern built of parts", ["-12"], "-12")
def _(s: Any) -> Any:
    s += seq(optional("-"), repeat(rx("[0-9]"), least=1, most=3), name="x")
    return s["x"]


@ported("outlines", "a batch", lambda prompt: prompt[-2:-1].upper(), ["A", "B"])
def _(s: Any) -> Any:
    states = shorten.run_batch([{"text": "a"}, {"text": "b"}])
    return [state.ret_value for state in states]


# LMQL


@ported("LMQL", "a query with two holes", ["Ada", "36"], ("Ada", 36))
def _(s: Any) -> Any:
    s += "Name: " + gen("name", stop="\n") + "\nAge: " + gen("age", dtype=int)
    return s["name"], s["age"]


@ported("LMQL", "a constraint of one's own", ["300", "30"], 30)
def _(s: Any) -> Any:
    s += gen("n", dtype=int, check=lambda n: n < 100, retries=1)
    return s["n"]


@ported("LMQL", "a distribution over classes", lambda prompt: "glad", "glad")
def _(s: Any) -> Any:
    s.decide(mood=pick("Which mood?", ["glad", "sad"]))
    return max(s["mood"].probabilities, key=lambda one: one.probability).value


@ported("LMQL", "samples", [["a", "b"]], ["a", "b"])
def _(s: Any) -> Any:
    s += gen("x", n=2, temperature=0.8)
    return s["x"]


@ported("LMQL", "a beam", lambda prompt: "x", "Step:x\nStep:x\n")
def _(s: Any) -> Any:
    beam(s, "Step:" + gen("line", stop="\n") + "\n", width=2, depth=2, score=lambda branch: len(branch.text()))
    return s.text()


@ported("LMQL", "a loop of holes", ["a", "b"], ["a", "b"])
def _(s: Any) -> Any:
    found = []
    for _ in range(2):
        s += "- " + gen("item", stop="\n") + "\n"
        found.append(s["item"])
    return found


@ported("LMQL", "a query in a query", ["short"], "So: short")
def _(s: Any) -> Any:
    s += "So: " + shorten("a long text")
    return s.text()
