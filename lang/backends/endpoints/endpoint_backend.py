"""The base of backends whose model is called by an endpoint."""

from __future__ import annotations

from ....runtime.protocol.decisions import DecisionAnswer, Question
from ....runtime.protocol.errors import RequestError
from ....runtime.protocol.session import Reply
from ..channel import LocalBackend
from ..model import Method, ModelCall
from ..transcript import Transcript
from .endpoint_client import EndpointClient
from .usage import TokenUsage


class EndpointBackend(LocalBackend):
    """Calls a model by `client`. `api` names the API in errors."""

    checks_operations = True
    takes_tools = True

    def __init__(self, api: str, client: EndpointClient) -> None:
        super().__init__(client.settings.max_concurrency)
        self._api = api
        self._client = client

    @property
    def usage(self) -> TokenUsage:
        """Return the counts of tokens, requests and retries so far."""
        return self._client.usage

    def close(self) -> None:
        """End every program that runs on it."""
        super().close()
        self._client.close()

    def decide(self, transcript: Transcript, questions: tuple[Question, ...], call: ModelCall) -> list[DecisionAnswer]:
        raise self._no_decisions()

    def answer_call(self, method: Method, number: int) -> Reply:
        if method == "flush_cache":
            raise self._unsupported("has no cache to flush", None)
        return Reply(number)

    def _no_decisions(self) -> RequestError:
        return self._unsupported(
            "answers no decisions: use gen with a schema or choices, or run on a Runtime", "questions"
        )

    def _unsupported(self, what: str, param: str | None) -> RequestError:
        """Return the error of what the API cannot do."""
        return RequestError(f"{self._api} {what}", param=param, code="unsupported")
