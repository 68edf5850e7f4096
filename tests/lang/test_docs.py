"""The reference and the guide name every public name, method and parameter, with the signatures of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import ramiform
from ramiform.lang.expressions.expr import GEN_NAMES
from ramiform.lang.states.readable_state import ReadableState
from ramiform.runtime.protocol.sampling import PARAMETERS

LEARN = Path(ramiform.__file__).parent / "docs/learn"
REFERENCE = "".join(page.read_text() for page in (LEARN / "language.md", *sorted(LEARN.glob("guide/*.md"))))


@pytest.mark.parametrize("name", [name for name in ramiform.__all__ if name != "__version__"])
def test_the_reference_names_every_public_name(name: str) -> None:
    stem = re.sub(r"^(system|user|assistant)(_begin|_end)?$", lambda found: f"user{found[2] or ''}", name)
    assert re.search(rf"\b{stem}\b", REFERENCE), name


@pytest.mark.parametrize(
    "kind", [ramiform.Program, ReadableState, ramiform.ProgramState, ramiform.ForkGroup, ramiform.Plan]
)
def test_the_reference_names_every_public_method(kind: type) -> None:
    methods = [name for name, member in vars(kind).items() if not name.startswith("_") and callable(member)]
    assert methods
    for name in methods:
        assert re.search(rf"\b{name}\b", REFERENCE), f"{kind.__name__}.{name}"


@pytest.mark.parametrize("function", [ramiform.gen, ramiform.select])
def test_the_signatures_in_the_reference_are_those_of_the_code(function: object) -> None:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    written = re.search(rf"^{function.__name__}\((.*?)\)$", REFERENCE, re.DOTALL | re.MULTILINE)  # type: ignore[attr-defined]
    assert written is not None
    of_code = [f"{one.name}={getattr(one.default, 'name', None) or repr(one.default)}" for one in parameters]
    said = re.sub(r"\s+", " ", written[1]).replace('"', "'")
    assert said == ", ".join(of_code).replace('"', "'")


def test_the_sampling_parameters_in_the_reference_are_those_of_the_table() -> None:
    for name, argument in GEN_NAMES.items():
        row = PARAMETERS[name]
        line = f"| `{argument}` | {row.meaning} | {row.values} | `{row.default!r}` |"
        assert line in REFERENCE, line
