"""Choice of the set of device ops. No device is needed: an op set is made without one."""

from __future__ import annotations

import importlib.util
import logging

import pytest
import torch

from ramiform.kernels import dispatch, for_device


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    dispatch._has_kernels.cache_clear()


def test_without_triton_plain_torch_computes_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    with caplog.at_level(logging.WARNING, "ramiform.kernels"):
        names = [for_device(torch.device("cuda")).name for _ in range(3)]
        assert dispatch.quantised_products(torch.device("cuda")) is None
    assert names == ["reference"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "plain torch computes, several times slower than the kernels: "
        "the package triton is not installed (pip install 'ramiform[gpu]')"
    ]


def test_on_amd_plain_torch_computes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with caplog.at_level(logging.WARNING, "ramiform.kernels"):
        assert for_device(torch.device("cuda")).name == "reference"
    assert "shared memory" in caplog.text
