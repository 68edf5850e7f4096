"""Sixty-two kinds of programs that the documentations of ten frameworks show, written with this language's docs alone.

Judge: what each has to return for given answers of a model. Run as a script, it prints the table of
bench/results/ported_programs_2core-cpu_202611.md.
"""

from __future__ import annotations

import ast
import inspect
import statistics
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import ramiform
from ramiform import Scripted
from ramiform.tests.lang.ported import modules_and_agents, texts_and_values
from ramiform.tests.lang.ported.originals import NOT_SHOWN, ORIGINALS

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


def statements(body: Callable[..., Any]) -> int:
    """Return the number of statements of a body, without types and signatures; see `originals`."""
    [function] = ast.parse(textwrap.dedent(inspect.getsource(body))).body
    return sum(_counts(one) for one in ast.walk(function)) - 1


def _counts(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return isinstance(node, ast.stmt) and not (is_text or isinstance(node, ast.ClassDef | ast.AnnAssign))


def test_a_ported_program_is_no_longer_than_its_original() -> None:
    ours = {one[:2]: statements(one[2]) for one in PORTED}
    assert ORIGINALS.keys() | NOT_SHOWN.keys() == ours.keys()
    assert not ORIGINALS.keys() & NOT_SHOWN.keys()
    assert statistics.median(ours[kind] for kind in ORIGINALS) <= 1.2 * statistics.median(
        number for number, _ in ORIGINALS.values()
    )


if __name__ == "__main__":
    ours = {one[:2]: statements(one[2]) for one in PORTED}
    print("| of | kind | statements | of the original | the original |\n| --- | --- | ---: | ---: | --- |")
    for kind, number in ours.items():
        original, place = ORIGINALS.get(kind) or ("", NOT_SHOWN[kind])
        print(f"| {' | '.join(kind)} | {number} | {original} | {place} |")
    both = [(ours[kind], number) for kind, (number, _) in ORIGINALS.items()]
    print(f"\n{len(both)} kinds: medians {statistics.median(a for a, _ in both)} and ", end="")
    print(
        f"{statistics.median(b for _, b in both)}, of the ratios {statistics.median(a / b for a, b in both):.2f}, ",
        end="",
    )
    print(f"sums {sum(a for a, _ in both)} and {sum(b for _, b in both)}")
