"""Addresses and credentials of OpenAI-compatible endpoints, in OpenAI's form and in Azure's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from ....runtime.protocol.errors import RequestError
from .endpoint_client import Credentials

OPENAI_URL = "https://api.openai.com/v1"


@dataclass(frozen=True)
class EndpointAddress:
    """The address to which routes are appended, the query of each call, and its credentials."""

    url: str
    credentials: Credentials
    query: str = ""


def openai_address(base_url: str | None, api_key: str | None) -> EndpointAddress:
    """Return the address of `base_url`, of the variable OPENAI_BASE_URL, or of OpenAI itself.

    Raises RequestError for an address that is no URL.
    """
    url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    try:
        is_own = urlsplit(url).hostname == urlsplit(OPENAI_URL).hostname
    except ValueError as error:
        raise RequestError(f"{url!r} is not an HTTP address: {error}", param="base_url") from None
    return EndpointAddress(
        url, key_of("OPENAI_API_KEY", api_key, header="Authorization", prefix="Bearer ", required=is_own)
    )


def azure_address(
    deployment: str, base_url: str | None, endpoint: str | None, api_version: str | None, api_key: str | None
) -> EndpointAddress:
    """Return the address of a deployment on Azure: the model is a part of the path, the version of the query.

    Raises RequestError if the endpoint or the version is not given.
    """
    endpoint = endpoint or os.environ.get("AZURE_OPENAI_ENDPOINT")
    version = api_version or os.environ.get("OPENAI_API_VERSION")
    if base_url is None:
        if not endpoint:
            raise RequestError("is_azure needs azure_endpoint, or AZURE_OPENAI_ENDPOINT", param="azure_endpoint")
        base_url = f"{endpoint.rstrip('/')}/openai/deployments/{quote(deployment, safe='')}"
    if not version:
        raise RequestError("is_azure needs api_version, or OPENAI_API_VERSION", param="api_version")
    credentials = key_of("AZURE_OPENAI_API_KEY", api_key, header="api-key", required=True)
    return EndpointAddress(base_url, credentials, f"?api-version={quote(version, safe='')}")


def key_of(variable: str, given: str | None, *, header: str, prefix: str = "", required: bool = False) -> Credentials:
    """Return credentials of the key that is given, else of the environment variable, which is read now."""
    key = os.environ.get(variable) or None if given is None else given
    source = variable if given is None else "the argument api_key"
    return Credentials(header, lambda: key, source, prefix, required)
