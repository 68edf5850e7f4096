"""docs/learn/cookbook.md: each program runs on given answers and prints what its comment says."""

from __future__ import annotations

import datetime
import enum
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

import ramiform
from ramiform import Scripted, assistant, gen, pick, select, seq, system, user

PAGE = (Path(ramiform.__file__).parent / "docs/learn/cookbook.md").read_text()
PROGRAMS = dict(re.findall(r"^### (.*?)\n.*?^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
LIBRARIES = (datetime, enum, re, BaseModel, Field, Literal, ramiform, assistant, gen, pick, select, seq, system, user)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ANSWERS: dict[str, tuple[Any, str]] = {  # in the order of the questions, or by the prompt
    "A typed record": (['{"customer": "Ms Sato", "total": 12.5}'], "Ms Sato 12.5"),
    "A list, item by item": (
        [['[{"action": "boil", "minutes": 3}, {"act', 'ion": "steep", "minutes": 4}]']],
        "3 boil\n4 steep",
    ),
    "A class of things": (['"repair"'], "REPAIR"),
    "One of several classes": (['{"kind": "sum", "numbers": [2, 3]}'], "5"),
    "Perhaps nothing": (["null"], "None"),
    "Checked, and asked again": (["7", "8"], "8 2"),
    "A form line by line": ([" mage", " 40", " Onward!"], "mage 40 Onward!"),
    "A list in plain text": (["- rope\n- bread\n"], "['rope', 'bread']"),
    "Examples before the question": ([" 9"], "9"),
    "Thoughts before an answer": (['{"thoughts": "24 / 2", "answer": 12}'], "12"),
    "A chat that remembers": (["In March.", "In May."], "In May."),
    "Translate, check and repair": (["bonsoar", "no", "bonsoir"], "bonsoir"),
    "Many documents, one answer": ([" rain", " wind", " a storm"], "a storm"),
    "The answer most give": (["8", "6", "8"], "8"),
    "The best of several": ([" Drink it.", " Sip.", " A cup a day."], "Sip."),
    "A batch with its failures": (lambda prompt: "36" if "Ada" in prompt else "?", "36\nno age: Bo"),
    "A program of programs": (['["Dance", "Sleep"]', "They dance.", "They sleep."], "['They dance.', 'They sleep.']"),
    "A question that needs a tool": (['{"name": "distance", "arguments": {"town": "Graz"}}'], "200"),
    "An agent with tools": (
        [call("in_stock", '{"thing": "pens"}'), call("order", '{"thing": "pens", "count": 7}'), "Done."],
        "10 ['in_stock', 'order'] Done.",
    ),
    "An agent that asks another": (
        [call("ask_lawyer", '{"question": "Parking?"}'), "No.", "No, says the lawyer."],
        "No, says the lawyer.",
    ),
    "Answers from a text": ([" By hand."], "('tea', 'By hand.')"),
    "A page that shows it grow": (
        ["It falls."],
        '{"type":"variable","name":"line"}\n{"type":"value","name":"line","value":"It falls."}\n{"type":"end"}',
    ),
    "Stopped, and gone on with": ([" sun", " wind", " sea"], "3"),
    "A test without a model": ([], "Greet Ada:"),
}


def test_every_program_has_answers() -> None:
    assert list(PROGRAMS) == list(ANSWERS)
    assert len(PROGRAMS) == 24


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_prints_what_it_says(
    title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, printed = ANSWERS[title]
    backend = Scripted(answers)
    ramiform.set_default_backend(backend)
    names = {getattr(one, "__name__", str(one)): one for one in LIBRARIES}
    given = names | {"Literal": Literal, "__name__": "cookbook", "path": tmp_path / "run.jsonl"}
    try:
        exec(compile(PROGRAMS[title], f"<{title}>", "exec", dont_inherit=True), given)
    finally:
        ramiform.set_default_backend(None)
        backend.close()
    assert capsys.readouterr().out.rstrip("\n") == printed
    assert callable(answers) or len(backend.prompts) == len(answers)
