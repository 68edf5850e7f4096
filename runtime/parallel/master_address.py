"""The address of node 0, and checks of the settings of several nodes."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from ..protocol.config import CoreConfig
from ..protocol.errors import RequestError
from ..protocol.keys import program_keys, server_keys

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


class MasterAddress(NamedTuple):
    """Node 0's IP address and port."""

    ip: str
    port: int

    @classmethod
    def of(cls, config: CoreConfig) -> MasterAddress:
        """Resolve the setting `master`. Raises RequestError when the host has no address."""
        host, port = _parse_address(config.master)
        try:
            found = socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RequestError(f"master {config.master!r} has no IPv4 address: {error}", param="master") from None
        return cls(str(found[0][4][0]), port)

    def own_ip(self) -> str:
        """Return the IP address of this node on the route to node 0."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
            try:
                unsent.connect((self.ip, self.port))
            except OSError as error:
                raise RequestError(f"no route to master {self.ip}: {error}", param="master") from None
            return str(unsent.getsockname()[0])


def check_nodes(config: CoreConfig) -> None:
    """Raise RequestError, naming the setting, for nodes that cannot work; called before any process starts."""
    if config.nnodes == 1:
        for name in ("node_rank", "master", "node_keys"):
            if getattr(config, name):
                raise RequestError(f"{name} is for several nodes, and nnodes is 1", param=name)
        return
    if config.node_rank >= config.nnodes:
        raise RequestError(
            f"node_rank {config.node_rank} of nnodes {config.nnodes}: nodes are counted from 0", param="node_rank"
        )
    if config.num_ranks % config.nnodes:
        raise RequestError(
            f"tp {config.tp} x pp {config.pp} are {config.num_ranks} processes, which nnodes {config.nnodes} cannot "
            "divide evenly",
            param="nnodes",
        )
    _parse_address(config.master)
    if config.node_keys is None:
        raise RequestError(
            "nodes authenticate each other by keys: make them with `ramiform keys FOLDER`, and name it with node_keys",
            param="node_keys",
        )
    try:
        (server_keys if config.node_rank == 0 else program_keys)(Path(config.node_keys))
    except RequestError as error:
        raise RequestError(str(error), param="node_keys") from None


def _parse_address(master: str | None) -> tuple[str, int]:
    host, _, port = (master or "").rpartition(":")
    if not host or not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise RequestError(f"several nodes need master HOST:PORT, an address of node 0; got {master!r}", param="master")
    return host, int(port)


def interface_name(ip: str) -> str | None:
    """Return the name of the network interface with this address; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(answer[20:24]) == ip:
                return name
    return None
