"""ramiform: a structured-generation language and the runtime that serves it.

A name is imported at its first use, so that a process of the runtime does not load the language, nor a program the
runtime. The language needs no torch, no web server and no sockets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lang.backends.anthropic import Anthropic
    from .lang.backends.backend import Backend, RuntimeEndpoint, flush_cache, get_server_info, set_default_backend
    from .lang.backends.openai import OpenAI
    from .lang.backends.runtimes.http_runtime import HttpRuntime
    from .lang.backends.scripted import Scripted
    from .lang.backends.vertex import VertexAI
    from .lang.evaluation.evaluate import aevaluate, evaluate
    from .lang.evaluation.optimise import aoptimise, optimise
    from .lang.evaluation.report import Comparison, Report
    from .lang.expressions.captures import one_or_more, optional, recursive, repeat, rx, seq, zero_or_more
    from .lang.expressions.choices import (
        ChoicesDecision,
        ChoicesSamplingMethod,
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from .lang.expressions.decide import pick, predicate, rate
    from .lang.expressions.messages import (
        assistant,
        assistant_begin,
        assistant_end,
        role,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from .lang.expressions.primitives import gen, gen_int, gen_string, image, select, separate_reasoning, video
    from .lang.expressions.quotes import substring
    from .lang.operations.hooks import Hook, HookedCall, hooks
    from .lang.rollouts.rollouts import Rollouts, arollout_batches, arollouts, rollout_batches, rollouts
    from .lang.running.decorator import function, signature
    from .lang.running.failures import BatchError
    from .lang.running.program import Program
    from .lang.running.signatures import Demonstration
    from .lang.search.searches import Vote, abeam, abest_of, afirst, avote, beam, best_of, first, vote
    from .lang.states.agent_options import Agent, AgentCall, AgentResult
    from .lang.states.events import ProgramEvent
    from .lang.states.state import ForkGroup, ProgramState
    from .lang.storage.cache import Cache, cache
    from .lang.tools.call_format import CallFormat
    from .lang.tools.declaration import DeclaredTool, tool
    from .lang.tools.mcp_server import McpProgress, McpTools, mcp
    from .lang.tools.tool_set import UnansweredCall, tool_schemas
    from .lang.tracing.opentelemetry_hook import OpenTelemetryHook
    from .lang.tracing.plan import Plan
    from .lang.tracing.trace import Trace
    from .lang.types.schema_regex import build_regex_from_object
    from .runtime.offline import Engine
    from .runtime.processes.launch import Runtime
    from .runtime.protocol.errors import BusyError, RamiformError, RequestError, RuntimeFailed
    from .runtime.protocol.version import __version__

__all__ = [
    "Agent",
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
    "Hook",
    "HookedCall",
    "HttpRuntime",
    "McpProgress",
    "McpTools",
    "OpenAI",
    "OpenTelemetryHook",
    "Plan",
    "Program",
    "ProgramEvent",
    "ProgramState",
    "RamiformError",
    "Report",
    "RequestError",
    "Rollouts",
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
    "arollout_batches",
    "arollouts",
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
    "hooks",
    "image",
    "mcp",
    "one_or_more",
    "optimise",
    "optional",
    "pick",
    "predicate",
    "rate",
    "recursive",
    "repeat",
    "role",
    "rollout_batches",
    "rollouts",
    "rx",
    "select",
    "separate_reasoning",
    "seq",
    "set_default_backend",
    "signature",
    "substring",
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
    "Agent": ".lang.states.agent_options",
    "AgentCall": ".lang.states.agent_options",
    "AgentResult": ".lang.states.agent_options",
    "Backend": ".lang.backends.backend",
    "BatchError": ".lang.running.failures",
    "BusyError": ".runtime.protocol.errors",
    "Cache": ".lang.storage.cache",
    "CallFormat": ".lang.tools.call_format",
    "ChoicesDecision": ".lang.expressions.choices",
    "ChoicesSamplingMethod": ".lang.expressions.choices",
    "Comparison": ".lang.evaluation.report",
    "DeclaredTool": ".lang.tools.declaration",
    "Demonstration": ".lang.running.signatures",
    "Engine": ".runtime.offline",
    "ForkGroup": ".lang.states.state",
    "Hook": ".lang.operations.hooks",
    "HookedCall": ".lang.operations.hooks",
    "HttpRuntime": ".lang.backends.runtimes.http_runtime",
    "McpProgress": ".lang.tools.mcp_server",
    "McpTools": ".lang.tools.mcp_server",
    "OpenAI": ".lang.backends.openai",
    "OpenTelemetryHook": ".lang.tracing.opentelemetry_hook",
    "hooks": ".lang.operations.hooks",
    "Plan": ".lang.tracing.plan",
    "Program": ".lang.running.program",
    "ProgramEvent": ".lang.states.events",
    "ProgramState": ".lang.states.state",
    "RamiformError": ".runtime.protocol.errors",
    "Report": ".lang.evaluation.report",
    "Rollouts": ".lang.rollouts.rollouts",
    "RequestError": ".runtime.protocol.errors",
    "Runtime": ".runtime.processes.launch",
    "RuntimeEndpoint": ".lang.backends.backend",
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
    "arollout_batches": ".lang.rollouts.rollouts",
    "arollouts": ".lang.rollouts.rollouts",
    "assistant": ".lang.expressions.messages",
    "assistant_begin": ".lang.expressions.messages",
    "assistant_end": ".lang.expressions.messages",
    "avote": ".lang.search.searches",
    "beam": ".lang.search.searches",
    "best_of": ".lang.search.searches",
    "build_regex_from_object": ".lang.types.schema_regex",
    "cache": ".lang.storage.cache",
    "evaluate": ".lang.evaluation.evaluate",
    "first": ".lang.search.searches",
    "flush_cache": ".lang.backends.backend",
    "function": ".lang.running.decorator",
    "gen": ".lang.expressions.primitives",
    "gen_int": ".lang.expressions.primitives",
    "gen_string": ".lang.expressions.primitives",
    "get_server_info": ".lang.backends.backend",
    "greedy_token_selection": ".lang.expressions.choices",
    "image": ".lang.expressions.primitives",
    "one_or_more": ".lang.expressions.captures",
    "mcp": ".lang.tools.mcp_server",
    "optimise": ".lang.evaluation.optimise",
    "optional": ".lang.expressions.captures",
    "pick": ".lang.expressions.decide",
    "predicate": ".lang.expressions.decide",
    "rate": ".lang.expressions.decide",
    "recursive": ".lang.expressions.captures",
    "repeat": ".lang.expressions.captures",
    "role": ".lang.expressions.messages",
    "rollout_batches": ".lang.rollouts.rollouts",
    "rollouts": ".lang.rollouts.rollouts",
    "rx": ".lang.expressions.captures",
    "select": ".lang.expressions.primitives",
    "separate_reasoning": ".lang.expressions.primitives",
    "seq": ".lang.expressions.captures",
    "set_default_backend": ".lang.backends.backend",
    "signature": ".lang.running.decorator",
    "substring": ".lang.expressions.quotes",
    "system": ".lang.expressions.messages",
    "system_begin": ".lang.expressions.messages",
    "system_end": ".lang.expressions.messages",
    "token_length_normalized": ".lang.expressions.choices",
    "tool": ".lang.tools.declaration",
    "tool_schemas": ".lang.tools.tool_set",
    "unconditional_likelihood_normalized": ".lang.expressions.choices",
    "user": ".lang.expressions.messages",
    "user_begin": ".lang.expressions.messages",
    "user_end": ".lang.expressions.messages",
    "video": ".lang.expressions.primitives",
    "vote": ".lang.search.searches",
    "zero_or_more": ".lang.expressions.captures",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if (module := _MODULES.get(name)) is None:
        from .runtime.protocol.errors import did_you_mean

        hint = "" if name.startswith("__") else did_you_mean(name, __all__)  # Python itself asks for __path__ and such
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = globals()[name] = getattr(importlib.import_module(module, __name__), name)
    return value
