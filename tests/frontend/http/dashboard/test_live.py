"""The page's WebSocket, with a real client and topics that tests make."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ramiform.runtime.frontend.http.dashboard import live
from ramiform.runtime.protocol.errors import RequestError

from ...harness import House, run
from ...served import served


class Numbers:
    """A topic that always has news: a number that grows, and some padding."""

    def __init__(self, padding: int = 0) -> None:
        self.padding = padding
        self.asked = 0
        self.closed = False

    async def news(self) -> Any:
        self.asked += 1
        return {"type": "numbers", "number": self.asked, "at": time.monotonic(), "padding": "x" * self.padding}

    def close(self) -> None:
        self.closed = True


class Failing:
    async def news(self) -> Any:
        raise RequestError("there is no such program", param="id")

    def close(self) -> None:
        pass


@asynccontextmanager
async def house(topic: Any = None, **options: Any) -> AsyncIterator[House]:
    async with served(**options) as (built, _):
        api = live_api(built)
        if topic is not None:
            api.topics["program"] = lambda viewer, options: topic
        yield built


def live_api(built: House) -> live.LiveApi:
    api: live.LiveApi = built.frontend._page.live  # type: ignore[union-attr]
    return api


@asynccontextmanager
async def viewing(built: House, key: str | None = None, **options: Any) -> AsyncIterator[ClientConnection]:
    async with connect(address(built), open_timeout=120, **options) as socket:
        await socket.send(json.dumps({"key": key}))
        yield socket


def address(built: House) -> str:
    return built.url.replace("http", "ws") + "/v1/ramiform/live"


async def subscribe(socket: ClientConnection, **topics: Any) -> None:
    await socket.send(json.dumps({"subscribe": topics}))


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(60):
        return json.loads(await socket.recv())


async def closing_code(socket: ClientConnection) -> int:
    with suppress(ConnectionClosed):
        async with asyncio.timeout(60):
            while True:
                await socket.recv()
    assert socket.close_code is not None
    return socket.close_code


@pytest.mark.exhaustive
def test_points_of_health_come_and_only_while_subscribed() -> None:
    async def main() -> None:
        async with house() as built, viewing(built) as socket:
            history = built.frontend._page._history  # type: ignore[union-attr]
            assert history._num_watchers == 0
            await subscribe(socket, health={})
            first, second = [(await receive(socket))["point"]["t"] for _ in range(2)]
            assert first < second
            assert history._num_watchers == 1
            await subscribe(socket)
            await built_until(lambda: history._num_watchers == 0)

    run(main())


async def built_until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("padding", "least"), [(0, live.SECONDS_PER_MESSAGE), (60_000, 0.6)])
def test_messages_keep_their_distance_by_number_and_size(padding: int, least: float) -> None:
    async def main() -> None:
        async with house(Numbers(padding)) as built, viewing(built) as socket:
            await subscribe(socket, program={"id": "x"})
            times = [(await receive(socket))["at"] for _ in range(5)]
            assert all(after - before >= least - 0.005 for before, after in pairwise(times))

    run(main())


@pytest.mark.exhaustive
def test_topics_take_turns() -> None:
    async def main() -> None:
        async with house(Numbers()) as built, viewing(built) as socket:
            other = Numbers(padding=1)
            live_api(built).topics["programs"] = lambda viewer, options: other
            await subscribe(socket, program={"id": "x"}, programs={})
            paddings = [(await receive(socket))["padding"] for _ in range(6)]
            assert 2 <= paddings.count("x") <= 4

    run(main())


@pytest.mark.exhaustive
def test_a_slow_reader_gets_what_is_new_and_nothing_queues_up() -> None:
    async def main() -> None:
        topic = Numbers(padding=90_000)
        live_api_seconds, live.SECONDS_PER_MESSAGE = live.SECONDS_PER_MESSAGE, 0.0
        live_api_bytes, live.BYTES_PER_SECOND = live.BYTES_PER_SECOND, 1 << 40
        try:
            async with house(topic) as built, viewing(built, max_queue=1, compression=None) as socket:
                await subscribe(socket, program={"id": "x"})
                stalled, since = 0, 0
                while stalled < 20:  # until the buffers between the two are full
                    await asyncio.sleep(0.05)
                    stalled, since = (stalled + 1, since) if topic.asked == since else (0, topic.asked)
                num_buffered = topic.asked
                for _ in range(num_buffered + 3):
                    last = await receive(socket)
                assert last["number"] > num_buffered
        finally:
            live.SECONDS_PER_MESSAGE, live.BYTES_PER_SECOND = live_api_seconds, live_api_bytes

    run(main())


@pytest.mark.exhaustive
def test_an_error_of_a_topic_is_told_and_the_others_go_on() -> None:
    async def main() -> None:
        async with house(Failing()) as built, viewing(built) as socket:
            await subscribe(socket, program={"id": "x"}, health={})
            kinds = [await receive(socket) for _ in range(3)]
            [error] = [each["error"] for each in kinds if each["type"] == "error"]
            assert (error["message"], error["param"]) == ("there is no such program", "id")
            assert [each["type"] for each in kinds].count("health") == 2

    run(main())


@pytest.mark.exhaustive
def test_a_topic_that_stays_is_not_begun_anew() -> None:
    async def main() -> None:
        topic = Numbers()
        async with house(topic) as built, viewing(built) as socket:
            await subscribe(socket, program={"id": "x"})
            await receive(socket)
            await subscribe(socket, program={"id": "x"}, health={})
            while (await receive(socket))["type"] != "health":
                pass
            assert not topic.closed
            await subscribe(socket, program={"id": "y"})
            await built_until(lambda: topic.closed)

    run(main())


@pytest.mark.exhaustive
def test_with_keys_a_key_has_to_be_the_first_message() -> None:
    async def main() -> None:
        async with house(api_key="one,two") as built:
            for first in ({"key": "three"}, {"key": None}, {"key": ""}, {"subscribe": {"health": {}}}, {}):
                async with connect(address(built), open_timeout=120) as socket:
                    await socket.send(json.dumps(first))
                    assert await closing_code(socket) == live.BAD_KEY
            for key in ("one", "two"):
                async with viewing(built, key) as socket:
                    await subscribe(socket, health={})
                    assert (await receive(socket))["type"] == "health"
            headers = {"authorization": "Bearer one"}
            async with viewing(built, None, additional_headers=headers) as socket:
                await subscribe(socket, health={})
                assert (await receive(socket))["type"] == "health"

    run(main())


@pytest.mark.slow
def test_a_client_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEY_SECONDS", 0.1)

    async def main() -> None:
        async with house(api_key="one,two") as built, connect(address(built), open_timeout=120) as socket:
            assert await closing_code(socket) == live.BAD_KEY

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no json", live.BAD_MESSAGE),
        ('{"subscribe": {"weather": {}}}', live.BAD_MESSAGE),
        ('{"subscribe": {"program": {}}}', live.BAD_MESSAGE),
        ('{"subscribe": {"tree": {"limit": "many"}}}', live.BAD_MESSAGE),
        ('{"key": "' + "k" * 5000 + '"}', live.TOO_BIG),
    ],
)
def test_a_message_that_is_none_ends_the_connection(message: str, code: int) -> None:
    async def main() -> None:
        async with house() as built, viewing(built) as socket:
            await socket.send(message)
            assert await closing_code(socket) == code

    run(main())


@pytest.mark.slow
def test_a_limit_that_is_too_large_is_told() -> None:
    async def main() -> None:
        async with house() as built, viewing(built) as socket:
            await subscribe(socket, tree={"limit": 10**9})
            assert (await receive(socket))["error"]["param"] == "limit"

    run(main())


@pytest.mark.exhaustive
def test_a_page_of_another_site_cannot_connect_without_a_key() -> None:
    async def main() -> None:
        async with house(cors_origins="https://friend.example") as built:
            with pytest.raises(InvalidStatus) as refused:
                await connect(address(built), origin="https://evil.example", open_timeout=120)  # type: ignore[arg-type]
            assert refused.value.response.status_code == 403
            for origin in (built.url, "https://friend.example", None):
                async with viewing(built, origin=origin) as socket:
                    await subscribe(socket, health={})
                    assert (await receive(socket))["type"] == "health"

    run(main())


@pytest.mark.exhaustive
def test_the_number_of_viewers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS_PER_KEY", 2)
    monkeypatch.setattr(live, "MAX_VIEWERS", 4)

    async def main() -> None:
        async with house(api_key="one,two,three") as built:
            async with viewing(built, "one") as a, viewing(built, "one") as b, viewing(built, "two") as c:
                for socket in (a, b, c):
                    await subscribe(socket, health={})
                    await receive(socket)
                async with viewing(built, "one") as too_many:
                    assert await closing_code(too_many) == live.TRY_LATER
                async with viewing(built, "three") as d:
                    await subscribe(d, health={})
                    await receive(d)
                    async with connect(address(built), open_timeout=120) as too_many:
                        assert await closing_code(too_many) == live.TRY_LATER
            await built_until(lambda: live_api(built)._num_viewers.total() == 0)

    run(main())


@pytest.mark.exhaustive
def test_viewers_do_not_count_as_requests() -> None:
    async def main() -> None:
        async with house(max_requests_per_key=1) as built, viewing(built) as a, viewing(built) as b:
            for socket in (a, b):
                await subscribe(socket, health={})
                await receive(socket)

    run(main())


@pytest.mark.exhaustive
def test_the_connection_ends_cleanly_when_the_server_stops() -> None:
    async def main() -> None:
        async with house() as built, viewing(built) as socket:
            await subscribe(socket, health={})
            await receive(socket)
            stopping = asyncio.create_task(built.frontend.stop(None))
            assert await closing_code(socket) == 1012  # the service restarts
            await stopping

    run(main())
