"""Counts what a decode step's tile of codes with scales of their own issues on sm_90, against the time that its bytes
take to be read; prints a JSON object for each head size and format. Run in a process that does not interpret:
`python issue_cycles.py [HEAD_DIM,FORMAT ...]`.

A multiprocessor of an H100 issues four instructions a cycle, one for each of four warps, and reads some 15 bytes
(docs/inside/kernels.md).
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch

from ramiform.kernels.reference.scaled_codes import scaled_size
from ramiform.kernels.triton import launch_configs
from ramiform.kernels.triton.launching import Launch
from ramiform.kernels.triton.variants import KernelShapes, variants

sys.path.insert(0, __file__.rpartition("/")[0])
from compile_all import MODELS
from compiling import compile_launch

BYTES_A_CYCLE, ISSUED_A_CYCLE = 15, 4
FORMATS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
SHAPES = {64: MODELS["qwen2.5-0.5b"], 128: MODELS["llama-8b"], 256: replace(MODELS["gemma-2-9b"], windows=(None,))}


def decode_launch(shapes: KernelShapes) -> Launch:
    """Return the launch of a decode step without trees or shared keys."""
    launches = (one for one in variants(shapes) if one.kernel.__name__ == "_attend_split")
    return next(
        one
        for one in launches
        if one.arguments["BLOCK_M"] == 16 and not one.arguments["PIECES"] and one.arguments["visible_T"] is None
    )


def main(wanted: list[str]) -> None:
    launch_configs.ASSUMED_CAPABILITY = (9, 0)
    for one in wanted or [f"{head_dim},{name}" for head_dim in SHAPES for name in FORMATS]:
        head_dim, name = int(one.split(",")[0]), one.split(",")[1]
        launch = decode_launch(replace(SHAPES[head_dim], kv_dtype=FORMATS[name], scaled_kv=True))
        compiled = compile_launch(launch, 90, counts_loops=True)
        loop = compiled.loops[1]  # behind the search for the split's row; the last one is that of masked tiles
        cycles = loop * launch.options["num_warps"] / ISSUED_A_CYCLE
        keys = launch.arguments["TILE"]
        read = 2 * keys * scaled_size(head_dim, FORMATS[name]) / BYTES_A_CYCLE
        found = {"head_dim": head_dim, "format": name, "keys": keys, "warps": launch.options["num_warps"]}
        found |= {"registers": compiled.registers, "spilled_bytes": compiled.spilled_bytes, "loop": loop}
        print(json.dumps(found | {"read": round(read), "issue_per_read": round(cycles / read, 3)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
