"""bench/scheduling/scale.py: what a router makes of its knowledge, and the times of two servers."""

from __future__ import annotations

import pytest

import ramiform

from .commands import run


def rows_of(report: str) -> list[list[str]]:
    """Return the cells of a report's table, without its head."""
    lines = [line for line in report.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.mark.exhaustive
def test_a_router_that_knows_more_caches_more() -> None:
    shown = run(
        "scheduling/scale.py", "route", "--replicas", "2", "--per-replica", "12", "--seeds", "1", "--pages", "800"
    )
    events, sent, blind = (float(cells[1].rstrip("%")) for cells in rows_of(shown))
    assert events >= sent > blind


@pytest.mark.exhaustive
def test_a_server_is_compared_with_itself(runtime: ramiform.Runtime) -> None:
    pytest.importorskip("psutil", reason="the extra bench")
    url = str(runtime.url)
    options = ["--pid", str(runtime.pid), "--rounds", "2", "--requests", "2", "--tokens", "8"]
    shown = run("scheduling/scale.py", "overhead", url, f"{url}/", *options)
    rows = rows_of(shown)
    assert [cells[0] for cells in rows] == [url, url, f"{url}/", f"{url}/"]
    assert float(rows[0][2]) == 1
