"""Sets of instructions: how one is chosen, and the machine code that is made for each."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from llvmlite import binding, ir

from ramiform.kernels.cpu.instructions import (
    AVX2,
    AVX512,
    AVX512_DOT,
    EMULATED,
    GENERIC,
    NEON,
    Instructions,
    choose,
)
from ramiform.kernels.cpu.products.tile_kernels import emit_function

ZEN3 = {"avx2": True, "fma": True, "f16c": True}
SKYLAKE = ZEN3 | {"avx512f": True, "avx512bw": True, "avx512vl": True}
SAPPHIRE_RAPIDS = SKYLAKE | {"avx512vnni": True, "avx512bf16": True, "avx512vbmi": True}


def test_the_widest_instructions_up_to_the_level_are_chosen() -> None:
    assert choose("avx512-dot", SAPPHIRE_RAPIDS, "x86_64") == AVX512_DOT
    assert choose("avx512", SAPPHIRE_RAPIDS, "x86_64") == AVX512
    assert choose("avx512-dot", SKYLAKE, "x86_64") == AVX512
    assert choose("avx2", SAPPHIRE_RAPIDS, "x86_64") == AVX2
    assert choose("avx512-dot", ZEN3, "x86_64") == AVX2
    assert choose("generic", SAPPHIRE_RAPIDS, "x86_64") == GENERIC
    assert choose("avx512-dot", {}, "x86_64") == GENERIC
    assert choose("avx512-dot", {}, "aarch64") == NEON
    assert choose("avx512-emulated", {}, "x86_64") == EMULATED


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import ramiform.loops"],
        capture_output=True,
        text=True,
        env=os.environ | {"RAMIFORM_CPU": "sse9"},
    )
    assert "RAMIFORM_CPU is 'sse9', and can be generic, avx2" in done.stderr


def assembly(instructions: Instructions, weights: str, num_rows: int, cpu: str, triple: str) -> str:
    module = ir.Module()
    function = emit_function(module, instructions, weights, num_rows, 1)
    function.linkage = ""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    parsed = binding.parse_assembly(str(module))
    parsed.triple = triple
    parsed.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return str(machine.emit_assembly(parsed))


def count(instruction: str, text: str) -> int:
    return len(re.findall(rf"^\s*{instruction}\b", text, re.MULTILINE))


X86 = "x86_64-unknown-linux-gnu"


@pytest.mark.parametrize("cpu", ["sapphirerapids", "znver4"])
@pytest.mark.parametrize(
    ("weights", "rows", "instruction", "least"),
    [
        ("bfloat16_dot", 6, "vdpbf16ps", 24),
        ("bfloat16_dot", 1, "vdpbf16ps", 4),
        ("int8", 6, "vpdpbusd", 48),
        ("int8_groups", 1, "vpdpbusd", 32),
        ("int4", 5, "vpdpbusd", 160),
    ],
)
def test_dot_products_are_one_instruction(cpu: str, weights: str, rows: int, instruction: str, least: int) -> None:
    text = assembly(AVX512_DOT, weights, rows, cpu, X86)
    assert count(instruction, text) >= least
    assert "zmm" in text


@pytest.mark.parametrize(
    ("instructions", "cpu", "weights"),
    [
        (AVX2, "haswell", "float32"),
        (AVX2, "haswell", "bfloat16"),
        (AVX512_DOT, "znver4", "float32"),
        (AVX512_DOT, "znver4", "bfloat16_dot"),
    ],
)
def test_sums_of_floats_stay_in_registers(instructions: Instructions, cpu: str, weights: str) -> None:
    text = assembly(instructions, weights, 6, cpu, X86)
    product = "vdpbf16ps" if weights == "bfloat16_dot" else "vfmadd"
    inner_loop = max(re.split(r"^\.L\w+:", text, flags=re.MULTILINE), key=lambda block: block.count(product))
    assert inner_loop.count(product) >= 6 * instructions.vectors
    inner_loop = inner_loop[: inner_loop.index("\tj")]
    stores = re.findall(r"mov\w+\s+%[yz]mm\d+, \d*\(%rsp\)", inner_loop)
    assert len(stores) <= 1, "no sums go to memory; of AVX2's 16 registers, a vector of weights may"


@pytest.mark.slow
def test_bytes_are_multiplied_in_pairs_by_avx2() -> None:
    assert count("vpmaddubsw", assembly(AVX2, "int8", 4, "haswell", X86)) >= 16
    assert count("vpmaddubsw", assembly(AVX512, "int8", 4, "skylake-avx512", X86)) >= 32
    text = assembly(AVX2, "int4", 4, "haswell", X86)
    assert count("vpmaddubsw", text) >= 8 * count("vpmaddwd", text) > 0


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int8_groups", "int4"])
def test_code_is_made_for_other_processors(weights: str) -> None:
    assert "mulps" in assembly(GENERIC, weights, 4, "x86-64", X86)
    if "aarch64" in str(binding.Target.from_default_triple()) or _has_target("aarch64-unknown-linux-gnu"):
        assert "fmla" in assembly(NEON, weights, 4, "generic", "aarch64-unknown-linux-gnu") or weights.startswith("int")


def _has_target(triple: str) -> bool:
    binding.initialize_all_targets()
    try:
        binding.Target.from_triple(triple)
    except RuntimeError:
        return False
    return True
