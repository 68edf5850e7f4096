"""Programs of other machines: a service like the one between processes, at TCP, for those whose keys are known."""

from __future__ import annotations

import logging
from pathlib import Path

import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from ...protocol.errors import ErrorInfo
from ...protocol.keys import server_keys
from ...protocol.transport import check_bind
from ..text.generation import Generator
from .server import ProgramServer

logger = logging.getLogger("ramiform.frontend")


class RemoteProgramServer:
    """Raises RequestError for an address or keys that will not do, before anything is bound."""

    def __init__(self, context: zmq.asyncio.Context, bind: str, keys: str | None, generator: Generator) -> None:
        check_bind(bind, keys)
        assert keys is not None
        self._keys = server_keys(Path(keys))
        self._authenticator = AsyncioAuthenticator(context, log=logging.getLogger("ramiform.keys"))
        self._authenticator.configure_curve_callback("*", credentials_provider=self)
        self.service = ProgramServer(context, bind, generator, keys=self._keys)

    def start(self) -> None:
        """Raises RamiformError when the address cannot be had."""
        self._authenticator.start()
        self.service.start()

    async def stop(self, error: ErrorInfo) -> None:
        await self.service.stop(error)
        self._authenticator.stop()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the program with this public key may come in. Asked by the authenticator."""
        name = self._keys.programs.get(key)
        if name is None:
            logger.warning("a program with an unknown key was refused: %s", key.decode())
        return name is not None
