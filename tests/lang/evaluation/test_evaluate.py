"""Evaluation: scores, failures, resumption, datasets and comparison, against plain Python and the model that ships."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, evaluate, gen
from ramiform.lang.evaluation.dataset import read_dataset
from ramiform.lang.evaluation.report import Report

CAPITALS = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Peru": "Lima"}
EXAMPLES = [{"country": country, "city": city} for country, city in CAPITALS.items()]


@ramiform.function
def capital(s: ProgramState, country: str) -> None:
    s += f"Question: What is the capital of {country}?\nAnswer:" + gen("answer", max_tokens=8, stop="\n", temperature=0)


def is_right(example: Mapping[str, Any], state: ProgramState) -> bool:
    return bool(state["answer"].strip() == example["city"])


def scripted(answers: Mapping[str, str]) -> Scripted:
    """A backend that answers by the last country in the prompt."""
    return Scripted(lambda text: next(city for country, city in answers.items() if country in text.splitlines()[-2]))


def test_each_example_is_scored_on_the_model_that_ships(backend: ramiform.Runtime) -> None:
    report = evaluate(capital, [*EXAMPLES, {"country": "Egypt", "city": "Berlin"}], is_right, concurrency=3)
    assert report.scores() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert report.score == pytest.approx(0.8)
    assert not report.failures
    assert report.tokens.completion > 0
    assert report.results[4].trace is not None
    assert "Egypt" in str(report.results[4].trace)
    assert report.results[0].trace is None
    assert "0.800" in str(report)


def test_what_raises_is_a_failure_and_the_rest_is_scored() -> None:
    @ramiform.function
    def fussy(s: ProgramState, country: str) -> None:
        s += f"{country}\nCity:" + gen("answer")
        if s["answer"] == "Rome":
            raise ValueError("not this one")

    def metric(example: Mapping[str, Any], state: ProgramState) -> float:
        return 1 / (0 if example["city"] == "Lima" else 2)

    report = evaluate(fussy, EXAMPLES, metric, backend=scripted(CAPITALS))
    assert [result.error for result in report.results] == [
        None,
        "ValueError: not this one",
        None,
        "ZeroDivisionError: division by zero",
    ]
    assert report.scores() == [0.5, 0.0, 0.5, 0.0]
    assert [failure.index for failure in report.failures] == [1, 3]
    assert report.failures[1].trace is not None
    assert "example 1 failed: ValueError: not this one" in str(report)


def test_several_scores_and_async_metrics_and_programs() -> None:
    @ramiform.function
    async def program(s: ProgramState, country: str) -> str:
        s += f"{country}\nCity:" + gen("answer")
        return str(await s.get("answer"))

    async def metric(example: Mapping[str, Any], state: ProgramState) -> dict[str, float]:
        await asyncio.sleep(0)
        return {"right": state.ret_value == example["city"], "length": len(state.ret_value)}

    async def main() -> Report:
        return await ramiform.aevaluate(program, EXAMPLES, metric, backend=scripted(CAPITALS))

    report = asyncio.run(main())
    assert report.score_names == ["right", "length"]
    assert report.scores("length") == [5, 4, 5, 4]
    assert report.score == 1.0
    assert report.interval()[0] == pytest.approx(4 / (4 + 1.959964**2), abs=1e-5)  # Wilson's lower end of n of n


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_a_dataset_may_be_a_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    if kind == "csv":
        with path.open("w", newline="") as file:
            rows = csv.DictWriter(file, ["country", "city"])
            rows.writeheader()
            rows.writerows(EXAMPLES)
    else:
        path.write_text("\n".join(map(json.dumps, EXAMPLES)) if kind == "jsonl" else json.dumps(EXAMPLES))
    assert read_dataset(path) == EXAMPLES
    assert evaluate(capital, str(path), is_right, backend=scripted(CAPITALS)).score == 1.0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"country": "x"}\n{"country": }', r"is not JSON: Expecting value \(line 2, column 13\)"),
        ("a.jsonl", '{"country": "x"}\n\n{"country"', r"is not JSON: .* \(line 3, column 11\)"),
        ("a.json", '[{"country": "x"},\n {"country"]', r"is not JSON: .* \(line 2, column 12\)"),
        ("a.jsonl", "[1]", "line 1 must be a mapping"),
        ("a.json", "{}", "must hold a list"),
        ("a.csv", "country,city\nFrance\n", "line 2 has another number of values than the header"),
        ("a.txt", "", "ends in .jsonl, .json or .csv"),
        ("a.jsonl", '{"land": "x"}', "example 0 has no value for the program's argument 'country'; it has 'land'"),
    ],
)
def test_a_wrong_dataset_is_refused_with_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RequestError, match=message):
        evaluate(capital, tmp_path / name, is_right, backend=Scripted([]))


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(RequestError, match="dataset has no examples"):
        evaluate(capital, [], is_right)


def test_an_unknown_option_is_refused_with_the_name_that_is_near() -> None:
    with pytest.raises(RequestError, match="no option 'temprature'; did you mean 'temperature'"):
        evaluate(capital, EXAMPLES, is_right, temprature=0)


def test_a_metric_that_gives_no_number_is_the_examples_error() -> None:
    report = evaluate(capital, EXAMPLES[:1], lambda example, state: "good", backend=scripted(CAPITALS))  # type: ignore[arg-type,return-value]
    assert report.results[0].error == "RequestError: metric must return a number or names with numbers, got 'good'"


def test_an_evaluation_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    calls: list[str] = []

    def answer(text: str) -> str:
        calls.append(text)
        return next(city for country, city in CAPITALS.items() if country in text)

    file = tmp_path / "run.jsonl"
    evaluate(capital, EXAMPLES[:2], is_right, backend=Scripted(answer), resume=file)
    file.write_bytes(file.read_bytes() + b'{"index": 2, "dig')  # a process that ended while it wrote
    report = evaluate(capital, EXAMPLES, is_right, backend=Scripted(answer), resume=file)
    assert len(calls) == 4
    assert report.score == 1.0
    assert [result.index for result in report.results] == [0, 1, 2, 3]
    evaluate(capital, EXAMPLES, is_right, backend=Scripted(answer), resume=file)
    assert len(calls) == 4
    with pytest.raises(RequestError, match="holds a result of another example 0: the dataset has changed"):
        evaluate(capital, EXAMPLES[::-1], is_right, backend=Scripted(answer), resume=file)
    with pytest.raises(RequestError, match="holds results of other options"):
        evaluate(capital, EXAMPLES, is_right, backend=Scripted(answer), resume=file, temperature=0.5)
    (tmp_path / "other").write_text("hello\n")
    with pytest.raises(RequestError, match="is not a file of results"):
        evaluate(capital, EXAMPLES, is_right, backend=Scripted(answer), resume=tmp_path / "other")
    assert (tmp_path / "other").read_text() == "hello\n"


@pytest.mark.slow
def test_two_runs_are_compared_pair_by_pair() -> None:
    examples = EXAMPLES * 5
    good = evaluate(capital, examples, is_right, backend=scripted(CAPITALS))
    bad = evaluate(capital, examples, is_right, backend=scripted(CAPITALS | {"Italy": "Oslo", "Peru": "Oslo"}))
    comparison = good.compare(bad)
    assert (comparison.score, comparison.other_score, comparison.difference) == (1.0, 0.5, 0.5)
    assert comparison.better == [index for index in range(20) if index % 4 in (1, 3)]
    assert comparison.worse == []
    assert comparison.p_value == pytest.approx(2 / 2**10)  # ten pairs differ, all to one side
    assert 0.2 < comparison.low < 0.5 < comparison.high < 0.8
    assert good.compare(good).p_value == 1.0
    with pytest.raises(RequestError, match="same examples"):
        good.compare(evaluate(capital, EXAMPLES, is_right, backend=scripted(CAPITALS)))


def test_a_report_is_kept_as_json_csv_and_html(tmp_path: Path) -> None:
    examples = [{"country": "<b>France</b>", "city": 'Pa"ris'}, *EXAMPLES]
    report = evaluate(capital, examples, is_right, backend=scripted({"<b>France</b>": "</pre>x"} | CAPITALS))
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report
    with pytest.raises(RequestError, match="is not a saved report"):
        Report.load(tmp_path / "missing.json")
    (tmp_path / "deep.json").write_text('{"options": ' + "[" * 100_000)
    with pytest.raises(RequestError, match="is not a saved report"):
        Report.load(tmp_path / "deep.json")
    report.to_csv(tmp_path / "report.csv")
    with (tmp_path / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["country"], row["city"]) for row in rows] == [(e["country"], e["city"]) for e in examples]
    assert [float(row["score"]) for row in rows] == report.scores()
    report.to_html(tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text()
    assert "<b>France" not in html
    assert html.count("<rect") == 10
    _check_nesting(html)


def _check_nesting(html: str) -> None:
    """Fail unless every element is closed in its place."""
    stack: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br"):
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    Reader().feed(html)
    assert stack == []
