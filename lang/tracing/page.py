"""Traces as one HTML file: the views of the server's page with their programs inside, for any browser, offline.

The modules of the page become one script. A module may import with `import {a, b as c} from "./file"` and export with
`export function`, `export class`, `export const` or, last, `export {a as b}`, each at the beginning of a line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path

import msgspec

from ...runtime.programs.records.view import ProgramView

STATIC = Path(__file__).parents[2] / "runtime" / "frontend" / "http" / "dashboard" / "static"
_ENTRY = "trace_page.js"
_STYLES = ("style.css", "views.css")

_IMPORT = re.compile(r"""^import\s*\{([^}]*)\}\s*from\s*"([^"]+)";?[ \t]*$""", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b[ *]*(\w+))", re.MULTILINE)
_EXPORT_LIST = re.compile(r"(?:^|;)export\s*\{([^}]*)\};?\s*\Z", re.MULTILINE)
_OTHER = re.compile(r"^\s*(?:import\b|export\b)|\bimport\(|\bimport\.meta\b", re.MULTILINE)

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"><noscript>This page needs JavaScript.</noscript></div>
<script type="application/json" id="programs">{programs}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def trace_page(views: Sequence[ProgramView]) -> str:
    """Return an HTML page that shows the programs. It loads nothing, and its policy lets no other script run.

    The programs get ids by their order, so that views of several servers or files can stand together.
    """
    shown = [msgspec.structs.replace(view, id=str(number), seq=number) for number, view in enumerate(views, 1)]
    script, style = _script(), "\n".join((STATIC / name).read_text("utf-8") for name in _STYLES)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # ASCII, so that a lone surrogate is kept; without "<" no text can end the element.
    programs = json.dumps(msgspec.to_builtins(shown), separators=(",", ":")).replace("<", "\\u003c")
    title = escape(", ".join(dict.fromkeys(view.title for view in shown))[:200] or "trace")
    return _PAGE.format(
        policy=policy, title=title.encode("utf-8", "replace").decode(), style=style, programs=programs, script=script
    )


@cache
def _script() -> str:
    """Return the modules of the page that a trace needs as one script, the imported ones first."""
    found: dict[str, str] = {}
    _add(_ENTRY, found, ())
    script = "\n".join(found.values())
    assert not re.search(r"</script|<!--", script, re.IGNORECASE), "a module would end the script element"
    return script


def _add(name: str, found: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add a module after those that it imports, as a constant that holds its exports."""
    assert name not in importers, f"modules import each other: {', '.join((*importers, name))}"
    if name in found:
        return
    code = (STATIC / name).read_text("utf-8")
    for _, path in _IMPORT.findall(code):
        _add(_resolved(name, path), found, (*importers, name))
    exported = {one: one for one in _EXPORTED.findall(code)}
    if listed := _EXPORT_LIST.search(code):
        exported |= {outside: inside for inside, outside in _names(listed[1])}
        code = code[: listed.start()] + ";"
    code = _IMPORT.sub(lambda match: _taken(match, name), _EXPORTED.sub("", code))
    assert not (other := _OTHER.search(code)), f"{name}: not a form that can be put together: {other[0]!r}"
    returned = ", ".join(f"{outside}: {inside}" for outside, inside in exported.items())
    found[name] = f"// {name}\nconst {_constant(name)} = (() => {{\n{code}\nreturn {{ {returned} }};\n}})();"


def _taken(match: re.Match[str], importer: str) -> str:
    names = ", ".join(f"{outside}: {inside}" for outside, inside in _names(match[1]))
    return f"const {{ {names} }} = {_constant(_resolved(importer, match[2]))};"


def _names(listed: str) -> list[tuple[str, str]]:
    """Return the pairs of `a, b as c`: (a, a), (b, c)."""
    pairs = [one.split(" as ") for one in listed.split(",") if one.strip()]
    return [(pair[0].strip(), pair[-1].strip()) for pair in pairs]


def _resolved(importer: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _constant(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
