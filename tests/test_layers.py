"""The house's walls: who may import whom, what each layer must never touch, and that the package list is true."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramiform

ROOT = Path(ramiform.__file__).parent
PARTS = ("lang", "runtime", "radix", "constrained", "kernels")

# What a module of ours may import of ours, longest folder first. Roots of dotted names below `ramiform`.
MAY_IMPORT = {
    "radix": {"radix"},
    "constrained": {"constrained", "loops"},
    "kernels": {"kernels", "loops"},
    "loops": set(),
    "lang": {"lang", "runtime.protocol", "runtime.programs"},
    "runtime/protocol": {"runtime.protocol"},
    "runtime/programs": {"runtime.programs", "runtime.protocol"},
    "runtime/scheduler": {
        "runtime.scheduler",
        "runtime.protocol",
        "runtime.speculation.tree",
        "runtime.speculation.ngram",
        "radix",
        "constrained",
    },
    "runtime/speculation/tree": set(),
    "runtime/speculation/ngram": {"runtime.speculation.tree"},
    "runtime": {"runtime", "radix", "constrained", "kernels"},
}
NO_DEVICE = (
    "radix",
    "constrained",
    "lang",
    "runtime/protocol",
    "runtime/scheduler",
    "runtime/frontend",
    "runtime/tokenizer",
)


def modules(folder: str) -> Iterator[Path]:
    yield from sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names of everything a module imports, relative imports resolved against `ramiform`."""
    package = ("ramiform", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield str(node.module)
                continue
            base = package[: len(package) - node.level + 1]
            if node.module is not None:
                yield ".".join((*base, node.module))
            else:
                yield from (".".join((*base, alias.name)) for alias in node.names)


ALL_MODULES = [*(path for part in PARTS for path in modules(part)), ROOT / "loops.py"]


@pytest.mark.parametrize("path", ALL_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    folder = max((part for part in MAY_IMPORT if relative.startswith((part + "/", part + ".py"))), key=len)
    allowed = MAY_IMPORT[folder]
    for name in imports(path):
        if name != "ramiform" and not name.startswith("ramiform."):
            continue
        ours = name.removeprefix("ramiform").removeprefix(".")
        assert any(ours == root or ours.startswith(root + ".") for root in allowed), (
            f"{relative} imports {name}; {folder} may import only {sorted(allowed)}"
        )


@pytest.mark.parametrize("folder", NO_DEVICE)
def test_decisions_need_no_device(folder: str) -> None:
    for path in modules(folder):
        for name in imports(path):
            assert name.split(".")[0] not in ("torch", "triton"), f"{path.relative_to(ROOT)} imports {name}"


def test_imports_inside_the_package_are_relative() -> None:
    for path in ALL_MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    named = [alias.name for alias in names]
                case ast.ImportFrom(level=0, module=str(module)):
                    named = [module]
                case _:
                    continue
            assert not any(name.split(".")[0] == "ramiform" for name in named), path.relative_to(ROOT)


def test_no_pickle_and_no_eval() -> None:
    for path in [*ALL_MODULES, ROOT / "cli.py", ROOT / "__init__.py"]:
        tree = ast.parse(path.read_text())
        assert not {"pickle", "marshal", "shelve", "dill"} & {name.split(".")[0] for name in imports(path)}, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path.relative_to(ROOT)}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
                assert getattr(node.func.value, "id", None) != "torch" or any(
                    keyword.arg == "weights_only" for keyword in node.keywords
                ), f"{path.relative_to(ROOT)}:{node.lineno}"


def test_a_wheel_has_every_part() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    root_modules = {path.name for path in ROOT.glob("*.py")} - {"hatch_build.py"}
    assert set(build["only-include"]) == {*PARTS, *root_modules, "py.typed"}


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
    assert any(name.split(".")[0] == module for path in ALL_MODULES for name in imports(path))


def test_the_client_imports_no_torch_and_no_web_server() -> None:
    code = (
        "import ramiform, sys; print(*(m for m in ('torch', 'fastapi', 'transformers', 'uvicorn') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
