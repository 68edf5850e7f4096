"""Sessions of the native route: turns continue token by token, branch, are replaced, and belong to their session."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from ramiform.runtime.frontend.api.bodies import SessionParams
from ramiform.runtime.frontend.core.sessions import ClientSessions
from ramiform.runtime.frontend.http.native.sessions import IDLE_SECONDS, MAX_SESSIONS, Session, SessionStore
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.saved_state import save

from .test_peer_routes import post

CHUNKS = ["Let me tell you something about France.", " The capital of France is", " A brief history of that city:"]
GREEDY = {"max_new_tokens": 10, "temperature": 0, "ignore_eos": True}


def open_session(http: httpx.Client, **body: Any) -> str:
    return str(http.post("/open_session", json={"capacity_of_str_len": 1000} | body).json())


def turn(http: httpx.Client, session: str, text: str, rid: str | None, **params: Any) -> dict[str, Any]:
    body = {"text": text, "sampling_params": GREEDY, "session_params": {"id": session, "rid": rid} | params}
    return post(http, "/generate", **body)


def plain(http: httpx.Client, ids: list[int]) -> list[int]:
    return list(post(http, "/generate", input_ids=ids, sampling_params=GREEDY)["output_ids"])


def ids_of(http: httpx.Client, text: str, *, first: bool) -> list[int]:
    return list(post(http, "/tokenize", prompt=text, add_special_tokens=first)["tokens"])


class NoPeers:
    """The frontends beside a single one."""

    def on(self, kind: str, handler: Any) -> None:
        """Nobody asks."""

    async def ask(self, kind: str, about: str | None, answer_type: Any) -> list[Any]:
        return []


def test_saved_sessions_go_on_in_another_store_for_the_same_key() -> None:
    async def go() -> None:
        peers: Any = NoPeers()
        before, after = (SessionStore(peers, ClientSessions(lambda name: None)) for _ in range(2))
        await before.open("key", "mine")
        first = SessionParams(id="mine")
        await before.record("key", first, "a", [1, 2, 3, 4], 2, 0)
        await before.record("key", SessionParams(id="mine", rid="a"), "b", [1, 2, 3, 4, 5, 6], 5, 4)
        await before.record("key", SessionParams(id="mine", rid="a"), "c", [1, 2, 9], 3, 2)
        saved = save(before.save())
        assert b"key" not in saved
        after.restore(saved)
        for rid in ("a", "b", "c"):
            params = SessionParams(id="mine", rid=rid)
            assert await after.begin("key", params) == await before.begin("key", params)
        prompt = SessionParams(id="mine", rid="b", drop_previous_output=True)
        assert await after.begin("key", prompt) == [1, 2, 3, 4, 5]
        for key in (None, "other"):
            with pytest.raises(RequestError, match="no session"):
                await after.begin(key, first)
        after.restore(b"no sessions")  # a warning, and nothing else
        assert await after.begin("key", SessionParams(id="mine", rid="a")) == [1, 2, 3, 4]

    asyncio.run(go())


def test_a_session_whose_request_ids_were_used_again_is_saved_whole() -> None:
    before, after = Session(0.0), Session(0.0)
    before.record("a", None, [1, 2], 1, 0)
    before.record("b", "a", [1, 2, 3, 4], 3, 2)
    before.record("a", "b", [1, 2, 3, 4, 5, 6], 5, 4)
    for request in before.save():
        after.add(request)
    for rid in "ab":
        assert after.nodes[rid].tokens() == before.nodes[rid].tokens()


def test_turns_give_the_tokens_of_the_whole_prompt(http: httpx.Client) -> None:
    session, rid, before = open_session(http), None, []
    for number, chunk in enumerate(CHUNKS):
        answer = turn(http, session, chunk, rid)
        prompt = before + ids_of(http, chunk, first=not number)
        assert answer["meta_info"]["prompt_tokens"] == len(prompt)
        assert answer["output_ids"] == plain(http, prompt)
        before, rid = prompt + answer["output_ids"], answer["meta_info"]["id"]
    assert http.post("/close_session", json={"session_id": session}).status_code == 200
    body = {"text": "a", "session_params": {"id": session, "rid": rid}}
    response = http.post("/generate", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "session_not_found")


def test_branches_offsets_and_dropped_outputs_continue_what_they_say(http: httpx.Client) -> None:
    session = open_session(http, session_id="a tree")
    assert http.post("/open_session", json={"session_id": "a tree"}).status_code == 400
    first = turn(http, session, CHUNKS[0], None)
    root, prompt = first["meta_info"]["id"], ids_of(http, CHUNKS[0], first=True)
    own = ids_of(http, CHUNKS[1], first=False)
    whole = prompt + first["output_ids"]
    for params, before in (
        ({}, whole),
        ({"offset": -1}, whole[:-1]),
        ({"offset": 3}, whole[:3]),
        ({"drop_previous_output": True}, prompt),
    ):
        branch = turn(http, session, CHUNKS[1], root, **params)
        assert branch["output_ids"] == plain(http, before + own), params
        after = turn(http, session, CHUNKS[2], branch["meta_info"]["id"])
        expected = before + own + branch["output_ids"] + ids_of(http, CHUNKS[2], first=False)
        assert after["output_ids"] == plain(http, expected)
    replaced = turn(http, session, CHUNKS[1], root, replace=True)
    gone = {"text": "a", "session_params": {"id": session, "rid": branch["meta_info"]["id"]}}
    assert http.post("/generate", json=gone).status_code == 400
    turn(http, session, CHUNKS[1], None, replace=True)
    gone["session_params"] = {"id": session, "rid": replaced["meta_info"]["id"]}
    assert http.post("/generate", json=gone).status_code == 400
    http.post("/close_session", json={"session_id": session})


def test_a_stream_is_a_turn_too(http: httpx.Client) -> None:
    session = open_session(http)
    body = {"text": CHUNKS[0], "sampling_params": GREEDY, "session_params": {"id": session}, "rid": "mine"}
    with http.stream("POST", "/generate", json=body | {"stream": True}) as response:
        values = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert values[-1]["meta_info"]["id"] == "mine"
    answer = turn(http, session, CHUNKS[1], "mine")
    prompt = ids_of(http, CHUNKS[0], first=True) + values[-1]["output_ids"] + ids_of(http, CHUNKS[1], first=False)
    assert answer["output_ids"] == plain(http, prompt)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a", "session_params": {"id": "none such"}}, "session_params"),
        ({"text": "a", "session_params": {"rid": "x"}}, "session_params.id"),
        ({"text": ["a", "b"], "session_params": {"id": "x"}}, "session_params"),
        ({"text": "a", "sampling_params": {"n": 2}, "session_params": {"id": "x"}}, "session_params"),
    ],
)
def test_wrong_sessions_are_refused_by_name(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = http.post("/generate", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert http.post("/close_session", json={"session_id": "none such"}).status_code == 400


def test_a_cut_before_the_parent_s_own_tokens_is_found_in_the_ones_before() -> None:
    session = Session(expires=0.0)
    session.record("a", None, [1, 2, 3, 4], 2, 0)
    session.record("b", "a", [1, 2, 3, 4, 5, 6], 5, 4)
    assert session.begin(SessionParams(id="s", rid="b")) == [1, 2, 3, 4, 5, 6]
    assert session.begin(SessionParams(id="s", rid="b", offset=2)) == [1, 2]
    session.record("c", "b", [1, 2, 9], 3, 2)
    assert session.begin(SessionParams(id="s", rid="c")) == [1, 2, 9]
    assert session.begin(SessionParams(id="s", rid="c", offset=-2)) == [1]
    session.record("d", "c", [1, 8], 2, 1)
    assert session.begin(SessionParams(id="s", rid="d")) == [1, 8]
    assert session.begin(SessionParams(id="s", rid="a", replace=True)) == [1, 2, 3, 4]
    assert set(session.nodes) == {"a"}


class Peers:
    """Frontends that ask each other directly."""

    def __init__(self) -> None:
        self.others: list[Peers] = []

    def on(self, kind: str, handler: Any) -> None:
        self.handler = handler

    async def ask(self, kind: str, about: str, answer_type: Any) -> list[Any]:
        answers = [json.loads(json.dumps(await other.handler(about))) for other in self.others]
        return [answer for answer in answers if answer is not None]


@pytest.mark.slow
def test_a_session_is_reached_through_every_frontend_and_by_its_own_key_only() -> None:
    async def main() -> None:
        here, there = Peers(), Peers()
        here.others, there.others = [there], [here]
        now = [0.0]
        stores = [
            SessionStore(peers, ClientSessions(lambda name: None), clock=lambda: now[0]) for peers in (here, there)
        ]  # type: ignore[arg-type]
        await stores[0].open("ada", "s")
        with pytest.raises(RequestError, match="open already"):
            await stores[1].open("ada", "s")
        params = SessionParams(id="s")
        assert await stores[1].begin("ada", params) == []
        await stores[1].record("ada", params, "r", [1, 2, 3], 2, 0)
        for store in stores:
            assert await store.begin("ada", SessionParams(id="s", rid="r")) == [1, 2, 3]
            with pytest.raises(RequestError, match="no finished request 'x'"):
                await store.begin("ada", SessionParams(id="s", rid="x"))
            with pytest.raises(RequestError, match="no session 's' is open"):
                await store.begin("bob", SessionParams(id="s", rid="r"))
            with pytest.raises(RequestError, match="no session 's' is open"):
                await store.close("bob", "s")
        await stores[0].open("bob", "s")
        await stores[1].close("ada", "s")
        now[0] = IDLE_SECONDS + 1
        with pytest.raises(RequestError, match="no session 's' is open"):
            await stores[0].begin("bob", params)
        for number in range(MAX_SESSIONS + 1):
            await stores[0].open(None, str(number))
        with pytest.raises(RequestError):
            await stores[0].begin(None, SessionParams(id="0"))
        assert await stores[0].begin(None, SessionParams(id="1")) == []

    asyncio.run(main())
