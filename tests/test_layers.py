"""Layers of the package: imports point down, no import circles, no device where decisions are made, a whole wheel."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ramiform

ROOT = Path(ramiform.__file__).parent
PARTS = ("lang", "runtime", "radix", "constrained", "kernels", "tools")
ROOT_MODULES = ("__init__", "chat", "cli", "flags", "loops")

# The layers from the bottom up. A module imports only from its own layer and from lower ones. The longest prefix
# decides; an entry may name one module. docs/architecture.md shows the same order.
LAYERS = (
    ("loops",),
    ("radix",),
    ("constrained/errors", "constrained/budget", "constrained/constraint", "constrained/record"),
    ("constrained/regex",),
    ("constrained/automaton",),
    ("constrained/schema", "constrained/grammar"),
    ("constrained/tags",),
    ("constrained/peers",),
    ("constrained",),
    ("kernels",),
    ("runtime/compile_ahead",),
    ("runtime/protocol",),
    ("runtime/programs",),
    ("lang/types", "lang/constraints"),
    ("lang/backends",),
    ("lang/tools",),
    ("lang/operations",),
    ("lang/expressions",),
    ("lang/tracing",),
    ("lang/states",),
    ("lang/search", "lang/storage"),
    ("lang/running",),
    ("lang",),
    (
        "runtime/processes/bounded_sleep",
        "runtime/processes/parent_watchdog",
        "runtime/processes/logs",
        "runtime/processes/memory",
    ),
    ("runtime/scheduler",),
    ("runtime/models/gguf/file",),
    ("runtime/tokenizer", "runtime/models"),
    ("runtime/engine",),
    ("runtime/speculation",),
    ("runtime/parallel",),
    ("runtime/transfer",),
    ("runtime/disk",),
    ("runtime/core",),
    ("runtime/replay",),
    ("runtime/frontend/records",),
    ("runtime/frontend/core",),
    ("runtime/frontend/text",),
    ("runtime/frontend/chat", "runtime/frontend/programs"),
    ("runtime/frontend/api",),
    ("runtime/frontend/batches",),
    (
        "runtime/frontend/http/dialects",
        "runtime/frontend/http/errors",
        "runtime/frontend/http/scope",
    ),
    ("runtime/frontend/http/transport",),
    ("runtime/frontend/http/middleware",),
    ("runtime/frontend/http/openapi",),
    (
        "runtime/frontend/http/native",
        "runtime/frontend/http/openai",
        "runtime/frontend/http/anthropic",
        "runtime/frontend/http/ollama",
        "runtime/frontend/http/dashboard",
    ),
    ("runtime/frontend",),
    ("runtime/processes",),
    ("runtime",),
    ("tools",),
    ROOT_MODULES[:-1],
)
# Layers that can be used without the rest: all that they may import of the package.
ALONE = {
    "loops": (),
    "radix": ("radix",),
    "constrained": ("constrained", "loops"),
    "kernels": ("kernels", "loops"),
    "runtime/protocol": ("runtime/protocol",),
    "runtime/programs": ("runtime/programs", "runtime/protocol"),
    "lang": ("lang", "runtime/programs", "runtime/protocol"),
    "runtime/scheduler": (
        "runtime/scheduler",
        "runtime/protocol",
        "loops",
        "radix",
        "constrained",
    ),
}
NO_DEVICE = (
    "radix",
    "constrained",
    "lang",
    "runtime/protocol",
    "runtime/programs",
    "runtime/scheduler",
    "runtime/frontend",
    "runtime/tokenizer",
)
MAX_MODULES = 20  # of a folder
MAX_LINES, MAX_PARAMETERS = 60, 8  # of an ordinary function; some that only put parts together have more
NUM_LONG, NUM_WIDE = 8, 10  # of these
MAX_BENCHES = 12  # in bench/ itself


@cache
def modules() -> dict[str, Path]:
    """All modules of the package by slashed name: a folder stands for its `__init__`."""
    paths = [path for part in PARTS for path in (ROOT / part).rglob("*.py")] + [ROOT / f"{m}.py" for m in ROOT_MODULES]
    return {path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__"): path for path in sorted(paths)}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> list[str]:
    """Slashed names of everything a module imports, wherever in it; relative imports resolved against the root."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).parent.parts
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).replace(".", "/")
        elif isinstance(node, ast.ImportFrom):
            base = (*package[: len(package) - node.level + 1], *(node.module or "").split("."))
            folder = "/".join(part for part in base if part)
            for alias in node.names:
                name = f"{folder}/{alias.name}".removeprefix("/")
                yield name if name in modules() else folder or "__init__"


def ours(name: str) -> set[str]:
    """Modules of the package that the module imports."""
    return {imported for imported in imports(modules()[name]) if imported in modules()} - {name}


def is_in(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + "/")


def layer_of(name: str) -> int:
    prefixes = {prefix: level for level, layer in enumerate(LAYERS) for prefix in layer}
    return prefixes[max((prefix for prefix in prefixes if is_in(name, prefix)), key=len)]


