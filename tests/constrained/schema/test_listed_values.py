"""Values that `enum` and `const` list, of any type and number: all of them are accepted, and nothing else.

`jsonschema` judges. Work is bounded in states, never in seconds.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ramiform.constrained import (
    CompiledGrammar,
    GrammarError,
    JsonSchema,
    PropertyOrder,
    SchemaOptions,
    compile_constraint,
)
from ramiform.constrained.schema.document import Document, read_schema
from ramiform.constrained.schema.formula import SparseTruths, evaluate
from ramiform.constrained.schema.goals import GoalCompiler
from ramiform.constrained.schema.joint_truths import joint_truths
from ramiform.constrained.schema.listed.evaluation import satisfies
from ramiform.constrained.schema.listed.values import given_value, json_value
from ramiform.constrained.schema.string_parts import StringPart
from ramiform.tests.constrained.walks import EOS, accepts, allowed, shared_vocabulary

from .oracle_jsonschema import (
    Draft,
    Guesser,
    Whitespace,
    has_reference_cycle,
    in_draft,
    is_valid,
    judge,
    schemas,
    spelled,
)

ORDERS: tuple[PropertyOrder, ...] = ("any", "schema")
WHITESPACE = st.sampled_from(["compact", "bounded", "any"])
SEEDS = st.integers(0, 2**32)
NAMES = ["a", "b", "ab", "", "é", "c/d", 'q"', "name with spaces"]
SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    2,
    -3,
    1.5,
    1.05,
    100,
    "",
    "a",
    "b",
    "ab",
    "1",
    "é",
    "a🙂",
    'q"\\/\n',
]
GIVEN = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
MANY = settings(deadline=None, derandomize=True, max_examples=150, suppress_health_check=list(HealthCheck))


def compiled(
    schema: Any,
    order: PropertyOrder = "any",
    whitespace: Whitespace = "bounded",
    options: SchemaOptions | None = None,
) -> CompiledGrammar:
    return compile_constraint(
        JsonSchema(schema, options or SchemaOptions()), shared_vocabulary(), whitespace=whitespace, order=order
    )


def compiler_of(schema: Any) -> GoalCompiler:
    return GoalCompiler(Document(read_schema(schema)), "bounded", "any", SchemaOptions())


def shuffled(value: Any, rng: random.Random) -> Any:
    """Return an equal value whose objects have their members in any order."""
    if isinstance(value, list):
        return [shuffled(inner, rng) for inner in value]
    if isinstance(value, dict):
        names = rng.sample(list(value), len(value))
        return {name: shuffled(value[name], rng) for name in names}
    return value


def changed(value: Any, rng: random.Random) -> Any:
    """Return a value near this one: a part left out, added, or replaced."""
    if isinstance(value, list | dict) and value and rng.random() < 0.8:
        value = copy.copy(value)
        place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if rng.random() < 0.3:
            del value[place]
        else:
            value[place] = changed(value[place], rng)
        return value
    if isinstance(value, list) and rng.random() < 0.5:
        return [*value, rng.choice(SCALARS)]
    if isinstance(value, dict) and rng.random() < 0.5:
        return {**value, rng.choice(NAMES): rng.choice(SCALARS)}
    return rng.choice([*SCALARS, [], {}])


# Numbers of values that were lost before.


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", [65, 90, 700])
def test_each_of_many_objects_is_accepted(order: PropertyOrder, number: int) -> None:
    values = [{"id": n, "name": f"tool_{n}", "at": [n % 7, {"x": n // 7}]} for n in range(number)]
    grammar = compiled({"enum": values}, order)
    assert [value for value in values if not accepts(grammar, json.dumps(value).encode())] == []
    assert not accepts(grammar, json.dumps({**values[3], "id": 4}).encode())
    assert not accepts(grammar, json.dumps({**values[3], "more": 4}).encode())


@pytest.mark.parametrize("number", [65, 200])
def test_more_than_64_combinations_of_truths_are_told_apart(number: int) -> None:
    tools = [
        {"properties": {"tool": {"const": f"tool_{n}"}, "n": {"const": n}}, "required": ["tool", "n"]}
        for n in range(number)
    ]
    grammar = compiled({"type": "object", "anyOf": tools})
    for n in range(number):
        assert accepts(grammar, json.dumps({"tool": f"tool_{n}", "n": n}).encode()), n
        assert not accepts(grammar, json.dumps({"tool": f"tool_{n}", "n": n + 1}).encode()), n


def test_each_of_many_values_of_any_type_is_accepted() -> None:
    values: list[Any] = [None, True, False]
    for n in range(300):
        values += [n, n + 0.5, f"text {n}", [n], [n, "x"], {"a": n}, {"a": [n], "b": None}]
    grammar = compiled({"enum": values})
    rng = random.Random(3)
    for value in rng.sample(values, 300):
        assert accepts(grammar, spelled(value, "bounded", rng).encode()), value
    for value in ([300], [1, 2], {"a": 300}, {"b": None}, 300, "text 300", [], {}):
        assert not accepts(grammar, json.dumps(value).encode()), value


# Values as such.


@MANY
@given(
    values=st.lists(GIVEN, min_size=1, max_size=12),
    whitespace=WHITESPACE,
    closed=st.booleans(),
    digits=st.booleans(),
    seed=SEEDS,
)
def test_listed_values_are_accepted_in_every_spelling_and_no_others(
    values: list[Any], whitespace: Whitespace, closed: bool, digits: bool, seed: int
) -> None:
    schema = {"enum": values}
    rng, judged = random.Random(seed), judge(schema)
    options = SchemaOptions("closed" if closed else "schema", "digits" if digits else "schema")
    compiler = compiler_of(True)
    separators = (",", ":") if whitespace == "compact" else (", ", ": ")
    # Of equal values the first one gives the order of the members.
    written = [json.dumps(json_value(given_value(compiler, value)), separators=separators) for value in values]
    for order in ORDERS:
        grammar = compiled(schema, order, whitespace, options)
        assert [text for text in written if not accepts(grammar, text.encode())] == []
        for value in [*values, *(changed(rng.choice(values), rng) for _ in range(12))]:
            text = spelled(value, whitespace, rng)
            if accepts(grammar, text.encode()):
                assert is_valid(judged, text), text
            elif is_valid(judged, text):
                assert order == "schema" or closed or digits, text  # only then is a spelling refused


def test_numbers_are_spelled_as_decimals_and_as_json_writes_them() -> None:
    grammar = compiled({"enum": [[1e22, 1e-7, 1.5, 10, 1.05, 100]]})
    for number in ("1e22", "2", "1.6", "1.050e0"):
        assert not accepts(grammar, f"[1e+22, 1e-07, {number}, 10, 1.05, 100]".encode())
    for text in (
        "[1e+22, 1e-07, 1.5, 10, 1.05, 100]",
        "[10000000000000000000000, 0.00000010, 1.500, 10.0, 1.050, 100]",
    ):
        assert accepts(grammar, text.encode()), text
    digits = compiled({"enum": [[1, 1.5]]}, options=SchemaOptions(integers="digits"))
    assert accepts(digits, b"[1, 1.50]")
    assert not accepts(digits, b"[1.0, 1.5]")


def test_true_is_not_one_and_one_is_one_point_zero() -> None:
    grammar = compiled({"enum": [[1.0, True], {"a": 0}]})
    for text, expected in {"[1, true]": 1, "[1.0, true]": 1, "[true, 1]": 0, "[1, 1]": 0, '{"a": 0.0}': 1}.items():
        assert accepts(grammar, text.encode()) == bool(expected), text
    assert not accepts(grammar, b'{"a": false}')


def test_members_come_in_the_order_of_the_given_object() -> None:
    schema = {"enum": [{"b": 1, "a": [{"y": 1, "x": 2}]}, {"b": 2, "a": []}]}
    for grammar in (compiled(schema, "schema"), compiled(schema, options=SchemaOptions("closed"))):
        assert accepts(grammar, b'{"b": 1, "a": [{"y": 1, "x": 2}]}')
        assert not accepts(grammar, b'{"a": []')
        assert not accepts(grammar, b'{"b": 1, "a": [{"x": 2, "y": 1}]}')
    assert accepts(compiled(schema), b'{"a": [{"x": 2, "y": 1}], "b": 1}')


def test_a_text_that_utf8_cannot_spell_leaves_the_other_values() -> None:
    grammar = compiled({"enum": [{"a": "\ud800"}, {"\ud800": 1}, ["\ud800"], {"a": "b"}]})
    assert accepts(grammar, b'{"a": "b"}')
    assert not accepts(grammar, b"[")


# Given values together with other keywords.


@MANY
@given(schema=schemas(), seed=SEEDS, draft=st.sampled_from(get_args(Draft)))
def test_whether_a_value_satisfies_a_schema_is_decided_as_by_jsonschema(schema: Any, seed: int, draft: Draft) -> None:
    assume(not has_reference_cycle(schema))
    schema = in_draft(schema, draft)
    rng, judged = random.Random(seed), judge(schema, draft)
    try:
        compiler = compiler_of(schema)
        goal = compiler.goal(compiler.document.start)
        guesser = Guesser(schema, rng)
        values = [json.loads(json.dumps(guesser.guess())) for _ in range(12)]
        found = [satisfies(compiler, goal, given_value(compiler, value)) for value in values]
    except GrammarError:
        assume(False)
        raise
    expected = [is_valid(judged, json.dumps(value)) for value in values]
    assert [
        value for value, ours, theirs in zip(values, found, expected, strict=True) if ours not in (theirs, None)
    ] == []


@MANY
@given(
    schema=schemas(),
    values=st.lists(GIVEN, max_size=5),
    keyword=st.sampled_from(["allOf", "anyOf", "oneOf", "not", "if"]),
    order=st.sampled_from(ORDERS),
    seed=SEEDS,
)
def test_given_values_combine_with_other_schemas(
    schema: Any, values: list[Any], keyword: str, order: PropertyOrder, seed: int
) -> None:
    assume(not has_reference_cycle(schema) and '"$ref": "#"' not in json.dumps(schema))
    rng = random.Random(seed)
    guesser = Guesser(schema, rng)
    values = [*values, *(json.loads(json.dumps(guesser.guess())) for _ in range(4))]
    definitions = {"$defs": schema["$defs"]} if isinstance(schema, dict) and "$defs" in schema else {}
    listed = {"enum": values}
    combined: dict[str, Any] = {
        "allOf": {"allOf": [schema, listed]},
        "anyOf": {"anyOf": [schema, listed]},
        "oneOf": {"oneOf": [schema, listed]},
        "not": {"allOf": [schema, {"not": listed}]},
        "if": {"if": schema, "then": listed},
    }[keyword] | definitions
    judged = judge(combined)
    try:
        grammar = compiled(combined, order, "compact")
    except GrammarError as error:
        assume("no text at all" in str(error))
        for value in values:
            assert not is_valid(judged, json.dumps(value)), value
        return
    for value in [*values, *(changed(rng.choice(values), rng) for _ in range(6))]:
        text = spelled(value, "compact", rng)
        found = accepts(grammar, text.encode())
        if found:
            assert is_valid(judged, text), text
        elif order == "any":
            assert not is_valid(judged, text), text


@pytest.mark.parametrize("order", ORDERS)
def test_members_with_given_values_decide_how_an_object_goes_on(order: PropertyOrder) -> None:
    places = [{"x": n % 9, "y": [n // 9]} for n in range(80)]
    schema = {
        "type": "object",
        "properties": {"at": {"enum": places}, "n": {"type": "integer"}},
        "required": ["at", "n"],
        "allOf": [
            {
                "if": {"properties": {"at": {"enum": places[:40]}}, "required": ["at"]},
                "then": {"properties": {"n": {"maximum": 10}}},
                "else": {"properties": {"n": {"minimum": 11}}},
            }
        ],
    }
    grammar = compiled(schema, order)
    for n, place in enumerate(places):
        for number in (10, 11):
            text = json.dumps({"at": place, "n": number}).encode()
            assert accepts(grammar, text) == ((n < 40) == (number == 10)), text


def test_unique_items_of_given_objects_run_out() -> None:
    values = [{"a": 1}, {"a": 2, "b": []}, [1]]
    grammar = compiled({"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": 2})
    for items in ([0, 1], [2, 1, 0], [0, 2]):
        assert accepts(grammar, json.dumps([values[n] for n in items]).encode())
    for items in ([0], [0, 0], [1, 2, 1]):
        assert not accepts(grammar, json.dumps([values[n] for n in items]).encode())
    assert not accepts(grammar, b'[{"a": 1}, {"a": 1')


# What is refused, and the work.


def test_too_many_given_objects_beside_other_objects_are_refused_with_their_pointer() -> None:
    values = [{"id": n} for n in range(200)]
    schemas_with_pointers: list[tuple[Any, str]] = [
        ({"anyOf": [{"enum": values}, {"required": ["x"]}], "type": "object"}, "/anyOf/0/enum"),
        ({"type": "object", "not": {"enum": values}}, "/not/enum"),
        ({"properties": {"a": {"items": {"not": {"enum": values}}}}}, "/properties/a/items/not/enum"),
    ]
    both = [{"a": {"enum": values}, "b": {"const": 1}}, {"a": {"required": ["id", "z"]}, "b": {"const": 2}}]
    schemas_with_pointers.append(
        (
            {"type": "object", "anyOf": [{"properties": each, "required": ["a", "b"]} for each in both]},
            "/anyOf/0/properties/a/enum",
        )
    )
    for schema, pointer in schemas_with_pointers:
        with pytest.raises(GrammarError, match="given objects") as raised:
            compiled(schema)
        assert raised.value.pointer == pointer


def test_given_objects_that_other_schemas_allow_or_refuse_anyway_are_no_burden() -> None:
    values = [{"id": n} for n in range(200)]
    grammar = compiled({"type": "object", "anyOf": [{"enum": values}, {"minProperties": 1}]})
    assert accepts(grammar, b'{"id": 7}')
    assert accepts(grammar, b'{"x": 7}')
    assert not accepts(grammar, b"{}")
    grammar = compiled({"type": "object", "not": {"enum": values}, "required": ["x"]})
    assert accepts(grammar, b'{"x": 7}')
    assert not accepts(grammar, b'{"id": 7}')


@pytest.mark.parametrize("schema", [{}, {"$ref": "#/$defs/tree"}])
def test_deep_values_are_read_and_compared(schema: Any) -> None:
    value: Any = []
    for _ in range(50):
        value = [{"a": value}]
    tree = {"items": {"properties": {"a": {"$ref": "#/$defs/tree"}}, "required": ["a"]}, "minItems": 0}
    grammar = compiled({"$defs": {"tree": tree}, "const": value, **schema})
    assert accepts(grammar, json.dumps(value).encode())
    assert not accepts(grammar, json.dumps(value[0]["a"]).encode())


def test_values_nested_too_deep_are_refused_with_their_pointer() -> None:
    value: Any = []
    for _ in range(250):
        value = [value]
    with pytest.raises(GrammarError, match="nested deeper") as raised:
        compiled({"items": {"const": value}})
    assert raised.value.pointer == "/items"


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_alternatives_of_one_object_each_are_as_given_values(keyword: str) -> None:
    branches: list[Any] = []
    for n in range(300):
        properties = {"a": {"const": n}, "b": {"enum": [f"text {n}"], "type": "string"}, "c": {"const": {"d": [n]}}}
        branches.append({"properties": properties, "required": ["b", "a", "c"], "additionalProperties": False})
    schema = {"type": "object", keyword: [*branches, branches[7]]}
    judged = judge(schema)
    for options in (SchemaOptions(), SchemaOptions("closed", "digits")):
        grammar = compiled(schema, options=options)
        for n in range(0, 300, 7):
            for d in (n, n + 1):
                text = json.dumps({"a": n, "b": f"text {n}", "c": {"d": [d]}})
                assert accepts(grammar, text.encode()) == is_valid(judged, text), text
        assert grammar.generation.automaton.tables.num_states < 100 * len(branches)
        assert accepts(grammar, b'{"a": 1.0, "b": "text 1", "c": {"d": [1]}}') == (options == SchemaOptions())
        assert accepts(grammar, b'{"c": {"d": [1]}, "b": "text 1", "a": 1}') == (options == SchemaOptions())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", [500, 2000])
def test_the_states_are_linear_in_the_size_of_the_values(number: int, order: PropertyOrder) -> None:
    values = [{"kind": f"k{n % 5}", "id": n, "at": [n, {"x": n % 10}]} for n in range(number)]
    grammar = compiled({"enum": values}, order)
    rng = random.Random(5)
    texts = [json.dumps(shuffled(value, rng) if order == "any" else value) for value in values[:: number // 100]]
    before = grammar.generation.automaton.tables.num_states
    assert all(accepts(grammar, text.encode()) for text in texts)
    size = len(json.dumps(values))
    assert before <= 4 * size
    assert grammar.generation.automaton.tables.num_states - before <= 200 * len(texts)


def test_the_states_are_linear_in_the_number_of_members() -> None:
    names = [f"{'key é' if n % 3 else 'other'}{n}" for n in range(400)]
    values = [{name: n % 7 for n, name in enumerate(names)}, {name: n % 5 for n, name in enumerate(names[:200])}]
    grammar = compiled({"enum": values})
    rng = random.Random(2)
    for value in values:
        for _ in range(3):
            text = json.dumps(shuffled(value, rng), ensure_ascii=rng.random() < 0.5)
            assert accepts(grammar, text.encode())
    size = len(json.dumps(values))
    assert grammar.generation.automaton.tables.num_states < 20 * size
    missing = {name: value for name, value in values[1].items() if name != names[50]}
    assert not accepts(grammar, json.dumps(missing).encode())
    twice = json.dumps(values[1])[:-1] + f', "{names[0]}": 0}}'
    assert not accepts(grammar, twice.encode())
    matcher, vocabulary = grammar.matcher(), shared_vocabulary()
    for byte in json.dumps(shuffled(values[1], rng)).encode():
        assert byte in allowed(matcher, vocabulary)
        assert matcher.accept(byte)


def test_walks_that_prefer_to_repeat_never_meet_an_empty_mask() -> None:
    vocabulary = shared_vocabulary()
    values = [{"a": n % 3, "b": [n % 2] * (n % 4), "ab": {"a": n}} for n in range(40)] + [[n, [n]] for n in range(9)]
    schemas_: list[Any] = [
        {"enum": values},
        {"type": "array", "items": {"enum": values[:6]}, "uniqueItems": True, "maxItems": 4},
        {"properties": {"a": {"enum": values}, "b": {"enum": values}}, "required": ["a"]},
    ]
    for schema in schemas_:
        judged = judge(schema)
        for order in ORDERS:
            grammar = compiled(schema, order, "compact")
            for seed in range(8):
                rng, matcher, output = random.Random(seed), grammar.matcher(), b""
                while len(output) < 400:
                    tokens = allowed(matcher, vocabulary)
                    assert tokens, output
                    assert matcher.is_accepting() == (EOS in tokens)
                    if tokens == [EOS]:
                        assert is_valid(judged, output.decode())
                        break
                    tokens = [token for token in tokens if token != EOS]
                    repeating = [t for t in tokens if (vocabulary.tokens[t] or b"") in output[-60:]]
                    token = rng.choice(repeating if repeating and rng.random() < 0.8 else tokens)
                    assert matcher.accept(token)
                    output += vocabulary.tokens[token] or b""


@MANY
@given(seed=SEEDS, number=st.sampled_from([2, 5, 30]))
def test_given_numbers_are_told_apart_from_others(seed: int, number: int) -> None:
    rng = random.Random(seed)
    limits = [{"type": "integer"}, {"minimum": 3}, {"multipleOf": 2}, {"maximum": 2.5}, {"type": "number"}]
    values = rng.sample([0, 1, 1.5, 2, 3, 10, 1.05, -2, 20, 100, *range(200, 250)], number)
    branches = [{"properties": {"x": {"const": v}, "y": {"const": f"is {v}"}}, "required": ["x", "y"]} for v in values]
    others = {"properties": {"x": rng.choice(limits), "y": {"const": "other"}}, "required": ["x", "y"]}
    schema = {"type": "object", rng.choice(["anyOf", "oneOf"]): [*branches, others]}
    judged = judge(schema)
    grammar = compiled(schema, rng.choice(ORDERS), "compact")
    for x in ["0", "1", "1.0", "1.5", "1.50", "2", "2.0", "3", "1.05", "1.06", "-2", "20.00", "100", "101", "210.0"]:
        for y in ("other", f"is {rng.choice(values)}", f"is {x}"):
            text = f'{{"x":{x},"y":"{y}"}}'
            assert accepts(grammar, text.encode()) == is_valid(judged, text), text


class CountedPart:
    """A part that lists one value, and counts how often it is asked for."""

    asked = 0

    def __init__(self, value: int) -> None:
        self._values = frozenset([value])

    @property
    def values(self) -> frozenset[int]:
        CountedPart.asked += 1
        return self._values


def test_truths_of_listed_values_do_not_look_at_parts_that_list_others() -> None:
    parts = [CountedPart(n % 500) for n in range(1000)]
    truths = SparseTruths[int](parts, lambda part: part.values, lambda *_: None)
    found = [truths.bits(value) for value in range(501)]
    assert found == [(1 << n | 1 << (n + 500)) if n < 500 else 0 for n in range(501)]
    assert CountedPart.asked <= 5 * len(parts)


@MANY
@given(seed=SEEDS)
def test_sparse_truths_are_those_of_the_formulas(seed: int) -> None:
    rng = random.Random(seed)
    compiler = compiler_of(True)
    goals = []
    for _ in range(5):
        texts = [{"enum": rng.sample(["a", "b", "ab", "c"], 2)}, {"pattern": "^a"}, {"maxLength": 1}]
        chosen = rng.sample(texts, rng.randint(1, 2))
        goals.append(compiler.goal_of({"type": "string", rng.choice(["allOf", "anyOf", "oneOf"]): chosen}))
    goals = list(dict.fromkeys(goals))
    typed = [compiler.typed(goal, "string") for goal in goals]
    known = joint_truths(compiler, tuple(goals)).known
    for text in ("", "a", "b", "ab", "c", "aa", "zz"):
        truths = tuple(bool(evaluate(formula, lambda part: part.holds(text))) for formula in typed)  # noqa: B023
        assert truths in known, text


def test_joint_truths_of_many_texts_have_one_combination_for_each() -> None:
    compiler = compiler_of(True)
    goals = tuple(compiler.goal_of({"const": f"tool_{n}"}) for n in range(1000))
    known = joint_truths(compiler, goals).known
    assert sorted(map(sum, known)) == [0] + [1] * 1000
    assert all(isinstance(compiler.typed(goal, "string"), StringPart) for goal in goals)
