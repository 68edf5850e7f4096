"""The code in the guide and in the language reference runs: each block with the few names that its text takes for
granted."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted

LEARN = Path(ramiform.__file__).parent / "docs/learn"
REFERENCE = "".join(page.read_text() for page in (LEARN / "language.md", *sorted(LEARN.glob("guide/*.md"))))
MCP_SERVER = Path(__file__).parent / "tools/mcp_server_of_tests.py"


@dataclass(frozen=True)
class Block:
    section: str
    code: str
    printed: str | None  # as the text says

    def run(self, before: str = "", **names: Any) -> dict[str, Any]:
        """Run the block behind `before`, with all public names of ramiform and those given."""
        names = {"__name__": "__main__", "ramiform": ramiform} | names
        names |= {name: getattr(ramiform, name) for name in ramiform.__all__ if not name.startswith("_")}
        exec(compile(before, "before.py", "exec", dont_inherit=True), names)
        exec(compile(self.code, "reference.py", "exec", dont_inherit=True), names)
        return names

    def run_in_program(self, backend: Any, text: str = "", **sampling: Any) -> dict[str, Any]:
        """Run the block as the body of a program whose state is `s` and has the text."""

        def body(s: ProgramState) -> dict[str, Any]:
            s += text
            return self.run(s=s)

        names: dict[str, Any] = ramiform.function(body).run(backend=backend, **sampling).ret_value
        return names


def blocks() -> dict[str, Block]:
    """Return the blocks by their section's title. Signatures are none: another test compares them with the code's."""
    found, section = {}, ""
    block = r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?"
    for match in re.finditer(rf"^#+ ([^\n]*)$|{block}", REFERENCE, re.DOTALL | re.MULTILINE):
        if match[1]:
            section = match[1]
        elif not re.match(r"(gen|select)\(name=None", match[2]):
            assert section not in found, "one block a section"
            found[section] = Block(section, match[2], match[3])
    return found


BLOCKS = blocks()
TOOLS = '''
def get_weather(city: str) -> str:
    """Get the weather of a city"""
    return '{"weather": "snowy", "temperature": 4}'

def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers"""
    return {"result": a + b}
