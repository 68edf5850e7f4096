"""The tenant of a request: the API key to which its responses, names and, if so set, its cached prefixes belong.

The HTTP layer sets the tenant of each request (`http/middleware/auth.py`). The request's tasks and callbacks inherit
it. Programs at the runtime's sockets have the default.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import NamedTuple


class Tenant(NamedTuple):
    """Owner of the request that runs. `cache_scope` separates cached prefixes from those of other scopes; "" is the
    shared one. `in_batch`: the request is a row of a batch."""

    key: str | None = None  # API key; None: no key is needed
    is_admin: bool = False
    cache_scope: str = ""
    in_batch: bool = False

    @property
    def owner(self) -> str:
        """The name under which what is on the disk belongs to the key, which it does not tell; "" without keys."""
        return "" if self.key is None else hashlib.sha256(b"ramiform owner\0" + self.key.encode()).hexdigest()[:40]


NO_TENANT = Tenant()
current_tenant: ContextVar[Tenant] = ContextVar("ramiform_tenant", default=NO_TENANT)


def scoped_namespace(namespace: str) -> str:
    """Return the namespace in the cache scope of the current tenant."""
    scope = current_tenant.get().cache_scope
    return f"{scope}\0{namespace}" if scope else namespace


def is_own_namespace(namespace: str) -> bool:
    """Return True if a namespace lies in the cache scope of the current tenant, which has one of its own."""
    scope = current_tenant.get().cache_scope
    return bool(scope) and namespace.startswith(f"{scope}\0")
