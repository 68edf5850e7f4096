"""Files in the socket directory that tell the ranks of a node where torch.distributed meets.

Ranks of one machine meet at a file store. With several machines node 0 hosts a TCP store; a file has its address.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from .messages import Rendezvous

_MEETING = "meeting"
_ADDRESS = "rendezvous.json"


def meeting_file(socket_dir: str) -> Path:
    """Return the path of the file store for ranks of one machine."""
    return Path(socket_dir) / _MEETING


def write_rendezvous(socket_dir: str, rendezvous: Rendezvous) -> None:
    """Write the store's address for the ranks of this node."""
    (Path(socket_dir) / _ADDRESS).write_bytes(msgspec.json.encode(rendezvous))


def read_rendezvous(socket_dir: str) -> Rendezvous:
    """Read the store's address."""
    return msgspec.json.decode((Path(socket_dir) / _ADDRESS).read_bytes(), type=Rendezvous)
