"""`ramiform serve` as its users run it: shutdown, limits, and addresses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.tests.processes.processes import children

from .scrape import scrape
from .servers import RAMIFORM, serving

LONG = {"max_new_tokens": 400, "ignore_eos": True, "temperature": 1.0}
ENDLESS = LONG | {"max_new_tokens": 2000, "n": 64}  # for longer than who asked may stand still


@pytest.mark.exhaustive
def test_what_runs_ends_before_a_terminated_server_does() -> None:
    with serving() as server, httpx.Client(base_url=server.url, timeout=120) as client:
        body = {"text": "Tell me", "sampling_params": LONG, "stream": True}
        with client.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            refused = threading.Event()
            port = httpx.URL(server.url).port
            while not refused.is_set():  # soon nobody new is accepted, while the stream goes on
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=120).close()
                except ConnectionRefusedError:
                    refused.set()
                except ConnectionResetError:
                    continue  # it came while the door was closing
            values = [line.removeprefix("data: ") for line in lines if line]
        assert values[-1] == "[DONE]"
        assert json.loads(values[-2])["meta_info"]["completion_tokens"] == LONG["max_new_tokens"]
        assert server.end() == (0, "")


@pytest.mark.exhaustive
def test_a_program_ends_before_a_terminated_server_does() -> None:
    with serving() as server, ramiform.RuntimeEndpoint(server.address) as backend:

        @ramiform.function
        def twice(s: ramiform.ProgramState) -> None:
            s += "Tell" + ramiform.gen("a", max_tokens=200, ignore_eos=True)
            s += ramiform.gen("b", max_tokens=200, ignore_eos=True)

        state = twice.run(backend=backend, stream=True)
        next(state.text_iter("a"))
        server.process.send_signal(signal.SIGTERM)
        assert state["b"]
        assert server.end()[0] == 0


@pytest.mark.exhaustive
def test_what_takes_longer_than_the_time_to_drain_is_told_so_and_the_server_ends_well() -> None:
    with serving("--drain-seconds", "0.2") as server, httpx.Client(base_url=server.url, timeout=120) as client:
        body = {"text": "Tell me", "sampling_params": ENDLESS, "stream": True}
        with client.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            values = [line.removeprefix("data: ") for line in lines if line]
        assert values[-1] == "[DONE]"
        assert "shut down" in json.loads(values[-2])["error"]["message"]
        assert server.end()[0] == 0


@pytest.mark.exhaustive
def test_a_second_signal_does_not_wait() -> None:
    with serving("--drain-seconds", "600") as server, httpx.Client(base_url=server.url, timeout=120) as client:
        body = {"text": "Tell me", "sampling_params": ENDLESS, "stream": True}
        with client.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()  # kept: httpx hangs up when it is collected
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGINT)
            assert server.end()[0] == 0


@pytest.mark.exhaustive
def test_too_many_waiting_requests_are_told_when_to_come_back() -> None:
    with (
        serving("--max-running", "1", "--max-waiting", "1") as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
        httpx.Client(base_url=server.url, timeout=120) as other,
    ):
        body = {"text": "x", "sampling_params": LONG, "stream": True}
        with (
            client.stream("POST", "/generate", json=body) as first,
            client.stream("POST", "/generate", json=body | {"sampling_params": LONG | {"n": 4}}) as refused,
        ):
            assert first.status_code == 200
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert json.loads(refused.read())["error"]["type"] == "rate_limit_error"
        assert scrape(other)("ramiform_http_errors_total", status="429", route="/generate") == 1


@pytest.mark.exhaustive
def test_a_key_has_its_limits_and_others_have_theirs() -> None:
    options = ("--api-key", "anna,bert", "--max-requests-per-key", "1", "--requests-per-minute-per-key", "2")
    with serving(*options) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        [core] = children(server.pid)
        anna, bert = ({"authorization": f"Bearer {name}"} for name in ("anna", "bert"))
        short = {"text": "x", "sampling_params": {"max_new_tokens": 1}}
        stream = {"text": "x", "sampling_params": LONG | {"max_new_tokens": 1900}, "stream": True}
        with client.stream("POST", "/generate", json=stream, headers=anna) as running:
            assert running.headers["x-ratelimit-remaining-requests"] == "1"
            os.kill(core, signal.SIGSTOP)  # so that it surely runs
            at_once = client.post("/generate", json=short, headers=anna)
            os.kill(core, signal.SIGCONT)
            assert (at_once.status_code, at_once.json()["error"]["code"]) == (429, "too_many_requests")
            assert client.post("/generate", json=short, headers=bert).status_code == 200
            running.read()
        answers = [client.post("/generate", json=short, headers=anna) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
        assert client.get("/v1/models", headers=anna).status_code == 200  # looking is free
        assert client.post("/generate", json=short).status_code == 401
        assert scrape(client, headers=bert)("ramiform_http_errors_total", status="429") == 2


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.mark.exhaustive
def test_https_is_spoken_with_a_certificate(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with serving("--ssl-certfile", str(cert), "--ssl-keyfile", str(key)) as server:
        assert server.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=server.url, verify=trusted, timeout=120) as client:
            assert client.post("/generate", json={"text": "x"}).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http") + "/health", timeout=120)


@pytest.mark.exhaustive
def test_a_certificate_that_is_none_is_one_line(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")
    for options in (["--ssl-certfile", str(tmp_path / "cert.pem")], ["--ssl-keyfile", str(certificate[1])]):
        command = [RAMIFORM, "serve", "--port", "0", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert "cert" in line


@pytest.mark.exhaustive
@pytest.mark.parametrize("frontends", ["1", "2"])
def test_why_the_core_refuses_a_model_is_told(tmp_path: Path, frontends: str) -> None:
    model = shutil.copytree(SHIPPED_MODEL, tmp_path / "model")
    os.truncate(model / "model.safetensors", 100_000)
    command = [RAMIFORM, "serve", str(model), "--port", "0", "--frontends", frontends]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "model.safetensors: corrupt or truncated" in done.stderr.splitlines()[-1]


@pytest.mark.exhaustive
def test_http_is_answered_at_a_unix_socket_whose_file_goes_with_the_server(tmp_path: Path) -> None:
    path = Path("/tmp") / f"ramiform-test-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:  # by a server that was killed
        left_behind.bind(str(path))
    with serving("--uds", str(path)) as server:
        assert server.url == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", timeout=120) as client:
            assert client.post("/generate", json={"text": "x"}).status_code == 200
        second = subprocess.run([RAMIFORM, "serve", "--uds", str(path)], capture_output=True, text=True, timeout=120)
        assert second.returncode == 1
        assert str(path) in second.stderr
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (0, "")
    assert not path.exists()


@pytest.mark.exhaustive
def test_a_killed_server_leaves_no_process_behind() -> None:
    with serving("--frontends", "2") as server:
        descriptors = [os.pidfd_open(pid) for pid in children(server.pid)]
        assert len(descriptors) == 2
        server.process.kill()
        import select

        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 120)[0]
            os.close(descriptor)
