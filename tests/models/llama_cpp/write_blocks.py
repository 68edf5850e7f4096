"""Writes `data/blocks.npz`: rows that ggml quantised, and the numbers that it makes of them: `python -P write_blocks.py
LIBRARY`, the extension module of the wheel `xllamacpp==2026.10.11549`.

Every type of block that the package `gguf` dequantises.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from judge import LlamaCpp

OUT = Path(__file__).parent / "data" / "blocks.npz"
COLUMNS = 256
PLAIN = ("F32", "F16", "BF16")
WRITTEN_BY_NOBODY = ("Q8_K", "Q8_1")  # of products, not of files


def main(library: str) -> None:
    judge = LlamaCpp(Path(library))
    rows = np.random.default_rng(3).standard_t(4, size=(2, COLUMNS)).astype(np.float32) * 0.1
    found: dict[str, np.ndarray] = {}
    for kind in sorted(gguf.quants._type_traits, key=lambda one: one.name):
        if kind.name in PLAIN + WRITTEN_BY_NOBODY:
            continue
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        data = judge.quantise(rows, int(kind), COLUMNS // size * num_bytes)
        numbers = judge.dequantise(data, int(kind))
        print(kind.name, f"{np.linalg.norm(numbers - rows) / np.linalg.norm(rows):.3f}")
        found |= {kind.name: data, f"{kind.name} numbers": numbers}
    np.savez_compressed(OUT, **found)
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
