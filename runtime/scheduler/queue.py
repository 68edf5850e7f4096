"""The order in which waiting requests get a place. Pure; knows no pages."""

from __future__ import annotations

from collections.abc import Iterable

from .request import Request


def in_order(waiting: Iterable[Request], running: Iterable[Request]) -> list[Request]:
    """Higher priority first, then by arrival; a program's requests come together, where its first live one stands.

    A retracted request keeps its place, which is ahead of everything that came after it. A program's later requests
    cannot hold off another's for ever: they go ahead of it only while one of theirs that came before it is alive.
    """
    waiting = list(waiting)
    first: dict[tuple[int, str], int] = {}
    for request in [*waiting, *running]:
        program = request.message.program
        if program is not None:
            key = (request.message.priority, program)
            first[key] = min(first.get(key, request.serial), request.serial)

    def place(request: Request) -> tuple[int, int, int]:
        program = request.message.program
        serial = request.serial if program is None else first[request.message.priority, program]
        return -request.message.priority, serial, request.serial

    return sorted(waiting, key=place)
