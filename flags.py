"""Command-line flags, made from fields: a new flag is a field of CoreConfig or ServeConfig in
`runtime/protocol/config.py`, and its name in a panel below."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand

from .runtime.protocol.config import CoreConfig, ServeConfig
from .runtime.protocol.errors import RequestError
from .runtime.protocol.setting_aliases import setting_for_alias, value_for_alias

PANELS = {
    "Model": "served_model_name model_impl device cpu_threads kernels cuda_graphs wait_for_loops deterministic dtype "
    "quantize context_length enable_return_routed_experts",
    "LoRA adapters": "lora max_loras max_lora_rank",
    "Several devices and machines": "tp pp ep nnodes node_rank master node_keys engine",
    "Memory and reuse": "num_pages kv_memory mem_fraction state_slots window_ratio kv_dtype kv_scales host_kv_memory "
    "disk_cache disk_memory streaming_window streaming_sinks prefix_cache eviction kv_events kv_events_format "
    "kv_events_topic",
    "Prefill and decode apart": "role transfer_bind prefill_workers transfer_keys transfer remote_prefill_tokens",
    "Scheduling": "overlap prefill_budget max_running max_waiting order log_plans",
    "Constraints": "grammar_backend grammar_memory additional_properties number_digits json_whitespace jump_forward",
    "Speculation": "speculative speculative_draft_model speculative_exit_layer speculative_num_steps "
    "speculative_eagle_topk speculative_num_draft_tokens speculative_adaptive",
    "HTTP": "host port uds ssl_certfile ssl_keyfile cors_origins max_body_mib request_timeout batch_dir",
    "Images": "picture_bytes limit_mm_per_prompt max_image_bytes max_image_pixels allow_image_hosts",
    "Page for browsers": "page page_texts",
    "Access and limits": "api_key admin_key cache_scope max_requests_per_key requests_per_minute_per_key "
    "max_connections max_connections_per_address",
    "Model's dialect": "tool_call_parser tool_calls reasoning_parser reranker trust_request_chat_template",
    "Programs of other machines": "bind keys",
    "Processes": "frontends drain_seconds",
    "Logs and traces": "log_level log_format log_requests otlp_endpoint",
}
HELP_ALL = "--help-all"
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}


def settings_of(struct: type[msgspec.Struct], skip: frozenset[str] = frozenset()) -> list[inspect.Parameter]:
    """Return a keyword parameter, hence a flag, for each field of a configuration struct, in the order of PANELS."""
    kinds, hints = get_type_hints(struct), get_type_hints(struct, include_extras=True)
    parameters = []
    for field in msgspec.structs.fields(struct):
        if field.name in skip:
            continue
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        description = next(m.description for m in get_args(hints[field.name])[1:] if isinstance(m, msgspec.Meta))
        annotation = Annotated[
            kinds[field.name], typer.Option(help=description, rich_help_panel=PANEL_OF.get(field.name))
        ]
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    order = list(PANEL_OF)
    return sorted(parameters, key=lambda p: order.index(p.name) if p.name in PANEL_OF else len(order))


def with_settings(*settings: inspect.Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace the `**settings` of a command by these parameters."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = [*own, *settings]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


class CommandWithSettings(TyperCommand):
    """Command with flags in groups. `--help` leaves out the groups of a runtime's settings, `--help-all` shows them."""

    shows_settings = False  # in `--help` too

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta["shows settings"] = self.shows_settings or HELP_ALL in own
        return super().parse_args(ctx, ["--help"] if HELP_ALL in own else args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section of flags for each group: a name is never cut, and what it means follows in a column."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            panel = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or panel, []).append(record)
        if not self.shows_settings:
            sections["Options"].append((HELP_ALL, "Show also the settings of the runtime that it starts, and exit."))
        for panel in sorted(sections, key=lambda name: list(PANELS).index(name) if name in PANELS else -1):
            if panel not in PANELS or ctx.meta["shows settings"]:
                with formatter.section(panel):
                    formatter.write_dl(sections[panel])


class TranslatingCommand(CommandWithSettings):
    """Command whose error for a flag of another server names Ramiform's flag. Typer reports other wrong flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        shown = {parameter.name: _shown(parameter) for parameter in self.params}
        own = {flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        for flag in (argument.partition("=")[0] for argument in args):
            name = _setting(flag)
            ours = "model" if name == "model" else setting_for_alias(name)
            if flag.startswith("--") and flag not in own and ours in shown:
                raise RequestError(f"no such option: {flag}; here it is {shown[ours]}", param=name)
        return super().parse_args(ctx, _with_our_values(args))


class ServingCommand(TranslatingCommand):
    """Command for which the settings of a runtime are what it is asked for."""

    shows_settings = True


def _with_our_values(args: list[str]) -> list[str]:
    """Replace other servers' values of flags, such as names of parsers, by ours."""
    translated: list[str] = []
    for index, argument in enumerate(args):
        before = args[index - 1] if index else ""
        flag, has_value, value = argument.partition("=")
        if argument.startswith("--") and has_value:
            translated.append(f"{flag}={value_for_alias(_setting(flag), value)}")
        else:
            translated.append(str(value_for_alias(_setting(before), argument)))
    return translated


def _setting(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _shown(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"the argument {parameter.name.upper()}, without a flag"
    return " / ".join((*parameter.opts, *parameter.secondary_opts))


MODEL_SETTINGS = settings_of(CoreConfig, skip=frozenset({"model"}))
SERVE_SETTINGS = settings_of(ServeConfig, skip=frozenset({"socket_dir", "port", "api_key", "admin_key"}))
LOG_SETTINGS = [p for p in SERVE_SETTINGS if p.name in ("log_level", "log_format")]
