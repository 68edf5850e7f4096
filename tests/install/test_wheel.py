"""A wheel, installed in a clean environment with its own dependencies alone, runs a script and serves."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import run_in, serving

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

pytestmark = pytest.mark.install


def test_an_installed_wheel_runs_a_script(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    module, city = run_in([scripts / "ramiform", "run", "script.py"], tmp_path).splitlines()
    assert Path(module).is_relative_to(scripts.parent)
    assert city.strip() == "Paris"


@pytest.fixture(scope="module")
def url(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the installed wheel."""
    with serving(scripts, tmp_path_factory.mktemp("served"), ["ramiform", "serve", "--port", "0"]) as (url, _):
        yield url


def test_an_installed_wheel_has_the_page(url: str) -> None:
    for path, kind in (("/", "text/html"), ("/page/app.js", "text/javascript"), ("/page/style.css", "text/css")):
        asked = urllib.request.Request(url + path, headers={"accept": "text/html,*/*;q=0.8"})
        with urllib.request.urlopen(asked, timeout=120) as response:
            assert response.headers["content-type"].startswith(kind)
            assert len(response.read()) > 100


def test_an_installed_wheel_serves(url: str) -> None:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=120) as response:
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
    with urllib.request.urlopen(request, timeout=120) as response:
        assert json.load(response)["choices"][0]["text"].strip() == "Paris"
