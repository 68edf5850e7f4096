"""Cases of the grammar bench: schemas with valid and invalid instances, and their spellings.

MaskBench and the JSON-Schema-Test-Suite (split into one file a schema) have the same files: an object with `schema` and
`tests`, each with `data` and `valid`. MaskBench's own runner writes an instance as `json.dumps(data,
ensure_ascii=False)`, with a space after `,` and `:`; so does "any" here.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Literal

import msgspec

Whitespace = Literal["any", "compact"]
Spelling = Literal["raw", "escaped"]
SEPARATORS: dict[Whitespace, tuple[str, str]] = {"any": (", ", ": "), "compact": (",", ":")}


class Instance(msgspec.Struct, frozen=True):
    """A JSON value, and its validity under the schema of its case."""

    data: Any
    valid: bool

    def text(self, whitespace: Whitespace, spelling: Spelling = "raw") -> str:
        """Write the value. Raises ValueError if it has no such text: an unpaired surrogate has no UTF-8 encoding."""
        written = json.dumps(self.data, separators=SEPARATORS[whitespace], ensure_ascii=spelling == "escaped")
        written.encode()
        return written


class Case(msgspec.Struct, frozen=True):
    """One schema and its instances."""

    name: str
    schema: Any
    instances: list[Instance]


def load_cases(folder: Path, only: str = "", sample: int | None = None, seed: int = 0) -> list[Case]:
    """Load the cases in a folder's *.json files whose names contain `only`, sorted by name, or a sample of them."""
    paths = sorted(path for path in folder.glob("*.json") if only in path.name)
    if sample is not None and sample < len(paths):
        paths = sorted(random.Random(seed).sample(paths, sample))
    return [_load(path) for path in paths]


def _load(path: Path) -> Case:
    document = json.loads(path.read_text("utf-8"))
    instances = [Instance(test["data"], test["valid"]) for test in document["tests"]]
    return Case(path.stem, document["schema"], instances)
