"""The comparison with other frameworks: its counts, its relay, its runner, and the page that shows it."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from ramiform.bench.compare.relay import CountingRelay
from ramiform.bench.compare.run import PACKAGES, RIGHT, VALID, num_lines

from .commands import BENCH, run

PROGRAMS = [BENCH / "compare" / framework / f"{program}.py" for framework in PACKAGES for program in RIGHT]
PAGE = BENCH.parent / "docs/learn/compare.md"
RESULTS = BENCH / "results/compare_2core-cpu_202611.md"


def test_lines_of_code_are_counted_without_comments_docstrings_and_blank_lines() -> None:
    source = '''"""A module.

Its second paragraph.
"""

import json  # a comment beside code


# A comment alone.
class Extract:
    """A docstring that is an instruction."""

    text = """one
two"""


def double(x):
    """Return twice x."""
    return (
        x
        * 2
    )
'''
    assert num_lines(source) == 10


@pytest.mark.slow
def test_the_relay_counts_requests_and_passes_answers_on() -> None:
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"got")

        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self._answer(b"data: 1\n\ndata: 2\n\n")

        def _answer(self, body: bytes) -> None:
            self.send_response(201)
            self.send_header("x-kept", self.headers.get("x-sent", ""))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with CountingRelay(f"http://127.0.0.1:{server.server_port}") as relay:
            assert httpx.get(relay.url + "/facts").text == "got"
            answer = httpx.post(relay.url + "/play", content=b"12345", headers={"x-sent": "yes"})
            assert (answer.status_code, answer.text) == (201, "data: 1\n\ndata: 2\n\n")
            assert answer.headers["x-kept"] == "yes"
            assert (relay.calls, relay.bytes_sent) == (1, 5)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert received == [b"12345"]


def test_each_framework_has_each_program() -> None:
    assert all(path.exists() for path in PROGRAMS)
    assert all(set(VALID[program]) == set(PACKAGES) for program in RIGHT)


@pytest.mark.exhaustive
def test_the_runner_counts_our_programs(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    run("compare/run.py", "--rounds", "1", "--out", str(out))
    rows = [row for row in _rows(out.read_text()) if row[0] == "ramiform"]
    assert len(rows) == len(RIGHT)
    for framework, lines, calls, sent, prompt, prefilled, _, _, right, _ in rows:
        assert right == "1 of 1", framework
        assert 0 < int(lines) < 30
        assert 0 < int(prefilled) <= int(prompt)
        assert (calls == "–") == (sent == "–")
    judge = rows[list(RIGHT).index("judge")]
    assert int(judge[5]) < int(judge[4])  # the branches share their text
    assert judge[6] == "0"


def test_the_page_shows_the_programs_and_the_measured_numbers() -> None:
    text, results = PAGE.read_text(encoding="utf-8"), RESULTS.read_text(encoding="utf-8")
    written = {" ".join(line.split()) for path in PROGRAMS for line in path.read_text(encoding="utf-8").splitlines()}
    shown = [line for block in re.findall(r"```python\n(.*?)```", text, re.S) for line in block.splitlines()]
    assert len(shown) > 50
    assert [line for line in shown if " ".join(line.split()) not in written] == []
    measured = [(row[0], row[1], row[2], *row[4:9]) for row in _rows(results)]
    assert [tuple(row) for row in _rows(text)] == measured
    assert len(measured) == len(PROGRAMS)


def _rows(text: str) -> list[list[str]]:
    """Return the cells of the rows that begin with a framework's name."""
    lines = re.findall(rf"^\| (?:{'|'.join(PACKAGES)}) \|.*\|$", text, re.M)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
