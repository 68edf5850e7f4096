"""Schema checks are cached, except aborted ones."""

from __future__ import annotations

import asyncio

import pytest

from ramiform.runtime.frontend.chat.schema_check import MAX_CACHED_BYTES, SchemaCheck
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.errors import RamiformError, RequestError
from ramiform.runtime.protocol.sampling import Constraint
from ramiform.tests.frontend.harness import house, run

BAD = RequestError("invalid json_schema: no", param="json_schema", code="invalid_grammar")
SCHEMA = Constraint("json_schema", "{}")


def test_what_cannot_be_compiled_is_asked_about_once() -> None:
    async def main() -> None:
        async with house(lambda request: BAD) as built:
            schemas = SchemaCheck(built.frontend._generator)
            for _ in range(2):
                with pytest.raises(RequestError, match="invalid json_schema: no"):
                    await schemas.check(SCHEMA)
            assert len(built.core.requests) == 1

    run(main())


def test_an_answer_that_was_aborted_is_none() -> None:
    answers: list[RamiformError | None] = [None, BAD]

    def script(request: Generate) -> RamiformError | None:
        return answers.pop(0)

    async def main() -> None:
        async with house(script) as built:
            schemas = SchemaCheck(built.frontend._generator)
            first = asyncio.create_task(schemas.check(SCHEMA))
            await built.core.until(lambda: len(built.core.requests) == 1)
            built.frontend._generator.core.abort(None)
            with pytest.raises(RequestError) as caught:
                await first
            assert caught.value.code == "aborted"
            with pytest.raises(RequestError, match="invalid json_schema: no"):
                await schemas.check(SCHEMA)

    run(main())


def test_what_is_kept_is_bounded_in_bytes() -> None:
    long = [Constraint("json_schema", f"{{{' ' * (MAX_CACHED_BYTES // 4)}{' ' * number}}}") for number in range(5)]

    async def main() -> None:
        async with house(lambda request: BAD) as built:
            schemas = SchemaCheck(built.frontend._generator)
            for one in (*long, long[4], long[3], long[0]):
                with pytest.raises(RequestError, match="invalid json_schema: no"):
                    await schemas.check(one)
            assert [request.sampling.constraint for request in built.core.requests] == [*long, long[0]]

    run(main())
