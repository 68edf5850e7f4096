"""Sessions of the native route: a request continues an earlier one of its session, token by token.

Source: SGLang's `/open_session`, `/close_session` and `session_params`. A session belongs to the API key that opened
it. It lives in one frontend; the others ask for it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from ....protocol.errors import RequestError
from ....protocol.saved_state import SavedRequest, SavedSession, SavedTurn, restore
from ...api.bodies import Body, SessionParams, Text, example
from ...core.frontend_peers import FrontendPeers
from ...core.journal import Journal
from ...core.sessions import ClientSessions
from ..scope import SCOPE_API_KEY
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response

logger = logging.getLogger("ramiform.frontend")

MAX_SESSIONS = 1024  # of one frontend; the one used last is dropped first
MAX_SESSION_TOKENS = 1 << 22  # of one frontend, in all its sessions
IDLE_SECONDS = 3600.0

SessionKey = tuple[str | None, str]  # digest of the API key, and id
Action = Literal["open", "close", "add", "replace"]


class OpenSessionBody(Body):
    """Body of `/open_session`. `capacity_of_str_len` is accepted without effect: sessions share one limit."""

    model_config = example({"capacity_of_str_len": 1000, "session_id": "mine"})
    capacity_of_str_len: Annotated[int, Field(ge=0)] = 0
    session_id: Annotated[Text, Field(min_length=1, max_length=256)] | None = None


class CloseSessionBody(Body):
    """Body of `/close_session`."""

    model_config = example({"session_id": "mine"})
    session_id: Text


@dataclass
class SessionNode:
    """A finished request: the first `num_kept` tokens of its parent, then its own prompt and output."""

    parent: SessionNode | None
    num_kept: int
    own: list[int]
    num_prompt: int
    children: list[str] = field(default_factory=list)

    def tokens(self) -> list[int]:
        """Return the ids of the whole prompt and output."""
        parts: list[list[int]] = []
        node: SessionNode | None = self
        num = self.num_kept + len(self.own)
        while node is not None:
            parts.append(node.own[: max(0, num - node.num_kept)])
            num = min(num, node.num_kept)
            node = node.parent
        return [token for part in reversed(parts) for token in part]


@dataclass
class Session:
    """The finished requests of a session, by rid."""

    expires: float
    nodes: dict[str, SessionNode] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(len(node.own) for node in self.nodes.values())

    def begin(self, params: SessionParams) -> list[int]:
        """Return the tokens that a request continues. With `replace`, forget those that came after them.

        Raises RequestError for an unknown rid.
        """
        if params.rid is None:
            if params.replace:
                self.forget_after(None)
            return []
        node = self._node(params.rid)
        if params.replace:
            self.forget_after(params.rid)
        tokens = node.tokens()
        if params.drop_previous_output:
            tokens = tokens[: node.num_prompt]
        return tokens[: params.offset] if params.offset else tokens

    def record(self, rid: str, parent: str | None, tokens: Sequence[int], num_prompt: int, num_kept: int) -> None:
        """Add a finished request, whose first `num_kept` tokens are its parent's."""
        node = None if parent is None else self.nodes.get(parent)
        kept = num_kept if node is not None else 0
        self.nodes.pop(rid, None)  # of an earlier request: the order of nodes is parents first
        self.nodes[rid] = SessionNode(node, kept, [*tokens[kept:]], num_prompt)
        if node is not None:
            node.children.append(rid)

    def save(self) -> list[SavedRequest]:
        """Return the requests in their saved form, parents first."""
        rids = {id(node): rid for rid, node in self.nodes.items()}
        return [
            _saved(rid, node, None if node.parent is None else rids.get(id(node.parent)))
            for rid, node in self.nodes.items()
        ]

    def saved(self, rid: str) -> SavedRequest:
        """Return one request in its saved form."""
        node = self.nodes[rid]
        return _saved(rid, node, next((name for name, each in self.nodes.items() if each is node.parent), None))

    def add(self, request: SavedRequest) -> None:
        """Add a request in its saved form, after its parent."""
        parent = None if request.parent is None else self.nodes.get(request.parent)
        self.nodes.pop(request.rid, None)  # of an earlier request
        self.nodes[request.rid] = SessionNode(parent, request.num_kept, request.tokens, request.num_prompt)
        if parent is not None:
            parent.children.append(request.rid)

    def forget_after(self, rid: str | None) -> None:
        """Forget the requests that came after request `rid`; None: all."""
        if rid is None:
            self.nodes.clear()
        elif (node := self.nodes.get(rid)) is not None:
            self._forget_children(node)

    def _node(self, rid: str) -> SessionNode:
        if rid not in self.nodes:
            raise RequestError(f"the session has no finished request {rid!r}", param="session_params")
        return self.nodes[rid]

    def _forget_children(self, node: SessionNode) -> None:
        pending, node.children = node.children, []
        while pending:
            child = self.nodes.pop(pending.pop(), None)
            if child is not None:
                pending += child.children


