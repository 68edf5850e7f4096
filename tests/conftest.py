"""What many tests share: one real runtime on the model that ships, started once per test process."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    # Each worker has a core: threads of a step that wait for each other on a busy machine cost more than they save.
    os.environ["OMP_NUM_THREADS"] = "1"  # of the runtimes that tests start
    torch.set_num_threads(1)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # chosen when Triton is first imported, which other libraries may do

import ramiform

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts jobs in the background: children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, however slow the machine; HYPOTHESIS_PROFILE=explore looks for new ones.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", unhurried, derandomize=True)
settings.register_profile("explore", unhurried)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which would walk what they are made of and free nothing of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what asks a started runtime or a browser: the first test of a process pays for its start."""
    for item in items:
        if {"runtime", "browser"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Spare each later collection of garbage the walk over all tests and their modules, a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def runtime() -> Iterator[ramiform.Runtime]:
    """A runtime with HTTP, float32, and few enough pages that tests can fill them."""
    with ramiform.Runtime(port=0, dtype="float32", num_pages=2048, log_level="error") as started:
        yield started


@pytest.fixture(scope="session")
def url(runtime: ramiform.Runtime) -> str:
    assert runtime.url is not None
    return runtime.url


@pytest.fixture
def backend(runtime: ramiform.Runtime) -> Iterator[ramiform.Runtime]:
    """The runtime as the default backend of programs, for one test."""
    ramiform.set_default_backend(runtime)
    yield runtime
    ramiform.set_default_backend(None)


@pytest.fixture(scope="session")
def node() -> Path:
    """Return a Node that is new enough for tests/serving/node: that of its package.json, if there is one."""
    packages = Path(__file__).parent / "serving/node/node_modules"
    if not (packages / "openai").exists():
        pytest.skip("needs npm: `make test` installs tests/serving/node where there is one")
    for found in packages.glob("node-*/bin/node"):
        return found
    ours = shutil.which("node")
    if ours is None or int(subprocess.check_output([ours, "--version"], text=True)[1:].split(".")[0]) < 22:
        pytest.skip("needs Node 22")
    return Path(ours)
