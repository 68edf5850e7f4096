"""`recursive`: captures as trees, judged by the trees that texts are written of and by the runtime's grammar engine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramiform
from ramiform import HttpRuntime, ProgramState, RequestError, Scripted, gen, optional, recursive, select, seq
from ramiform import zero_or_more as any_number
from ramiform.constrained import Grammar, Vocabulary, compile_constraint
from ramiform.lang.constraints.matcher import CaptureSearch
from ramiform.lang.expressions.captures import ConstraintExpr, compiled

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])
TREE = recursive(
    "node",
    lambda node: seq(
        "(",
        gen("size", dtype=int),
        optional(":", gen("word", regex="[a-z]+")),
        any_number(" ", select("kind", ["+", "-"]), node),
        ")",
    ),
)
WHOLE = seq("T", TREE, any_number(";", gen("size", regex="[0-9]")))

trees = st.recursive(
    st.builds(lambda size, word: (size, word, []), st.integers(0, 99), st.sampled_from([None, "a", "bc"])),
    lambda inner: st.builds(
        lambda size, below: (size, None, below),
        st.integers(0, 9),
        st.lists(st.tuples(st.sampled_from("+-"), inner), max_size=3),
    ),
    max_leaves=8,
)


def written(tree: Any) -> str:
    size, word, below = tree
    return f"({size}{'' if word is None else f':{word}'}{''.join(f' {kind}{written(one)}' for kind, one in below)})"


def valued(tree: Any) -> dict[str, Any]:
    size, word, below = tree
    return {"size": size, "word": word, "kind": [kind for kind, _ in below], "node": [valued(one) for _, one in below]}


def run(expr: ConstraintExpr, answer: str, **arguments: Any) -> ProgramState:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += expr

    return program.run(backend=Scripted([answer]), **arguments)


@given(trees, st.lists(st.integers(0, 9), max_size=2), st.integers(1, 4))
def test_the_captures_are_the_tree_that_was_written(tree: Any, sizes: list[int], step: int) -> None:
    text = f"T{written(tree)}{''.join(f';{size}' for size in sizes)}"
    state = run(WHOLE, text)
    assert state["node"] == valued(tree)
    assert state["size"] == [str(size) for size in sizes]
    matcher = compile_constraint(Grammar(compiled(WHOLE).grammar, "gbnf"), VOCABULARY).matcher()
    assert all(matcher.accept(byte) for byte in text.encode())
    assert matcher.is_accepting()
    for name, expected in (("node", [written(tree)]), ("size", [str(size) for size in sizes])):
        search = CaptureSearch(compiled(WHOLE).matcher, name)
        found = [one for at in range(0, len(text), step) for one in search.feed(text[at : at + step])]
        assert [*found, *search.rest()] == expected


def test_trees_stream_when_they_are_whole() -> None:
    state = run(WHOLE, "T(1 +(2));5", stream=True)
    assert list(state.text_iter("node")) == ["(1 +(2))"]
    assert list(state.value_iter("node")) == [valued((1, None, [("+", (2, None, []))]))]


def test_trees_inside_trees_refer_to_each_other() -> None:
    def pair(either: ConstraintExpr) -> ConstraintExpr:
        return recursive("pair", lambda inner: seq("<", optional(either), optional(inner), ">"))

    expr = recursive("value", lambda either: select(None, [gen("number", dtype=int), seq("(", pair(either), ")")]))
    assert run(expr, "(<(<1>)<2>>)")["value"] == {
        "number": None,
        "pair": {
            "value": {"number": None, "pair": {"value": {"number": 1, "pair": None}, "pair": None}},
            "pair": {"value": {"number": 2, "pair": None}, "pair": None},
        },
    }


def test_a_tree_may_be_deeper_than_python_calls() -> None:
    tree = recursive("node", lambda node: seq("(", optional(node), ")"))
    value, depth = run(tree, "(" * 3000 + ")" * 3000)["node"], 0
    while value is not None:
        value, depth = value["node"], depth + 1
    assert depth == 3000


STOLEN: list[ConstraintExpr] = []
recursive("a", lambda a: (STOLEN.append(a), seq("x", optional(a)))[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recursive("a", lambda a: seq(optional(a), "x")), "recursive('a') may begin with itself"),
        (lambda: recursive("a", lambda a: seq(optional("y"), any_number(a), "x")), "may begin with itself"),
        (lambda: recursive("a", lambda a: recursive("b", lambda b: seq(optional(a), "x"))), "('a') may begin"),
        (lambda: recursive("a", lambda a: seq("x", a)), "recursive('a') never ends"),
        (lambda: recursive("a", lambda a: recursive("b", lambda b: seq("x", select(None, [a, b])))), "never ends"),
        (lambda: recursive("a", lambda a: recursive("a", lambda b: seq("x", optional(b)))), "inside one of the same"),
        (lambda: seq(*(recursive("a", lambda a, t=t: seq(t, optional(a))) for t in "xy")), "two parts"),  # type: ignore[misc]
        (lambda: recursive("", lambda a: "x"), "name must be a non-empty string"),
        (lambda: run(STOLEN[0], "x").text(), "stands outside of its parts"),
    ],
)
def test_what_cannot_recur_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        make()


def test_the_model_writes_trees_over_zmq_and_http(backend: Any, url: str) -> None:
    @ramiform.function
    def program(s: ProgramState) -> dict[str, Any]:
        s += seq("(", gen("first", regex="[1-9]"), recursive("node", lambda node: seq("[", optional(node), "]")), ")")
        tree: dict[str, Any] = s["node"]
        return tree

    def depth(tree: dict[str, Any] | None) -> int:
        return 0 if tree is None else 1 + depth(tree["node"])

    with contextlib.closing(HttpRuntime(url)) as over_http:
        for where in (backend, over_http):
            for seed in range(20):
                with contextlib.suppress(RequestError):  # the model may nest until its tokens are spent
                    state = program.run(seed=seed, max_tokens=60, temperature=1.0, backend=where)
                    assert state.text().count("[") == depth(state.ret_value) > 0
                    break
            else:
                pytest.fail("no tree in twenty draws")
