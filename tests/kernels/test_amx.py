"""Products and attention on tile registers: what emulated tiles compute, bit for bit, and what real ones execute.

With emulated tiles `tests/composition/test_tiles.py` asks for the shapes whose products differ from the order of sums
that Intel's manual defines, as `add_products` writes it down.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ramiform.kernels import AttentionArgs, KvCache, RowSpan, for_device
from ramiform.kernels.cpu.attention import blocks, tiles
from ramiform.kernels.cpu.attention.paged import CompiledAttention
from ramiform.kernels.cpu.instructions import EMULATED_TILES, HOST, choose
from ramiform.kernels.cpu.products.amx import compute_nothing
from ramiform.kernels.cpu.products.packed_matrix import TILES_FROM, WIDTH, PackedMatrix
from ramiform.tests.kernels.test_instructions import SAPPHIRE_RAPIDS

TILES = SAPPHIRE_RAPIDS | {"amx-tile": True, "amx-bf16": True, "amx-int8": True}
ROWS = (1, 7, 8, 16, 17, 31, 32, 33, 63, 64, 75, 200)
MATRICES = ((64, 32), (128, 31), (100, 64), (192, 33), (128, 101), (64, 2100), (100, 2624))  # outputs and inputs


Numbers = NDArray[np.float32]


def add_products(total_TN: Numbers, x_TC: Numbers, w_NC: Numbers) -> None:
    """Add products as instructions on tiles do: those of 32 inputs at a time, of even and of odd ones apart."""
    for first in range(0, x_TC.shape[1], 32):
        even_TN, odd_TN = np.zeros((2, *total_TN.shape), np.float32)
        for c in range(first, first + 32, 2):
            even_TN += np.outer(x_TC[:, c], w_NC[:, c])  # a product of bfloat16s is exact
            odd_TN += np.outer(x_TC[:, c + 1], w_NC[:, c + 1])
        total_TN += even_TN + odd_TN


def naive(x_TC: torch.Tensor, w_NC: torch.Tensor, bias_N: torch.Tensor) -> Numbers:
    """Return the products in the order of sums: 32 inputs at a time where tiles are full, else pair by pair.

    Many rows are packed in tiles where inputs fill these: then outputs of the last panel go by tiles too.
    """
    T, N = len(x_TC), len(w_NC)
    odd = x_TC.shape[1] % 2  # inputs are in pairs
    x, w = (np.pad(own.float().numpy(), ((0, 0), (0, odd))) for own in (x_TC, w_NC))
    C = x.shape[1]
    total_TN = np.tile(bias_N.numpy(), (T, 1))
    whole_N, whole_C = N if T > 64 and C % 32 == 0 else N // 64 * 64, C // 32 * 32
    add_products(total_TN[:, :whole_N], x[:, :whole_C], w[:whole_N, :whole_C])
    for c in range(C):
        begin = whole_N if c < whole_C else 0
        total_TN[:, begin:] += np.outer(x[:, c], w[begin:, c])
    return total_TN


def differing() -> list[str]:
    """Return the shapes whose products are not those of `naive`."""
    from ramiform.kernels.cpu.products.matmul import packed_matmul

    found = []
    torch.manual_seed(0)
    for N, C in MATRICES:
        w_NC, bias_N = torch.randn(N, C).bfloat16(), torch.randn(N)
        matrix = PackedMatrix.of_dense(w_NC, bias_N, rows=torch.bfloat16)
        x_TC = torch.randn(max(ROWS), C).bfloat16()
        for T in ROWS:
            # Float32 rows that are bfloat16s are rounded to themselves, and the products are returned unrounded.
            got = packed_matmul(x_TC[:T].float(), matrix).numpy()
            if not np.array_equal(got, naive(x_TC[:T], w_NC, bias_N)):
                found.append(f"{T} x {N} x {C}")
        found += differing_in_sums(matrix, x_TC, w_NC, bias_N)
        if (N, C) == (100, 64):  # rows of more than one block, with a few and with some tiles behind it
            x = torch.randn(569, C).bfloat16()
            for T in (513, 520, 569):
                if not np.array_equal(packed_matmul(x[:T].float(), matrix).numpy(), naive(x[:T], w_NC, bias_N)):
                    found.append(f"{T} x {N} x {C}")
        matrix.round_alike()
        alone = torch.cat([packed_matmul(x_TC[t : t + 1].float(), matrix) for t in range(40)])
        if not torch.equal(packed_matmul(x_TC[:40].float(), matrix), alone):
            found.append(f"alike: {N} x {C}")
    for C in (128, 200, 1100):
        codes = torch.randint(-127, 128, (192, C), dtype=torch.int8)
        matrix = PackedMatrix.of_int8(codes, torch.rand(192), torch.randn(192))
        x_TC = torch.randn(max(ROWS), C)
        alone = torch.cat([packed_matmul(x_TC[t : t + 1], matrix) for t in range(max(ROWS))])
        if matrix.descriptor[TILES_FROM] == 0 and C != 200:
            found.append(f"no tiles for {C} inputs")
        # Sums of codes are exact, so tiles give the numbers of dot products.
        found += [f"int8: {T} x {C}" for T in ROWS if not torch.equal(packed_matmul(x_TC[:T], matrix), alone[:T])]
    return found


def differing_in_sums(matrix: PackedMatrix, x_TC: torch.Tensor, w_NC: torch.Tensor, bias_N: torch.Tensor) -> list[str]:
    """Return the products, summed apart or added to a total, that are not those of `naive`."""
    from ramiform.kernels.cpu.products import matmul

    descriptor, (N, C), found = matrix.descriptor, w_NC.shape, []
    for T in ROWS:
        if not matmul.is_summed_near(descriptor, T):
            continue
        x, want_TN, packs = x_TC[:T].float().numpy(), naive(x_TC[:T], w_NC, bias_N), matmul.in_tiles(descriptor, T)
        prepared = np.empty(matmul.prepared_size(descriptor, T, packs), np.uint8)
        matmul.prepare_rows(descriptor, x, 0, prepared, packs)
        state, sums_TW = np.zeros(1 << 15, np.uint8), np.empty((T, WIDTH), np.float32)
        place = state.ctypes.data + -state.ctypes.data % 64
        for panel in range(N // WIDTH):
            address = prepared.ctypes.data
            matmul.multiply_to_sums(place, descriptor, panel, address, T, packs, sums_TW.ctypes.data)
            if not np.array_equal(sums_TW, want_TN[:, panel * WIDTH : (panel + 1) * WIDTH]):
                found.append(f"sums: {T} x {N} x {C}")
        if packs:
            scratch_TN, total_TN = np.full((2, T, N), 2, np.float32)
            matmul.add_products(descriptor, prepared, scratch_TN, 0, matrix.num_panels, total_TN, np.float32(0.5))
            if not np.array_equal(total_TN, 2 + want_TN / 2):
                found.append(f"added: {T} x {N} x {C}")
    return found


def differing_in_attention() -> list[str]:
    """Return the shapes of blocks whose scores or weighted values are not those of `add_products`."""
    from ramiform.kernels.cpu.compiled import compiled_in_order

    def loop(function: Any, *kinds: str) -> Any:
        return compiled_in_order(f"int64({', '.join(kinds)})")(function)

    begin, clear = loop(tiles.begin, *["int64"] * 2), loop(tiles.clear_values, *["int64"] * 3)
    score, weigh = loop(tiles.score, *["int64"] * 5, "float32", "int64"), loop(tiles.weigh, *["int64"] * 6)
    state, found = np.zeros(1 << 15, np.uint8), []
    torch.manual_seed(0)
    for R, D, L in ((1, 64, 64), (7, 96, 33), (16, 128, 64), (5, 256, 1), (16, 32, 40), (9, 576, 17)):
        q_RD, k_LD, v_LD, w_RL = (torch.randn(shape).bfloat16() for shape in ((R, D), (64, D), (64, D), (R, 64)))
        q, k, v, w = (x.view(torch.int16).numpy() for x in (q_RD, k_LD, v_LD, w_RL))
        keys = np.ascontiguousarray(k.reshape(64, D // 2, 2).transpose(1, 0, 2))
        values = np.ascontiguousarray(v.reshape(32, 2, D).transpose(0, 2, 1))
        values[-(-L // 2) :] = 0x7FC0  # NaN, in the place of what earlier blocks left
        v_LD[L:] = 0
        w[:, L:] = 0
        if L % 2:
            values[L // 2, :, 1] = 0
        scores_RL, sums_RD = np.full((17, 64), np.nan, np.float32), np.full((17, D), np.nan, np.float32)
        sums_RD[:R] = np.random.default_rng(0).standard_normal((R, D))
        want_RL, want_RD = np.zeros((R, 64), np.float32), sums_RD[:R].copy()
        add_products(want_RL, q_RD.float().numpy(), k_LD.float().numpy())
        add_products(want_RD, w_RL.float().numpy(), np.ascontiguousarray(v_LD.float().numpy().T))
        weights = np.zeros((R, 128), np.int16)
        weights[:, :64] = w
        begin(state.ctypes.data, R)
        score(state.ctypes.data, R, q.ctypes.data, D, keys.ctypes.data, np.float32(0.37), scores_RL.ctypes.data)
        clear(values.ctypes.data, D, L)
        weigh(state.ctypes.data, L, weights.ctypes.data, values.ctypes.data, D, sums_RD.ctypes.data)
        if not (np.array_equal(scores_RL[:R], want_RL * np.float32(0.37)) and np.isnan(scores_RL[R:]).all()):
            found.append(f"scores: {R} x {D}")
        if not (np.array_equal(sums_RD[:R], want_RD) and np.isnan(sums_RD[R:]).all()):
            found.append(f"values: {R} x {D} x {L}")
    return found


def run(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RAMIFORM_CPU": level}
    return subprocess.run([sys.executable, "-P", *arguments], capture_output=True, text=True, env=environment)


def test_tiles_are_chosen_where_the_processor_has_them() -> None:
    assert choose("amx", TILES, "x86_64").tiles
    assert not choose("avx512-dot", TILES, "x86_64").tiles
    assert not choose("amx", SAPPHIRE_RAPIDS, "x86_64").tiles
    assert not choose("amx", TILES | {"amx-bf16": False}, "x86_64").tiles
    assert not choose("amx", TILES | {"amx-int8": False}, "x86_64").tiles
    assert choose("amx-emulated", {}, "x86_64") == EMULATED_TILES


@pytest.mark.exhaustive
def test_a_processor_with_tiles_gets_their_instructions() -> None:
    """The loop is compiled for it, not run."""
    code = """
        from llvmlite import binding
        found = dict(binding.get_host_cpu_features()) | dict.fromkeys(
            ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512bf16", "amx-tile", "amx-bf16",
             "amx-int8"), True)
        binding.get_host_cpu_features = lambda: type("Features", (dict,), {})(found)
        from numba.core import config
        config.CPU_NAME, config.CPU_FEATURES = "sapphirerapids", ""
        from numba import njit
        from ramiform.kernels.cpu.attention import tiles
        from ramiform.kernels.cpu.products import amx, byte_tiles

        def attention(rows, queries, size, keys, scores, num_keys, values, sums):
            state = amx.local_state()
            tiles.begin(state, rows)
            tiles.score(state, rows, queries, size, keys, 0.5, scores)
            tiles.weigh(state, num_keys, scores, values, size, sums)
            return tiles.end(state)

        def panel(rows, begin, end, steps, codes, half_bytes, bias, x, x_bytes, y, y_bytes):
            state = amx.local_state()
            amx.begin_panels(state)
            amx.add_panel(state, rows, begin, end, steps, codes, half_bytes, bias, x, x_bytes, y, y_bytes)
            amx.end_panels(state)

        functions = (
            ("void", 11, panel),
            ("void", 9, amx._multiply_many),
            ("int64", 12, amx.add_panel_of_bytes),
            ("void", 15, byte_tiles._add_unpacked),
            ("int64", 8, attention),
        )
        for kind, number, function in functions:
            loop = njit(kind + "(" + ", ".join(["int64"] * number) + ")")(function)
            print(*loop.inspect_asm().values(), end="=====")
    """
    done = run("amx", "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    # Weights, rows, sums, in AT&T's order: 16 rows and 64 outputs, the halves of a panel, 32 rows and 32 outputs.
    block = {("5", "4", "0"), ("6", "4", "1"), ("7", "4", "2"), ("5", "4", "3")}
    halves = {("6", "4", "0"), ("7", "4", "1"), ("5", "4", "2"), ("6", "4", "3")}
    two_blocks = {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}
    pairs = {("6", "4", str(place)) for place in range(4)}  # groups, whose codes have up to two scales
    expected = (
        ("tdpbf16ps", 8, two_blocks | halves),
        ("tdpbf16ps", 8, two_blocks | halves),
        ("tdpbsud", 8, block | two_blocks),
        ("tdpbssd", 18, pairs),
        ("tdpbf16ps", 9, block),
    )
    for (dot, least, places), text in zip(expected, done.stdout.split("=====")[:-1], strict=True):

        def count(instruction: str, text: str = text) -> int:
            return len(re.findall(rf"^\s*{instruction}\b", text, re.MULTILINE))

        assert count("ldtilecfg") >= 1
        assert count("tilerelease") >= 1
        assert count(dot) >= least
        assert count("tileloadd") >= count(dot)
        assert count("tilestored") >= least
        assert set(re.findall(rf"{dot}\s+%tmm(\d), %tmm(\d), %tmm(\d)", text)) == places


def test_attention_goes_by_tiles_where_they_are_usable_but_not_in_deterministic_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halves, floats = (KvCache(*torch.zeros(2, 64, 2, 64, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32))
    for is_usable in (False, True):
        monkeypatch.setattr(blocks, "usable", lambda is_usable=is_usable: is_usable)
        on_tiles = int(is_usable and HOST.bfloat16_dot)
        assert blocks.kv_descriptor(halves, torch.bfloat16)[blocks.ON_TILES] == on_tiles
        for kv, queries, allowed in (
            (halves, torch.bfloat16, False),
            (halves, torch.float32, True),
            (floats, torch.float32, True),
        ):
            assert blocks.kv_descriptor(kv, queries, tiles=allowed)[blocks.ON_TILES] == 0
    args = AttentionArgs([RowSpan(0, 1, np.array([0]))], halves, 4, 16, None, torch.bfloat16)
    for deterministic in (False, True):
        attention = for_device(torch.device("cpu"), deterministic=deterministic).attention(args)
        assert isinstance(attention, CompiledAttention)
        assert attention.tiles != deterministic


@pytest.mark.skipif(HOST.tiles, reason="this processor has tiles")
def test_loops_have_no_instructions_on_tiles_where_the_processor_has_none() -> None:
    for function in (tiles.begin, tiles.end, tiles.score, tiles.clear_values, tiles.weigh):
        assert function is compute_nothing
