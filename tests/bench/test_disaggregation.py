"""The simulation of prefill and decode apart: exact, and with the streams' steps as their costs say."""

from __future__ import annotations

import pytest

from ramiform.bench.scheduling.disaggregation import Costs, Load, simulate

COSTS = Costs(step=8e-3, prefill_token=40e-6, decode_row=20e-6, bandwidth=25e9)
LOAD = Load(num_streams=4, num_bursts=2, burst_size=2, burst_seconds=0.5, prompt_tokens=2048, output_tokens=4)


@pytest.mark.slow
def test_apart_a_streams_slowest_step_has_no_chunk_in_it() -> None:
    apart, both = (simulate(LOAD, COSTS, apart=apart, budget=1024) for apart in (True, False))
    assert apart == simulate(LOAD, COSTS, apart=True, budget=1024)
    assert both["max"] > 1e3 * (COSTS.step + 1000 * COSTS.prefill_token)
    assert apart["max"] < 1e3 * (COSTS.step + 2 * 16 * COSTS.prefill_token + 8 * COSTS.decode_row)
    assert apart["pages sent early"] == pytest.approx(0.5, abs=0.1), "the first of two chunks"


def test_over_a_slow_link_prompts_wait_for_their_pages() -> None:
    slow = Costs(COSTS.step, COSTS.prefill_token, COSTS.decode_row, bandwidth=1e9)
    times = [simulate(LOAD, costs, apart=True, budget=1024)["TTFT p50 ms"] for costs in (COSTS, slow)]
    assert times[1] > times[0] + 100, "a prompt has 256 MiB"
