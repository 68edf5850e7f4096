"""`bench serve` against the real server, and against servers that fail, hang up or send no usage."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import ramiform
from ramiform.cli import app
from ramiform.tools.load_test.client import LoadTarget, Measured, fits_schema, run_closed, run_open
from ramiform.tools.load_test.workload import LoadRequest

JOB = LoadRequest([{"role": "user", "content": "Hello!"}], 4)
CHUNK = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "serve", *arguments], env={"COLUMNS": "80"})


def check_tables(output: str, names: set[str]) -> None:
    """Check that the tables have the names whole and no line that a terminal of 80 columns breaks."""
    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output
    assert {cell.strip() for line in output.splitlines() for cell in re.split("[┃│]", line)} >= names


def test_a_closed_loop_is_measured_and_written(url: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = serve(
        *(f"{url}/v1", "--concurrency", "1,3", "--requests", "5", "--prompt-tokens", "uniform:20,40"),
        *("--output-tokens", "8", "--ignore-eos", "--slo", "ttft=60s,tpot=60s", "--out", str(out)),
    )
    assert done.exit_code == 0, done.output
    written = json.loads(out.read_text())
    assert [each["level"] for each in written["rounds"]] == [1, 3]
    for each in written["rounds"]:
        assert (each["num_done"], each["errors"], each["has_usage"]) == (5, {}, True)
        assert each["num_output"] == 40
        assert each["num_prompt"] >= 100
        assert 0 < each["ttft"]["p50"] <= each["e2e"]["p50"] <= each["e2e"]["max"]
        assert each["goodput"] == pytest.approx(each["request_rate"])
    names = {"output tok/s", "total tok/s", "goodput/s", "TTFT", "TPOT", "p99", "concurrency 1", "concurrency 3"}
    check_tables(done.output, names)


def test_an_open_loop_with_structured_answers_and_shared_prefixes(url: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = serve(
        *(url, "--rate", "50", "--requests", "6", "--structured", "1", "--output-tokens", "200"),
        *("--prefix-tokens", "100", "--prompt-tokens", "8", "--out", str(out)),
    )
    assert done.exit_code == 0, done.output
    [each] = json.loads(out.read_text())["rounds"]
    assert (each["num_done"], each["num_structured"], each["num_valid"]) == (6, 6, 6)
    assert each["num_cached"] > 0
    times = tmp_path / "times"
    times.write_text("0\n0.01\n0.02\n")
    traced = serve(url, "--arrivals", str(times), "--route", "completions", "--output-tokens", "2", "--warmup", "0")
    assert traced.exit_code == 0, traced.output
    assert "arrivals" in traced.output


def test_two_servers_are_compared_in_turns(url: str) -> None:
    done = serve(url, "--compare", url, "--requests", "3", "--output-tokens", "4", "--prompt-tokens", "8")
    assert done.exit_code == 0, done.output
    assert f"{url} / {url}" in done.output
    check_tables(done.output, {"output_rate", "request_rate", "ttft p50", "median", "lowest", "highest"})


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "1.5"], "--concurrency"),
        (["--rate", "fast"], "--rate"),
        (["--slo", "ttft=soon"], "--slo"),
        (["--slo", "speed=1s"], "--slo"),
        (["--prompt-tokens", "many"], "--prompt-tokens"),
        (["--structured", "1", "--route", "completions"], "--structured"),
    ],
)
def test_wrong_options_are_refused_by_name(url: str, arguments: list[str], param: str) -> None:
    done = serve(url, *arguments)
    assert isinstance(done.exception, ramiform.RequestError)
    assert done.exception.param == param


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "nowhere", "http://["])
def test_a_server_that_is_not_there_is_named(address: str) -> None:
    done = serve(address, "--requests", "1")
    assert isinstance(done.exception, ramiform.RequestError)
    assert address in str(done.exception)


@contextmanager
def answering(*answers: bytes) -> Iterator[Any]:
    """A function that runs work beside a server, which gives one answer after another and closes the connection."""

    async def beside(work: Any) -> Any:
        rest = iter(answers)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            writer.write(next(rest))
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await work(LoadTarget(f"http://127.0.0.1:{port}", "m", "chat", ignore_eos=False, timeout=30))

    yield lambda work: asyncio.run(beside(work))


def test_failures_are_counted_by_kind_and_harm_no_other_request() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}\n\ndata: [DONE]\n\n'
    answers = (
        HEAD + CHUNK + CHUNK + usage,
        HEAD + CHUNK + CHUNK + b"data: [DONE]\n\n",
        HEAD + CHUNK,
        HEAD + b'data: {"error": {"message": "no"}}\n\n',
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        HEAD + b"data: nonsense\n\n",
        HEAD + b'data: [{"choices": 1}]\n\n',
    )
    measured = Measured()
    with answering(*answers) as run:
        run(lambda target: run_closed(target, [JOB] * len(answers), 1, measured))
    good, without_usage, *bad = measured.outcomes
    assert (good.num_prompt, good.num_output, good.is_counted, len(good.chunks)) == (3, 9, False, 2)
    assert (without_usage.num_output, without_usage.is_counted) == (2, True)
    assert [outcome.error for outcome in bad] == [
        "the stream ended early",
        "an error in the stream",
        "HTTP 429",
        "an event that is no chunk",
        "an event that is no chunk",
    ]


def test_an_open_loop_counts_from_the_scheduled_time() -> None:
    measured = Measured()
    with answering(*[HEAD + CHUNK + b"data: [DONE]\n\n"] * 3) as run:
        run(lambda target: run_open(target, [JOB] * 3, [0.0, 0.001, 0.002], measured))
    outcomes = sorted(measured.outcomes, key=lambda outcome: outcome.scheduled)
    assert [round(outcome.scheduled - outcomes[0].scheduled, 6) for outcome in outcomes] == [0.0, 0.001, 0.002]
    assert all(outcome.sent >= outcome.scheduled for outcome in outcomes)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"name": "a", "count": 1, "sure": true}', True),
        ('{"name": "a", "count": 1.5, "sure": true}', False),
        ('{"name": "a", "count": true, "sure": true}', False),
        ('{"name": "a", "count": 1000, "sure": true}', False),
        ('{"name": "a", "count": 1}', False),
        ("[]", False),
        ('{"name": "a', False),
    ],
)
def test_structured_answers_are_checked(text: str, fits: bool) -> None:
    assert fits_schema(text) is fits
