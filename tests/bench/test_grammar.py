"""The grammar bench judges engines rightly and runs by its documented command. What the times are is not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramiform.bench.grammar.cases import Case, Instance, load_cases
from ramiform.bench.grammar.engines import Refused, Session
from ramiform.bench.grammar.measure import Measurer, Options
from ramiform.bench.grammar.tokens import Tokens
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

from .commands import run

EOS = 256
BYTES = Tokens("bytes", [*(bytes([byte]) for byte in range(256)), None], EOS, lambda text: list(text.encode()))
CASE = Case("digits", {}, [Instance(12, True), Instance("é", True), Instance(3, False)])


class Listed:
    """An engine that accepts the texts in a list, by masks; its steps may lie."""

    def __init__(self, texts: list[str], *, obedient: bool = True) -> None:
        self.bits = np.zeros(9, np.int32)
        self._texts = [text.encode() for text in texts]
        self._obedient = obedient

    def compile(self, schema: Any, whitespace: str) -> Callable[[], Session]:
        if schema == "hard":
            raise Refused("too hard")
        return self._start

    def _start(self) -> Session:
        read = bytearray()

        def mask() -> None:
            self.bits[:] = 0
            octets = self.bits.view(np.uint8)
            for text in self._texts:
                if text.startswith(read):
                    token = text[len(read)] if len(text) > len(read) else EOS
                    octets[token >> 3] |= 1 << (token & 7)

        def advance(token: int) -> bool:
            if not any(text.startswith(bytes([*read, token])) for text in self._texts):
                return False
            read.append(token)
            return self._obedient

        def forced() -> bytes:
            [text] = [text for text in self._texts if text.startswith(read)]
            return text[len(read) :]

        return Session(mask, advance, lambda: bytes(read) in self._texts, forced)


@pytest.mark.parametrize("masks", [True, False])
def test_instances_are_judged_by_whether_their_text_leads_to_an_end(masks: bool) -> None:
    texts = ['"é"', '"\\u00e9"', "3", "123"]
    result = Measurer(Listed(texts), BYTES, Options(masks=masks)).run("listed", CASE)
    assert [(failure.kind, failure.instance, failure.at) for failure in result.failures] == [
        ("over", 0, 2),
        ("under", 2, 1),
    ]
    assert not result.passes
    assert (len(result.masks) > 0) == masks


def test_a_spelling_with_escapes_is_judged_apart() -> None:
    result = Measurer(Listed(['"é"', "12"]), BYTES, Options()).run("listed", CASE)
    assert [(failure.kind, failure.spelling) for failure in result.failures] == [("over", "escaped")]
    assert result.passes


def test_a_step_that_contradicts_its_mask_is_told() -> None:
    result = Measurer(Listed(['"é"', "12"], obedient=False), BYTES, Options()).run("listed", CASE)
    assert {failure.kind for failure in result.failures if failure.spelling == "raw"} == {"unlike"}


def test_forced_tokens_are_those_inside_bytes_that_must_come() -> None:
    case = Case("one", {}, [Instance("abc", True)])
    result = Measurer(Listed(['"abc"']), BYTES, Options(forced=True)).run("listed", case)
    assert (result.forced, result.total) == (5, 5)


def test_a_refusal_is_no_crash() -> None:
    result = Measurer(Listed([]), BYTES, Options()).run("listed", Case("hard", "hard", []))
    assert (result.outcome, result.reason) == ("refused", "too hard")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cases = {
        "integer": ({"type": "integer", "maximum": 20}, [(12, True), (21, False), ("x", False)]),
        "order": ({"properties": {"a": {}, "b": {}}, "required": ["a"]}, [({"b": 1, "a": "é"}, True), ({}, False)]),
        "wrong": ({"type": "strin"}, [(1, True)]),
    }
    path = tmp_path / "cases"
    path.mkdir()
    for name, (schema, tests) in cases.items():
        document = {"schema": schema, "tests": [{"data": data, "valid": valid} for data, valid in tests]}
        (path / f"{name}.json").write_text(json.dumps(document))
    return path


@pytest.mark.exhaustive
def test_the_command_runs_engines_side_by_side(folder: Path) -> None:
    options = ["--tokenizer", str(SHIPPED_MODEL / "tokenizer.json"), "--list-failures", "--forced", "--jobs", "1"]
    printed = run("grammar/compare.py", str(folder), "--engines", "native,llguidance", *options)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in printed.splitlines()}
    assert rows["native"][:4] == ["66.7 % (2)", "66.7 % (2)", "0", "0"]
    assert rows["llguidance"][:4] == ["66.7 % (2)", "33.3 % (1)", "1", "0"]  # it wants the schema's order
    assert "native wrong: 'strin' is not a type (at /type)" in printed


def test_a_sample_is_drawn_by_its_seed(folder: Path) -> None:
    names = [[case.name for case in load_cases(folder, sample=2, seed=seed)] for seed in (1, 1, 2, 3, 4)]
    assert names[0] == names[1]
    assert len({tuple(drawn) for drawn in names}) > 1
    assert [case.name for case in load_cases(folder, only="ord")] == ["order"]
