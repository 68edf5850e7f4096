"""The soak's report and the requests that it draws. Judge: jsonschema."""

from __future__ import annotations

import random

import jsonschema
import pytest

pytest.importorskip("psutil")  # of the extra `bench`

from ramiform.bench.serving import soak


def test_the_slope_is_that_of_the_last_hour() -> None:
    flat = {"rss": 9.0, "pss": 8.0, "private": 7.0}
    samples = [
        {
            "minute": minute,
            "frontend": flat,
            "core": flat | {"rss": 100.0 + max(0, minute - 60) / 2},
            "counts": {},
            "answers": {"200": minute},
        }
        for minute in range(121)
    ]
    text = soak.report(samples)
    assert "| core | rss | 30.0 |" in text
    assert "| frontend | rss | 0.00 |" in text
    assert "minutes 60 to 120" in text


def test_drawn_schemas_are_schemas_and_differ() -> None:
    draw = random.Random(1)
    schemas = [soak.schema(draw) for _ in range(50)]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    routes = {soak.request(draw, schemas)[0] for _ in range(50)}
    assert routes == {"/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses"}
    assert len({repr(schema) for schema in schemas if schema.get("type") == "object"}) > 5
