"""Threading variables in the environment of children."""

from __future__ import annotations

import pytest

from ramiform.runtime.processes import parent_watchdog


def test_threads_wait_awake_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    told = parent_watchdog.child_environment()
    assert told["OMP_WAIT_POLICY"] == "PASSIVE"
    assert 0 < int(told["GOMP_SPINCOUNT"]) <= 10_000


def test_the_user_s_waiting_policy_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    told = parent_watchdog.child_environment()
    assert told["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "GOMP_SPINCOUNT" not in told
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    assert parent_watchdog.child_environment()["GOMP_SPINCOUNT"] == "77"
