"""docs/architecture.md and docs/inside/way-of-a-token.md agree with the code.

The table "To add something" is data: each row names whole paths, the files that only some additions need after
**perhaps**, and an example that is there. Names in parentheses after a path are defined in it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import time
import tokenize
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
import torch

import ramiform
from ramiform.runtime.core.main import load_core
from ramiform.runtime.core.pipeline import Pipeline
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams

ROOT = Path(ramiform.__file__).parent
PARTS = ("lang", "runtime", "radix", "constrained", "kernels", "tools")
TASKS = (
    "a sampling parameter",
    "a sampling filter that few requests use",
    "a Llama-like model family, also with partial rotary",
    "an eviction strategy",
    "a chat field that reaches the core",
    "a chat field of all dialects that acts in the frontend",
    "another page size",
    "a GGUF type",
    "a draft source with a model of its own",
    "a draft source from texts",
    "a metric",
    "a rule for stop strings",
    "a command-line flag",
    "a path of a step (tiles, another device)",
    "a service of the core",
)


@dataclass(frozen=True)
class Recipe:
    """A row of the table. `names` are those that a file has to define; a path that ends in a slash is a folder."""

    task: str
    examples: tuple[str, ...]
    count: str
    files: tuple[str, ...]
    perhaps: tuple[str, ...]
    names: dict[str, tuple[str, ...]]

    @staticmethod
    def of(line: str) -> Recipe:
        task, example, count, touch = (cell.strip() for cell in line.strip("|").split("|"))
        always, _, perhaps = touch.partition("**perhaps**")
        paths = r"`([\w/]+(?:\.py|/))`(?: \(((?:`[\w.]+`(?:, )?)+)\))?"
        names = {path: tuple(re.findall(r"`([\w.]+)`", found)) for path, found in re.findall(paths, touch) if found}
        files = tuple(path for path, _ in re.findall(paths, always))
        return Recipe(
            task,
            tuple(re.findall(r"`([^`]+)`", example)),
            count,
            files,
            tuple(path for path, _ in re.findall(paths, perhaps)),
            names,
        )


def recipes() -> list[Recipe]:
    section = (ROOT / "docs/architecture.md").read_text("utf-8").split("\n## To add something\n")[1].split("\n##")[0]
    return [Recipe.of(line) for line in section.splitlines() if line.startswith("| ")][1:]


RECIPES = {recipe.task: recipe for recipe in recipes()}


def done_once() -> list[tuple[str, str, int]]:
    """Return the rows of "Ten of these": the task, the first file, and the number of files that were touched."""
    section = (ROOT / "docs/architecture.md").read_text("utf-8").split("\n### Ten of these")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    return [(task, first.strip("`"), int(files)) for task, _, first, files, _ in rows[1:]]


@cache
def definitions(path: str) -> dict[str, ast.expr | None]:
    """Return the names that a module defines, members as `Class.name`, with the values that are assigned to them."""
    found: dict[str, ast.expr | None] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found[prefix + name] = None
                case ast.ClassDef(name=name, body=members):
                    found[name] = None
                    collect(members, f"{name}.")
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    found[prefix + name] = value
                case ast.Assign(targets=targets, value=value):
                    found.update({prefix + target.id: value for target in targets if isinstance(target, ast.Name)})

    collect(ast.parse((ROOT / path).read_text("utf-8")).body, "")
    return found


def words_of(path: Path) -> set[str]:
    """Return the names in a module's code and the words in its strings, not those of comments and docstrings."""
    words: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type == tokenize.NAME:
            words.add(token.string)
        elif token.type == tokenize.STRING and '"""' not in token.string:
            words |= set(token.string.strip("\"'").split())
    return words


@cache
def sources() -> dict[str, str]:
    modules = [*ROOT.glob("*.py"), *(path for part in PARTS for path in (ROOT / part).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in modules}


def holders(word: str) -> set[str]:
    """Return the package's modules in whose code a word stands."""
    return {file for file, text in sources().items() if word in text and word in words_of(ROOT / file)}


def test_the_table_covers_the_common_tasks() -> None:
    assert [task for task in TASKS if task not in RECIPES] == []


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.task)
def test_the_files_of_a_recipe_hold_what_it_names(recipe: Recipe) -> None:
    assert [path for path in (*recipe.files, *recipe.perhaps) if not (ROOT / path).exists()] == []
    missing = [
        f"{path}: {name}" for path, names in recipe.names.items() for name in names if name not in definitions(path)
    ]
    assert missing == []


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.task)
def test_the_count_of_a_recipe_is_that_of_its_files(recipe: Recipe) -> None:
    least = len(recipe.files)
    most = least + len(recipe.perhaps)
    assert recipe.count == (f"{least}" if most == least else f"{least} to {most}")


@pytest.mark.parametrize("recipe", [each for each in RECIPES.values() if each.examples], ids=lambda each: each.task)
def test_the_example_of_a_recipe_stands_in_each_of_its_files_and_in_no_others(recipe: Recipe) -> None:
    held = {file for word in recipe.examples for file in holders(word)}
    named = (*recipe.files, *recipe.perhaps)
    assert {file for file in held if not any(file == path or file.startswith(path) for path in named)} == set()
    assert [path for path in recipe.files if path not in held] == []


@pytest.mark.parametrize(("task", "first", "files"), done_once())
def test_what_was_done_once_took_the_files_of_its_recipe(task: str, first: str, files: int) -> None:
    recipe = RECIPES[task]
    assert first in (*recipe.files, *recipe.perhaps)
    assert len(recipe.files) <= files <= len(recipe.files) + len(recipe.perhaps)


@pytest.mark.slow
def test_the_page_sizes_are_one_number() -> None:
    """No other file gives a page a number of tokens, as a constant or as a default of a field or parameter."""
    number = re.compile(r"^_?PAGE(?:_SIZE)?(?:: \w+)? = \d|\bpage_size: int = \d", re.MULTILINE)
    holding = [path for path, text in sources().items() if number.search(text)]
    assert holding == list(RECIPES["another page size"].files)


STEPS = re.findall(
    r"^   ([\w/]+\.py) +([\w.]+)", (ROOT / "docs/inside/way-of-a-token.md").read_text("utf-8"), re.MULTILINE
)


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_a_step_of_the_way_of_a_token_is_there(path: str, name: str) -> None:
    assert name in definitions(path)


def test_the_way_of_a_token_fits_on_a_screen() -> None:
    assert len((ROOT / "docs/inside/way-of-a-token.md").read_text("utf-8").splitlines()) <= 50


@pytest.mark.slow
def test_a_token_takes_the_steps_in_the_order_of_the_page() -> None:
    """The steps between the core's messages in and out, followed by the first of two tokens."""
    names = [name for _, name in STEPS]
    expected = STEPS[names.index("run_loop") + 1 : names.index("FrontendSocket.send")]
    passed: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            step = frame.f_code.co_filename.removeprefix(f"{ROOT}/"), frame.f_code.co_qualname
            if step in expected and step not in passed:
                passed.append(step)

    core = load_core(CoreConfig(num_pages=64))
    pipeline = Pipeline(core.engine, core.scheduler, ahead=core.ahead)
    request = Generate(rid="a", tokens=list(range(20, 40)), sampling=SamplingParams(max_new_tokens=2, seed=1))
    answers = []
    sys.setprofile(note)
    try:
        with torch.inference_mode():
            core.scheduler.handle(request, time.monotonic())
            while not core.scheduler.idle:
                answers += [answer for part in pipeline.advance() for answer in part]
    finally:
        sys.setprofile(None)
    assert len(answers) == 2
    assert passed == expected
