"""Connection limits in total and per address, and which idle connection makes room."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from typing import Any

import pytest

from ramiform.runtime.frontend.http.transport.connection_limits import (
    MIN_IDLE_SECONDS,
    SPARE_CONNECTIONS,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionSlot,
    client_address,
    resolve_limits,
)
from ramiform.runtime.protocol.config import ServeConfig
from ramiform.runtime.protocol.errors import RequestError


class Hall:
    """A pool with a clock of its own, and the names of those who were ended."""

    def __init__(self, most: int, per_address: int) -> None:
        self.now = 0.0
        self.limiter = ConnectionLimiter(most, per_address, clock=lambda: self.now)
        self.ended: list[str] = []

    def admit(self, address: str | None, name: str = "", *, busy: bool = False) -> ConnectionSlot | None:
        slot = self.limiter.admit(address)
        if slot is not None:
            slot.close = lambda: self.ended.append(name)
            if busy:
                slot.busy()
        return slot

    def settle(self) -> None:
        self.now += MIN_IDLE_SECONDS


def test_a_place_that_is_given_back_is_there_again() -> None:
    hall = Hall(2, 2)
    first, second = hall.admit("a", busy=True), hall.admit("a", busy=True)
    assert first is not None
    assert second is not None
    assert hall.admit("b") is None
    first.release()
    first.release()
    assert hall.admit("b", busy=True) is not None
    assert hall.admit("b") is None
    assert hall.ended == []


def test_a_newcomer_takes_the_place_that_has_been_idle_longest_of_the_address_with_most() -> None:
    hall = Hall(4, 4)
    hall.admit("b", "b old")
    hall.settle()
    for name in ("a busy", "a older", "a newer"):
        hall.admit("a", name, busy=name == "a busy")
        hall.settle()
    assert hall.admit("c", "c") is not None
    assert hall.ended == ["a older"]
    hall.settle()
    assert hall.admit("c", "c") is not None
    assert hall.ended == ["a older", "a newer"] or hall.ended == ["a older", "b old"]


def test_an_address_that_has_too_many_takes_its_own_places_only() -> None:
    hall = Hall(10, 2)
    hall.admit("b", "b")
    hall.admit("a", "a busy", busy=True)
    hall.admit("a", "a idle")
    hall.settle()
    assert hall.admit("a", busy=True) is not None
    assert hall.ended == ["a idle"]
    hall.settle()
    assert hall.admit("a") is None
    assert hall.admit("c") is not None


def test_a_client_of_a_unix_socket_has_no_address_to_count() -> None:
    hall = Hall(3, 1)
    assert all(hall.admit(None, busy=True) for _ in range(3))
    assert hall.admit(None) is None


def test_a_connection_that_has_just_come_keeps_its_place() -> None:
    hall = Hall(1, 1)
    assert hall.admit("a", "a") is not None
    assert hall.admit("b") is None
    hall.settle()
    assert hall.admit("b") is not None


def test_a_request_s_end_makes_a_connection_idle_anew() -> None:
    hall = Hall(2, 2)
    first, second = hall.admit("a", "first"), hall.admit("a", "second")
    assert first is not None
    assert second is not None
    hall.now += MIN_IDLE_SECONDS / 2
    first.busy()
    first.idle()
    hall.now += MIN_IDLE_SECONDS / 2
    assert hall.admit("a", "third", busy=True) is not None
    assert hall.ended == ["second"]
    first.release()
    first.idle()  # a connection that has ended is idle no more
    assert hall.admit("a", busy=True) is not None
    assert hall.admit("a") is None


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_and_nobody_is_ended_without_need(seed: int) -> None:
    """Judge: lists searched linearly."""
    draw = random.Random(seed)
    most, per_address = draw.randint(1, 8), draw.randint(1, 8)
    hall = Hall(most, per_address)
    there: list[tuple[str, str, ConnectionSlot]] = []  # address, name, slot
    since: dict[str, float | None] = {}  # when it became idle
    for number in range(400):
        hall.now += draw.random() * MIN_IDLE_SECONDS
        if there and draw.random() < 0.5:
            entry = draw.choice(there)
            action = draw.choice(["busy", "idle", "release"])
            getattr(entry[2], action)()
            if action == "release":
                there.remove(entry)
            elif action == "busy":
                since[entry[1]] = None
            elif since[entry[1]] is None:
                since[entry[1]] = hall.now
            continue
        address, name = draw.choice("abc"), str(number)
        own = [entry for entry in there if entry[0] == address]
        settled = [e for e in there if (began := since[e[1]]) is not None and hall.now - began >= MIN_IDLE_SECONDS]
        slot = hall.admit(address, name)
        if len(own) >= per_address or len(there) >= most:
            rivals = [entry for entry in settled if entry[0] == address or len(own) < per_address]
            assert (slot is None) == (not rivals)
        else:
            assert slot is not None
            rivals = []
        if slot is None:
            assert not hall.ended
            continue
        for ended in hall.ended:
            entry = next(entry for entry in rivals if entry[1] == ended)
            assert since[ended] == min(since[e[1]] for e in rivals if e[0] == entry[0])  # type: ignore[type-var]
            there.remove(entry)
        assert len(hall.ended) == bool(rivals)
        hall.ended.clear()
        there.append((address, name, slot))
        since[name] = hall.now
        assert len(there) <= most
        assert sum(entry[0] == address for entry in there) <= per_address


def test_the_bounds_follow_from_the_limit_of_open_files() -> None:
    def of(num_descriptors: int, **settings: Any) -> ConnectionLimits:
        return resolve_limits(ServeConfig(socket_dir="", **settings), num_descriptors)

    assert of(1 << 20) == ConnectionLimits(4096, 2048, SPARE_CONNECTIONS)
    assert of(900) == ConnectionLimits(836, 418, 64)
    assert of(20) == ConnectionLimits(15, 8, 5)
    assert of(0) == ConnectionLimits(1, 1, 1)  # it serves one by one, as descriptors come free
    assert of(1 << 20, max_connections=100) == ConnectionLimits(100, 50, 64)
    assert of(1 << 20, max_connections=100, max_connections_per_address=7) == ConnectionLimits(100, 7, 64)
    assert of(1 << 20, frontends=3) == ConnectionLimits(1366, 683, 64)
    assert of(1 << 20, frontends=3, max_connections=100, max_connections_per_address=10) == ConnectionLimits(34, 4, 64)
    with pytest.raises(RequestError, match=r"max_connections 5000 .* room for 936") as error:
        of(1000, max_connections=5000)
    assert error.value.param == "max_connections"


def test_a_server_raises_its_limit_of_open_files_to_the_hard_one() -> None:
    code = (
        "import resource\n"
        "from ramiform.runtime.frontend.http.transport.connection_limits import free_descriptors\n"
        "from ramiform.runtime.frontend.http.transport.connection_limits import raise_descriptor_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500))\n"
        "before = free_descriptors()\n"
        "raise_descriptor_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), before < 84 < free_descriptors() < 500)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["500", "500", "True"]


@pytest.mark.parametrize(
    ("family", "address", "client"),
    [
        (socket.AF_INET, ("192.0.2.7", 4711), "192.0.2.7"),
        (socket.AF_INET6, ("2001:db8:1:2:3:4:5:6", 4711, 0, 0), "2001:db8:1:2::/64"),
        (socket.AF_INET6, ("fe80::1%lo", 4711, 0, 1), "fe80::/64"),
        (socket.AF_INET6, ("::ffff:192.0.2.7", 4711, 0, 0), "192.0.2.7"),
        (socket.AF_UNIX, "", None),
    ],
)
def test_the_address_that_a_connection_counts_for(family: int, address: Any, client: str | None) -> None:
    assert client_address(family, address) == client
