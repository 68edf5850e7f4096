"""A GGUF file: its metadata as Python values and its tensors by name, read by the `gguf` package."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol.errors import RamiformError

if TYPE_CHECKING:
    import gguf

GGUF_SUFFIX = ".gguf"


class GgufFile:
    """An open GGUF file."""

    def __init__(self, path: Path, reader: gguf.GGUFReader) -> None:
        self.path = path
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = reader.fields
        self.architecture = str(self.value("general.architecture", default=""))

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a metadata key, or `default`. "{arch}" in the key stands for the architecture's name."""
        field = self._fields.get(key.replace("{arch}", self.architecture) if "{" in key else key)
        return default if field is None else field.contents()


def is_gguf(path: Path) -> bool:
    """Return True when the path has the suffix of a GGUF file."""
    return path.suffix == GGUF_SUFFIX


def open_gguf(path: Path) -> GgufFile:
    """Open the GGUF file `path`.

    Raises RamiformError when the `gguf` package is not installed or the file is not readable.
    """
    return _open(path, path.stat().st_mtime_ns)


def _reader(path: Path) -> gguf.GGUFReader:
    import gguf

    class Reader(gguf.GGUFReader):
        """A reader that slices plain arrays: slices of `numpy.memmap` take three times as long, and there are two for
        each word of a vocabulary."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if isinstance(self.data, np.memmap):
                self.data = self.data.view(np.ndarray)
            return super()._get(offset, dtype, count, override_order)

    return Reader(path, "r")


@lru_cache(maxsize=1)  # config, weights and tokenizer are read one after the other
def _open(path: Path, changed: int) -> GgufFile:
    try:
        return GgufFile(path, _reader(path))
    except ImportError:
        raise RamiformError(
            f"{path}: GGUF files are read with the extra 'gguf': pip install 'ramiform[gguf]'"
        ) from None
    except (ValueError, IndexError, OverflowError, KeyError, OSError) as error:
        raise RamiformError(f"{path}: not readable as GGUF: {error}") from None
