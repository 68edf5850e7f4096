"""Numbers within bounds, however they are written, and the digits that they may have."""

from __future__ import annotations

import itertools
import json
import random
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
import pytest

from ramiform.constrained import JsonSchema, SchemaOptions, compile_constraint
from ramiform.constrained.schema.keywords import meant_keyword

from ..walks import accepts, shared_vocabulary

TEXTS = [
    "".join(parts)
    for parts in itertools.product(
        ("", "-"), ("0", "1", "5", "10", "602"), ("", ".0", ".5", ".220"), ("", "e0", "e2", "E-1", "e+22", "e-05")
    )
]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "minimum": -5, "exclusiveMaximum": 602},
        {"type": "number", "multipleOf": 0.5},
        {"type": "integer", "minimum": 5},
        {"type": "number", "not": {"const": 100}},
        {"type": "number", "not": {"enum": list(range(9))}},
        {"type": "number", "not": {"type": "integer"}},
        {"type": "number", "oneOf": [{"minimum": 10}, {"maximum": 50}]},
        {"anyOf": [{"type": "integer", "maximum": 1}, {"type": "number", "minimum": 5, "multipleOf": 2.5}]},
        {"if": {"minimum": 1}, "then": {"multipleOf": 0.25}, "else": {"maximum": 0}, "type": "number"},
    ],
    ids=json.dumps,
)
def test_bounds_remove_values_and_no_invalid_spelling_is_left(schema: Any) -> None:
    grammar, validator = compile_constraint(JsonSchema(schema), shared_vocabulary()), jsonschema.Draft202012Validator
    judge = validator(schema)
    for text in TEXTS:
        valid, accepted = judge.is_valid(json.loads(text)), accepts(grammar, text.encode())
        if "e" in text.lower() or text in ("-0", "-0.0"):
            assert accepted <= valid, text  # some spellings are left out where constraints are combined
        else:
            assert accepted == valid, text


@pytest.mark.parametrize("text", ["6.022e23", "6.022E+23", "1e-9", "0.5e-3", "602.2e21", "0e0", "12"])
@pytest.mark.parametrize("schema", [{"minimum": 0}, {"exclusiveMaximum": 1e30, "minimum": 0}])
def test_a_value_within_bounds_keeps_its_exponent(schema: Any, text: str) -> None:
    options = SchemaOptions("closed", "digits", 20)
    grammar = compile_constraint(JsonSchema({"type": "number", **schema}, options), shared_vocabulary())
    assert accepts(grammar, text.encode())


@pytest.mark.parametrize("divisor", ["0.5", "0.01", "0.05", "0.3", "1e-07", "1e-16"])
@pytest.mark.parametrize("bounds", [{}, {"minimum": 0, "maximum": 100}])
def test_a_multiple_of_a_fraction_keeps_its_exponent(divisor: str, bounds: Any) -> None:
    schema, rng = {"type": "number", "multipleOf": float(divisor), **bounds}, random.Random(divisor)
    grammar = compile_constraint(JsonSchema(schema, SchemaOptions("closed", "digits", 20)), shared_vocabulary())
    judge = jsonschema.Draft202012Validator({**schema, "multipleOf": Decimal(divisor)})
    num_valid = 0
    with localcontext(prec=700):  # remainders of 1e299 are exact
        for _ in range(300):
            digits = str(rng.randrange(10 ** rng.randint(1, 6)))
            if len(digits) == 1:  # as `repr` writes floats
                digits += rng.choice(["", ".5", ".25", ".0", f".{rng.randrange(10**5):05}"])
            text = f"{digits}{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.randrange(rng.choice([4, 20, 299]))}"
            valid = judge.is_valid(Decimal(text))
            assert accepts(grammar, text.encode()) == valid, text
            num_valid += valid
    assert num_valid > 5


BELOW_TINY = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-25}
LARGE_OR_INTEGER = {"oneOf": [{"type": "number", "minimum": 1e30}, {"type": "integer"}]}


@pytest.mark.parametrize("integers", ["schema", "digits"])
@pytest.mark.parametrize(
    ("schema", "longest"),
    [
        ({"type": "number"}, "1" * 20),
        ({"type": "number"}, "-0." + "3" * 20),
        ({"type": "integer"}, "1" * 20),
        ({"minimum": 0}, "1" * 20),
        ({"type": "number", "not": {"const": 5}}, "1" * 20),
        ({"const": 1.5}, "1.5" + "0" * 19),
        ({"type": "integer", "maximum": 10**24}, "-" + "1" * 26),
        ({"type": "integer", "minimum": 10**29}, "1" * 31),
        ({"type": "number", "maximum": 1e308, "minimum": -1e308}, "1" * 20),
        (BELOW_TINY, "0." + "0" * 25 + "1"),
        (LARGE_OR_INTEGER, "1" * 30),
    ],
)
def test_numbers_end(schema: Any, longest: str, integers: Any) -> None:
    grammar = compile_constraint(JsonSchema(schema, SchemaOptions("schema", integers, 20)), shared_vocabulary())
    assert accepts(grammar, longest.encode())
    unlimited = compile_constraint(JsonSchema(schema, SchemaOptions("schema", integers)), shared_vocabulary())
    further = longest + ("0" if schema == {"const": 1.5} else "1" * 10)
    assert not accepts(grammar, further.encode())
    assert accepts(unlimited, further.encode()) or schema is LARGE_OR_INTEGER


@pytest.mark.parametrize("text", ["18446744073709551615", "-9223372036854775808", "3.141592653589793"])
def test_integers_of_64_bits_and_doubles_have_few_enough_digits(text: str) -> None:
    options = SchemaOptions("closed", "digits", 20)
    grammar = compile_constraint(JsonSchema({"type": ["number", "array"]}, options), shared_vocabulary())
    assert accepts(grammar, text.encode())
    assert accepts(grammar, b"[" + text.encode() + b"]")
    assert not accepts(grammar, b"[" + b"7" * 21 + b"]")


@pytest.mark.parametrize(
    ("whitespace", "allowed"), [("compact", ['{"a":1}']), ("bounded", ['{"a":1}', '{"a": 1}']), (None, ['{"a": 1}'])]
)
def test_a_constraint_says_what_whitespace_it_has(whitespace: Any, allowed: list[str]) -> None:
    options = SchemaOptions(whitespace=whitespace)
    grammar = compile_constraint(JsonSchema({"type": "object"}, options), shared_vocabulary(), whitespace="any")
    assert all(accepts(grammar, text.encode()) for text in allowed)
    assert accepts(grammar, b'{"a" : 1}') == (whitespace is None)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *[("requierd", "required"), ("propertees", "properties"), ("minlength", "minLength"), ("any_of", "anyOf")],
        *[("addtionalProperties", "additionalProperties"), ("itmes", "items"), ("enums", "enum")],
        *[(name, None) for name in ("description", "x-required", "unit", "order", "example", "discriminator", "xml")],
        *[(name, None) for name in ("propertyOrdering", "deprecated", "readOnly", "externalDocs", "required", "kind")],
    ],
)
def test_a_misspelled_keyword_is_told_from_an_annotation(name: str, meant: str | None) -> None:
    assert meant_keyword(name) == meant
