"""Digest of a model's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLES, _SAMPLE_BYTES = 2048, 512  # of each file of weights: copies that differ anywhere to speak of differ there


def weights_digest(path: Path) -> str:
    """Hash a model's configuration whole, and of its weights many short parts: fine-tunes of one model have files of
    the same sizes and headers."""
    found = hashlib.sha256()
    files = [path] if path.is_file() else [path / "config.json", *sorted(path.glob("*.safetensors"))]
    for file in files:
        size = file.stat().st_size
        found.update(f"{size}\0".encode())
        with file.open("rb") as content:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                found.update(content.read())
                continue
            for sample in range(_SAMPLES):
                content.seek(sample * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                found.update(content.read(_SAMPLE_BYTES))
    return found.hexdigest()
