"""Adds to the site what docs/ does not hold: navigation, the reference of public names, examples and their outputs.

mkdocs calls the functions `on_...` (`mkdocs.yml`). The package is read as text: building the site needs none of what it
imports.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = ROOT / "build/site-sources/ramiform"  # where mkdocstrings finds the package
AGENTS = PurePosixPath("examples/agents")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|[#/])([^)\s]+)")
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"
# Folders that public names come from, in the order of the reference.
CHAPTERS = {
    "lang/running": "Programs",
    "lang/expressions": "What programs write",
    "lang/states": "States and agents",
    "lang/tools": "Tools",
    "lang/search": "Searches",
    "lang/evaluation": "Evaluation",
    "lang/rollouts": "Rollouts",
    "lang/tracing": "Plans and traces",
    "lang/operations": "Hooks",
    "lang/storage": "Kept answers",
    "lang/types": "Types",
    "lang/backends": "Backends",
    "runtime": "Runtime and errors",
}


def on_startup(**_: Any) -> None:
    """Put the package where mkdocstrings looks for it, without what lies beside it in the repository."""
    SOURCES.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "lang", "runtime"):
        (SOURCES / name).unlink(missing_ok=True)
        (SOURCES / name).symlink_to(ROOT / name)


def on_config(config: MkDocsConfig) -> None:
    """Name the version; list the pages as the index of docs/ does."""
    version = re.search(r'__version__ = "(.*)"', (ROOT / "runtime/protocol/version.py").read_text("utf-8"))
    assert version is not None
    config.site_name = f"ramiform {version[1]}"
    examples = ["examples/README.md", *map(_place, _examples())]
    reference = ["reference/README.md", *(f"reference/{_slug(folder)}.md" for folder in CHAPTERS)]
    config.nav = [{"Start": "README.md"}, *_rooms(), {"Examples": examples}, {"Reference": reference}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the generated pages, and the files of the repository that pages link to."""
    pages = {f"reference/{_slug(folder)}.md": _chapter(folder, names) for folder, names in _public_names().items()}
    pages |= {"reference/README.md": _reference_index(), "examples/README.md": _gallery()}
    pages |= {_place(example): _example(example) for example in _examples()}
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    for path in _linked_paths():
        if path.suffix in (".png", ".json"):
            files.append(File.generated(config, _place(path), abs_src_path=str(ROOT / path)))
        elif _place(path) not in pages:
            files.append(File.generated(config, _place(path), content=_repository_page(path)))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links out of docs/, and those of the repository's files, to where the site has their targets."""
    origin = _origin(PurePosixPath(page.file.src_uri))

    def moved(link: re.Match[str]) -> str:
        path, hash_sign, anchor = link[1].partition("#")
        target = _target(origin, path)
        if target is None or (origin.is_relative_to("docs") and target.is_relative_to("docs")):
            return link[1]
        return os.path.relpath(_place(target), PurePosixPath(page.file.src_uri).parent) + hash_sign + anchor

    return LINK.sub(moved, markdown)


def _place(path: PurePosixPath) -> str:
    """Return where the site has a file or folder of the repository, as mkdocs names sources."""
    if path.is_relative_to("docs"):
        return str(path.relative_to("docs"))
    if path == AGENTS:
        return "examples/README.md"
    if path.parent == AGENTS and path.suffix == ".py":
        return f"examples/{path.stem}.md"
    if (ROOT / path).is_dir():
        return f"repository/{path}/README.md"
    return f"repository/{path}" if path.suffix in (".md", ".png", ".json") else f"repository/{path}.md"


def _origin(place: PurePosixPath) -> PurePosixPath:
    """Return the file of the repository that a page is made of: links in it start there."""
    if place.parts[0] == "repository":
        return place.relative_to("repository")
    if place.parts[0] == "examples":
        return AGENTS / place.name
    return "docs" / place


def _target(origin: PurePosixPath, link: str) -> PurePosixPath | None:
    """Return the file or folder of the repository that a link leads to; None: there is none."""
    path = PurePosixPath(os.path.normpath(origin.parent / link))
    return path if path.parts[0] != ".." and (ROOT / path).exists() else None


