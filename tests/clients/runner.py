"""Run a client's script in an environment of its own and judge its four outcomes; read and write the page's table."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/use/clients.md"
CACHE = Path(os.environ.get("RAMIFORM_CLIENTS", Path.home() / ".cache" / "ramiform-clients"))
SECONDS = 900
RECEIPT = "7261"  # in the result of every script's tool
STEPS = ("streamed", "called", "structured", "refused")  # the columns of the table
HELD, NONE, CALL_ONLY, FAILED = "✓", "none", "call only", "✗"
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["city", "river"]}, "sure": {"type": "boolean"}},
    "required": ["kind", "sure"],
    "additionalProperties": False,
}
SWITCH: dict[str, Any] = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
    "required": ["on", "room"],
    "additionalProperties": False,
}


class Client(NamedTuple):
    name: str
    language: str  # a table of pins.toml: python, node
    requirements: tuple[str, ...]

    @property
    def version(self) -> str:
        """Return the package and the version that the page names, without extras: `openai 3.57.0`."""
        [(package, version)] = re.findall(r"^(@?[^@=\[]+)(?:\[.*\])?(?:==|@)(.+)$", self.requirements[0])
        return f"{package} {version}"

    @property
    def script(self) -> Path:
        name = self.name.replace("-", "_") + (".mjs" if self.language == "node" else ".py")
        [found] = HERE.glob(f"*/{name}")
        return found


def clients() -> list[Client]:
    pins = tomllib.loads((HERE / "pins.toml").read_text("utf-8"))
    return [Client(name, kind, tuple(wants)) for kind, rows in pins.items() for name, wants in rows.items()]


def environment(client: Client) -> Path:
    """Return the folder with the client's packages; install them unless the same ones are there."""
    place = CACHE / client.name
    stamp, wanted = place / "requirements.txt", "\n".join(client.requirements)
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if client.language == "python":
            _shell(sys.executable, "-m", "venv", "--without-pip", place)
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--python",
                place / "bin/python",
                "--disable-pip-version-check",
                "install",
            ]
            _shell(*pip, "-q", "--no-compile", "--prefer-binary", *client.requirements)
        else:
            npm = ["npm", "install", "--prefix", place, "--ignore-scripts", "--no-audit", "--no-fund"]
            _shell(*npm, "--loglevel=error", *client.requirements)
        stamp.write_text(wanted, "utf-8")
    return place


def outcomes(client: Client, place: Path, node: Callable[[], Path], url: str, model: str) -> dict[str, Any]:
    """Run the client's script in its environment, without the keys, proxies and settings of whoever runs it."""
    home = place / "home"
    home.mkdir(exist_ok=True)
    env = {"RAMIFORM_URL": url, "RAMIFORM_MODEL": model, "HOME": str(home), "NO_PROXY": "*", "PYTHONPATH": str(HERE)}
    if client.language == "python":
        command, path = [place / "bin/python", "-P", client.script], [place / "bin"]
    else:  # from beside its packages: where a module looks for them
        for file in (client.script, *HERE.glob("*.mjs")):
            shutil.copy(file, place)
        command, path = [node(), place / client.script.name], [node().parent, place / "node_modules/.bin"]
    env["PATH"] = os.pathsep.join([*map(str, path), os.environ["PATH"]])
    before = {record["id"] for record in _records(url)}
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=SECONDS)
    print(done.stdout[-6000:], done.stderr[-20000:], sep="\n")  # pytest shows it where the client fails
    try:
        line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))  # clients print too
        came = dict(json.loads(line))
    except (StopIteration, ValueError):
        lines = done.stderr.strip().splitlines() or ["the script printed nothing"]
        return {step: {"raised": lines[-1]} for step in STEPS}
    new = (record["id"] for record in _records(url) if record["id"] not in before)
    match came.get("called"):
        case [_, str()] if not any(RECEIPT in httpx.get(f"{url}/v1/ramiform/programs/{id}").text for id in new):
            came["called"] = {"raised": "the tool's result did not reach the server"}
    return came


def _records(url: str) -> list[dict[str, Any]]:
    """Return what the server remembers of its latest requests."""
    return list(httpx.get(f"{url}/v1/ramiform/programs", params={"limit": 200}).raise_for_status().json()["programs"])


def judge(outcome: dict[str, Any]) -> dict[str, str]:
    """Return the cell of each step: HELD, NONE, CALL_ONLY, or FAILED and why."""
    return {step: _judge(step, outcome.get(step)) for step in STEPS}


def _judge(step: str, came: Any) -> str:
    if came is None:
        return NONE
    if isinstance(came, dict) and "raised" in came:
        return failure(came["raised"])
    if step == "streamed":
        return HELD if len([piece for piece in came if piece]) > 1 else failure(f"came in one piece: {came}")
    if step == "refused":
        return HELD if "no-such-model" in came and "does not exist" in came else failure(f"shown was: {came}")
    found, schema = (came[0], SWITCH) if step == "called" else (came, PLACE)
    try:
        jsonschema.validate(found, schema)
    except jsonschema.ValidationError as error:
        return failure(error.message)
    if step == "called" and came[1] is None:
        return CALL_ONLY
    return HELD if step == "structured" or came[1] else failure("no answer followed the tool's result")


def failure(why: str) -> str:
    line = " ".join(why.split()).replace("|", "/")
    return f"{FAILED} {line if len(line) <= 160 else line[:159] + '…'}"


def marks(cells: list[str]) -> list[str]:
    """Return what the page promises: reasons may be told in other words."""
    return [FAILED if cell.startswith(FAILED) else cell for cell in cells]


def rows() -> dict[str, list[str]]:
    """Return the page's table: for each client its version and its four cells."""
    lines = re.findall(r"^\| (\S+) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in lines if name not in ("client", "---")}


def write_row(client: Client, cells: dict[str, str]) -> None:
    """Put the row into the page's table, in the order of the pins. Told reasons of the same failures are kept."""
    found, new = rows(), list(cells.values())
    old = found.get(client.name, [client.version, *new])[1:]
    kept = [was if marks([was]) == marks([now]) else now for was, now in zip(old, new, strict=True)]
    found[client.name] = [client.version, *kept]
    lines = [" | ".join((f"| {each.name}", *found[each.name])) + " |\n" for each in clients() if each.name in found]
    text = PAGE.read_text("utf-8")
    head, rule, rest = re.split(r"^(\| --- .*\n)", text, maxsplit=1, flags=re.MULTILINE)
    PAGE.write_text(head + rule + "".join(lines) + re.sub(r"\A(\|.*\n)*", "", rest), "utf-8")


def _shell(*command: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-6000:]}"
