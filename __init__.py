"""ramiform: a structured-generation language and the runtime that serves it.

Importing it loads the language only: no torch, no web server, no sockets. `Runtime`, the other backends and traces are
loaded at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .lang.backend import Backend, RuntimeEndpoint, flush_cache, get_server_info, set_default_backend
from .lang.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .lang.plan import Plan
from .lang.primitives import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    pick,
    predicate,
    rate,
    role,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from .lang.program import Program, function
from .lang.state import ForkGroup, ProgramState
from .lang.tools import tool_schemas
from .runtime.protocol.errors import BusyError, RamiformError, RequestError, RuntimeFailed
from .runtime.protocol.version import __version__

if TYPE_CHECKING:
    from .lang.backends.http_runtime import HttpRuntime
    from .lang.backends.openai import OpenAI
    from .lang.backends.scripted import Scripted
    from .lang.trace import Trace
    from .runtime.processes.launch import Runtime

__all__ = [
    "Backend",
    "BusyError",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "ForkGroup",
    "HttpRuntime",
    "OpenAI",
    "Plan",
    "Program",
    "ProgramState",
    "RamiformError",
    "RequestError",
    "Runtime",
    "RuntimeEndpoint",
    "RuntimeFailed",
    "Scripted",
    "Trace",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "pick",
    "predicate",
    "rate",
    "role",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool_schemas",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]


_LAZY = {
    "HttpRuntime": ".lang.backends.http_runtime",
    "OpenAI": ".lang.backends.openai",
    "Runtime": ".runtime.processes.launch",
    "Scripted": ".lang.backends.scripted",
    "Trace": ".lang.trace",
}


def __getattr__(name: str) -> Any:
    if (module := _LAZY.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module, __name__), name)
