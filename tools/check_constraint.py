"""The command `ramiform grammar check`: a report on a constraint, and on a text that it should accept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..runtime.protocol.errors import RamiformError, RequestError
from ..runtime.protocol.sampling import JsonWhitespace, PropertyOrder

grammar = typer.Typer(help="Constraints on outputs.", no_args_is_help=True)
GrammarFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A schema, a grammar or a regex.")]
GrammarKind = Literal["schema", "lark", "gbnf", "regex"]
_GRAMMAR_KINDS: dict[str, GrammarKind] = {
    ".json": "schema",
    ".lark": "lark",
    ".gbnf": "gbnf",
    ".ebnf": "gbnf",
    ".regex": "regex",
}


@grammar.command("check")
def check_constraint(
    file: GrammarFile,
    *,
    against: Annotated[
        str | None, typer.Option(metavar="INSTANCE", help="A file, or - for standard input, that should be accepted.")
    ] = None,
    kind: Annotated[
        GrammarKind | None,
        typer.Option(help="What FILE holds; default: by its ending .json, .lark, .gbnf, .ebnf or .regex."),
    ] = None,
    additional_properties: Annotated[
        Literal["schema", "closed"], typer.Option(help="Members that a schema does not mention; default: the server's.")
    ] = "closed",
    whitespace: Annotated[JsonWhitespace, typer.Option(help="Whitespace of JSON; default: the server's.")] = "bounded",
    order: Annotated[PropertyOrder, typer.Option(help="Order of an object's members; default: the server's.")] = "any",
    number_digits: Annotated[
        int,
        typer.Option(min=0, help="Digits of numbers before and after the point; 0: any; default: the server's."),
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show which parts of a constraint are enforced or refused, where an instance violates it, and what it costs.

    The status is 1 if the constraint is refused, if its terminals are ambiguous, or if the instance is not accepted.
    """
    from ..constrained.explain.report import JsonOptions, explain

    kind = kind or _GRAMMAR_KINDS.get(file.suffix)
    if kind is None:
        raise RequestError(f"{file}: its ending does not tell what it holds; give --kind", param="kind")
    try:
        text = file.read_text(encoding="utf-8")
        instance = None
        if against is not None:
            instance = sys.stdin.buffer.read() if against == "-" else Path(against).read_bytes()
    except UnicodeDecodeError as error:
        raise RamiformError(f"{file}: {error}") from None
    except OSError as error:
        raise RequestError(f"{against}: {error.strerror}", param="against") from None
    if kind == "regex":
        text = text.removesuffix("\n").removesuffix("\r")
    options = JsonOptions(additional_properties, whitespace, order, number_digits=number_digits or None)
    found = explain(str(file), text, kind, options, instance)
    print(json.dumps(found.as_json()) if as_json else found.text())
    if not found.is_good:
        raise typer.Exit(1)


def check_grammar(file: GrammarFile) -> None:
    """Check a constraint: the old name of `grammar check`."""
    from ..runtime.core.grammar_cache import grammar_syntax

    typer.echo("check-grammar is now: ramiform grammar check FILE", err=True)
    kind = None if file.suffix in _GRAMMAR_KINDS else grammar_syntax(file.read_text(encoding="utf-8", errors="replace"))
    check_constraint(file, kind=kind)
