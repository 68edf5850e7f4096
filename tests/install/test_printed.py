"""Every block of README, the tutorial and the guide's first pages runs as it is printed, in an environment that has the
wheel, and gives what the page says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from .conftest import ROOT, run_in, serving

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
SCRIPT = """
import ramiform
from ramiform import gen

@ramiform.function
def program(s, country):
    s += f"Question: What is the capital of {country}?\\nAnswer:" + gen("city", max_tokens=8, stop="\\n")

dataset = [{"country": "France"}]
metric = lambda example, state: state["city"] == " Paris"
if __name__ == "__main__":
    program.run("France", temperature=0)
"""
# What stands for the words in capitals, and what the command says; None: it is not run here.
COMMANDS: dict[str, tuple[str, str] | None] = {
    "ramiform run examples/agents/react.py": ("ramiform run examples/agents/react.py", "OUTPUT"),
    "ramiform run examples/agents/react.py --address ipc://…": (
        "ramiform run examples/agents/react.py --address ADDRESS",
        "OUTPUT",
    ),
    "ramiform batch requests.jsonl -o results.jsonl": (
        "ramiform batch requests.jsonl -o results.jsonl",
        "",
    ),
    "ramiform chat": ("ramiform chat", "/help"),
    "ramiform keys FOLDER": ("ramiform keys keys", "server.key"),
    "ramiform plan FOLDER --gpus 8xh100 --itl 30": ("ramiform plan MODEL --gpus 8xh100 --itl 30", "tokens/s"),
    "ramiform grammar check FILE": ("ramiform grammar check schema.json", "enforced"),
    "ramiform trace FILE --summary": ("ramiform trace script.py --summary", "gen"),
    "ramiform eval FILE --html report.html": ("ramiform eval script.py --html report.html", "1 examples"),
    # Needs an extra that this environment lacks: tests/check_logprobs/.
    "ramiform check-logprobs MODEL": None,
    "ramiform info": ("ramiform info", "LlamaForCausalLM"),
    "ramiform bench replay plans.jsonl --eviction lru": (
        "ramiform bench replay plans.jsonl --eviction lru",
        "of those cached",
    ),
    "ramiform serve [MODEL] --port 30000": ("ramiform serve --port 0", "serving"),
    "ramiform serve --bind tcp://0.0.0.0:5555 --keys FOLDER": (
        "ramiform serve --port 0 --bind tcp://127.0.0.1:PORT --keys keys",
        "serving",
    ),
    "ramiform serve MODEL --tp 2 --kv-dtype fp8 --deterministic": (
        "ramiform serve MODEL --port 0 --tp 2 --kv-dtype fp8 --deterministic",
        "serving",
    ),
    # Two machines: tests/parallel/test_nodes.py.
    "ramiform serve MODEL --tp 2 --pp 2 --nnodes 2 --node-rank 0 --master HOST:PORT --node-keys FOLDER": None,
    # Of a clone, not of a wheel: `make release` runs the demo, and the tests are these.
    "make demo": None,
    "make test": None,
}

pytestmark = pytest.mark.install


@pytest.fixture(scope="module")
def place(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands need: examples, and clients that a reader installs besides, in `clients`."""
    place = tmp_path_factory.mktemp("typed")
    shutil.copytree(ROOT / "examples/agents", place / "examples/agents")
    (place / "script.py").write_text(SCRIPT)
    body = {"prompt": "Question: What is the capital of France?\nAnswer:", "max_tokens": 8, "temperature": 0}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (place / "requests.jsonl").write_text(json.dumps(request))
    (place / "schema.json").write_text('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    install = [scripts / "python", "-m", "pip", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt"]
    run_in([*install, "--target", place / "clients", "openai", "mcp"], place)
    server = place / "my-server"
    python, module = scripts / "python", ROOT / "tests/lang/tools/mcp_server_of_tests.py"
    server.write_text(f'#!/bin/sh\nPYTHONPATH="{place}/clients" exec "{python}" "{module}"\n')
    server.chmod(0o755)
    return place


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def without_figures(text: str) -> list[str]:
    return [line for line in lines_of(text) if "prompt tokens from the cache" not in line]


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


@pytest.mark.timeout(1150)  # the first to ask for loops waits for them
@pytest.mark.usefixtures("compiled")
def test_the_programs_of_the_readme_run(scripts: Path, place: Path) -> None:
    program, client = (found[1] for found in BLOCK.finditer(README))
    capital, europe, ada = run_in([scripts / "python", "-c", program], place).splitlines()
    assert (capital.strip(), europe.strip(), json.loads(ada)) == ("Paris", "yes", {"name": "Ada Brown", "age": 36})
    with serving(scripts, place, ["ramiform", "serve", "--port", "0"]) as (url, _):
        code = client.replace("http://localhost:30000", url)
        assert "Paris" in run_in([scripts / "python", "-c", code], place, PYTHONPATH=str(place / "clients"))


def readme_commands() -> list[str]:
    blocks = re.findall(r"^```\n((?:make|ramiform) .*?)^```$", README, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^(?:make|ramiform) .*$", "".join(blocks), re.MULTILINE)
    return [re.split(r"\s+#", line)[0] for line in lines]


def test_every_command_of_the_readme_is_known_here() -> None:
    assert set(readme_commands()) == set(COMMANDS)


@pytest.mark.timeout(1150)
@pytest.mark.usefixtures("compiled")
def test_the_commands_of_the_readme_say_what_they_should(scripts: Path, place: Path) -> None:
    model = run_in([scripts / "python", "-c", "import ramiform; print(ramiform.__path__[0])"], place).strip()
    run_in([scripts / "ramiform", "run", "script.py", "--log-plans", "plans.jsonl"], place)
    react = (ROOT / "examples/agents/outputs/react.txt").read_text("utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with serving(scripts, place, ["ramiform", "serve", "--port", "0"]) as (url, address):
        curls = re.findall(r"^(curl localhost:30000.*?')$", README, re.DOTALL | re.MULTILINE)
        answers = [json.loads(run_in(["sh", "-c", curl.replace("localhost:30000", url)], place)) for curl in curls]
        assert [answer["text"] for answer in answers] == [" Paris", " yes"]
        words = {"MODEL": f"{model}/runtime/shipped_model", "ADDRESS": address, "PORT": port}
        for typed in readme_commands():
            if (known := COMMANDS[typed]) is None:
                continue
            command, says = known
            for word, meaning in words.items():
                command = command.replace(word, meaning)
            program, *arguments = shlex.split(command)
            if says == "serving":
                with serving(scripts, place, [program, *arguments]) as (other, _):
                    assert other.startswith("http://"), typed
                continue
            text = run_in([scripts / program, *arguments], place, "/help\n" if typed == "ramiform chat" else "")
            if says == "OUTPUT":
                assert without_figures(text) == without_figures(react)
            else:
                assert says in text, (typed, text)
    [result] = (place / "results.jsonl").read_text().splitlines()
    assert json.loads(result)["response"]["body"]["choices"][0]["text"].strip() == "Paris"
