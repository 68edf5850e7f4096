"""Weights with scales by group widened to bfloat16 for tile registers. Judges: the `gguf` package's dequantisation,
float64, and sums in the order that Intel's manual defines.

Run with `RAMIFORM_CPU=amx-emulated`, this file multiplies by the matrices that its arguments name and prints what is
wrong, and the errors beside those of rows of int8.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from llvmlite import binding, ir

from ramiform.kernels.cpu.instructions import AVX512_DOT, HOST, Instructions
from ramiform.kernels.cpu.products.amx import MOST_ROWS, usable
from ramiform.kernels.cpu.products.block_formats import BLOCK_FORMATS, GROUP
from ramiform.kernels.cpu.products.block_matmul import BlockReader
from ramiform.kernels.cpu.products.block_rows import pack_rows
from ramiform.kernels.cpu.products.matmul import packed_matmul
from ramiform.kernels.cpu.products.packed_matrix import WIDTH, PackedMatrix
from ramiform.kernels.cpu.products.tile import Tile
from ramiform.kernels.cpu.products.widened import MEMORY_BYTES, widen_groups
from ramiform.kernels.widening import widened_products
from ramiform.tests.kernels import test_amx, test_integer_matmul
from ramiform.tests.kernels.test_block_matmul import stored
from ramiform.tests.kernels.test_instructions import X86, count

EVERY = (*BLOCK_FORMATS, "int4", "int8")
PLAIN = replace(HOST, emulated=True)  # the host's vectors, without instructions for bfloat16


def module_of(emit: Callable[..., None], num_arguments: int, instructions: Instructions) -> ir.Module:
    """Return a module with a function `widen` of int64 arguments."""
    module, number = ir.Module(), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [number] * num_arguments), "widen")
    builder = ir.IRBuilder(function.append_basic_block())
    emit(Tile(builder, instructions, 1, 1), *function.args)
    builder.ret_void()
    return module


def optimised(module: ir.Module, cpu: str, triple: str) -> tuple[Any, Any]:
    """Return the parsed module and the processor's machine."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=1)
    parsed = binding.parse_assembly(str(module))
    parsed.triple = triple
    parsed.verify()
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    passes.getModulePassManager().run(parsed, passes)
    return parsed, machine


def run(emit: Callable[..., None], *arguments: int) -> None:
    parsed, machine = optimised(
        module_of(emit, len(arguments), PLAIN), binding.get_host_cpu_name(), binding.get_process_triple()
    )
    with binding.create_mcjit_compiler(parsed, machine) as engine:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))
        kind(engine.get_function_address("widen"))(*arguments)


def widen_units(name: str, groups: int) -> Callable[..., None]:
    def emit(tile: Tile, codes: Any, units: Any, unpacked: Any, to: Any) -> None:
        reader, number = BlockReader(tile, BLOCK_FORMATS[name]), ir.IntType(64)
        reader.unpack(units, codes, unpacked, signed=True)
        widen_groups(tile, reader.num_scales, reader.num_bases, unpacked, number(groups), number(GROUP), to)

    return emit


