"""Products with quantised weights. Judge: the dense product in float64."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ramiform import kernels
from ramiform.kernels.triton import launch_configs, quantised_matmul
from ramiform.kernels.triton.ops import TritonOps
from ramiform.kernels.triton.quantised_matmul import Codes, dequantise, matmul, pack_groups, quantise_rows
from ramiform.runtime.engine.compile_kernels import _quantised_layers
from ramiform.runtime.models.experts.mixture import make_experts
from ramiform.runtime.models.fixed_rows import FixedRowsLinear
from ramiform.runtime.models.quantised import blockwise, eight_bit, int4, mxfp4
from ramiform.runtime.models.quantised.factory import make_linear
from ramiform.runtime.models.quantised.rounding import fp8_rows, int8_rows
from ramiform.runtime.models.quantised.scheme import Quantisation, Scheme

E4M3 = torch.float8_e4m3fn
KINDS = ["int4-32", "int4-128", "mxfp4", "int8", "fp8", "block"]


def weight_of(kind: str, outputs: int, inputs: int, device: torch.device) -> tuple[Codes, torch.Tensor]:
    """Return a random weight, and its numbers in float64."""
    if kind.startswith("int4"):
        group = int(kind.partition("-")[2])
        codes_NC = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
        scale_GN, base_GN = torch.rand(2, inputs // group, outputs)
        numbers = (codes_NC.double().view(outputs, -1, group) - 8) * scale_GN.t()[..., None] + base_GN.t()[..., None]
        packed = pack_groups(codes_NC[:, ::2] | codes_NC[:, 1::2] << 4, group)
        return Codes(packed.to(device), scale_GN.to(device), base_GN.to(device), group), numbers.flatten(1)
    if kind == "mxfp4":
        packed = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
        exponents_NG = torch.randint(120, 130, (outputs, inputs // 32), dtype=torch.uint8)
        codes = Codes(pack_groups(packed, 32).to(device), exponents_NG.t().contiguous().to(device), group=32)
        return codes, mxfp4.dequantised(packed, exponents_NG).double()
    if kind == "block":
        codes = torch.randn(outputs, inputs).to(E4M3)
        scale = torch.rand(-(-outputs // 128), inputs // 128)
        expanded = scale.double().repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)
        return Codes(codes.to(device), scale.to(device), group=128), codes.double() * expanded
    codes, scale_N1 = (int8_rows if kind == "int8" else fp8_rows)(torch.randn(outputs, inputs))
    return Codes(codes.to(device), scale_N1[:, 0].to(device)), codes.double() * scale_N1.double()


def near(got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert (got.cpu().double() - wanted).norm() <= tolerance * wanted.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [3, 20])
def test_a_product_with_codes_equals_that_with_their_numbers(
    kind: str, num_rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(num_rows)
    parts = 2 if num_rows == 3 else 1  # of the inputs
    monkeypatch.setattr(launch_configs, "num_parts", lambda *_: parts)
    weight, numbers = weight_of(kind, 80, 256, device)
    x = torch.randn(num_rows, 256, dtype=torch.bfloat16)
    bias = torch.randn(80)
    got = matmul(x.to(device), weight, bias.to(device), dtype=torch.float32)
    near(got, x.double() @ numbers.t() + bias.double(), 1e-5)
    near(dequantise(weight, torch.float32), numbers, 1e-6)


@pytest.mark.parametrize("kind", ["int8", "fp8", "block"])
def test_inputs_may_be_codes_too(kind: str, device: torch.device) -> None:
    torch.manual_seed(1)
    weight, numbers = weight_of(kind, 80, 256, device)
    x = torch.randn(3, 256, dtype=torch.bfloat16, device=device)
    codes, scale = quantise_rows(x, weight.codes.dtype, weight.group)
    if kind == "block":
        rounded = (codes.cpu().double().view(3, 2, 128) * scale.cpu().double()[..., None]).flatten(1)
    else:
        wanted_codes, wanted_scale = (int8_rows if kind == "int8" else fp8_rows)(x)
        assert torch.equal(codes.float(), wanted_codes.float())
        torch.testing.assert_close(scale, wanted_scale[:, 0])
        rounded = codes.cpu().double() * scale.cpu().double()[:, None]
    near(rounded, x.cpu().double(), 0.04)
    got = matmul(codes, weight, x_scale=scale, dtype=torch.float32)
    near(got, rounded @ numbers.t(), 1e-5)


@pytest.mark.parametrize("kind", ["int4-32", "mxfp4", "block"])
def test_experts_multiply_their_rows_in_one_launch(kind: str, device: torch.device) -> None:
    torch.manual_seed(2)
    counts = [2, 0, 17]
    made = [weight_of(kind, 48, 128, device) for _ in counts]
    first = made[0][0]
    columns = ([getattr(codes, name) for codes, _ in made] for name in ("codes", "scale", "base"))
    stacked = Codes(*(None if some[0] is None else torch.stack(some) for some in columns), group=first.group)  # type: ignore[arg-type]
    ends = torch.tensor(counts, device=device).cumsum(0)
    rows = torch.randint(0, 7, (sum(counts),))
    x = torch.randn(7, 128, dtype=torch.bfloat16)
    got = matmul(x.to(device), stacked, dtype=torch.float32, experts=(ends, rows.to(device)))
    chosen = [numbers for (_, numbers), count in zip(made, counts, strict=True) for _ in range(count)]
    wanted = torch.stack([x[row].double() @ numbers.t() for row, numbers in zip(rows, chosen, strict=True)])
    near(got, wanted, 1e-5)


LAYERS = {
    "int4": Scheme(kind="int4", source="dense", group_size=64),
    "int8": Scheme(kind="int8", source="dense"),
    "int8 inputs": Scheme(kind="int8", source="dense", activations=True),
    "fp8 inputs": Scheme(kind="fp8", source="dense", activations=True),
    "fp8 blocks": Scheme(kind="fp8", source="fp8", activations=True),
}


def formats(layer: object) -> dict[tuple[str, int], set[tuple[int, int, bool]]]:
    """The kernels that are compiled at start for a model of one layer."""
    model: Any = SimpleNamespace(parameters=SimpleNamespace(linears=lambda: [layer]))
    return _quantised_layers(model)


@pytest.mark.parametrize("scheme", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("many", [False, True], ids=["few rows", "many rows"])
def test_layers_multiply_as_their_format_says(
    scheme: Scheme, many: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "quantised_products", lambda _: quantised_matmul)
    for module in (int4, eight_bit, blockwise):
        monkeypatch.setattr(module, "MANY_ROWS", 2 if many else 256)
    torch.manual_seed(3)
    outputs, inputs = 128, 128
    weight, x = torch.randn(outputs, inputs), torch.randn(5, inputs, device=device).bfloat16()
    layer = make_linear(Quantisation(scheme), ["x"], outputs, inputs, bias=True, device=device, dtype=torch.bfloat16)
    into = layer.row_destinations(0, outputs)
    bias = torch.randn(outputs)
    into["bias"].put(bias)
    if scheme.source == "fp8":
        scale = weight.abs().max() / 448
        into["weight"].put((weight / scale).to(E4M3))
        into["weight_scale_inv"].put(scale.view(1, 1))
    else:
        into["weight"].put(weight)
    layer.finish()
    tolerance = 0.09 if scheme.kind == "int4" else 0.05  # the rounding of weights and inputs
    near(layer(x), x.cpu().double() @ weight.double().t() + bias.double(), tolerance)
    [sizes] = formats(FixedRowsLinear(layer, 64)).values()
    assert sizes == {(outputs, inputs, True)}


@pytest.mark.parametrize(
    ("layer", "form"), [("int4", ("int4", 64)), ("fp8 inputs", ("fp8-inputs", 0)), ("fp8 blocks", ("fp8-blocks", 128))]
)
def test_quantised_experts_are_stacked_and_read_nothing_back(
    layer: str, form: tuple[str, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "quantised_products", lambda _: quantised_matmul)
    torch.manual_seed(4)
    scheme = LAYERS[layer]
    names = [[f"experts.{index}"] for index in range(3)]
    layers = make_experts(Quantisation(scheme), names, 128, 128, device=device, dtype=torch.bfloat16, grouped=True)
    weights = torch.randn(3, 128, 128)
    for index, weight in enumerate(weights):
        into = layers.expert(index).row_destinations(0, 128)
        if scheme.source == "fp8":
            scale = weight.abs().max() / 448
            into["weight"].put((weight / scale).to(E4M3))
            into["weight_scale_inv"].put(scale.view(1, 1))
        else:
            into["weight"].put(weight)
    layers.finish()
    assert formats(layers) == {form: set()}
    ends = torch.tensor([2, 2, 5], device=device)
    x = torch.randn(5, 128).bfloat16()
    monkeypatch.setattr(kernels, "expert_ranges", None)  # it reads the ends
    # Deterministic mode computes other layers a fixed number of rows at a time.
    for some, ops in ((layers, TritonOps()), (layers.each(partial(FixedRowsLinear, num_rows=64)), TritonOps(True))):
        got = some(x.to(device), ends, None, ops)
        wanted = torch.cat([x[:2].double() @ weights[0].double().t(), x[2:].double() @ weights[2].double().t()])
        near(got, wanted, 0.12 if scheme.kind == "int4" else 0.05)  # int4 rounds by a tenth
