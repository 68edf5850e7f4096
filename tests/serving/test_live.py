"""The live socket on the real runtime: radix tree, programs, health; keys; several frontends; the end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

import ramiform
from ramiform import gen
from ramiform.tests.operations.servers import serving

SHARED = "You are a helpful assistant that answers every question in one short word. " * 4
WAIT = 60.0


@ramiform.function
def eight(s: ramiform.ProgramState) -> None:
    s += SHARED
    branches = s.fork(8)
    for number, branch in enumerate(branches):
        branch += f"{'abcdefgh'[number] * 40} is the word of question {number}:" + gen("word", max_tokens=4)
    branches.join()


class Watcher:
    """A viewer that applies what it is told, as the page does."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.nodes: dict[int, Any] = {}
        self.rows: dict[str, Any] = {}
        self.points: list[Any] = []
        self.events: dict[str, int] = {}
        self.view: Any = None
        self.totals: Any = None
        self.errors: list[Any] = []

    def subscribe(self, **topics: Any) -> None:
        self.socket.send(json.dumps({"subscribe": topics}))

    def until(self, condition: Callable[[], Any]) -> Any:
        """Take messages until the condition is true, and return its value."""
        deadline = time.monotonic() + WAIT
        while not (found := condition()):
            self.take(json.loads(self.socket.recv(timeout=deadline - time.monotonic())))
        return found

    def take(self, message: Any) -> None:
        match message["type"]:
            case "tree":
                if message["full"]:
                    self.nodes.clear()
                for number in message["removed"]:
                    del self.nodes[number]
                self.nodes.update((node["id"], node) for node in message["nodes"])
                self.totals = message["totals"]
                for name, tokens in message["events"].items():
                    self.events[name] = self.events.get(name, 0) + tokens
            case "programs":
                self.rows.update((row["id"], row) for row in message["rows"])
                for id in message["removed"]:
                    self.rows.pop(id, None)
            case "program":
                self.view = message["view"]
            case "health":
                self.points.append(message["point"])
            case "error":
                self.errors.append(message["error"])

    def children(self, number: int) -> list[Any]:
        return [node for node in self.nodes.values() if node["parent"] == number]

    def node_with_children(self, num: int) -> Any:
        return next((node for node in self.nodes.values() if len(self.children(node["id"])) == num), None)


@contextmanager
def watching(url: str, key: str | None = None) -> Iterator[Watcher]:
    with connect(url.replace("http", "ws") + "/v1/ramiform/live", open_timeout=WAIT) as socket:
        socket.send(json.dumps({"key": key}))
        yield Watcher(socket)


@pytest.fixture(scope="module")
def small() -> Iterator[ramiform.Runtime]:
    """A runtime whose cache is soon full."""
    with ramiform.Runtime(port=0, dtype="float32", num_pages=64, log_level="error") as started:
        yield started


@pytest.mark.exhaustive
def test_a_fork_over_a_shared_prompt_is_one_node_with_eight_children(small: ramiform.Runtime) -> None:
    assert small.url is not None
    httpx.post(f"{small.url}/flush_cache", timeout=WAIT)
    with watching(small.url) as watcher:
        watcher.subscribe(tree={"root": None, "limit": 2000})
        watcher.until(lambda: watcher.totals)
        eight.run(backend=small).text()
        whole = {node["id"]: node for node in httpx.get(f"{small.url}/v1/ramiform/tree", timeout=WAIT).json()["nodes"]}
        watcher.until(
            lambda: {id: n["tokens"] for id, n in watcher.nodes.items()} == {id: n["tokens"] for id, n in whole.items()}
        )
        shared = watcher.node_with_children(8)
        assert shared["hits"] >= 7
        assert watcher.nodes[shared["parent"]]["namespace"] == ""
        assert shared["tokens"] % 16 == 0
        assert shared["program"] is not None
        content = httpx.get(f"{small.url}/v1/ramiform/tree/{shared['id']}", timeout=WAIT).json()
        assert SHARED.startswith(content["text"].removeprefix("<|bos|>"))
        assert (content["tokens"], content["depth_tokens"]) == (shared["tokens"], 0)
        below = watcher.children(shared["id"])[0]["id"]
        content = httpx.get(f"{small.url}/v1/ramiform/tree/{below}", timeout=WAIT).json()
        assert content["depth_tokens"] == shared["tokens"]


@pytest.mark.exhaustive
def test_evictions_and_hits_appear(small: ramiform.Runtime) -> None:
    assert small.url is not None
    with watching(small.url) as watcher:
        watcher.subscribe(tree={"root": None, "limit": 2000})
        watcher.until(lambda: watcher.totals)
        for number in range(12):
            body = {"prompt": f"{number} " * 60, "max_tokens": 2}
            httpx.post(f"{small.url}/v1/completions", json=body, timeout=WAIT).raise_for_status()
        httpx.post(f"{small.url}/v1/completions", json=body, timeout=WAIT).raise_for_status()
        watcher.until(lambda: watcher.events["evicted_tokens"] and watcher.events["hit_tokens"])
        whole = httpx.get(f"{small.url}/v1/ramiform/tree", timeout=WAIT).json()
        watcher.until(lambda: set(watcher.nodes) == {node["id"] for node in whole["nodes"]})
        assert whole["totals"]["device_pages"] <= 64


