"""Connections at the byte level: heads that are too long, too slow or not HTTP, and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest
import websockets

from ramiform.runtime.frontend.http.transport import http_protocol
from ramiform.tests.frontend.harness import House, house, run
from ramiform.tests.frontend.served import check_error, served

from .peers import HEAD, WHOLE, connected, connections, until

REFUSED = {
    "a header of 10 MB": ([HEAD + b"X: " + b"a" * 10_000_000 + b"\r\n\r\n"], 431),
    "a header of 66 kB": ([HEAD + b"X: " + b"a" * 66_000 + b"\r\n\r\n"], 431),
    "a name of 1 MB": ([HEAD + b"x" * 1_000_000 + b": a\r\n\r\n"], 431),
    "many headers": ([HEAD + b"X: a\r\n" * 200 + b"\r\n"], 431),
    "headers together": ([HEAD + (b"X: " + b"a" * 1000 + b"\r\n") * 100 + b"\r\n"], 431),
    "a URL of 40 kB": ([b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"], 414),
    "a long URL in pieces": ([b"GET /"] + [b"a" * 5000] * 10, 414),
    "no URL at all": ([b"\r\n" * 200_000], 431),
    "no HTTP": ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"], 400),
    "a header of 10 MB after a request": ([WHOLE, HEAD + b"X: " + b"a" * 10_000_000 + b"\r\n\r\n"], 431),
    "a header of 66 kB right after a request": ([WHOLE + HEAD + b"X: " + b"a" * 66_000 + b"\r\n\r\n"], 431),
    "endless trailers": (
        [b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: " + b"a" * 400_000],
        400,
    ),
    "many trailers": (
        [b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n" * 200],
        431,
    ),
    "an endless chunk extension": (
        [b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5", b";" + b"a" * 400_000],
        400,
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", REFUSED)
def test_a_head_beyond_the_bounds_is_refused_and_its_connection_ends(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    pieces, status = REFUSED[case]

    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            sending = asyncio.gather(*(peer.send(piece) for piece in pieces), return_exceptions=True)
            assert (await peer.refusal())[0] == status
            await sending
            async with connected(built) as other:
                await other.send(WHOLE)
                assert await other.answer() == 200

    with caplog.at_level(logging.WARNING):
        run(main())
    assert not caplog.records  # a stranger writes no lines into the log


@pytest.mark.slow
def test_a_head_that_never_ends_is_refused_while_it_comes() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            refused = asyncio.create_task(peer.refusal())
            await peer.send(HEAD + b"X: ")
            num_sent = 0
            while not refused.done() and num_sent < 100_000_000:
                try:
                    await peer.send(b"a" * 100)
                except ConnectionError:
                    break
                num_sent += 100
            assert await refused == (431, "request_header_fields_too_large")

    run(main())


@pytest.mark.slow
def test_heads_within_the_bounds_are_answered() -> None:
    async def main() -> None:
        async with served() as (_, client):
            check_error(await client.get("/" + "m" * 30_000), 404, None)
            fields = {f"x-{index}": "a" * 600 for index in range(100)}
            assert (await client.get("/version", headers=fields)).status_code == 200

    run(main())


@pytest.mark.slow
def test_many_requests_after_one_another_are_counted_each_for_itself() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            for _ in range(40):
                await peer.send(HEAD + b"X: " + b"a" * 6000 + b"\r\n\r\n")
                assert await peer.answer() == 200
            body = b" " * 300_000 + b'{"prompt": "a"}'
            head = f"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n".encode()
            for piece in (head + b"Content-Type: application/json\r\n\r\n" + body + WHOLE[:20], WHOLE[20:]):
                await peer.send(piece)
            assert [await peer.answer() for _ in range(2)] == [200, 200]

    run(main())


@pytest.mark.slow
def test_requests_before_a_head_that_is_refused_are_answered() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            await peer.send(WHOLE + WHOLE + b"NOTHING\r\n\r\n")
            answers = (await peer.until_closed()).split(b"HTTP/1.1 ")[1:]
            assert [int(answer[:3]) for answer in answers] == [200, 200, 400]

    run(main())


@pytest.mark.slow
def test_more_requests_in_one_go_than_a_connection_may_have_waiting_end_it() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            await peer.send(WHOLE * 1000)
            num = (await peer.until_closed()).count(b"HTTP/1.1 200")
            assert num == 1 + http_protocol.MAX_PIPELINED

    run(main())


@pytest.mark.slow
def test_trailers_do_not_become_headers() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            head = b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            body = b'Transfer-Encoding: chunked\r\n\r\nf\r\n{"prompt": "a"}\r\n0\r\nX-Request-Id: mine\r\n\r\n'
            await peer.send(head + body)
            answer = await peer.reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in answer
            assert b"mine" not in answer

    run(main())


def expire(built: House, num_bytes: int) -> None:
    """The time of a head that has come so far is over."""
    (server_side,) = connections(built)
    assert server_side._num_bytes == num_bytes
    left = server_side._deadline.when() - asyncio.get_running_loop().time()
    assert left <= http_protocol.HEAD_SECONDS
    server_side._on_timeout()


async def arrived(built: House, num_bytes: int) -> None:
    await until(lambda: any(each._num_bytes == num_bytes for each in connections(built)))


@pytest.mark.slow
@pytest.mark.parametrize("beginning", [b"G", HEAD, HEAD + b"X: a"], ids=["a letter", "a header", "half a header"])
@pytest.mark.parametrize("before", [b"", WHOLE], ids=["first", "later"])
def test_a_head_that_does_not_end_in_time_is_a_408(before: bytes, beginning: bytes) -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            if before:
                await peer.send(before)
                assert await peer.answer() == 200
            await peer.send(beginning)
            await arrived(built, len(beginning))
            expire(built, len(beginning))
            assert await peer.refusal() == (408, "request_timeout")
            peer.writer.close()
            await until(lambda: not connections(built))

    run(main())


@pytest.mark.slow
def test_the_time_of_a_head_may_end_when_its_client_has_just_left() -> None:
    async def main() -> None:
        async with house(http=True) as built:
            assert built.frontend.http_port is not None
            with socket.create_connection(("127.0.0.1", built.frontend.http_port)) as peer:
                peer.sendall(HEAD)
                await arrived(built, len(HEAD))
            expire(built, len(HEAD))  # the first write to a closed socket resets it
            await until(lambda: not connections(built))

    run(main())


@pytest.mark.slow
def test_a_head_that_was_begun_before_an_answer_has_its_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            await peer.send(WHOLE)
            assert await peer.answer() == 200
            monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)
            await peer.send(WHOLE + HEAD)
            assert await peer.answer() == 200
            assert await peer.refusal() == (408, "request_timeout")

    run(main())


@pytest.mark.slow
def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)

    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            assert await peer.until_closed() == b""
            await until(lambda: not connections(built))

    run(main())


@pytest.mark.slow
def test_a_head_that_grows_letter_by_letter_gets_no_more_time() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            await peer.send(HEAD)
            await arrived(built, len(HEAD))
            (server_side,) = connections(built)
            deadline = server_side._deadline
            for index in range(20):
                await peer.send(b"a")
                await arrived(built, len(HEAD) + index + 1)
            assert server_side._deadline is deadline
            expire(built, len(HEAD) + 20)
            assert await peer.refusal() == (408, "request_timeout")

    run(main())


@pytest.mark.slow
def test_the_rest_of_a_body_that_was_refused_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with house(http=True, api_key="secret") as built, connected(built) as peer:
            await peer.send(b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
            assert await peer.answer() == 401
            ended = asyncio.create_task(peer.until_closed())
            while not ended.done():
                try:
                    await peer.send(b"100\r\n" + b" " * 256 + b"\r\n")
                except ConnectionError:
                    break
                await asyncio.sleep(0.001)
            await ended

    run(main())


@pytest.mark.exhaustive
def test_a_client_that_does_not_read_its_answers_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_SECONDS", 0.1)

    async def main() -> None:
        async with house(http=True) as built:
            deaf = socket.socket()
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with deaf:
                deaf.connect(("127.0.0.1", built.frontend.http_port))
                deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 60)
                await until(lambda: bool(connections(built)))
                await until(lambda: not connections(built))

    run(main())


# WebSockets


def socket_url(built: House) -> str:
    return built.url.replace("http", "ws") + "/v1/responses"


@pytest.mark.slow
def test_a_websocket_whose_handshake_has_a_long_line_is_told_so() -> None:
    async def main() -> None:
        async with house(http=True) as built:
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(
                    socket_url(built), additional_headers={"x": "a" * 9000}, proxy=None, open_timeout=120
                )
            assert refused.value.response.status_code == 431
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(socket_url(built) + "?" + "a" * 9000, proxy=None, open_timeout=120)
            assert refused.value.response.status_code == 414

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 00\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
)
def test_a_handshake_with_a_body_is_refused_and_gives_its_place_back(fields: bytes) -> None:
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

    async def main() -> None:
        async with house(http=True) as built:
            async with connected(built) as peer:
                await peer.send(b"GET /v1/responses HTTP/1.1\r\nHost: a\r\n" + upgrade + fields)
                assert await peer.refusal() == (400, "invalid_http_request")
            await until(lambda: not connections(built))

    run(main())


@pytest.mark.slow
def test_a_length_of_thousands_of_digits_is_a_number_like_another() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            await peer.send(b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"0" * 5000 + b"2\r\n\r\n{}")
            assert await peer.answer() == 200

    run(main())


@pytest.mark.slow
def test_a_handshake_that_cannot_be_read_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"Host: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"

    async def main() -> None:
        async with house(http=True) as built:
            for head in (b"GET /\xff HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n"):
                async with connected(built) as peer:
                    await peer.send(head + upgrade + b"\r\n")
                    await peer.until_closed()
            await until(lambda: not connections(built))

    with caplog.at_level(logging.WARNING):
        run(main())
    assert not caplog.records


@pytest.mark.slow
def test_a_websocket_message_of_endless_fragments_ends_the_connection() -> None:
    async def main() -> None:
        async def fragments() -> AsyncIterator[str]:
            for _ in range(http_protocol.MAX_FRAGMENTS + 10):
                yield ""

        async with house(http=True) as built:
            async with websockets.connect(socket_url(built), proxy=None, open_timeout=120) as peer:
                with contextlib.suppress(websockets.ConnectionClosed):
                    await peer.send(fragments())
                await peer.wait_closed()
                assert peer.close_code == 1009
            await until(lambda: not connections(built))

    run(main())


@pytest.mark.exhaustive
def test_pongs_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    async def main() -> None:
        async with house(http=True) as built, connected(built) as peer:
            await peer.send(
                b"GET /v1/responses HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            assert b" 101 " in await peer.reader.readuntil(b"\r\n\r\n")
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            ping = b"\x89\xfd\0\0\0\0" + b"a" * 125
            for _ in range(200):
                await peer.send(ping * 1000)
            (server_side,) = connections(built)
            assert server_side.transport.get_write_buffer_size() < 1_000_000

    run(main())
