"""Values that `enum` and `const` list, values near them, and compilers of schemas that list them."""

from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, JsonSchema, PropertyOrder, SchemaOptions, compile_constraint
from ramiform.constrained.schema.document import Document, read_schema
from ramiform.constrained.schema.goals import GoalCompiler
from ramiform.tests.constrained.strategies import many
from ramiform.tests.constrained.walks import shared_vocabulary

from ..oracle_jsonschema import Whitespace

ORDERS: tuple[PropertyOrder, ...] = ("any", "schema")
WHITESPACE = st.sampled_from(["compact", "bounded", "any"])
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
MANY = many(80)


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
