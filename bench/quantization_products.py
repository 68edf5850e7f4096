"""One product of each kind of layer, by its number of rows, in processor time: what a table of `quantization.py` shows.

Several layers take turns, more than a CPU's caches hold, as a model's do.
"""

from __future__ import annotations

import time

import torch

from ramiform.runtime.models.linear import Linear
from ramiform.runtime.models.quantised.factory import make_linear
from ramiform.runtime.models.quantised.scheme import quantise_while_loading
from ramiform.runtime.protocol.config import QuantizeName

OUTPUTS, INPUTS = 9728, 896  # gate and up of a model of 0.5B
BYTES = 1 << 27  # of the layers that take turns
ROWS = (1, 4, 8, 16, 32, 64, 128, 512)
SECONDS = 0.15  # of a measurement, of which the least of three counts


def product_rows(kinds: dict[str, QuantizeName | None], baseline: str) -> list[tuple[str, list[str]]]:
    """For each number of rows the baseline's time over every kind's: above 1 is faster. All in bfloat16."""
    layers = {name: _layers(quantize) for name, quantize in kinds.items()}
    table = []
    for rows in ROWS:
        x = torch.randn(rows, INPUTS, dtype=torch.bfloat16)
        taken = {name: min(_seconds(own, x) for _ in range(3)) for name, own in layers.items()}
        cells = [f"{taken[baseline] / seconds:.2f}" for seconds in taken.values()]
        table.append((f"{rows} rows ({1e3 * taken[baseline]:.2f} ms)", cells))
    return table


def _layers(quantize: QuantizeName | None) -> list[Linear]:
    quantisation = None if quantize is None else quantise_while_loading(quantize, 128)
    made: list[Linear] = []
    while sum(layer.nbytes for layer in made) < BYTES:
        layer = make_linear(
            quantisation, [f"layer {len(made)}"], OUTPUTS, INPUTS, bias=False, device="cpu", dtype=torch.bfloat16
        )
        layer.row_destinations(0, OUTPUTS)["weight"].put(torch.randn(OUTPUTS, INPUTS))
        layer.finish()
        made.append(layer)
    return made


def _seconds(layers: list[Linear], x: torch.Tensor) -> float:
    """Processor time of one product."""
    layers[0](x)
    start, count = time.process_time(), 0
    while (taken := time.process_time() - start) < SECONDS:
        layers[count % len(layers)](x)
        count += 1
    return taken / count
