"""bench/scale.py: what a router makes of its knowledge, and the times of two servers."""

from __future__ import annotations

import pytest

from .commands import run


def test_a_router_that_knows_more_caches_more() -> None:
    shown = run("scale.py", "route", "--replicas", "2", "--per-replica", "12", "--seeds", "1", "--pages", "800")
    shares = [float(line.split("|")[2].strip().rstrip("%")) for line in shown.splitlines()[2:]]
    events, sent, blind = shares
    assert events >= sent > blind


@pytest.mark.exhaustive
def test_a_server_is_compared_with_itself(url: str) -> None:
    shown = run("scale.py", "overhead", url, url + "/", "--rounds", "2", "--tokens", "8").splitlines()
    assert [line.split("|")[1].strip() for line in shown[2:]] == [url, url + "/"]
    assert float(shown[2].split("|")[2]) == 1
