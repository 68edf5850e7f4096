"""bench/scheduling/scale.py: what a router makes of its knowledge, and the times of two servers."""

from __future__ import annotations

import pytest

import ramiform

from .commands import run


def test_a_router_that_knows_more_caches_more() -> None:
    shown = run(
        "scheduling/scale.py", "route", "--replicas", "2", "--per-replica", "12", "--seeds", "1", "--pages", "800"
    )
    shares = [float(line.split("|")[2].strip().rstrip("%")) for line in shown.splitlines()[2:]]
    events, sent, blind = shares
    assert events >= sent > blind


@pytest.mark.exhaustive
def test_a_server_is_compared_with_itself(runtime: ramiform.Runtime) -> None:
    pytest.importorskip("psutil", reason="the extra bench")
    url = str(runtime.url)
    options = ["--pid", str(runtime.pid), "--rounds", "2", "--requests", "2", "--tokens", "8"]
    shown = run("scheduling/scale.py", "overhead", url, f"{url}/", *options).splitlines()
    assert [line.split("|")[1].strip() for line in shown[2:]] == [url, url, f"{url}/", f"{url}/"]
    assert float(shown[2].split("|")[3]) == 1