def as_rows(wide: torch.Tensor, C: int) -> torch.Tensor:
    """Return the bfloat16 weights [N, C] of widened panels [P, MEMORY_BYTES / 2], whose halves are rows of tiles."""
    tiles = wide.unflatten(1, (2, -1))[:, :, : 32 * C].unflatten(2, (C // 32, 2, 16, 16, 2))
    return tiles.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(1, 3)[:, :WIDTH].flatten(0, 1).view(torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_are_widened_to_the_nearest_bfloat16_of_the_package_s_weights(name: str) -> None:
    form, C = BLOCK_FORMATS[name], 512
    data, weights = stored(name, 2 * WIDTH, C)
    panels = pack_rows(form, data, WIDTH)
    wide, room = torch.zeros((2, MEMORY_BYTES // 2), dtype=torch.int16), torch.zeros(8 * C * WIDTH, dtype=torch.uint8)
    for panel, place in zip(panels, wide, strict=True):
        run(widen_units(name, C // GROUP), panel.data_ptr(), C // form.block, room.data_ptr(), place.data_ptr())
    assert torch.equal(as_rows(wide, C), weights.float().bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q5_0", "Q6_K"])
def test_a_processor_widens_by_its_instructions(name: str) -> None:
    parsed, machine = optimised(module_of(widen_units(name, 2), 4, AVX512_DOT), "sapphirerapids", X86)
    text = machine.emit_assembly(parsed)
    assert count("vcvtne2ps2bf16", text) == 16 * AVX512_DOT.vectors
    assert count("vpermw", text) + count("vpermi2w", text) + count("vpermt2w", text) >= 16 * AVX512_DOT.vectors
    assert not re.findall(r"vfn?m(add|sub)\d+", text), "products are rounded before a base is added"
    assert "tmm" not in text


def matrix_of(name: str, N: int, C: int) -> tuple[PackedMatrix, torch.Tensor, torch.Tensor]:
    """Return a matrix, its weights in float64, and its bias."""
    if name not in BLOCK_FORMATS:
        return test_integer_matmul.weights(name, C, 64, N)
    data, w = stored(name, N, C)
    bias = torch.randn(N, generator=torch.Generator().manual_seed(0))
    return PackedMatrix.of_blocks([(name, data)], bias), w, bias


def packed_products(x: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    """Return the products of rows that are packed in tiles, as a compiled step computes them."""
    from ramiform.kernels.cpu.products import matmul

    descriptor, x_TC = matrix.descriptor, x.numpy()
    assert matmul.in_tiles(descriptor, len(x))
    prepared = np.zeros(matmul.prepared_size(descriptor, len(x), True), np.uint8)
    matmul.prepare_rows(descriptor, x_TC, 0, prepared, True)
    y, sums = (np.zeros((len(x), size), np.float32) for size in (matrix.outputs, WIDTH))
    matmul.multiply_panels(descriptor, x_TC, prepared, y, 0, matrix.num_panels, True)
    rows = min(len(x), MOST_ROWS)
    for panel in range(matrix.outputs // WIDTH):
        matmul.multiply_to_sums(0, descriptor, panel, prepared.ctypes.data, rows, True, sums.ctypes.data)
        assert np.array_equal(sums[:rows], y[:rows, panel * WIDTH : (panel + 1) * WIDTH])
    return torch.from_numpy(y)


@pytest.mark.skipif(not usable(), reason="needs a processor with tiles")
@pytest.mark.parametrize("name", EVERY)
def test_a_step_s_products_are_those_of_one_call(name: str) -> None:
    matrix, w, bias = matrix_of(name, 2 * WIDTH + 5, 2304)
    x = torch.randn(525, 2304, generator=torch.Generator().manual_seed(1))
    with widened_products(True):
        got = packed_products(x, matrix)
        assert torch.equal(got, packed_matmul(x, matrix))
    want = x.bfloat16().double() @ w.float().bfloat16().double().T + bias
    assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-3)


def check(name: str) -> None:
    """Print what is wrong with products by a format, and their errors."""
    for N, C in ((WIDTH + 5, 2304), (2 * WIDTH, 256)):  # one block of inputs and a rest, a panel and a rest
        matrix, w, bias = matrix_of(name, N, C)
        x = torch.randn(276, C, generator=torch.Generator().manual_seed(C))
        exact = x.double() @ w.T + bias
        few = torch.cat([packed_matmul(one, matrix) for one in x.split(5)])
        every = torch.from_numpy(test_amx.naive(x.bfloat16(), w.float().bfloat16(), bias))
        if not matrix.widens:
            print(f"{name}: no tiles")
        if not torch.equal(packed_matmul(x, matrix), few):
            print(f"{name}: {N} x {C}: tiles of bytes differ from dot products")
        for T in (1, 17, 64, 256, 257, len(x)):
            with widened_products(True):
                got = packed_matmul(x[:T], matrix)
                if not (torch.equal(got, every[:T]) and torch.equal(packed_products(x[:T], matrix), got)):
                    print(f"{name}: {T} x {N} x {C} differ from sums in the manual's order")

        def error(some: torch.Tensor, exact: torch.Tensor = exact) -> float:
            return float((some.double() - exact).norm() / exact.norm())

        print(f"{name} {C} error {error(every):.2e} {error(few):.2e}")
        broken = x.clone()
        broken[7, 100] = float("nan")
        with widened_products(True):
            y = packed_matmul(broken, matrix)
        if not (y[7].isnan().all() and torch.equal(y[8:], every[8:])):
            print(f"{name}: NaN stays in its row")
        matrix.round_alike()
        with widened_products(True):
            if not torch.equal(packed_matmul(x, matrix), few):
                print(f"{name}: deterministic products are widened")


# A minute each, most of it to compile loops: `make test-tiles` takes every kind.
EMULATED = EVERY if os.environ.get("RAMIFORM_CPU") == "amx-emulated" else ("Q5_0", "Q6_K", "int4")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EMULATED)
def test_emulated_tiles_multiply_by_widened_weights(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", __file__, name],
        capture_output=True,
        text=True,
        env=os.environ | {"RAMIFORM_CPU": "amx-emulated"},
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[2] for line in lines] == ["error"] * 2, done.stdout + done.stderr
    for *_, widened, rounded in lines:
        assert float(widened) < 3e-3
        assert float(widened) < 0.6 * float(rounded)


LOOP = """
    from llvmlite import binding
    found = dict(binding.get_host_cpu_features()) | dict.fromkeys(
        ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "amx-tile", "amx-bf16",
         "amx-int8"), True)
    binding.get_host_cpu_features = lambda: type("Features", (dict,), {})(found)
    from numba.core import config
    config.CPU_NAME, config.CPU_FEATURES = "sapphirerapids", ""
    from numba import njit
    from ramiform.kernels.cpu.products import block_matmul
    for name in ("byte_tiles._gather_numbers", "byte_tiles._add_unpacked", "widened._multiply_widened"):
        binding.add_symbol("ramiform.kernels.cpu.products." + name, 1)
    number = [form.name for form in block_matmul._FORMATS].index("Q5_0")
    loop = njit("void(" + ", ".join(["int64"] * 12) + ")", error_model="numpy")(block_matmul._loop(number, 32))
    print(*loop.inspect_asm().values())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("level", "has_tiles"), [("amx", True), ("avx512-dot", False)])
def test_a_format_s_loop_calls_those_of_tiles_only_on_a_processor_with_tiles(level: str, has_tiles: bool) -> None:
    """The loop is compiled for it, not run."""
    done = test_amx.run(level, "-c", textwrap.dedent(LOOP))
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert count("vpdpbusd", text) > 0  # few rows
    if has_tiles:
        assert "_add_unpacked" in text
        assert "_multiply_widened" in text
    else:
        assert "_add_unpacked" not in text
        assert "_multiply_widened" not in text


if __name__ == "__main__":
    for format_name in sys.argv[1:]:
        check(format_name)
