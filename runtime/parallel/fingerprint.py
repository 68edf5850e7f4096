"""Fingerprint of a node's settings and files, which the nodes of a runtime compare before they load anything.

Nodes are started independently. Settings that differ would show as a hang, or as wrong tokens.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from ..models.checkpoint import find_checkpoint
from ..protocol.config import CoreConfig
from ..protocol.errors import RequestError
from ..protocol.version import __version__

# Settings with paths: the files must be equal, their paths need not.
_FILE_SETTINGS = (
    "model",
    "speculative_draft_model",
    "kv_scales",
)
# Settings that may differ between nodes.
_PER_NODE = frozenset(
    (
        *_FILE_SETTINGS,
        *("served_model_name", "device", "node_rank", "master", "node_keys", "log_plans"),
        *("kv_events", "kv_events_format", "kv_events_topic"),
        "lora",  # node 0 reads the files, and sends the others their parts
    )
)
_HEAD_BYTES = 1 << 16  # bytes hashed of a large file: its header has names and shapes
_MAX_JSON_BYTES = 1 << 24


class NodeFingerprint(msgspec.Struct, frozen=True):
    """Version, settings and file digests that all nodes must share."""

    version: str
    settings: dict[str, str | int | float | bool | None]
    files: dict[str, str]  # digest by setting

    @classmethod
    def of(cls, config: CoreConfig) -> NodeFingerprint:
        """Make the fingerprint of this node. Raises RamiformError when a file is missing."""
        settings = {name: value for name, value in msgspec.structs.asdict(config).items() if name not in _PER_NODE}
        files = {}
        for name in _FILE_SETTINGS:
            if name == "model" or getattr(config, name) is not None:
                path = (
                    Path(getattr(config, name)).expanduser()
                    if name == "kv_scales"
                    else find_checkpoint(getattr(config, name))
                )
                files[name] = files_digest(path)
        return cls(__version__, settings, files)

    def check(self, other: NodeFingerprint, node: int) -> None:
        """Compare with node `node`; this fingerprint is node 0's. Raises RequestError, naming the setting that
        differs."""
        if other.version != self.version:
            raise RequestError(f"node {node} runs ramiform {other.version}, node 0 {self.version}", param="version")
        for name, value in self.settings.items():
            theirs = other.settings.get(name)
            if theirs != value:
                raise RequestError(
                    f"node {node} was started with {name} {theirs!r}, node 0 with {value!r}: they must be the same",
                    param=name,
                )
        for name in _FILE_SETTINGS:
            if self.files.get(name) != other.files.get(name):
                raise RequestError(f"the {name} of node {node} differs from node 0's", param=name)


def files_digest(path: Path) -> str:
    """Hash a file, or the model and draft files of a checkpoint directory: names, sizes, short files and large files'
    heads."""
    found = hashlib.sha256()
    files = (
        [path] if path.is_file() else sorted([*path.glob("*.json"), *path.glob("*.safetensors"), *path.glob("draft/*")])
    )
    for file in files:
        size = file.stat().st_size
        name = file.relative_to(path).as_posix() if file != path else ""
        found.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as content:
            found.update(content.read(_MAX_JSON_BYTES if file.suffix == ".json" else _HEAD_BYTES))
    return found.hexdigest()