@pytest.mark.slow
def test_imports_point_down() -> None:
    up = [f"{name} -> {used}" for name in modules() for used in ours(name) if layer_of(used) > layer_of(name)]
    assert up == []


@pytest.mark.parametrize("part", ALONE)
def test_a_part_that_stands_alone_imports_only_what_it_may(part: str) -> None:
    wrong = [
        f"{name} -> {used}"
        for name in modules()
        if is_in(name, part)
        for used in ours(name)
        if used != "__init__" and not any(is_in(used, allowed) for allowed in ALONE[part])
    ]
    assert wrong == []


def test_apis_stand_beside_each_other() -> None:
    apis = [f"runtime/frontend/http/{api}" for api in ("openai", "anthropic", "ollama", "native")]
    wrong = [
        f"{name} -> {used}"
        for name in modules()
        for api in apis
        if is_in(name, api)
        for used in ours(name)
        if any(is_in(used, other) for other in apis if other != api)
    ]
    assert wrong == []
    assert [used for used in ours("runtime/offline") if is_in(used, "runtime/frontend/http")] == []


@pytest.mark.slow
def test_no_modules_import_each_other() -> None:
    """A depth-first search over all imports, those for type checkers and those inside functions included."""
    done: set[str] = set()

    def search(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "import circle: " + " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for used in sorted(ours(name) - {"__init__"}):
                search(used, (*path, name))
            done.add(name)

    for name in modules():
        search(name, ())


def test_no_folder_has_too_many_modules() -> None:
    folders = {path.parent for path in modules().values()}
    sizes = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: size for folder, size in sizes.items() if size > MAX_MODULES} == {}
    assert sizes["constrained"] <= 8


def ordinary_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions that are neither kernels nor compiled loops nor commands, whose parameters are flags.

    `gen`, whose parameters are those of sampling, is left out too.
    """
    for name, path in modules().items():
        if name == "cli" or name.endswith("/command") or is_in(name, "kernels/cpu") or is_in(name, "kernels/triton"):
            continue
        for node in nodes_of(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name == "gen":
                continue
            if not any("compiled" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield f"{name}.{node.name}", node


@pytest.mark.slow
def test_few_functions_are_long_or_have_many_parameters() -> None:
    lines, parameters = {}, {}
    for name, node in ordinary_functions():
        lines[f"{name}:{node.lineno}"] = (node.end_lineno or 0) - node.lineno + 1
        taken = node.args
        named = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
        parameters[f"{name}:{node.lineno}"] = sum(one is not None for one in named)
    long = {name: number for name, number in lines.items() if number > MAX_LINES}
    wide = {name: number for name, number in parameters.items() if number > MAX_PARAMETERS}
    assert len(long) <= NUM_LONG, long
    assert len(wide) <= NUM_WIDE, wide
    assert len(list((ROOT / "bench").glob("*.py"))) <= MAX_BENCHES


@pytest.mark.slow
def test_a_class_name_stands_for_one_class() -> None:
    found: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


@pytest.mark.slow
@pytest.mark.parametrize("folder", NO_DEVICE)
def test_decisions_need_no_device(folder: str) -> None:
    for name, path in modules().items():
        if is_in(name, folder):
            assert not {"torch", "triton"} & {used.split("/")[0] for used in imports(path)}, name


@pytest.mark.slow
def test_imports_inside_the_package_are_relative() -> None:
    for name, path in modules().items():
        assert not any(is_in(used, "ramiform") for used in imports(path)), name


@pytest.mark.slow
def test_no_pickle_and_no_eval() -> None:
    for name, path in modules().items():
        assert not {"pickle", "marshal", "shelve", "dill"} & {used.split("/")[0] for used in imports(path)}, name
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{name}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
                assert getattr(node.func.value, "id", None) != "torch" or any(
                    keyword.arg == "weights_only" for keyword in node.keywords
                ), f"{name}:{node.lineno}"


def test_a_wheel_has_every_part() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    root_modules = {path.name for path in ROOT.glob("*.py")} - {"hatch_build.py"}
    assert root_modules == {f"{module}.py" for module in ROOT_MODULES}
    assert set(build["only-include"]) == {*PARTS, *root_modules, "py.typed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("torch", "torch"),
        ("lark", "lark"),
        ("outlines-core", "outlines_core"),
        ("interegular", "interegular"),
        ("fastapi", "fastapi"),
        ("pyzmq", "zmq"),
        ("sentencepiece", "sentencepiece"),
        ("tiktoken", "tiktoken"),
    ],
)
def test_a_package_of_the_base_install_is_used(package: str, module: str) -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert package in [requirement.partition(">=")[0] for requirement in listed]
    assert any(used.split("/")[0] == module for path in modules().values() for used in imports(path))


def test_the_client_imports_no_torch_and_no_web_server() -> None:
    code = (
        "import ramiform, sys; print(*(m for m in ('torch', 'fastapi', 'transformers', 'uvicorn') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
