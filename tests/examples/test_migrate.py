"""docs/learn/migrate.md: every row of its tables is run, and so are its recipes, on a model that obeys constraints."""

from __future__ import annotations

import ast
import datetime
import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

import ramiform
from ramiform import ProgramState, gen, user

from .obliging import Obliging

PAGE = (Path(ramiform.__file__).parent / "docs/learn/migrate.md").read_text()
FRAMEWORKS = (
    "guidance", "outlines", "LMQL", "DSPy", "SGLang", "LangGraph", "BAML", "instructor", "Marvin", "pydantic-ai",
)  # fmt: skip


class City(BaseModel):
    name: str


class Person(BaseModel):
    age: int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Reasoned(BaseModel):
    reasoning: str
    answer: str


class Shop:
    def price(self, thing: str) -> float:
        """Return the price of a thing."""
        return 1.0


@ramiform.function
def program(s: ProgramState) -> Any:
    s += user("Hi") + ramiform.assistant(gen("answer", max_tokens=4))


@ramiform.function
def find_city(s: ProgramState, text: str) -> City:
    """Find the city."""


@ramiform.function
def find_cities(s: ProgramState, text: str) -> list[City]:
    """Find the cities."""


@ramiform.function
def sentence(s: ProgramState, text: str) -> str:
    """Say it in a sentence."""


@ramiform.function
def reasoned(s: ProgramState, text: str) -> Reasoned:
    """Think, then answer."""


@ramiform.function
def shorten(s: ProgramState) -> None:
    s += "Short:" + gen("short", stop="\n")


def line(name: str) -> Any:
    return name + ": " + gen(name, stop="\n")


def weather(place: str) -> str:
    """Return the weather."""
    return "sun"


def fails(place: str) -> str:
    """Return nothing."""
    raise ValueError("try another place")


def ask_expert(question: str) -> str:
    """Ask an expert."""
    return sentence(question)


def is_polite(text: str) -> bool:
    return "please" in text or bool(text)


def namespace(backend: Any, path: Path) -> dict[str, Any]:
    given = {name: getattr(ramiform, name) for name in ramiform.__all__}
    own = {name: value for name, value in globals().items() if not name.startswith("_")}
    made = {
        "text": "Tea is warm.",
        "tools": [weather],
        "branches": None,
        "shop": Shop(),
        "backend": backend,
        "path": path,
        "re": re,
    }
    made |= {"examples": [{"text": "Lyon"}, {"text": "Rome"}], "right": lambda example, s: True}
    libraries = {"create_model": create_model, "Field": Field, "Annotated": Annotated, "Literal": Literal}
    return {"__name__": "migrate", "ramiform": ramiform, **given, **own, **made, **libraries, "datetime": datetime}


def rows() -> Iterator[tuple[str, str]]:
    """Yield each row's framework and what it says here."""
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        for row in re.findall(r"^\| (?!there|---)(.*) \|$", section, re.MULTILINE):
            cells = re.split(r" (?<!\\)\| ", row)
            assert len(cells) == 2, row
            yield title, cells[1].replace(r"\|", "|")


ROWS = list(rows())


def statements(cell: str) -> list[str]:
    """Return the code of a cell: names alone and what is no statement of its own are words."""
    found = []
    for span in re.findall(r"`+([^`]+)`+", cell):
        try:
            tree = ast.parse(span)
        except SyntaxError:
            assert span.startswith(("@", "with ")), span
            continue
        if not all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Name | ast.Attribute) for one in tree.body):
            found.append(span)
    return found


def uses_state(code: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "s" for node in ast.walk(ast.parse(code)))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    with _Closing() as backend:
        ramiform.set_default_backend(backend)
        yield namespace(backend, tmp_path / "run.jsonl")
        ramiform.set_default_backend(None)


class _Closing(Obliging):
    def __enter__(self) -> _Closing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def test_every_framework_has_a_table() -> None:
    titles = [title for title, _ in ROWS]
    assert {title: titles.count(title) >= 8 for title in FRAMEWORKS} == dict.fromkeys(FRAMEWORKS, True)


@pytest.mark.parametrize(("title", "cell"), ROWS, ids=[f"{title}-{at}" for at, (title, _) in enumerate(ROWS)])
def test_a_row_runs(here: dict[str, Any], title: str, cell: str) -> None:
    code = statements(cell)
    assert code or "](#" in cell or "signature" in cell or "class as" in cell, cell
    if not any(map(uses_state, code)):
        for one in code:
            exec(one, here)
        return

    def body(s: ProgramState) -> None:
        names = here | {"s": s}
        for one in code:
            exec(one, names)

    ramiform.function(body).run()


RECIPES = re.findall(r"^### (.*?)\n.*?^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("title", "code"), RECIPES, ids=[title for title, _ in RECIPES])
def test_a_recipe_runs(here: dict[str, Any], capsys: pytest.CaptureFixture[str], title: str, code: str) -> None:
    exec(code, here)
    if "print(" in code:
        assert capsys.readouterr().out.strip()
