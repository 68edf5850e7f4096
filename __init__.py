"""ramiform: a structured-generation language and the runtime that serves it.

A name is imported at its first use, so that a process of the runtime does not load the language, nor a program the
runtime. The language needs no torch, no web server and no sockets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lang.backend import Backend, RuntimeEndpoint, flush_cache, get_server_info, set_default_backend
    from .lang.backends.anthropic import Anthropic
    from .lang.backends.http_runtime import HttpRuntime
    from .lang.backends.openai import OpenAI
    from .lang.backends.scripted import Scripted
    from .lang.backends.vertex import VertexAI
    from .lang.choices import (
        ChoicesDecision,
        ChoicesSamplingMethod,
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from .lang.constraints.builders import one_or_more, optional, repeat, rx, seq, zero_or_more
    from .lang.decorator import function
    from .lang.evaluation.evaluate import aevaluate, evaluate
    from .lang.evaluation.optimise import aoptimise, optimise
    from .lang.evaluation.report import Comparison, Report
    from .lang.failures import BatchError
    from .lang.plans.plan import Plan
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
    from .lang.program import Program
    from .lang.search.searches import Vote, abeam, abest_of, afirst, avote, beam, best_of, first, vote
    from .lang.signatures import Demonstration
    from .lang.state import ForkGroup, ProgramState
    from .lang.storage.cache import Cache, cache
    from .lang.tools.agent import AgentCall, AgentResult
    from .lang.tools.call_format import CallFormat
    from .lang.tools.declaration import DeclaredTool, tool
    from .lang.tools.mcp_server import McpTools, mcp
    from .lang.tools.tool_set import UnansweredCall, tool_schemas
    from .lang.tracing.trace import Trace
    from .lang.types.schema_regex import build_regex_from_object
    from .runtime.offline import Engine
    from .runtime.processes.launch import Runtime
    from .runtime.protocol.errors import BusyError, RamiformError, RequestError, RuntimeFailed
    from .runtime.protocol.version import __version__

__all__ = [
    "AgentCall",
    "AgentResult",
    "Anthropic",
    "Backend",
    "BatchError",
    "BusyError",
    "Cache",
    "CallFormat",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Comparison",
    "DeclaredTool",
    "Demonstration",
    "Engine",
    "ForkGroup",
    "HttpRuntime",
    "McpTools",
    "OpenAI",
    "Plan",
    "Program",
    "ProgramState",
    "RamiformError",
    "Report",
    "RequestError",
    "Runtime",
    "RuntimeEndpoint",
    "RuntimeFailed",
    "Scripted",
    "Trace",
    "UnansweredCall",
    "VertexAI",
    "Vote",
    "__version__",
    "abeam",
    "abest_of",
    "aevaluate",
    "afirst",
    "aoptimise",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "avote",
    "beam",
    "best_of",
    "build_regex_from_object",
    "cache",
    "evaluate",
    "first",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "mcp",
    "one_or_more",
    "optimise",
    "optional",
    "pick",
    "predicate",
    "rate",
    "repeat",
    "role",
    "rx",
    "select",
    "separate_reasoning",
    "seq",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tool_schemas",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
    "vote",
    "zero_or_more",
]


_MODULES = {
    "Anthropic": ".lang.backends.anthropic",
    "AgentCall": ".lang.tools.agent",
    "AgentResult": ".lang.tools.agent",
    "Backend": ".lang.backend",
    "BatchError": ".lang.failures",
    "BusyError": ".runtime.protocol.errors",
    "Cache": ".lang.storage.cache",
    "CallFormat": ".lang.tools.call_format",
    "ChoicesDecision": ".lang.choices",
    "ChoicesSamplingMethod": ".lang.choices",
    "Comparison": ".lang.evaluation.report",
    "DeclaredTool": ".lang.tools.declaration",
    "Demonstration": ".lang.signatures",
    "Engine": ".runtime.offline",
    "ForkGroup": ".lang.state",
    "HttpRuntime": ".lang.backends.http_runtime",
    "McpTools": ".lang.tools.mcp_server",
    "OpenAI": ".lang.backends.openai",
    "Plan": ".lang.plans.plan",
    "Program": ".lang.program",
    "ProgramState": ".lang.state",
    "RamiformError": ".runtime.protocol.errors",
    "Report": ".lang.evaluation.report",
    "RequestError": ".runtime.protocol.errors",
    "Runtime": ".runtime.processes.launch",
    "RuntimeEndpoint": ".lang.backend",
    "RuntimeFailed": ".runtime.protocol.errors",
    "Scripted": ".lang.backends.scripted",
    "Trace": ".lang.tracing.trace",
    "VertexAI": ".lang.backends.vertex",
    "UnansweredCall": ".lang.tools.tool_set",
    "Vote": ".lang.search.searches",
    "__version__": ".runtime.protocol.version",
    "abeam": ".lang.search.searches",
    "abest_of": ".lang.search.searches",
    "aevaluate": ".lang.evaluation.evaluate",
    "afirst": ".lang.search.searches",
    "aoptimise": ".lang.evaluation.optimise",
    "assistant": ".lang.primitives",
    "assistant_begin": ".lang.primitives",
    "assistant_end": ".lang.primitives",
    "avote": ".lang.search.searches",
    "beam": ".lang.search.searches",
    "best_of": ".lang.search.searches",
    "build_regex_from_object": ".lang.types.schema_regex",
    "cache": ".lang.storage.cache",
    "evaluate": ".lang.evaluation.evaluate",
    "first": ".lang.search.searches",
    "flush_cache": ".lang.backend",
    "function": ".lang.decorator",
    "gen": ".lang.primitives",
    "gen_int": ".lang.primitives",
    "gen_string": ".lang.primitives",
    "get_server_info": ".lang.backend",
    "greedy_token_selection": ".lang.choices",
    "image": ".lang.primitives",
    "one_or_more": ".lang.constraints.builders",
    "mcp": ".lang.tools.mcp_server",
    "optimise": ".lang.evaluation.optimise",
    "optional": ".lang.constraints.builders",
    "pick": ".lang.primitives",
    "predicate": ".lang.primitives",
    "rate": ".lang.primitives",
    "repeat": ".lang.constraints.builders",
    "role": ".lang.primitives",
    "rx": ".lang.constraints.builders",
    "select": ".lang.primitives",
    "separate_reasoning": ".lang.primitives",
    "seq": ".lang.constraints.builders",
    "set_default_backend": ".lang.backend",
    "system": ".lang.primitives",
    "system_begin": ".lang.primitives",
    "system_end": ".lang.primitives",
    "token_length_normalized": ".lang.choices",
    "tool": ".lang.tools.declaration",
    "tool_schemas": ".lang.tools.tool_set",
    "unconditional_likelihood_normalized": ".lang.choices",
    "user": ".lang.primitives",
    "user_begin": ".lang.primitives",
    "user_end": ".lang.primitives",
    "video": ".lang.primitives",
    "vote": ".lang.search.searches",
    "zero_or_more": ".lang.constraints.builders",
}


def __getattr__(name: str) -> Any:
    if (module := _MODULES.get(name)) is None:
        from .runtime.protocol.errors import did_you_mean

        hint = "" if name.startswith("__") else did_you_mean(name, __all__)  # Python itself asks for __path__ and such
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = globals()[name] = getattr(importlib.import_module(module, __name__), name)
    return value
