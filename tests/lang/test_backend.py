"""Choice of the backend: the argument, the default, the environment, or a clear error."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

import ramiform
from ramiform import RamiformError, RequestError, RuntimeEndpoint, RuntimeFailed, gen


@ramiform.function
def program(s: ramiform.ProgramState) -> None:
    s += "a" + gen("x")


@pytest.fixture(autouse=True)
def _no_default(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("RAMIFORM_ADDRESS", raising=False)
    yield
    ramiform.set_default_backend(None)


def test_without_a_backend_the_error_names_the_remedies() -> None:
    with pytest.raises(RamiformError, match=r"ramiform\.set_default_backend\(ramiform\.Runtime\(\)\)"):
        program.run()


def test_a_backend_given_to_run_wins_over_the_default(start_frontend: Any) -> None:
    default, given = start_frontend(), start_frontend()
    default.script = lambda text, operation: "default"
    given.script = lambda text, operation: "given"
    with RuntimeEndpoint(default.address) as first, RuntimeEndpoint(given.address) as second:
        ramiform.set_default_backend(first)
        assert program.run()["x"] == "default"
        assert program.run(backend=second)["x"] == "given"
        assert program.run_batch([{}], backend=second)[0]["x"] == "given"


def test_the_environment_names_a_running_runtime(frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFORM_ADDRESS", frontend.address)
    before = threading.active_count()
    assert program.run()["x"] == "<1>"
    assert program.run()["x"] == "<1>"
    assert threading.active_count() == before + 1
    from ramiform.lang.backends.backend import _default_backend

    _default_backend().close()  # type: ignore[attr-defined]


def test_programs_of_a_process_share_one_connection(frontend: Any) -> None:
    from ramiform.runtime.protocol import session

    with RuntimeEndpoint(frontend.address) as endpoint:
        for _ in range(3):
            program.run(backend=endpoint)
        assert endpoint.connection() is endpoint.connection()
        assert len(frontend.messages(session.Hello)) == 1


def test_an_address_without_a_runtime_is_an_error(frontend: Any) -> None:
    with pytest.raises(RuntimeFailed, match="no runtime listens at"):
        program.run(backend=RuntimeEndpoint(frontend.address + "-nobody"))


@pytest.mark.parametrize("backend", ["ipc:///tmp/x", 3, object()])
def test_an_object_without_connection_is_refused_as_a_backend(backend: Any) -> None:
    with pytest.raises(RequestError, match="is not a backend"):
        ramiform.set_default_backend(backend)
    with pytest.raises(RequestError, match="is not a backend"):
        program.run(backend=backend)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError, match="is not an address"):
        RuntimeEndpoint("localhost:30000")


def test_the_server_s_facts_and_its_cache(frontend: Any) -> None:
    with RuntimeEndpoint(frontend.address) as endpoint:
        facts = ramiform.get_server_info(endpoint)
        assert (facts["name"], facts["num_running"]) == ("fake", 0)
        ramiform.set_default_backend(endpoint)
        ramiform.flush_cache()


@pytest.mark.slow
def test_importing_is_light() -> None:
    """The client needs no torch and no web server; the language alone not even a socket."""
    code = (
        "import sys, ramiform\n"
        "heavy = {'torch', 'triton', 'fastapi', 'uvicorn', 'transformers', 'pydantic', 'numpy', 'zmq', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import ramiform.runtime.protocol.client\n"
        "print(sorted((heavy - {'zmq', 'asyncio'}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_every_public_name_is_there() -> None:
    for name in ramiform.__all__:
        assert getattr(ramiform, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        ramiform.nope  # noqa: B018


@pytest.mark.slow
def test_a_script_that_ends_without_closing_anything_ends(frontend: Any) -> None:
    from ramiform.runtime.protocol import session

    code = (
        "import ramiform\n"
        "@ramiform.function\n"
        "def program(s):\n"
        "    s += 'a' + ramiform.gen('x')\n"
        "state = program.run()\n"
        "print(state['x'])\n"
    )
    environment = {"RAMIFORM_ADDRESS": frontend.address}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert (done.stdout, done.stderr, done.returncode) == ("<1>\n", "", 0)
    frontend.wait_until(lambda: frontend.messages(session.Bye))
