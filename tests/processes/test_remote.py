"""Programs over TCP: those with the right keys are served as locally, all others get an error quickly."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq.auth

import ramiform
from ramiform import gen
from ramiform.lang.backends.backend import RuntimeEndpoint
from ramiform.runtime.protocol import transport
from ramiform.runtime.protocol.keys import make_keys

SOON = 60.0  # seconds; far more than it takes


@ramiform.function
def ask(s: ramiform.ProgramState) -> None:
    s += "Question: What is the capital of France?\nAnswer:" + gen("answer", max_tokens=8, temperature=0)


@ramiform.function
def endless(s: ramiform.ProgramState) -> None:
    s += "Question: What is the capital of France?\nAnswer:" + gen("began", max_tokens=1)
    while True:  # however fast the runtime is
        [branch] = s.fork(1)
        branch += gen("answer", max_tokens=1500, ignore_eos=True)
        branch["answer"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder)
    return folder


@pytest.fixture(scope="module")
def remote(keys: Path) -> Iterator[str]:
    """The address of a runtime that serves programs at TCP."""
    with ramiform.Runtime(bind="tcp://127.0.0.1:0", keys=str(keys), num_pages=512, log_level="error") as runtime:
        assert runtime.tcp_address is not None
        yield runtime.tcp_address


def on_another_machine(keys: Path, folder: Path, name: str = "client") -> Path:
    """The keys of a program on another machine: the runtime's public key and its own secret key."""
    folder.mkdir()
    for file in ("server.key", f"{name}.key_secret"):
        copy = folder / file
        copy.write_bytes((keys / file).read_bytes())
        copy.chmod(0o600)
    return folder


@pytest.mark.exhaustive
def test_a_program_runs_as_at_home(remote: str, keys: Path, tmp_path: Path) -> None:
    here = on_another_machine(keys, tmp_path / "there")
    with RuntimeEndpoint(remote, here) as first, RuntimeEndpoint(remote, here) as second:
        states = [ask.run(backend=backend) for backend in (first, second, first)]
        assert all("Paris" in state["answer"] for state in states)
        batch = ask.run_batch([{}] * 20, backend=second)
        assert {state["answer"] for state in batch} == {states[0]["answer"]}


@pytest.mark.exhaustive
def test_a_program_of_another_name_is_let_in_by_a_runtime_that_knows_it(keys: Path, tmp_path: Path) -> None:
    make_keys(keys, "anna")
    here = on_another_machine(keys, tmp_path / "there", "anna")
    with ramiform.Runtime(bind="tcp://127.0.0.1:0", keys=str(keys), num_pages=256, log_level="error") as runtime:
        assert runtime.tcp_address is not None
        with RuntimeEndpoint(runtime.tcp_address, here) as backend:
            assert "Paris" in ask.run(backend=backend)["answer"]


@pytest.mark.exhaustive
def test_a_program_whose_key_is_unknown_is_told_so(remote: str, keys: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir(mode=0o700)
    zmq.auth.create_certificates(stranger, "client")
    (stranger / "client.key_secret").chmod(0o600)
    (stranger / "server.key").write_bytes((keys / "server.key").read_bytes())
    with pytest.raises(ramiform.RamiformError, match="does not know this client's key"):
        ask.run(backend=RuntimeEndpoint(remote, stranger)).text()


def test_a_runtime_that_has_another_key_than_it_should_is_not_trusted(remote: str, tmp_path: Path) -> None:
    make_keys(tmp_path / "other")
    here = on_another_machine(tmp_path / "other", tmp_path / "there")
    with pytest.raises(
        ramiform.RamiformError, match=r"not the runtime whose key is in server\.key|does not speak the protocol"
    ):
        ask.run(backend=RuntimeEndpoint(remote, here)).text()


@pytest.mark.slow
def test_something_that_listens_and_says_nothing_is_given_up(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE_TIMEOUT_MS", 500)
    here = on_another_machine(keys, tmp_path / "there")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ramiform.RamiformError, match="tcp:"):
        ask.run(backend=RuntimeEndpoint(f"tcp://127.0.0.1:{server.getsockname()[1]}", here)).text()


def test_garbage_at_the_port_harms_no_program(remote: str, keys: Path, tmp_path: Path) -> None:
    host, port = remote.removeprefix("tcp://").split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(garbage)
    with RuntimeEndpoint(remote, on_another_machine(keys, tmp_path / "there")) as backend:
        assert "Paris" in ask.run(backend=backend)["answer"]


@pytest.mark.exhaustive
def test_programs_hear_of_the_end_of_a_runtime_that_is_killed(keys: Path, tmp_path: Path) -> None:
    here = on_another_machine(keys, tmp_path / "there")
    runtime = ramiform.Runtime(bind="tcp://127.0.0.1:0", keys=str(keys), num_pages=2048, log_level="error")
    assert runtime.tcp_address is not None
    failed: list[ramiform.ProgramState] = []
    backend = RuntimeEndpoint(runtime.tcp_address, here)
    states = [endless.run(backend=backend, stream=True) for _ in range(16)]
    states[0]["began"]

    def wait(state: ramiform.ProgramState) -> None:
        with pytest.raises(ramiform.RamiformError, match=r"test_remote\.py"):
            state.text()
        failed.append(state)

    threads = [threading.Thread(target=wait, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    os.kill(runtime.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(SOON)
    assert len(failed) == len(states)
    backend.close()
    runtime.shutdown()


def test_no_network_without_keys(remote: str, tmp_path: Path) -> None:
    with pytest.raises(ramiform.RequestError, match="needs keys"):
        ask.run(backend=RuntimeEndpoint(remote)).text()
    with pytest.raises(ramiform.RequestError, match="ramiform keys"):
        ramiform.Runtime(bind="tcp://127.0.0.1:0")
    with pytest.raises(ramiform.RequestError, match="no key can be read"):
        ramiform.Runtime(bind="tcp://127.0.0.1:0", keys=str(tmp_path))


@pytest.mark.parametrize(
    "bind", ["127.0.0.1:5", "ipc:///tmp/x", "tcp://:5", "tcp://127.0.0.1", "tcp://127.0.0.1:99999"]
)
def test_an_address_that_is_none_is_refused_before_anything_starts(bind: str, keys: Path) -> None:
    with pytest.raises(ramiform.RequestError, match=r"tcp://HOST:PORT"):
        ramiform.Runtime(bind=bind, keys=str(keys))


@pytest.mark.exhaustive
def test_an_address_that_is_taken_is_an_error_at_the_start(keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        bind = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ramiform.RamiformError, match="in use"):
            ramiform.Runtime(bind=bind, keys=str(keys), num_pages=64)


def test_secret_keys_are_their_owner_s_alone(tmp_path: Path) -> None:
    files = make_keys(tmp_path / "keys")
    modes = {file.name: file.stat().st_mode & 0o777 for file in files}
    assert modes["server.key_secret"] == modes["client.key_secret"] == 0o600
    (tmp_path / "keys" / "server.key_secret").chmod(0o644)
    with pytest.raises(ramiform.RequestError, match="read by others"):
        ramiform.Runtime(bind="tcp://127.0.0.1:0", keys=str(tmp_path / "keys"))


def test_keys_are_never_written_over(tmp_path: Path) -> None:
    make_keys(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ramiform.RequestError, match="already"):
        make_keys(tmp_path)
    make_keys(tmp_path, "anna")
    assert before.items() <= {file.name: file.read_bytes() for file in tmp_path.iterdir()}.items()
    for name in ("server", "../x", ""):
        with pytest.raises(ramiform.RequestError, match="name"):
            make_keys(tmp_path, name)
