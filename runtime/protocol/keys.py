"""CURVE keys (curvezmq.org) of a runtime and of its programs over TCP, in files of `zmq.auth`.

A folder has `server.key` and, for each program that may connect, `NAME.key`: public keys. Beside them are the secret
keys, `server.key_secret` and `NAME.key_secret`, readable only by their owner. A runtime needs `server.key_secret` and
the programs' public keys; a program needs `server.key` and its own secret key.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import zmq.auth

from .errors import RequestError

SERVER = "server"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ServerKeys(NamedTuple):
    public: bytes  # Z85 text, 40 characters
    secret: bytes
    programs: dict[bytes, str]  # public keys and their names


class ProgramKeys(NamedTuple):
    server: bytes
    public: bytes
    secret: bytes


def make_keys(folder: Path, program: str = "client") -> list[Path]:
    """Make the runtime's keys, unless they exist, and those of a program. Returns the files written.

    Raises RequestError for an invalid or existing name.
    """
    if not _NAME.fullmatch(program) or program == SERVER:
        raise RequestError(
            f"a program's name has letters, digits, - and _, at most 64, and is not 'server'; got {program!r}",
            param="name",
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"keys cannot be kept in {folder}: {error.strerror}", param="folder") from None
    if (folder / f"{program}.key_secret").exists() or (folder / f"{program}.key").exists():
        raise RequestError(f"{folder} has keys of the name {program!r} already", param="name")
    names = [program] if (folder / f"{SERVER}.key").exists() else [SERVER, program]
    before = os.umask(0o077)
    try:
        return [Path(path) for name in names for path in zmq.auth.create_certificates(folder, name)]
    finally:
        os.umask(before)


def server_keys(folder: Path) -> ServerKeys:
    """Load a runtime's keys. Raises RequestError naming the file that is missing, unreadable or open to others."""
    public, secret = _pair(folder / f"{SERVER}.key_secret")
    programs = {_public(file): file.stem for file in sorted(folder.glob("*.key")) if file.stem != SERVER}
    if not programs:
        raise RequestError(
            f"{folder} has no program's key, so nobody could connect; `ramiform keys` makes one", param="keys"
        )
    return ServerKeys(public, secret, programs)


def program_keys(folder: Path) -> ProgramKeys:
    """Load a program's keys. Raises RequestError naming the file that is missing, unreadable or open to others."""
    own = [file for file in sorted(folder.glob("*.key_secret")) if file.stem != SERVER]
    if len(own) != 1:
        found = ", ".join(file.name for file in own) or "none"
        raise RequestError(
            f"{folder} must have one program's secret key, NAME.key_secret, and has {found}", param="keys"
        )
    return ProgramKeys(_public(folder / f"{SERVER}.key"), *_pair(own[0]))


def keys_for(address: str, folder: str | os.PathLike[str] | None) -> ProgramKeys | None:
    """A program's keys if its address needs any."""
    return None if folder is None or not address.startswith("tcp:") else program_keys(Path(folder))


def _pair(file: Path) -> tuple[bytes, bytes]:
    if file.exists() and os.stat(file).st_mode & 0o077:
        raise RequestError(f"{file} may be read by others; make it yours alone (chmod 600)", param="keys")
    public, secret = _load(file)
    if secret is None:
        raise RequestError(f"{file} holds no secret key", param="keys")
    return public, secret


def _public(file: Path) -> bytes:
    return _load(file)[0]


def _load(file: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        raise RequestError(f"no key can be read from {file}: {error}", param="keys") from None
    for key in (public, secret):
        if key is not None and len(key) != 40:
            raise RequestError(f"{file} holds a key that is not 40 characters long", param="keys")
    return public, secret