class SessionStore:
    """Sessions of this frontend, and access to those of the others."""

    def __init__(
        self,
        peers: FrontendPeers,
        named: ClientSessions,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
    ) -> None:
        """`named` are the sessions that requests of all routes name, which `close` ends too. With a `journal`, go on
        with its sessions from before a restart, for which the idle time begins anew."""
        self._peers = peers
        self._named = named
        self._clock = clock
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()  # used last at the end
        self._journal = journal
        if journal is not None:
            for turn in journal.records:
                if isinstance(turn, SavedTurn):
                    self._replay(turn)
            self._drop_excess()
            journal.rewrites.append(self._all_saved)
        peers.on("session", self._asked)

    async def open(self, key: str | None, session_id: str | None) -> str:
        """Open a session and return its id. Raises RequestError if the id is in use."""
        chosen = uuid.uuid4().hex if session_id is None else session_id
        if await self._do("has", key, chosen):
            raise RequestError(f"the session {chosen!r} is open already", param="session_id")
        self._sessions[_owner(key), chosen] = Session(self._clock() + IDLE_SECONDS)
        self._note(_owner(key), chosen, "open")
        self._drop_excess()
        return chosen

    async def close(self, key: str | None, session_id: str) -> None:
        """Close a session, in every frontend that requests named it to. Raises RequestError if there is none."""
        if not any([self._named.close(key, session_id), await self._do("close", key, session_id)]):
            raise _unknown(session_id, "session_id")

    async def begin(self, key: str | None, params: SessionParams) -> list[int]:
        """Return the tokens that a request of the session continues. Raises RequestError."""
        answer = await self._do("begin", key, params.id, params.model_dump())
        if answer is None:
            raise _unknown(params.id, "session_params")
        if "error" in answer:
            raise RequestError(answer["error"], param="session_params")
        tokens: list[int] = answer["tokens"]
        return tokens

    async def record(
        self, key: str | None, params: SessionParams, rid: str, tokens: list[int], num_prompt: int, num_kept: int
    ) -> None:
        """Add a finished request to its session, unless that was closed meanwhile."""
        await self._do("record", key, params.id, [rid, params.rid, tokens, num_prompt, num_kept])

    async def _do(self, action: str, key: str | None, session_id: str, value: Any = None) -> Any:
        """Act on a session here, or where it lives; None if there is none."""
        if (answer := self._do_here(action, key, session_id, value)) is not None:
            return answer
        answers: list[Any] = await self._peers.ask("session", json.dumps([action, key, session_id, value]), object)
        return next(iter(answers), None)

    async def _asked(self, about: str | None) -> Any:
        if about is None:
            return None
        action, key, session_id, value = json.loads(about)
        is_closed = action == "close" and self._named.close(key, session_id)
        return self._do_here(action, key, session_id, value) or is_closed or None

    def _do_here(self, action: str, key: str | None, session_id: str, value: Any) -> Any:
        now = self._clock()
        while self._sessions and next(iter(self._sessions.values())).expires < now:
            self._sessions.popitem(last=False)
        key = _owner(key)
        session = self._sessions.get((key, session_id))
        if session is None:
            return None
        session.expires = now + IDLE_SECONDS
        self._sessions.move_to_end((key, session_id))
        match action:
            case "close":
                del self._sessions[key, session_id]
                self._note(key, session_id, "close")
            case "begin":
                try:
                    params = SessionParams.model_validate(value)
                    tokens = session.begin(params)
                    if params.replace:
                        self._note(key, session_id, "replace", rid=params.rid)
                    return {"tokens": tokens}
                except RequestError as error:
                    return {"error": str(error)}
            case "record":
                session.record(*value)
                self._note(key, session_id, "add", session.saved(value[0]))
                self._drop_excess()
        return True

    def _note(
        self, owner: str | None, session_id: str, action: Action, request: SavedRequest | None = None, **about: Any
    ) -> None:
        if self._journal is not None:
            self._journal.note(SavedTurn(owner, session_id, action, request, **about))

    def _replay(self, turn: SavedTurn) -> None:
        """Do what happened to a session before a restart."""
        if turn.action == "open":
            self._sessions[turn.owner, turn.id] = Session(self._clock() + IDLE_SECONDS)
        session = self._sessions.get((turn.owner, turn.id))
        if session is None:
            return
        self._sessions.move_to_end((turn.owner, turn.id))
        match turn.action:
            case "close":
                del self._sessions[turn.owner, turn.id]
            case "add" if turn.request is not None:
                session.add(turn.request)
            case "replace":
                session.forget_after(turn.rid)

    def _all_saved(self) -> Iterator[SavedTurn]:
        for (owner, name), session in self._sessions.items():
            yield SavedTurn(owner, name, "open")
            for request in session.save():
                yield SavedTurn(owner, name, "add", request)

    def save(self) -> list[SavedSession]:
        """Return the sessions of this frontend in their saved form."""
        return [SavedSession(owner, name, session.save()) for (owner, name), session in self._sessions.items()]

    def restore(self, data: bytes) -> None:
        """Take over sessions of another replica; they replace those of the same owner and id."""
        try:
            sessions = restore(data)
        except RequestError as error:
            logger.warning("sessions of another replica were not taken: %s", error)
            return
        for saved in sessions:
            for turn in (
                SavedTurn(saved.owner, saved.id, "open"),
                *(SavedTurn(saved.owner, saved.id, "add", request) for request in saved.requests),
            ):
                self._replay(turn)
                if self._journal is not None:
                    self._journal.note(turn)
        self._drop_excess()

    def _drop_excess(self) -> None:
        num_tokens = sum(session.num_tokens for session in self._sessions.values())
        while len(self._sessions) > MAX_SESSIONS or (num_tokens > MAX_SESSION_TOKENS and len(self._sessions) > 1):
            _, session = self._sessions.popitem(last=False)
            num_tokens -= session.num_tokens


