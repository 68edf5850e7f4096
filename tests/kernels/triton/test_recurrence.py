"""The step of recurrent states as a kernel. Judge: the plain torch of the same name, in float64."""

from __future__ import annotations

import pytest
import torch

from ramiform.kernels.arguments import RecurrenceInputs
from ramiform.kernels.reference import recurrence as reference
from ramiform.kernels.triton import recurrence


@pytest.mark.parametrize("is_delta", [True, False])
@pytest.mark.parametrize(("H", "K", "V"), [(2, 128, 128), (3, 12, 10), (1, 256, 40)])
def test_states_advance_in_their_slots(H: int, K: int, V: int, is_delta: bool, device: torch.device) -> None:
    torch.manual_seed(K)
    R = 3
    state = torch.randn(5, H, K, V, device=device)
    slots = torch.tensor([3, 0, 4], device=device)
    q, k, v = (torch.randn(R, H, size, device=device) for size in (K, K, V))
    k = k / k.norm(dim=-1, keepdim=True)
    g, beta = -torch.rand(R, H, device=device), torch.rand(R, H, device=device) if is_delta else None
    inputs = RecurrenceInputs(q, k, v, g, beta)
    wanted_state = state.double()
    doubles = RecurrenceInputs(*(None if x is None else x.double() for x in inputs))  # type: ignore[arg-type]
    wanted = reference.step_states(wanted_state, slots, doubles)
    found = recurrence.step_states(state, slots, inputs)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(state.double(), wanted_state, atol=1e-5, rtol=1e-5)
