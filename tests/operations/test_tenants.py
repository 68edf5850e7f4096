"""API keys are tenants: none reads, ends or continues what another made, or learns what is cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import httpx
import pytest

from .servers import Server, serving

pytestmark = pytest.mark.slow

PROMPT = "The tenants of a long street have a key each, and none of them knows what the others keep at home. " * 3
MESSAGES = [{"role": "user", "content": PROMPT}]
Client = Callable[[str], httpx.Client]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--api-key", "one,two", "--admin-key", "root", "--frontends", "2") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    """Return a client by its key. Connections are not kept, so that either frontend answers."""
    limits = httpx.Limits(max_keepalive_connections=0)
    clients = {
        key: httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=120, limits=limits)
        for key in ("one", "two", "root")
    }
    yield clients.__getitem__
    for each in clients.values():
        each.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("round_", range(3))  # whichever frontend answers
def test_a_stored_response_belongs_to_its_key(client: Client, round_: int) -> None:
    body = {"input": "My number is 7.", "max_output_tokens": 4}
    one = client("one").post("/v1/responses", json=body).json()["id"]
    for other in ("two", "root"):
        assert client(other).get(f"/v1/responses/{one}").status_code == 404
        assert client(other).get(f"/v1/responses/{one}/input_items").status_code == 404
        assert client(other).post(f"/v1/responses/{one}/cancel").status_code == 404
        assert client(other).delete(f"/v1/responses/{one}").status_code == 404
        for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
            answer = client(other).post(path, json={"input": "Which?", "previous_response_id": one})
            assert answer.json()["error"]["code"] == "previous_response_not_found", path
    assert client("one").get(f"/v1/responses/{one}").json()["status"] in ("completed", "incomplete")
    continued = client("one").post("/v1/responses", json=body | {"previous_response_id": one})
    assert continued.json()["usage"]["input_tokens"] > 20
    assert client("one").delete(f"/v1/responses/{one}").json()["deleted"]


@pytest.mark.parametrize("round_", range(2))
def test_a_conversation_belongs_to_its_key(client: Client, round_: int) -> None:
    mine, said = client("one"), [{"role": "user", "content": "My number is 7."}]
    path = f"/v1/conversations/{mine.post('/v1/conversations', json={'items': said}).json()['id']}"
    [item] = mine.get(f"{path}/items").json()["data"]
    body = {"input": "Which?", "max_output_tokens": 1, "conversation": path.rpartition("/")[2]}
    for other in ("two", "root"):
        asked = client(other)
        answers = [asked.get(path), asked.post(path, json={"metadata": {"a": "b"}}), asked.delete(path)]
        answers += [asked.get(f"{path}/items"), asked.post(f"{path}/items", json={"items": said})]
        answers += [asked.get(f"{path}/items/{item['id']}"), asked.delete(f"{path}/items/{item['id']}")]
        answers.append(asked.post("/v1/responses", json=body))
        assert [answer.status_code for answer in answers] == [404] * 8
        named = {"input": [{"type": "item_reference", "id": item["id"]}], "max_output_tokens": 1}
        assert asked.post("/v1/responses", json=named).json()["error"]["code"] == "item_not_found"
    assert mine.post("/v1/responses", json=body).status_code == 200  # whichever frontend has the conversation
    assert len(mine.get(f"{path}/items").json()["data"]) == 3
    named = {"input": [{"type": "item_reference", "id": item["id"]}], "max_output_tokens": 1}
    assert mine.post("/v1/responses", json=named).status_code == 200
    assert mine.post(path, json={"metadata": {"a": "b"}}).json()["metadata"] == {"a": "b"}
    assert mine.delete(path).json()["deleted"]


@pytest.mark.parametrize("round_", range(2))
def test_a_stream_in_the_background_is_followed_by_its_key_from_any_frontend(client: Client, round_: int) -> None:
    body = {"input": "Tell me", "background": True, "stream": True, "max_output_tokens": 30}
    events = client("one").post("/v1/responses", json=body).text.split("\n\n")
    name = events[0].partition('"id":"')[2].partition('"')[0]
    rest = {"stream": "true", "starting_after": 2}
    for _ in range(3):  # both frontends answer
        assert client("one").get(f"/v1/responses/{name}", params=rest).text.split("\n\n") == events[3:]
    assert client("two").get(f"/v1/responses/{name}", params=rest).status_code == 404


def test_a_background_response_is_cancelled_by_its_key_alone(client: Client) -> None:
    body = {"input": "Tell me", "background": True, "max_output_tokens": 1500, "ignore_eos": True}
    status = None
    while status != "cancelled":  # it may have ended by itself before it was cancelled
        one = client("one").post("/v1/responses", json=body).json()["id"]
        assert client("two").post(f"/v1/responses/{one}/cancel").status_code == 404
        assert client("one").get(f"/v1/responses/{one}").json()["status"] != "cancelled"
        status = client("one").post(f"/v1/responses/{one}/cancel").json().get("status")


@pytest.mark.parametrize("who", ["one", "root"])
def test_a_request_is_ended_by_its_key_or_an_admin_alone(client: Client, who: str) -> None:
    body = {
        "text": "Tell me",
        "rid": f"mine {who}",
        "stream": True,
        "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True},
    }
    ended = None
    while ended != "abort":  # it may have ended by itself before it was aborted
        with client("one").stream("POST", "/generate", json=body) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            next(lines)
            assert client("two").post("/abort_request", json={"rid": body["rid"]}).status_code == 200
            seen = list(islice(lines, 20))  # it goes on
            assert not [line for line in seen if '"abort"' in line]
            assert client(who).post("/abort_request", json={"rid": body["rid"]}).status_code == 200
            *_, last, done = [*seen, *lines]
        assert done == "[DONE]"
        ended = json.loads(last)["meta_info"]["finish_reason"]["type"]


def test_a_session_belongs_to_its_key(client: Client) -> None:
    assert client("one").post("/open_session", json={"session_id": "mine"}).json() == "mine"
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1}, "session_params": {"id": "mine"}}
    assert client("two").post("/generate", json=body).json()["error"]["code"] == "session_not_found"
    assert client("two").post("/close_session", json={"session_id": "mine"}).status_code == 400
    assert client("one").post("/generate", json=body).status_code == 200
    assert client("one").post("/close_session", json={"session_id": "mine"}).status_code == 200


def cached_by_route(http: httpx.Client) -> dict[str, int]:
    """Return the number of cached prompt tokens that each route reports for its own prompt."""

    def ask(path: str, **body: Any) -> Any:
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def usage(path: str, **body: Any) -> int:
        return int(ask(path, **body)["usage"]["prompt_tokens_details"]["cached_tokens"])

    sampling = {"max_new_tokens": 1}
    answered = ask("/v1/responses", input=f"responses {PROMPT}", max_output_tokens=1)
    message = ask("/v1/messages", messages=[{"role": "user", "content": f"messages {PROMPT}"}], max_tokens=1)
    cached = {
        "/v1/completions": usage("/v1/completions", prompt=f"completions {PROMPT}", max_tokens=1),
        "/v1/chat/completions": usage(
            "/v1/chat/completions", messages=[{"role": "user", "content": f"chat {PROMPT}"}], max_tokens=1
        ),
        "/generate": ask("/generate", text=f"generate {PROMPT}", sampling_params=sampling)["meta_info"][
            "cached_tokens"
        ],
        "/v1/responses": answered["usage"]["input_tokens_details"]["cached_tokens"],
        "/v1/messages": message["usage"]["cache_read_input_tokens"],
    }
    return cached


def test_cached_prefixes_of_a_key_do_not_show_to_another(client: Client) -> None:
    cached_by_route(client("one"))
    assert all(cached > 30 for cached in cached_by_route(client("one")).values())
    assert all(cached < 20 for cached in cached_by_route(client("two")).values())  # its own chat template, at most


@pytest.mark.exhaustive
def test_keys_share_prefixes_where_they_should() -> None:
    with (
        serving("--api-key", "one,two", "--cache-scope", "shared") as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        http.headers["authorization"] = "Bearer one"
        cached_by_route(http)
        http.headers["authorization"] = "Bearer two"
        assert all(cached > 30 for cached in cached_by_route(http).values())
