"""A backend for Gemini and the other models of Google's Vertex AI, by its OpenAI-compatible endpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Unpack
from urllib.parse import quote

from ...runtime.protocol.errors import RequestError
from .endpoints.endpoint_client import Credentials, EndpointOptions, settings_of
from .endpoints.openai_address import EndpointAddress
from .openai import OpenAI

TOKEN_VARIABLE = "GOOGLE_ACCESS_TOKEN"
TOKEN_SECONDS = 1800.0  # a token lives an hour
COMMAND = ("gcloud", "auth", "print-access-token")
COMMAND_SECONDS = 60.0


class VertexAI(OpenAI):
    """Runs programs on `model_name` of a Google Cloud project, by chat: text without roles is one user message.

    `project` and `location` are by default those of GCP_PROJECT_ID and GCP_LOCATION ("us-central1" without it). A call
    is authorised by `access_token`, a string or a function that returns one, else by GOOGLE_ACCESS_TOKEN, else by
    what `gcloud auth print-access-token` prints; a function and the command are asked again every half hour, and when
    a token is refused. Limits and `options` are those of `OpenAI`.

    With a key of the Gemini API there is no project: `OpenAI("gemini-2.5-flash", is_chat_model=True, api_key=...,
    base_url="https://generativelanguage.googleapis.com/v1beta/openai")`.
    """

    def __init__(
        self,
        model_name: str,
        *,
        project: str | None = None,
        location: str | None = None,
        access_token: str | Callable[[], str] | None = None,
        base_url: str | None = None,
        **options: Unpack[EndpointOptions],
    ) -> None:
        settings_of("VertexAI", options)  # before OpenAI's own arguments are taken from them
        self._where = (project or os.environ.get("GCP_PROJECT_ID"), location or os.environ.get("GCP_LOCATION"))
        self._access_token = access_token
        model = model_name if "/" in model_name else f"google/{model_name}"
        super().__init__(model, base_url=base_url, is_chat_model=True, **options)

    def _address(self, base_url: str | None, api_key: str | None) -> EndpointAddress:
        return EndpointAddress(base_url or vertex_url(*self._where), credentials_of(self._access_token))


def vertex_url(project: str | None, location: str | None) -> str:
    """Return the address of a project's endpoint. Raises RequestError without a project."""
    if not project:
        raise RequestError("VertexAI needs project, or the variable GCP_PROJECT_ID", param="project")
    location = location or "us-central1"
    host = "aiplatform.googleapis.com" if location == "global" else f"{location}-aiplatform.googleapis.com"
    return f"https://{host}/v1/projects/{quote(project, safe='')}/locations/{quote(location)}/endpoints/openapi"


def credentials_of(access_token: str | Callable[[], str] | None) -> Credentials:
    """Return credentials of the token that is given, else of the variable, else of Google's command."""
    if callable(access_token):
        token = RenewedToken(access_token)
        return Credentials("Authorization", token.get, "the function access_token", "Bearer ", renew=token.forget)
    fixed = access_token or os.environ.get(TOKEN_VARIABLE)
    if fixed is not None:
        source = TOKEN_VARIABLE if access_token is None else "the argument access_token"
        return Credentials("Authorization", lambda: fixed, source, "Bearer ")
    token = RenewedToken(_command_token)
    return Credentials("Authorization", token.get, f"`{' '.join(COMMAND)}`", "Bearer ", renew=token.forget)


class RenewedToken:
    """A token that `make` returns, kept for half an hour or until it is forgotten. Any thread may use it."""

    def __init__(self, make: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._token: str | None = None
        self._made = 0.0

    def get(self) -> str:
        with self._lock:
            if self._token is None or self._clock() - self._made > TOKEN_SECONDS:
                self._token, self._made = self._make(), self._clock()
            return self._token

    def forget(self) -> None:
        with self._lock:
            self._token = None


def _command_token() -> str:
    """Return what Google's command prints. Raises RequestError if it is not there or fails."""
    if shutil.which(COMMAND[0]) is None:
        raise RequestError(
            f"VertexAI needs a token: set {TOKEN_VARIABLE}, pass access_token, or install `{COMMAND[0]}`",
            param="access_token",
            code="missing_api_key",
        )
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        raise RequestError(
            f"`{' '.join(COMMAND)}` failed: {error.stderr.strip()[:500]}", param="access_token"
        ) from None
    except subprocess.TimeoutExpired:
        raise RequestError(
            f"`{' '.join(COMMAND)}` printed nothing in {COMMAND_SECONDS:g} s", param="access_token"
        ) from None
    return done.stdout.strip()