def _linked_paths() -> list[PurePosixPath]:
    """Return what pages link to outside docs/, and what these files link to in turn."""
    pages = [PurePosixPath(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    found: dict[PurePosixPath, None] = {}
    for page in pages:  # grows
        for link in LINK.findall((ROOT / page).read_text("utf-8")):
            target = _target(page, link.partition("#")[0])
            if target is None or target.is_relative_to("docs") or target in found:
                continue
            found[target] = None
            if target.suffix == ".md":
                pages.append(target)
            elif (ROOT / target).is_dir() and target != AGENTS:
                found |= dict.fromkeys(_files_of(target))
    return list(found)


def _files_of(folder: PurePosixPath) -> list[PurePosixPath]:
    files = (
        path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py") and path.name != "__init__.py"
    )
    return sorted(PurePosixPath(path.relative_to(ROOT)) for path in files)


def _repository_page(path: PurePosixPath) -> str:
    """Return the page of a file outside docs/, or of a folder."""
    if (ROOT / path).is_dir():
        rows = (f"- [{file.relative_to(path)}]({file.relative_to(path)})" for file in _files_of(path))
        return "\n".join([UNSEARCHED, f"# {path}", "", *rows, ""])
    text = (ROOT / path).read_text("utf-8")
    if path.suffix == ".md":
        return UNSEARCHED + text
    return f"{UNSEARCHED}# {path}\n\n````{path.suffix[1:] or 'text'}\n{text}````\n"


def _rooms() -> list[dict[str, Any]]:
    """Return the navigation of the rooms of docs/: the pages that the tables of its index name, in their order."""
    nav = []
    for room in re.split(r"^## ", (DOCS / "README.md").read_text("utf-8"), flags=re.MULTILINE)[1:]:
        title, _, table = room.partition("\n")
        pages: list[Any] = []
        for name in re.findall(r"\]\(([^)]*\.md)\)", table):
            of_folder = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / name).parent.glob("0*.md"))
            pages.append({_title(name): [name, *of_folder]} if name.endswith("/README.md") else name)
        nav.append({title: pages})
    return nav


def _title(page: str) -> str:
    return (DOCS / page).read_text("utf-8").partition("\n")[0].removeprefix("# ")


def _public_names() -> dict[str, list[str]]:
    """Return the paths of the names that `ramiform` exports, by the folders of CHAPTERS."""
    found: dict[str, list[str]] = {folder: [] for folder in CHAPTERS}
    for node in ast.walk(ast.parse((ROOT / "__init__.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is not None:
            folder = next((one for one in CHAPTERS if node.module.replace(".", "/").startswith(one)), None)
            if folder is None:
                raise ValueError(f"CHAPTERS has no title for the folder of {node.module}")
            found[folder] += [f"ramiform.{node.module}.{one.name}" for one in node.names if one.name != "__version__"]
    return found


def _slug(folder: str) -> str:
    return PurePosixPath(folder).name


def _chapter(folder: str, names: list[str]) -> str:
    return f"# {CHAPTERS[folder]}\n\n" + "".join(f"::: {name}\n\n" for name in names)


def _reference_index() -> str:
    lines = [
        "# Reference",
        "",
        "What `import ramiform` has, with signatures and docstrings.",
        "",
        "| chapter | names |",
        "|---|---|",
    ]
    for folder, names in _public_names().items():
        links = (f"[`{name.rpartition('.')[2]}`][{name}]" for name in names)
        lines.append(f"| [{CHAPTERS[folder]}]({_slug(folder)}.md) | {', '.join(links)} |")
    return "\n".join(lines) + "\n"


def _examples() -> list[PurePosixPath]:
    return [AGENTS / path.name for path in sorted((ROOT / AGENTS).glob("*.py")) if path.stem != "transcript"]


def _read_example(example: PurePosixPath) -> tuple[str, str]:
    """Return an example's docstring and its code."""
    text = (ROOT / example).read_text("utf-8")
    _, about, code = text.split('"""', 2)
    return re.sub(r"^(?=ramiform )", "    ", about.strip(), flags=re.MULTILINE), code.strip("\n")


def _example(example: PurePosixPath) -> str:
    """Return the page of an example: what it shows, what it prints, its code."""
    about, code = _read_example(example)
    printed = (ROOT / AGENTS / "outputs" / f"{example.stem}.txt").read_text("utf-8").strip("\n")
    blocks = f"## Output\n\n````text\n{printed}\n````\n\n## Code\n\n````python\n{code}\n````\n"
    return f"# {example.name}\n\n{about}\n\n{blocks}"


def _gallery() -> str:
    rows = [
        f"| [{example.name}]({example.name}) | {_read_example(example)[0].partition(chr(10))[0]} |"
        for example in _examples()
    ]
    head = "Each runs on the model that ships, by `ramiform run FILE`. Its page shows what it printed."
    return "\n".join(["# Examples", "", head, "", "| example | what it shows |", "|---|---|", *rows, ""])
