"""Keys of pages on disk: a page is named by its tokens and by all that precedes them.

The hash is keyed by a secret of the folder, so that nobody who chooses tokens can make two prefixes meet, or ask for a
prefix of which he does not know the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from ...radix.packed_tokens import TOKEN_BYTES
from ..protocol.config import PAGE_SIZE, CoreConfig
from ..transfer.messages import KvLayout

KEY_BYTES = 16
PAGE_TOKEN_BYTES = PAGE_SIZE * TOKEN_BYTES


class KvFormat(msgspec.Struct, frozen=True, kw_only=True):
    """All that pages depend on besides tokens and namespace. Pages of another format are never found."""

    layout: KvLayout
    version: str  # of the package: its kernels round as they do
    device: str  # "cpu" or "cuda"
    settings: dict[str, str | int | bool | None]  # that choose kernels
    weights_changed: list[int]  # times of the weights' files, in nanoseconds: the layout's digest reads parts of them


# Settings of which the bits of keys and values may depend, beside those of the layout.
_SETTINGS = ("model_impl", "deterministic", "kernels", "tp", "pp", "ep")


def format_of(config: CoreConfig, layout: KvLayout, *, version: str, device: str, path: Path) -> KvFormat:
    """Return the format of the pages of a loaded model whose files are at `path`."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return KvFormat(
        layout=layout,
        version=version,
        device=device.partition(":")[0],
        settings={name: getattr(config, name) for name in _SETTINGS},
        weights_changed=[file.stat().st_mtime_ns for file in files],
    )


class PageKeys:
    """Keys of one format's pages, under the folder's `secret` of at most 64 bytes."""

    def __init__(self, secret: bytes, kv_format: KvFormat) -> None:
        self._secret = secret
        self.format_digest = self._hash(b"format\0" + msgspec.json.encode(kv_format, order="deterministic"))

    def root(self, namespace: str) -> bytes:
        """Return the key before the first page of a namespace."""
        return self._hash(b"namespace\0" + self.format_digest + namespace.encode("utf-8", "surrogatepass"))

    def following(self, key: bytes, tokens: bytes | bytearray) -> Iterator[bytes]:
        """Yield the keys of the whole pages of packed tokens that follow the page, or root, of `key`."""
        for at in range(0, len(tokens) // PAGE_TOKEN_BYTES * PAGE_TOKEN_BYTES, PAGE_TOKEN_BYTES):
            key = self._hash(key + tokens[at : at + PAGE_TOKEN_BYTES])
            yield key

    def _hash(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=KEY_BYTES, key=self._secret).digest()
