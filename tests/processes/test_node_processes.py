"""A runtime whose ranks are on several machines, here all on this one. Judge: the runtime of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform.runtime.protocol.keys import make_keys

from .processes import SOON, all_children, children, endless, free_port, wait_until_dead
from .questions import CHECKED, QUESTIONS, ask

RAMIFORM = str(Path(sys.executable).parent / "ramiform")


@pytest.fixture
def meeting(tmp_path: Path) -> dict[str, Any]:
    """Settings that all nodes share."""
    make_keys(tmp_path / "keys", "node")
    return {"nnodes": 2, "master": f"127.0.0.1:{free_port()}", "node_keys": str(tmp_path / "keys")}


@contextmanager
def other_node(settings: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """The second node: it is there before the first, and waits for it."""
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    process = subprocess.Popen(
        [RAMIFORM, "serve", "--node-rank", "1", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def end_a_rank(core: int, node: int, rank: int) -> str:
    os.kill(rank, signal.SIGKILL)
    return rf"rank \d \(process {rank} of node 1\) was killed by signal 9"


def end_the_node(core: int, node: int, rank: int) -> str:
    os.kill(node, signal.SIGKILL)
    return r"node 1 \(tcp://127\.0\.0\.1:\d+\) is gone"


def interrupt_the_node(core: int, node: int, rank: int) -> str:
    os.kill(node, signal.SIGINT)
    return "node 1 was told to end"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ways", "end"),
    [({"tp": 2}, end_a_rank), ({"tp": 2, "pp": 2}, end_the_node), ({"pp": 2}, interrupt_the_node)],
    ids=["tp, a rank", "tp and pp, the node", "pp, told to end"],
)
def test_ranks_of_two_nodes_answer_as_one_until_one_is_lost(
    meeting: dict[str, Any],
    ways: dict[str, int],
    end: Callable[[int, int, int], str],
    runtime: ramiform.Runtime,
    capfd: pytest.CaptureFixture[str],
) -> None:
    settings = {**CHECKED, **meeting, **ways}
    with other_node(settings) as node, ramiform.Runtime(**settings) as first:
        for params in QUESTIONS:
            assert ask(first.url, **params) == ask(runtime.url, **params), params
        [core] = children(first.pid)
        ranks = all_children(node.pid)
        state = endless.run(backend=first, stream=True)
        state["began"]
        reason = end(core, node.pid, ranks[-1])
        with pytest.raises(ramiform.RuntimeFailed, match=reason):
            state.text()
        for pid in (core, first.pid, *ranks):
            assert wait_until_dead(pid, SOON)
        assert node.wait(120) != 0
        said = node.communicate()[1]
    assert end is end_the_node or "the runtime is down" in said
    assert "Traceback" not in capfd.readouterr().err + said


@pytest.mark.exhaustive
def test_nodes_end_together(meeting: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    settings = {**CHECKED, **meeting, "tp": 2}
    with other_node(settings) as node:
        with ramiform.Runtime(**settings):
            [rank] = all_children(node.pid)
        assert node.wait(120) == 0
        assert wait_until_dead(rank, SOON)
        assert node.communicate()[1] == ""
    assert capfd.readouterr().err == ""


@pytest.mark.exhaustive
def test_a_killed_core_takes_the_other_node_along(meeting: dict[str, Any]) -> None:
    settings = {**CHECKED, **meeting, "tp": 2}
    with other_node(settings) as node, ramiform.Runtime(**settings) as first:
        [core] = children(first.pid)
        [rank] = all_children(node.pid)
        os.kill(core, signal.SIGKILL)
        assert node.wait(120) == 1
        assert wait_until_dead(rank, SOON)
        assert f"node 0 at {meeting['master']} is gone; the runtime is down" in node.communicate()[1]