'''
REVIEW = """
@ramiform.function
def review(s, product):
    s += product + gen("draft", max_tokens=5, temperature=0) + select("verdict", [" good", " bad"])
"""
PERSON = """
from dataclasses import dataclass

@dataclass
class Person:
    name: str
    age: int
"""
CAPITAL = """
@ramiform.function
def program(s, country):
    s += f"Question: What is the capital of {country}?\\nAnswer:" + gen("city", max_tokens=8, stop="\\n")
"""


def test_every_block_is_run_here() -> None:
    source = Path(__file__).read_text()
    assert len(BLOCKS) >= 9
    for section, block in BLOCKS.items():
        assert block.printed is not None or f'BLOCKS["{section}"]' in source, section


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS.values() if block.printed], ids=lambda block: block.section
)
def test_a_whole_program_prints_what_the_text_says(
    block: Block, backend: ramiform.Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {"__name__": "__main__", "ramiform": ramiform}  # of the page's first block
    exec(compile(block.code, "program.py", "exec", dont_inherit=True), before)
    assert capsys.readouterr().out == block.printed


def test_programs(backend: ramiform.Runtime) -> None:
    program = BLOCKS["Programs"].run()["program"]
    assert isinstance(program, ramiform.Program)
    assert program.run("Why?").ret_value is None
    with pytest.raises(TypeError, match="question"):
        program.run()


def test_programs_that_call_programs() -> None:
    report = BLOCKS["Programs that call programs"].run()["report"]
    state = report.run(["one", "two"], backend=Scripted([" first", " second", " good"]), trace=True)
    assert state.text() == "Report:\n first\n second\n good"
    assert len(state.trace.states) == 3


def test_hooks() -> None:
    names = BLOCKS["Hooks"].run(
        """
@ramiform.function
def summary(s, text):
    s += text + gen("short")
ramiform.set_default_backend(ramiform.Scripted(["two words"]))
"""
    )
    assert names["count"].tokens == 2


def test_signatures(backend: ramiform.Runtime) -> None:
    names = BLOCKS["Signatures"].run(PERSON)
    assert names["ada"] == names["Person"]("Ada Brown", 36)
    names = BLOCKS["Signatures as text"].run()
    assert names["mood"] in ("good", "bad")
    assert type(names["stars"]) is int


def test_json_on_the_model(backend: ramiform.Runtime) -> None:
    text = BLOCKS["JSON"].run()["place"].run(backend=backend, max_tokens=120)["place"]
    assert re.fullmatch(r'\{"x": -?[0-9]+, "y": -?[0-9]+\}', text)


@pytest.mark.exhaustive
def test_composable_constraints_on_the_model(backend: ramiform.Runtime) -> None:
    shopping = BLOCKS["Composable constraints"].run()["shopping"]
    seeds = range(4)  # whether a list ends within max_tokens is up to the draw
    states = []
    for seed in seeds:
        with contextlib.suppress(RequestError):
            states.append(shopping.run(backend=backend, seed=seed))
    assert states
    for s in states:
        assert len(s["item"]) == len(s["note"]) >= 1
        assert all(type(number) is int for number in s["total"].values())


def test_deciding(backend: ramiform.Runtime) -> None:
    s = BLOCKS["Deciding"].run()["state"]
    assert 0 <= s["urgent"].probability <= 1
    assert s["team"].choice in ("sales", "support")
    assert 0 <= s["anger"].score <= 1


def test_search(backend: ramiform.Runtime) -> None:
    names = BLOCKS["Search"].run_in_program(backend, "Question: How many legs does an ant have?\nAnswer:", seed=3)
    assert names["group"][0] is not names["branch"]
    assert isinstance(names["result"].value, int)
    assert names["s"]["n"] == names["result"].value
    assert names["s"]["line"] == names["branch"]["line"]


def test_handing_over(backend: ramiform.Runtime) -> None:
    result = BLOCKS["Handing over"].run(TOOLS)["result"]
    assert result.agent in ("desk", "billing")


def test_streaming(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass
    class Item:
        name: str

    @ramiform.function
    def shopping(s: ProgramState, dish: str) -> None:
        s += dish + ramiform.gen("items", schema=list[Item])

    backend = Scripted(['[{"name": "flour"}, {"name": "eggs"}]'])
    BLOCKS["Streaming"].run(shopping=SimpleNamespace(run=partial(shopping.run, backend=backend)))
    assert capsys.readouterr().out == "flour\neggs\n"


def test_early_tools() -> None:
    tool = BLOCKS["Early tools"].run()["read_file"]
    assert (tool.name, tool.pure, tool.speculate) == ("read_file", True, True)


@pytest.mark.exhaustive
def test_mcp(backend: ramiform.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp", reason="the extra mcp")
    command = tmp_path / "my-server"
    command.write_text(f'#!/bin/sh\ntest "$1" = --option && exec "{sys.executable}" "{MCP_SERVER}"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    helper = BLOCKS["Agents"].run(TOOLS)["helper"]
    names = BLOCKS["MCP"].run(helper=helper)
    assert names["tools"].__class__ is ramiform.McpTools


def test_results_kept(
    backend: ramiform.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [BLOCKS["Results kept"].run(REVIEW)["state"].text() for _ in range(2)]
    assert texts[0] == texts[1]
    assert capsys.readouterr().out == "0 2 2\n2 0 2\n"


def test_evaluation(backend: ramiform.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cases.jsonl").write_text('{"country": "France", "city": "Paris"}\n{"country": "Peru", "city": "Oslo"}\n')
    assert BLOCKS["Evaluation"].run(CAPITAL)["report"].score == 0.5
