"""How the ranks of a node learn where torch.distributed meets: a file among the sockets, which nobody else may read.

Ranks of one machine meet at another such file. Where there are several machines, node 0 keeps a store, and the file
says where.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from .messages import Rendezvous

_MEETING = "meeting"
_ADDRESS = "rendezvous.json"


def meeting_file(socket_dir: str) -> Path:
    """Where ranks of one machine meet."""
    return Path(socket_dir) / _MEETING


def write_rendezvous(socket_dir: str, rendezvous: Rendezvous) -> None:
    (Path(socket_dir) / _ADDRESS).write_bytes(msgspec.json.encode(rendezvous))


def read_rendezvous(socket_dir: str) -> Rendezvous:
    return msgspec.json.decode((Path(socket_dir) / _ADDRESS).read_bytes(), type=Rendezvous)