@pytest.mark.exhaustive
def test_a_program_is_seen_while_it_runs_and_when_it_is_done(small: ramiform.Runtime) -> None:
    assert small.url is not None
    with watching(small.url) as watcher:
        watcher.subscribe(programs={}, health={})
        watcher.until(lambda: watcher.points)
        twice = [eight.run(backend=small) for _ in range(2)]
        assert len({state.text() for state in twice}) == 1
        done = watcher.until(
            lambda: [row for row in watcher.rows.values() if row["status"] == "done" and row["title"] == "eight"][1:]
        )
        row = done[0]
        assert (row["title"], row["kind"], row["states"], row["generations"]) == ("eight", "program", 9, 8)
        watcher.subscribe(program={"id": row["id"]})
        view = watcher.until(lambda: watcher.view)
        assert len(view["states"]) == 9
        assert view["texts"]
        watcher.subscribe(program={"id": "nothing"}, tree={"root": 10**6})
        watcher.until(lambda: len(watcher.errors) == 2)
        assert {error["param"] for error in watcher.errors} == {"id", "root"}


@pytest.mark.exhaustive
def test_with_several_keys_a_key_sees_what_is_its_own() -> None:
    with ramiform.Runtime(
        port=0, dtype="float32", num_pages=128, log_level="error", api_key="one,two", admin_key="boss"
    ) as started:
        url = started.url or ""

        def ask(path: str, key: str, **options: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.request(options.pop("method", "GET"), url + path, headers=headers, timeout=WAIT, **options)

        body = {"prompt": "a secret of one", "max_tokens": 2}
        assert ask("/v1/completions", "one", method="POST", json=body).status_code == 200
        eight.run(backend=started).text()  # of nobody over HTTP
        rows = {key: ask("/v1/ramiform/programs", key).json()["programs"] for key in ("one", "two", "boss")}
        assert [row["title"] for row in rows["one"]] == ["POST /v1/completions"]
        assert rows["two"] == []
        assert [row["title"] for row in rows["boss"]] == ["of another key", "of another key"]
        [mine] = rows["one"]
        path = f"/v1/ramiform/programs/{mine['id']}"
        assert "a secret of one" in ask(path, "one").text
        assert ask(path, "two").status_code == 404
        for_boss = ask(path, "boss")
        assert "secret" not in for_boss.text
        assert for_boss.json()["generations"] == 1
        assert not for_boss.json()["texts"]
        tree = ask("/v1/ramiform/tree", "two").json()
        roots = {node["id"] for node in tree["nodes"] if node["parent"] is None}
        assert len(roots) == 2  # the cache is divided by keys, as the labels show that tell no key
        assert not {"one", "two", "boss"} & {node.get("namespace") for node in tree["nodes"]}
        texts = {
            key: {
                ask(f"/v1/ramiform/tree/{node['id']}", key).json()["text"] for node in tree["nodes"] if node["tokens"]
            }
            for key in ("one", "two", "boss")
        }
        assert any(text is not None and "a secret of one" in text for text in texts["one"])
        assert None in texts["one"]  # of the program, which had no key
        assert texts["two"] == texts["boss"] == {None}
        with watching(url, "two") as two, watching(url, "boss") as boss:
            for each in (two, boss):
                each.subscribe(programs={}, program={"id": mine["id"]})
            boss.until(lambda: boss.view and len(boss.rows) == 2)
            two.until(lambda: two.errors)
            assert not two.rows
            assert "secret" not in json.dumps([boss.view, boss.rows])


@pytest.mark.exhaustive
def test_every_frontend_tells_of_all_frontends() -> None:
    with ramiform.Runtime(port=0, dtype="float32", num_pages=256, log_level="error", frontends=2) as started:
        url = started.url or ""
        for number in range(8):  # over as many connections, so that each frontend gets some
            body = {"prompt": f"Number {number}", "max_tokens": 2}
            httpx.post(f"{url}/v1/completions", json=body, timeout=WAIT).raise_for_status()
        eight.run(backend=started).text()
        frontends = set()
        for _ in range(6):
            with watching(url) as watcher:
                watcher.subscribe(programs={}, health={}, tree={})
                watcher.until(lambda: len(watcher.rows) == 9 and watcher.points and watcher.nodes)
                frontends |= {id.partition("-")[0] for id in watcher.rows}
        assert len(httpx.get(f"{url}/v1/ramiform/programs", timeout=WAIT).json()["programs"]) == 9
        for id in watcher.rows:
            assert httpx.get(f"{url}/v1/ramiform/programs/{id}", timeout=WAIT).json()["id"] == id
        for _ in range(4):
            points = httpx.get(f"{url}/v1/ramiform/health", timeout=WAIT).json()["points"]
            assert sum(point["requests"] for point in points) >= 0
            assert points[-1]["t"] >= watcher.points[0]["t"]


@pytest.mark.exhaustive
def test_a_server_with_a_viewer_ends_when_it_is_told_to() -> None:
    with serving() as server:
        with watching(server.url) as watcher:
            watcher.subscribe(health={}, tree={}, programs={})
            watcher.until(lambda: watcher.points and watcher.totals)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                watcher.until(lambda: False)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        assert server.end() == (0, "")
