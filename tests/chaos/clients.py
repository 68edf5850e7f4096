"""Clients of a walk, the well-behaved and the others, and what each of them was told."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, Literal

import httpx

import ramiform
from ramiform.tests.composition.mix import branches, thoughts

from .walk import Ask

PATIENCE = 180.0  # seconds until a client that hears nothing counts as forgotten
PAUSE = 1.5  # seconds that a slow reader does not read
PROGRAMS = {"branches": (branches, ("item", "so")), "thoughts": (thoughts, ("thought", "good", "best0", "best1"))}
SMALL_BUFFER = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
GARBAGE = [b"\x16\x03\x01\x02\x00" + bytes(200), b"GET /\x00 HTTP/9\r\n\r\n", b"POST /generate HTTP/1.1\r\n:\r\n\r\n"]


@dataclass(frozen=True)
class Outcome:
    """Answer that a client was given. `answer`: the whole answer; `part`: its beginning, since the client ended it;
    `error`: a status or an event that says why; `cut`: its stream ended without a word; `unanswered`: the connection
    failed before an answer began; `hostile`: a client that asked nothing.
    """

    kind: Literal["answer", "part", "error", "cut", "unanswered", "hostile"]
    value: Any = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the parts that have ids."""
        return sum(len(part.get("ids") or []) for part in self.value) if self.kind in ("answer", "part") else 0


@dataclass(frozen=True)
class Server:
    """Where clients find it."""

    url: str
    program_address: str
    api_key: str | None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers=self.headers, timeout=PATIENCE, transport=httpx.HTTPTransport(**options)
        )

    def connect(self) -> socket.socket:
        url = httpx.URL(self.url)
        return socket.create_connection((url.host, url.port), timeout=PATIENCE)


def ask_server(server: Server, ask: Ask, over: Event) -> Outcome:
    """Conduct a request. Hostile clients hold their connection until `over` is set."""
    if ask.delay:
        time.sleep(ask.delay)
    if ask.route == "program":
        return _run_program(server, ask)
    try:
        match ask.conduct:
            case "reads":
                return _read(server, ask)
            case "streams" | "slow" | "leaves" | "aborts":
                return _stream(server, ask)
    except httpx.TimeoutException as error:
        raise AssertionError(f"nobody answered for {PATIENCE:g} s: {ask}") from error
    except httpx.HTTPError as error:
        return Outcome("unanswered", repr(error))
    with suppress(OSError):  # refused, or reset: its own fault
        _attack(server, ask, over)
    return Outcome("hostile")


def _run_program(server: Server, ask: Ask) -> Outcome:
    arguments = dict(ask.body)
    function, names = PROGRAMS[arguments.pop("name")]
    try:
        with ramiform.RuntimeEndpoint(server.program_address) as backend:
            state = function.run(**arguments, backend=backend)
            if ask.conduct == "leaves":
                state.close()
                return Outcome("hostile")
            return Outcome("answer", [{"text": state.text(), "finish": [state[name] for name in names]}])
    except ramiform.RamiformError as error:
        return Outcome("error", repr(error))


def _read(server: Server, ask: Ask) -> Outcome:
    with server.client() as client:
        response = client.post(ask.route, json=ask.body)
    if response.status_code != 200:
        return Outcome("error", f"{response.status_code} {response.text}")
    value = response.json()
    if ask.route == "/generate":
        return Outcome("answer", [_native(part) for part in (value if isinstance(value, list) else [value])])
    return Outcome("answer", [_openai(choice) for choice in value["choices"]])


def _native(part: dict[str, Any]) -> dict[str, Any]:
    return {"text": part["text"], "ids": part["output_ids"], "finish": part["meta_info"]["finish_reason"]}


def _openai(choice: dict[str, Any]) -> dict[str, Any]:
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return {"text": text, "finish": choice["finish_reason"]}


def _stream(server: Server, ask: Ask) -> Outcome:
    body = ask.body | {"stream": True}
    rid = uuid.uuid4().hex
    if ask.conduct == "aborts":
        body["rid"] = rid
    parts: dict[int, dict[str, Any]] = {}
    num_events = 0
    buffer = {"socket_options": SMALL_BUFFER} if ask.conduct == "slow" else {}
    with server.client(**buffer) as client, client.stream("POST", ask.route, json=body) as response:
        if response.status_code != 200:
            return Outcome("error", f"{response.status_code} {response.read()!r}")
        try:
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return Outcome("part" if ask.conduct == "aborts" else "answer", _in_order(parts))
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return Outcome("error", str(event["error"]))
                _add(parts, event)
                num_events += 1
                if num_events == 3 and ask.conduct == "leaves":
                    return Outcome("part", _in_order(parts))
                if num_events == 3 and ask.conduct == "aborts":
                    with server.client() as other:
                        other.post("/abort_request", json={"rid": rid})
                if num_events == 3 and ask.conduct == "slow":
                    time.sleep(PAUSE)
        except httpx.TimeoutException:
            raise
        except httpx.HTTPError as error:
            return Outcome("cut", repr(error))
    return Outcome("cut", "the stream ended without [DONE]")


def _add(parts: dict[int, dict[str, Any]], event: dict[str, Any]) -> None:
    """Add an event: the whole output so far (/generate), or a piece of it (OpenAI)."""
    if "choices" not in event:
        parts[event.get("index", 0)] = _native(event)
        return
    for choice in event["choices"]:
        part = parts.setdefault(choice["index"], {"text": "", "finish": None})
        part["text"] += (choice["text"] if "text" in choice else choice["delta"].get("content")) or ""
        part["finish"] = choice["finish_reason"] or part["finish"]


def _in_order(parts: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [parts[index] for index in sorted(parts)]


def _attack(server: Server, ask: Ask, over: Event) -> None:
    body = json.dumps(ask.body).encode()
    head = f"POST {ask.route} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in server.headers.items())
    whole = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    with server.connect() as connection:
        match ask.conduct:
            case "half head":
                connection.sendall(head.encode()[: len(head) // 2])
            case "half body":
                connection.sendall(whole[: -len(body) // 2])
            case "garbage":
                connection.sendall(random.Random(len(body)).choice(GARBAGE))
                connection.recv(65536)
            case "resets":
                connection.sendall(whole)
                time.sleep(len(body) % 3 / 10)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
        over.wait(PATIENCE)
