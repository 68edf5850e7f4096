"""Products with weights in ggml's block formats. Judges: the `gguf` package's dequantisation, and float64."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from ramiform.kernels.cpu.products.block_formats import BLOCK_FORMATS
from ramiform.kernels.cpu.products.matmul import packed_matmul
from ramiform.kernels.cpu.products.packed_matrix import WIDTH, PackedMatrix
from ramiform.tests.kernels import test_integer_matmul
from ramiform.tests.kernels.test_matmul import check_codes

gguf = pytest.importorskip("gguf")

# Where a block has its float16 numbers.
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
HALVES |= {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "MXFP4": ()}


def stored(name: str, N: int, C: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of random blocks, and their weights by the package, in float64."""
    form, draw = BLOCK_FORMATS[name], np.random.default_rng(N + C)
    data = draw.integers(0, 256, (N, C // form.block, form.block_bytes), dtype=np.uint8)
    for at in HALVES[name]:
        some = draw.uniform(-1e-2, 1e-2, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = some[..., None].view(np.uint8)
    if name == "MXFP4":  # a power of two
        data[..., 0] = draw.integers(127 - 12, 127 - 6, data.shape[:2])
    rows = data.reshape(N, -1)
    weights = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])
    return torch.from_numpy(rows), torch.from_numpy(weights).double()


def rows_and_rounded(T: int, C: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows with a channel a hundred times larger, and, in float64, what int8 codes by group of 32 make of
    them."""
    x = torch.randn(T, C, generator=torch.Generator().manual_seed(T))
    x[:, C // 2] *= 100
    groups = x.view(T, -1, 32)
    scale = groups.abs().amax(2, keepdim=True) / 127
    return x, ((groups * (1 / scale)).round().double() * scale.double()).flatten(1)


def check(matrix: PackedMatrix, w: torch.Tensor, bias: torch.Tensor, T: int) -> None:
    check_codes(matrix, *rows_and_rounded(T, w.shape[1]), w, bias)


@pytest.mark.parametrize(("N", "C"), [(7, 256), (WIDTH + 3, 2304)])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_products_equal_those_of_rounded_rows_in_float64(name: str, N: int, C: int) -> None:
    data, w = stored(name, N, C)
    bias = torch.randn(N, generator=torch.Generator().manual_seed(0))
    for T in (1, 2, 3, 4, 5, 7, 64, 65, 200, *([260] if N < WIDTH else [])):
        check(PackedMatrix.of_blocks([(name, data)], bias), w, bias, T)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_decoded_rows_are_the_package_s(name: str) -> None:
    data, w = stored(name, WIDTH + 3, 512)
    matrix = PackedMatrix.of_blocks([(name, data)])
    for outputs in (torch.arange(WIDTH + 3), torch.tensor([WIDTH + 2, 0, 5, 5]), torch.tensor([], dtype=torch.int64)):
        assert torch.equal(matrix.weights(outputs).double(), w[outputs])


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_weights_take_about_the_bytes_of_the_file(name: str) -> None:
    data, _ = stored(name, 4 * WIDTH, 2048)
    matrix = PackedMatrix.of_blocks([(name, data)])
    # The loops have no table of numbers: MXFP4's are five bits, and a scale's byte is a float16.
    assert 1 <= matrix.nbytes / data.nbytes < (1.32 if name == "MXFP4" else 1.05)


@pytest.mark.parametrize("T", [1, 5, 65])
def test_parts_may_have_formats_of_their_own(T: int) -> None:
    parts = [("Q5_0", 2 * WIDTH), ("Q8_0", WIDTH), ("Q6_K", 5)]
    found = [stored(name, size, 512) for name, size in parts]
    bias = torch.randn(3 * WIDTH + 5)
    matrix = PackedMatrix.of_blocks([(name, data) for (name, _), (data, _) in zip(parts, found, strict=True)], bias)
    check(matrix, torch.cat([w for _, w in found]), bias, T)
    with pytest.raises(ValueError, match="panels take"):
        PackedMatrix.of_blocks([("Q5_0", found[2][0]), ("Q8_0", found[1][0])])


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    matrix = PackedMatrix.of_blocks([("Q6_K", stored("Q6_K", 5, 256)[0])])
    for number in (float("nan"), float("inf"), -float("inf")):
        for T in (20, 40):  # so many that weights are unpacked, and that they go by tiles
            x = torch.ones(T, 256)
            x[1, 40] = number
            y = packed_matmul(x, matrix)
            assert y[1].isnan().all()
            assert y[torch.arange(T) != 1].isfinite().all()


def test_sums_of_extreme_codes_are_exact() -> None:
    for name, form in BLOCK_FORMATS.items():
        for byte in (0, 255):
            data = torch.full((3, 512 // form.block, form.block_bytes), byte, dtype=torch.uint8)
            if name == "MXFP4":
                data[..., 0] = 127
            for at in HALVES[name]:
                data[..., at : at + 2] = torch.tensor([1.0]).half().view(torch.uint8)
            matrix = PackedMatrix.of_blocks([(name, data.flatten(1))])
            w = gguf.quants.dequantize(data.flatten(1).numpy(), gguf.GGMLQuantizationType[name]).astype(np.float64)
            for sign in (-1.0, 1.0):
                y = packed_matmul(torch.full((2, 512), 127 * sign), matrix)
                np.testing.assert_allclose(y[0].double(), 127 * sign * w.sum(1), rtol=1e-6)


def digest(names: Iterable[str]) -> str:
    """Return a digest of products in some formats, of numbers of rows that have a kernel each, and of some on tiles."""
    seen = hashlib.sha256()
    for name in names:
        matrix = PackedMatrix.of_blocks([(name, stored(name, 70, 1024)[0])])
        matrix.round_alike()
        for T in (1, 3, 7, 65):
            seen.update(packed_matmul(rows_and_rounded(T, 1024)[0], matrix).numpy().tobytes())
    return seen.hexdigest()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("level", "names"),
    [
        # Loops are long to compile, 8 seconds each. Each way to read codes has a level without AVX-512 and one with it:
        # codes of 2 and 8 bits by pairs, one plane, and several, by emulated products too.
        ("generic", ["Q2_K", "Q6_K", "Q8_0"]),
        ("avx2", ["Q3_K", "Q4_1"]),
        ("avx512", ["Q2_K", "Q8_0"]),
        ("avx512-emulated", ["Q6_K", "Q4_1"]),
        ("amx-emulated", ["Q6_K", "Q4_1", "Q2_K", "Q8_0"]),  # each kernel of tiles
    ],
)
def test_every_set_of_instructions_returns_the_same_bits(level: str, names: list[str]) -> None:
    """Also of integer formats, by the same process: both files' loops are compiled together."""
    command = [sys.executable, "-P", __file__, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"RAMIFORM_CPU": level})
    assert done.stdout.split() == [digest(names), test_integer_matmul.digest()], done.stderr


@pytest.mark.exhaustive
def test_each_format_has_a_cache_file_of_its_own(tmp_path: Path) -> None:
    """Processes that save different loops at once must not write one file."""
    code = (
        "from ramiform.kernels.cpu.products import block_matmul\n"
        "for name in ('Q8_0', 'Q4_0'): block_matmul.loop_address(name)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, check=True)
    assert len(list(tmp_path.rglob("*multiply_Q*.nbi"))) == 2


if __name__ == "__main__":
    print(digest(sys.argv[1:]), test_integer_matmul.digest())
