"""A GGUF file: its metadata as Python values and its tensors by name, read by the `gguf` package.

A model may be split into NAME-00001-of-00003.gguf and so on: the first file has the metadata, each file some tensors.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...protocol.errors import RamiformError

if TYPE_CHECKING:
    import gguf

GGUF_SUFFIX = ".gguf"
MAGIC = b"GGUF"
_UNKNOWN_TYPES = {42: "Q2_0"}  # to the package gguf, 0.19
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufFile:
    """An open GGUF file, with the tensors of all parts if it is split."""

    def __init__(self, path: Path, readers: Sequence[gguf.GGUFReader]) -> None:
        self.path = path
        self.tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self._fields = readers[0].fields
        self._byte_order = _byte_order(readers[0])
        self.architecture = str(self.value("general.architecture", default=""))

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a metadata key, or `default`. "{arch}" in the key stands for the architecture's name."""
        field = self._fields.get(key.replace("{arch}", self.architecture) if "{" in key else key)
        if field is None:
            return default
        match [kind.name for kind in field.types]:
            case ["ARRAY", "STRING"]:
                return _read_strings(field.parts[field.data[0]], self._byte_order)
            case ["ARRAY", _]:
                return field.parts[field.data[0]].tolist()
            case _:
                return field.contents()

    @property
    def file_type(self) -> str | None:
        """The quantisation that most tensors have, as llama.cpp names it, such as "Q4_K_M"; None if it is not told."""
        from gguf import LlamaFileType

        names = {each.value: each.name for each in LlamaFileType}
        name = names.get(self.value("general.file_type"))
        return None if name is None else name.removeprefix("MOSTLY_").removeprefix("ALL_")

    def has(self, name: str, wanted: Any = None) -> bool:
        """Return True if there is a tensor `name`, or a key of the architecture with the value `wanted`; None: any but
        0."""
        found = name in self.tensors or self.value(f"{{arch}}.{name}")
        return bool(found) if wanted is None else found == wanted


def is_gguf(path: Path) -> bool:
    """Return True when the path has the suffix of a GGUF file."""
    return path.suffix == GGUF_SUFFIX


def gguf_parts(path: Path) -> list[Path]:
    """Return the files of a model that may be split, the first one first; `path` is one of them."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    return [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}{GGUF_SUFFIX}") for number in range(1, count + 1)]


def gguf_stem(name: str) -> str:
    """Return the name of a GGUF file without its suffix and the number of its part."""
    match = _PART.fullmatch(name)
    return name.removesuffix(GGUF_SUFFIX) if match is None else match["stem"]


def open_gguf(path: Path) -> GgufFile:
    """Open the GGUF file `path`, and its further parts.

    Raises RamiformError when the `gguf` package is not installed, or a part is missing or not readable.
    """
    parts = gguf_parts(path)
    if missing := [part.name for part in parts if not part.exists()]:
        raise RamiformError(f"{path} is one of {len(parts)} parts, and {', '.join(missing[:3])} is missing beside it")
    return _open(tuple(parts), tuple(part.stat().st_mtime_ns for part in parts))


def _reader(path: Path) -> gguf.GGUFReader:
    import gguf

    class Reader(gguf.GGUFReader):
        """A reader that checks ends, and keeps an array as one part: the package makes two for each word of a
        vocabulary, which takes seconds."""

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            kind, count, start = gguf.GGUFValueType(head[0][0]), int(head[1][0]), orig_offs + 12
            if kind is gguf.GGUFValueType.STRING:
                body = self._get(start, np.uint8, self._strings_end(start, count) - start)
            elif kind in self.gguf_scalar_to_np:
                body = self._get(start, self.gguf_scalar_to_np[kind], count)
            else:
                return super()._get_field_parts(orig_offs, raw_type)
            return 12 + int(body.nbytes), [*head, body], [2], [gguf.GGUFValueType.ARRAY, kind]

        def _strings_end(self, start: int, count: int) -> int:
            data, order, end = memoryview(self.data), _byte_order(self), start
            for _ in range(count):
                end += 8 + int.from_bytes(data[end : end + 8], order)
                if end > len(data):
                    self._check_end(end, "its metadata")
            return end

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if isinstance(self.data, np.memmap):
                self.data = self.data.view(np.ndarray)
            self._check_end(int(offset) + np.dtype(dtype).itemsize * int(count), "its metadata")
            return super()._get(offset, dtype, count, override_order)

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            ends = [0]
            for field in fields:
                *_, dims, kind, offset = field.parts
                if kind[0] not in gguf.GGML_QUANT_SIZES:
                    name = _UNKNOWN_TYPES.get(int(kind[0]), f"ggml's type {kind[0]}")
                    raise ValueError(f"{field.name} is stored as {name}, which the package gguf does not read")
                block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind[0])]
                ends.append(int(start_offs + offset[0]) + math.prod(map(int, dims)) * block_bytes // block_size)
            self._check_end(max(ends), "its tensors")
            super()._build_tensors(start_offs, fields)

        def _check_end(self, end: int, what: str) -> None:
            if end > self.data.size:
                raise ValueError(
                    f"the file ends early: it has {self.data.size:,} bytes, and {what} need {end:,}. Download it again"
                )

    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise ValueError(f"it is no GGUF file: it begins with {start!r}, not with {MAGIC!r}")
    return Reader(path, "r")


def _byte_order(reader: gguf.GGUFReader) -> Literal["little", "big"]:
    is_little = (sys.byteorder == "little") == (reader.byte_order == "I")
    return "little" if is_little else "big"


def _read_strings(body: NDArray[np.uint8], order: Literal["little", "big"]) -> list[str]:
    """Return the texts of an array, each behind its length in 8 bytes."""
    data, texts, at = body.tobytes(), [], 0
    while at < len(data):
        start = at + 8
        at = start + int.from_bytes(data[at:start], order)
        texts.append(data[start:at].decode())
    return texts


@lru_cache(maxsize=1)  # config, weights and tokenizer are read one after the other
def _open(parts: tuple[Path, ...], changed: tuple[int, ...]) -> GgufFile:
    path = parts[0]
    try:
        file = GgufFile(path, [_reader(path := part) for part in parts])
    except ImportError:
        raise RamiformError(
            f"{path}: GGUF files are read with the extra 'gguf': pip install 'ramiform[gguf]'"
        ) from None
    except (ValueError, IndexError, OverflowError, KeyError, OSError) as error:
        raise RamiformError(f"{path}: not readable as GGUF: {error}") from None
    declared = file.value("split.tensors.count", default=len(file.tensors))
    if declared != len(file.tensors):
        raise RamiformError(f"{parts[0]}: it declares {declared} tensors, and its parts have {len(file.tensors)}")
    return file
