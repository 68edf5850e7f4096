"""Sixty-two kinds of programs that the documentations of ten frameworks show, written with this language's docs alone.

Judge: what each has to return for given answers of a model. Run as a script, it prints the table of
bench/results/ported_programs_2core-cpu_202611.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import ramiform
from ramiform import Scripted
from ramiform.tests.lang.ported import modules_and_agents, texts_and_values

PORTED = [*texts_and_values.PORTED, *modules_and_agents.PORTED]


@pytest.mark.parametrize(
    ("body", "answers", "expected"), [one[2:] for one in PORTED], ids=[f"{one[0]}: {one[1]}" for one in PORTED]
)
def test_a_ported_program_returns_what_it_has_to(body: Callable[..., Any], answers: Any, expected: Any) -> None:
    ramiform.set_default_backend(Scripted(answers.__getitem__ if isinstance(answers, dict) else answers))
    try:
        assert ramiform.function(body).run().ret_value == expected
    finally:
        ramiform.set_default_backend(None)


if __name__ == "__main__":
    print("| of | kind | lines |\n| --- | --- | ---: |")
    for framework, kind, body, *_ in PORTED:
        source = inspect.getsource(body).split(") -> Any:\n", 1)[1]
        print(f"| {framework} | {kind} | {sum(bool(line.strip()) for line in source.splitlines())} |")
