"""Damage to the files of a disk cache, as disks and ended processes do."""

from __future__ import annotations

import random
from pathlib import Path

from ramiform.runtime.disk.segment import HEADER_BYTES, LINE_BYTES


def files(folder: Path, kind: str) -> list[Path]:
    """List the files of all segments, of `kind` "index" or "pages"."""
    return sorted(folder.glob(f"*/*.{kind}"))


def damage(folder: Path, record_bytes: int, luck: random.Random) -> None:
    """Damage one file in a random way."""
    file = luck.choice([*files(folder, "pages"), *files(folder, "index")])
    data = bytearray(file.read_bytes())
    if not data:
        return
    how = luck.choice(["truncated", "zeroed", "swapped", "flipped", "doubled"])
    at, other = sorted(luck.randrange(len(data)) for _ in range(2))
    size = luck.choice([1, 32, record_bytes, 4096])
    record = LINE_BYTES if file.suffix == ".index" else record_bytes
    if how == "truncated":
        del data[at:]
    elif how == "zeroed":
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif how == "flipped":
        data[at] ^= 1 << luck.randrange(8)
    elif how == "swapped":
        one, two = (HEADER_BYTES + (place // record) * record for place in (at, other))
        data[one : one + record], data[two : two + record] = data[two : two + record], data[one : one + record]
    else:
        data += data[-record:]
    file.write_bytes(data)
