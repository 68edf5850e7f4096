"""The programs of README, the tutorial and the guide's first pages, and README's requests, run as they are printed
where the wheel is installed, and give what the page says."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import ROOT, run_in

README = (ROOT / "README.md").read_text("utf-8")
PAGES = ["docs/learn/tutorial.md", *(f"docs/learn/guide/{name}.md" for name in ("agents", "answers", "constraints"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
TYPED = """
import contextlib, io, json, ramiform
names = {"__name__": "__main__"}
ramiform.set_default_backend(ramiform.Runtime(dtype="float32"))
for code in json.load(open("blocks.json")):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "program.py", "exec", dont_inherit=True), names)
    print(json.dumps(printed.getvalue()))
"""

pytestmark = pytest.mark.install


@pytest.fixture(scope="module")
def place(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a reader installs besides: a client and an MCP server."""
    place = tmp_path_factory.mktemp("typed")
    install = [scripts / "python", "-m", "pip", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt"]
    run_in([*install, "--target", place / "clients", "openai", "mcp"], place)
    server = place / "my-server"
    python, module = scripts / "python", ROOT / "tests/lang/tools/mcp_server_of_tests.py"
    server.write_text(f'#!/bin/sh\nPYTHONPATH="{place}/clients" exec "{python}" "{module}"\n')
    server.chmod(0o755)
    return place


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@contextmanager
def serving(scripts: Path, place: Path) -> Iterator[str]:
    """Serve until the end of the block; yield the URL."""
    command = [scripts / "ramiform", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        try:
            yield first.rpartition(" ")[2].strip()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(120)
    assert server.returncode == 0


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_print_what_it_says(scripts: Path, place: Path, page: str) -> None:
    """In their order and in one process, as a reader types them."""
    blocks = [(found[1], found[2]) for found in BLOCK.finditer((ROOT / page).read_text("utf-8"))]
    (place / "blocks.json").write_text(json.dumps([code for code, _ in blocks]))
    path = f"{place}:{scripts}:/usr/bin:/bin"
    printed = run_in([scripts / "python", "-c", TYPED], place, PATH=path, PYTHONPATH=str(place / "clients"))
    for line, (code, says) in zip(printed.splitlines(), blocks, strict=True):
        if says is not None:
            assert lines_of(json.loads(line)) == lines_of(says), code


def test_the_programs_of_the_readme_run(scripts: Path, place: Path) -> None:
    program, client = (found[1] for found in BLOCK.finditer(README))
    capital, europe, ada = run_in([scripts / "python", "-c", program], place).splitlines()
    assert (capital.strip(), europe.strip(), json.loads(ada)) == ("Paris", "yes", {"name": "Ada Brown", "age": 36})
    with serving(scripts, place) as url:
        code = client.replace("http://localhost:30000", url)
        assert "Paris" in run_in([scripts / "python", "-c", code], place, PYTHONPATH=str(place / "clients"))
        curls = re.findall(r"^(curl localhost:30000.*?')$", README, re.DOTALL | re.MULTILINE)
        answers = [json.loads(run_in(["sh", "-c", curl.replace("localhost:30000", url)], place)) for curl in curls]
        assert [answer["text"] for answer in answers] == [" Paris", " yes"]
