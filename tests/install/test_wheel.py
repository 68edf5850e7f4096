"""A wheel, installed in a clean environment with its own dependencies alone, runs a script and serves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import ramiform
from ramiform import gen, select

@ramiform.function
def capital(s):
    s += "Question: What is the capital of France?\\nAnswer:" + gen("city", stop="\\n", temperature=0)
    s += "\\nQuestion: Is it a city?\\nAnswer:" + select("sure", [" yes", " no"])

state = capital.run()
assert state["sure"] in (" yes", " no")
print(ramiform.__file__, state["city"], sep="\\n")
"""

SNIPPETS = """
import contextlib, io, json, ramiform
names = {"__name__": "__main__"}
ramiform.set_default_backend(ramiform.Runtime(dtype="float32"))
for code in json.load(open("snippets.json")):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "program.py", "exec", dont_inherit=True), names)
    print(json.dumps(printed.getvalue()))
"""

pytestmark = pytest.mark.install


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment into which the wheel was installed."""
    place = tmp_path_factory.mktemp("installed")
    wheels = place / "wheels"
    _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, ROOT], place)
    venv.create(place / "env", with_pip=True)
    [wheel] = wheels.glob("ramiform-*.whl")
    installed = place / "env" / "bin"
    # Without compiling the modules of all dependencies, of which a start imports a part.
    install = [installed / "python", "-m", "pip", "install", "-q", "--no-compile"]
    _run([*install, "-c", ROOT / "constraints.txt", wheel], place)
    _run([installed / "python", "-m", "pip", "check"], place)
    return installed


def _run(command: list[Path | str], place: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_an_installed_wheel_runs_a_script(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    module, city = _run([scripts / "ramiform", "run", "script.py"], tmp_path).splitlines()
    assert Path(module).is_relative_to(scripts.parent)
    assert city.strip() == "Paris"


def test_the_first_pages_print_what_they_say(scripts: Path, tmp_path: Path) -> None:
    """README's program, and the tutorial's in their order, which a reader types into one file or another."""
    [program, *_] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    capital, europe, ada = _run([scripts / "python", "-c", program], tmp_path).splitlines()
    assert (capital.strip(), europe.strip(), json.loads(ada)) == ("Paris", "yes", {"name": "Ada Brown", "age": 36})

    tutorial = (ROOT / "docs/learn/tutorial.md").read_text()
    pairs = re.findall(r"^```python\n(.*?)^```$\n+^```text\n(.*?)^```$", tutorial, re.DOTALL | re.MULTILINE)
    (tmp_path / "snippets.json").write_text(json.dumps([code for code, _ in pairs]))
    printed = _run([scripts / "python", "-c", SNIPPETS], tmp_path).splitlines()
    for line, (code, says) in zip(printed, pairs, strict=True):
        shown, said = ([row.rstrip() for row in text.rstrip().splitlines()] for text in (json.loads(line), says))
        assert shown == said, code


@pytest.fixture
def url(scripts: Path, tmp_path: Path) -> Iterator[str]:
    """A server of the installed wheel."""
    with subprocess.Popen(
        [scripts / "ramiform", "serve", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        try:
            yield first.rpartition(" ")[2].strip()
        finally:
            server.terminate()


def test_an_installed_wheel_has_the_page(url: str) -> None:
    for path, kind in (("/", "text/html"), ("/page/app.js", "text/javascript"), ("/page/style.css", "text/css")):
        asked = urllib.request.Request(url + path, headers={"accept": "text/html,*/*;q=0.8"})
        with urllib.request.urlopen(asked) as response:
            assert response.headers["content-type"].startswith(kind)
            assert len(response.read()) > 100


def test_an_installed_wheel_serves(url: str) -> None:
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    body = {
        "model": model,
        "prompt": "Question: What is the capital of France?\nAnswer:",
        "temperature": 0,
        "stop": "\n",
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["choices"][0]["text"].strip() == "Paris"
