"""`ramiform grammar check`: places with carets, what is enforced, where an instance leaves the grammar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ramiform import RequestError
from ramiform.cli import app


def check(file: Path, *arguments: str, text: str | None = None, stdin: str | None = None) -> Result:
    if text is not None:
        file.write_text(text, encoding="utf-8")
    return CliRunner().invoke(app, ["grammar", "check", str(file), *arguments], input=stdin)


@pytest.mark.slow
def test_a_text_that_two_terminals_match_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "a.lark"
    result = check(file, text='start: "if" NAME | WORD\nNAME: /[a-z]+/\nWORD: /[a-z0-9]+/\n')
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1] == '"if" and WORD both match \'if\': a lexer takes "if"'
    result = check(file, text="start: NAME | WORD\nNAME: /[a-z]+/\nWORD: /[a-z0-9]+/\n")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1] == "NAME and WORD both match 'a': ambiguous"


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("g.lark", "start: A", ["line 1, column 8", "'A' used but not defined", "start: A\n             ^\n"]),
        ("g.lark", "start: A\nA: /a(b/", ["line 2, column 1", "the terminal A: a ( that is never closed"]),
        ("g.lark", 'start: "a" ~~', ["line 1, column 13: not Lark's syntax", 'start: "a" ~~\n                  ^\n']),
        ("g.gbnf", "root ::= [a", ["line 1, column 10", "never closed", "root ::= [a\n               ^\n"]),
        ("g.regex", "a\n(b\\1)\n", ["line 2, column 3", "a reference to a group", "(b\\1)\n        ^\n"]),
        ("s.json", '{"a": [1,\n }', ["line 2, column 2: the schema is no JSON: Expecting value", " }\n       ^\n"]),
        ("s.json", '{"type": "integer", "minimum": 2, "maximum": 1}', ["no text at all satisfies the constraint"]),
        (
            "s.json",
            '{"properties": {\n  "a": {"type": "strin"},\n  "b": {"pattern": "\\u00e9\\"a(b"}}}',
            [
                "refused: 2\n",
                "/properties/a/type, line 2, column 17: 'strin' is not a type\n",
                '"a": {"type": "strin"},\n                      ^^^^^^^\n',
                "/properties/b/pattern, line 3, column 30: a ( that is never closed\n",
                '"b": {"pattern": "\\u00e9\\"a(b"}}}\n                                   ^\n',
            ],
        ),
    ],
)
def test_the_place_of_what_is_refused_is_shown(name: str, text: str, shown: list[str], tmp_path: Path) -> None:
    result = check(tmp_path / name, text=text)
    assert result.exit_code == 1
    for part in shown:
        assert part in result.stdout
    assert result.stdout.endswith(f"{name}: refused\n")


SCHEMA = """{
  "title": "Order",
  "properties": {
    "items": {"type": "array", "items": {
      "properties": {"name": {"type": "string", "maxLength": 3, "format": "colour"}, "kind": {"enum": ["pear", "fig"]}},
      "required": ["name"]}}},
  "maxlength": 3
}"""


@pytest.mark.slow
def test_what_is_enforced_and_what_is_not_is_listed(tmp_path: Path) -> None:
    result = check(tmp_path / "s.json", text=SCHEMA)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].endswith("(the server's defaults)")
    assert lines[1] == "enforced: 8"
    assert "  /properties/items/items/properties/name/maxLength" in lines
    assert lines[lines.index("annotations: 1") + 1] == "  /title"
    at = lines.index("warnings: 2")
    assert lines[at + 1] == "  /maxlength, line 7, column 16: unknown keyword: did you mean 'maxLength'?"
    assert lines[at + 4].endswith("name/format, line 5, column 75: unknown format 'colour'")
    assert lines[at + 6].endswith("^" * len('"colour"'))
    assert "the server's defaults" not in check(tmp_path / "s.json", "--whitespace", "any").stdout


@pytest.mark.parametrize(
    ("instance", "shown"),
    [
        (
            '{"items": [{"name": "lemon"}]}',
            [
                "line 1, column 25, at 'o', in the value of /items/0/name\n",
                '{"items": [{"name": "lemon"}]}\n' + " " * 30 + "^\n",
                "what must come there: '\"'\n",
                "the text is JSON, but its value is not allowed\n",
            ],
        ),
        (
            '{"items": [{"name": "é", "kind": "p',
            ["line 1, column 36, where the text ends", "/items/0/kind\n", "must come there: 'ear\"}'"],
        ),
        (
            '{"items": [{"name": "é", "kind": 1}]}',
            ["line 1, column 34, at '1'", "what may come there: '\"fig\"', '\"pear\"'\n"],
        ),
        ('{"thing": 1}', ["column 3, at 't', in a name of the root\n", "accepted with --additional-properties schema"]),
        ('{\n"items": []}', ["line 1, column 2, at '\\n'", "it is accepted with --whitespace any\n"]),
        ('{"items":\n[], "a": 1}', ["it is accepted with --whitespace any, --additional-properties schema"]),
        ('{"items": [1.5, ]}', ["line 1, column 17, at ']'", "the text is no JSON"]),
    ],
)
def test_the_place_where_an_instance_leaves_is_shown(instance: str, shown: list[str], tmp_path: Path) -> None:
    result = check(tmp_path / "s.json", "--against", "-", text=SCHEMA, stdin=instance)
    assert result.exit_code == 1
    for part in ("instance: leaves the grammar at ", *shown):
        assert part in result.stdout


def test_the_line_break_at_a_files_end_is_no_part_of_an_instance(tmp_path: Path) -> None:
    (tmp_path / "i.json").write_text('{"items": [{"name": "fig"}]}\n')
    result = check(tmp_path / "s.json", "--against", str(tmp_path / "i.json"), text=SCHEMA)
    assert result.exit_code == 0
    assert "instance: accepted but for the line break at its end\n" in result.stdout


def test_the_same_is_given_as_json(tmp_path: Path) -> None:
    result = check(tmp_path / "s.json", "--json", "--against", "-", text=SCHEMA, stdin='{"items": [{"name": 1}]}')
    found = json.loads(result.stdout)
    assert (result.exit_code, found["accepted"], found["ok"]) == (1, True, False)
    assert {use["status"] for use in found["keywords"]} == {"enforced", "annotation", "warning"}
    assert found["verdict"]["remark"]["column"] == 21
    assert found["verdict"]["walk"]["forced"] == "'\"'"
    assert found["cost"]["start_states"] <= found["cost"]["states"]
    found = json.loads(check(tmp_path / "s.json", "--json", text='{"type": 3}').stdout)
    [refused] = found["refused"]
    assert (found["accepted"], refused["pointer"], refused["line"], refused["column"]) == (False, "/type", 1, 10)


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    assert check(tmp_path / "missing.json").exit_code == 2
    unknown = check(tmp_path / "grammar.txt", text="[0-9]+\n")
    assert isinstance(unknown.exception, RequestError)
    assert unknown.exception.param == "kind"
    assert check(tmp_path / "grammar.txt", "--kind", "regex", "--against", "-", stdin="12").exit_code == 0
    nowhere = check(tmp_path / "grammar.txt", "--kind", "regex", "--against", str(tmp_path / "nowhere"))
    assert isinstance(nowhere.exception, RequestError)
    assert "nowhere: No such file" in str(nowhere.exception)


def test_check_grammar_is_another_name(tmp_path: Path) -> None:
    file = tmp_path / "grammar"
    file.write_text('root ::= "a" root | "b"')
    result = CliRunner().invoke(app, ["check-grammar", str(file)])
    assert (result.exit_code, f"{file}: accepted" in result.stdout) == (0, True)
