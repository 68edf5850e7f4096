"""Models of the Hugging Face Hub, from a server of our own at HF_ENDPOINT that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL, served_name
from ramiform.runtime.models.hub import HubModel, HubOrigin, hub_origin, local_model, parse_hub_id

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
FILES = {path.name: path.read_bytes() for path in SHIPPED_MODEL.iterdir() if path.is_file()}
REPOSITORIES: dict[str, dict[str, bytes]] = {
    "org/tiny": {**FILES, "evil.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "onnx/config.json": b"{}"},
    "org/quants": {
        "tiny-Q4_K_M.gguf": b"4",
        "sub/tiny.Q8_0.gguf": b"8",
        "big-Q6_K-00001-of-00002.gguf": b"1",
        "big-Q6_K-00002-of-00002.gguf": b"2",
        "half-Q5_K-00001-of-00002.gguf": b"1",
        "one-F16.gguf": b"1",
        "two-F16.gguf": b"2",
    },
    "org/pickles": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
}


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str]

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.asked.append(path)
        parts = path.strip("/").split("/")
        listing = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if listing else parts[:2])
        if name == "org/gated":
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if name not in REPOSITORIES:
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        revision = next((part for part in parts[4 if listing else 3 :][:2] if part not in ("revision", "tree")), "main")
        commit = COMMITS.get(revision, revision)
        if commit not in COMMITS.values():
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = REPOSITORIES[name]
        if listing and "tree" in parts:
            tree = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in files.items()
            ]
            return self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        if listing:
            siblings = [{"rfilename": file} for file in files]
            body = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
            return self._send(200, body, {"Content-Type": "application/json"})
        data = files["/".join(parts[4:])]
        self._send(200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit})

    do_HEAD = do_GET

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


Fetch = Callable[..., str]


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def environment(tmp_path: Path, asked: list[str]) -> Iterator[dict[str, str]]:
    """The environment of a process whose hub is ours and whose cache is empty. The library reads it when imported."""
    handler = type("Handler", (Hub,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        yield others | {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home")}
        server.shutdown()
        thread.join()


@pytest.fixture
def fetch(environment: dict[str, str]) -> Fetch:
    def run(model: str, **more: str) -> str:
        code = (
            "import sys\nfrom ramiform import RequestError\nfrom ramiform.runtime.models.hub import local_model\n"
            "try:\n    print(local_model(sys.argv[1]))\nexcept RequestError as error:\n    print(error.param, error)\n"
            "assert 'torch' not in sys.modules\n"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, model],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr  # progress is for terminals
        return done.stdout.strip()

    return run


@pytest.mark.exhaustive
def test_a_checkpoint_is_fetched_once_and_found_offline(fetch: Fetch, asked: list[str]) -> None:
    folder = Path(fetch("org/tiny"))
    assert {path.name for path in folder.iterdir()} == {
        name for name in FILES if name.endswith((".json", ".safetensors", ".jinja", ".model"))
    }
    assert all((folder / path.name).read_bytes() == FILES[path.name] for path in folder.iterdir())
    assert hub_origin(folder) == HubOrigin("org/tiny", COMMITS["main"])
    assert served_name(str(folder), None) == "org/tiny"
    asked.clear()
    assert Path(fetch("org/tiny", HF_HUB_OFFLINE="1")) == folder
    assert not asked
    assert Path(fetch("org/tiny", HF_ENDPOINT="http://127.0.0.1:9")) == folder
    assert hub_origin(Path(fetch("org/tiny@v1"))) == HubOrigin("org/tiny", COMMITS["v1"])


@pytest.mark.exhaustive
def test_a_gguf_file_is_chosen_by_its_quantisation(fetch: Fetch) -> None:
    path = Path(fetch("org/quants:q4_k_m"))
    assert path.name == "tiny-Q4_K_M.gguf"
    assert path.read_bytes() == b"4"
    assert [each.name for each in path.parent.rglob("*.gguf")] == [path.name]
    assert Path(fetch("org/quants:Q8_0")).read_bytes() == b"8"
    assert Path(fetch("org/quants:Q4_K_M", HF_HUB_OFFLINE="1")) == path


@pytest.mark.exhaustive
def test_a_gguf_file_in_parts_is_fetched_whole(fetch: Fetch) -> None:
    path = Path(fetch("org/quants:Q6_K"))
    assert path.name == "big-Q6_K-00001-of-00002.gguf"
    assert [each.read_bytes() for each in sorted(path.parent.iterdir())] == [b"1", b"2"]
    assert Path(fetch("org/quants:Q6_K", HF_HUB_OFFLINE="1")) == path
    assert served_name(str(path), None) == "org/quants"


@pytest.mark.exhaustive
def test_commands_read_models_of_the_hub(environment: dict[str, str], asked: list[str], tmp_path: Path) -> None:
    def ramiform(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "ramiform"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    planned = ramiform("plan", "org/tiny")
    assert planned.returncode == 0, planned.stderr
    assert not any(path.endswith(".safetensors") for path in asked)  # a plan needs no weights
    text = tmp_path / "text.txt"
    text.write_text("One, two, three. " * 40)
    refused = ramiform("calibrate-kv", "org/tiny", "--data", str(text))
    assert refused.returncode == 1
    assert "--out" in refused.stderr
    assert not list((tmp_path / "home").rglob("kv_scales.json"))
    written = ramiform("quantize", "org/tiny", "--method", "int8", "--out", str(tmp_path / "int8"))
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "int8" / "config.json").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("org/unknown", {}, "no such path, and no such repository at http://127.0.0.1"),
        ("org/gated", {}, "org/gated is gated: accept its terms there, and set HF_TOKEN"),
        ("org/tiny@v9", {}, "org/tiny has no revision 'v9'"),
        ("org/tiny", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set, and"),
        ("org/tiny", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "http://127.0.0.1:9 cannot be reached"),
        ("org/quants:Q2_K", {}, "no GGUF file of 'Q2_K'; there are F16, Q4_K_M, Q5_K, Q6_K, Q8_0"),
        ("org/quants:F16", {}, "several GGUF files are F16: one-F16.gguf, two-F16.gguf"),
        ("org/quants:Q5_K", {}, "the repository lacks half-Q5_K-00002-of-00002.gguf"),
        ("org/quants", {}, "name one, as org/quants:NAME of F16, Q4_K_M, Q5_K, Q6_K, Q8_0"),
        ("org/pickles", {}, "no safetensors and no GGUF files"),
    ],
)
def test_what_the_hub_does_not_give_is_an_error_of_one_line(
    fetch: Fetch, model: str, more: dict[str, str], message: str
) -> None:
    answer = fetch(model, **more)
    assert answer.startswith(f"model no model at {model!r}: ")
    assert message in answer
    assert "\n" not in answer


@pytest.mark.exhaustive
def test_ids_are_told_from_paths(tmp_path: Path) -> None:
    assert parse_hub_id("org/name") == HubModel("org/name")
    assert parse_hub_id("org/name-1.5@v1:Q4_K_M") == HubModel("org/name-1.5", "v1", "Q4_K_M")
    assert parse_hub_id("org/name@refs/pr/1") == HubModel("org/name", "refs/pr/1")
    for path in ("/org/name", "./org/name", "../name", "name", "a/b/c", "~/name", "org/name:", "org/na me"):
        assert parse_hub_id(path) is None
    assert hub_origin(tmp_path) is None


@pytest.mark.exhaustive
def test_the_command_serves_an_id(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ramiform\nruntime = ramiform.Runtime('org/tiny@v1')\n"
        "print(runtime.info.name, runtime.info.revision)\nruntime.shutdown()\n"
    )
    done = subprocess.run([sys.executable, "-P", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["org/tiny", COMMITS["v1"]], done.stderr
    command = [str(Path(sys.executable).parent / "ramiform"), "info", "org/none"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "no such repository" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_local_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_model("org/tiny") == "org/tiny"
    assert local_model(None) is None