def _saved(rid: str, node: SessionNode, parent: str | None) -> SavedRequest:
    # Without a parent, or one whose id another request has taken since, it is saved whole.
    own = (0, node.tokens()) if parent is None else (node.num_kept, node.own)
    return SavedRequest(rid, parent, *own, node.num_prompt)


def _owner(key: str | None) -> str | None:
    """Return the digest of an API key, by which sessions are known: a saved session must not hold the key."""
    return None if key is None else hashlib.sha256(key.encode()).hexdigest()


def _unknown(session_id: str, param: str) -> RequestError:
    return RequestError(f"no session {session_id!r} is open", param=param, code="session_not_found")


class SessionsApi:
    """Routes that open and close sessions."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        router.add_api_route(
            "/open_session", self.open, methods=["POST"], response_model=None, response_class=JSONResponse
        )
        router.add_api_route(
            "/close_session", self.close, methods=["POST"], response_model=None, response_class=Response
        )
        return router

    async def open(self, body: OpenSessionBody, request: Request) -> Response:
        """Open a session and return its id, as a JSON string."""
        return json_response(await self._store.open(request.scope[SCOPE_API_KEY], body.session_id))

    async def close(self, body: CloseSessionBody, request: Request) -> Response:
        """Close a session and forget its requests."""
        await self._store.close(request.scope[SCOPE_API_KEY], body.session_id)
        return Response(status_code=200)
