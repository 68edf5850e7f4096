"""ramiform: a structured-generation language and the runtime that serves it.

A name is imported at its first use, so that a process of the runtime does not load the language, nor a program the
runtime. The language needs no torch, no web server and no sockets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lang.backend import Backend, RuntimeEndpoint, flush_cache, get_server_info, set_default_backend
    from .lang.backends.http_runtime import HttpRuntime
    from .lang.backends.openai import OpenAI
    from .lang.backends.scripted import Scripted
    from .lang.choices import (
        ChoicesDecision,
        ChoicesSamplingMethod,
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from .lang.failures import BatchError
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
    from .lang.signatures import Demonstration
    from .lang.state import ForkGroup, ProgramState
    from .lang.tools.tool_set import tool_schemas
    from .lang.tracing.trace import Trace
    from .runtime.processes.launch import Runtime
    from .runtime.protocol.errors import BusyError, RamiformError, RequestError, RuntimeFailed
    from .runtime.protocol.version import __version__

__all__ = [
    "Backend",
    "BatchError",
    "BusyError",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Demonstration",
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


_MODULES = {
    "Backend": ".lang.backend",
    "BatchError": ".lang.failures",
    "BusyError": ".runtime.protocol.errors",
    "ChoicesDecision": ".lang.choices",
    "ChoicesSamplingMethod": ".lang.choices",
    "Demonstration": ".lang.signatures",
    "ForkGroup": ".lang.state",
    "HttpRuntime": ".lang.backends.http_runtime",
    "OpenAI": ".lang.backends.openai",
    "Plan": ".lang.plan",
    "Program": ".lang.program",
    "ProgramState": ".lang.state",
    "RamiformError": ".runtime.protocol.errors",
    "RequestError": ".runtime.protocol.errors",
    "Runtime": ".runtime.processes.launch",
    "RuntimeEndpoint": ".lang.backend",
    "RuntimeFailed": ".runtime.protocol.errors",
    "Scripted": ".lang.backends.scripted",
    "Trace": ".lang.tracing.trace",
    "__version__": ".runtime.protocol.version",
    "assistant": ".lang.primitives",
    "assistant_begin": ".lang.primitives",
    "assistant_end": ".lang.primitives",
    "flush_cache": ".lang.backend",
    "function": ".lang.program",
    "gen": ".lang.primitives",
    "gen_int": ".lang.primitives",
    "gen_string": ".lang.primitives",
    "get_server_info": ".lang.backend",
    "greedy_token_selection": ".lang.choices",
    "image": ".lang.primitives",
    "pick": ".lang.primitives",
    "predicate": ".lang.primitives",
    "rate": ".lang.primitives",
    "role": ".lang.primitives",
    "select": ".lang.primitives",
    "separate_reasoning": ".lang.primitives",
    "set_default_backend": ".lang.backend",
    "system": ".lang.primitives",
    "system_begin": ".lang.primitives",
    "system_end": ".lang.primitives",
    "token_length_normalized": ".lang.choices",
    "tool_schemas": ".lang.tools.tool_set",
    "unconditional_likelihood_normalized": ".lang.choices",
    "user": ".lang.primitives",
    "user_begin": ".lang.primitives",
    "user_end": ".lang.primitives",
    "video": ".lang.primitives",
}


def __getattr__(name: str) -> Any:
    if (module := _MODULES.get(name)) is None:
        from .runtime.protocol.errors import did_you_mean

        hint = "" if name.startswith("__") else did_you_mean(name, __all__)  # Python itself asks for __path__ and such
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = globals()[name] = getattr(importlib.import_module(module, __name__), name)
    return value
