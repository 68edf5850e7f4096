"""Chat templates: render messages as the text that the model was trained to continue.

Templates are Jinja programs written for Hugging Face's `apply_chat_template`. The environment is the same: sandboxed,
with `raise_exception`, `strftime_now`, `tojson` that keeps non-ASCII text, loop controls and `{% generation %}`.

Each output, each round of a loop and each call checks a deadline, so that no template runs for ever. A single operation
of a checkpoint's template is not bounded; templates of requests, which are a stranger's, render in a process of their
own (template_process.py).
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..protocol.errors import RequestError
from .errors import TokenizerError

_MAX_CHARACTERS = 16 << 20
MAX_CPU_SECONDS = 10.0
_LIMIT = "the chat template exceeds its limit of output or CPU time"


class JsonText(str):
    """Text in the place of a JSON value, such as one that was cut off. `tojson` writes it as it is."""

    __slots__ = ("where",)

    def __new__(cls, text: str, where: str = "") -> JsonText:
        """`where` names the field that holds it, for errors."""
        self = super().__new__(cls, text)
        self.where = where
        return self


class ChatTemplate:
    """A checkpoint's templates: "tool_use" renders requests with tools where it exists, "default" all others.

    Raises TokenizerError when a template is not valid Jinja.
    """

    def __init__(self, templates: str | Mapping[str, str], names: Mapping[str, str]) -> None:
        """`names` are "bos_token" and similar variables of templates."""
        sources = {"default": templates} if isinstance(templates, str) else templates
        self.source = "\n".join(sources.values())  # for clients that ask; several templates follow one another
        self.variables = dict(names)
        self._sources = sources
        environment = _environment()
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
        except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # Jinja recurses as deep as expressions nest, and Python's own parser limits what Jinja makes of them.
            raise TokenizerError(f"the chat template cannot be read: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render the conversation. `kwargs` are further variables of the template, e.g. `enable_thinking`.

        Raises RequestError (param "messages") with the template's own message when it refuses the messages, and when
        its output or CPU time exceeds _MAX_CHARACTERS or MAX_CPU_SECONDS.
        """
        if self._takes_parts_only:
            messages = [_in_parts(message) for message in messages]
        return self._rendered(messages, tools, add_generation_prompt, kwargs)

    @cached_property
    def _takes_parts_only(self) -> bool:
        """Return True if the template writes contents that are lists of parts, and none that are texts: some of models
        that read images do."""
        text = {"role": "user", "content": "zqa"}
        try:
            if "zqa" in self._rendered([text], None, False, {}):
                return False
        except RequestError:
            pass
        try:
            rendered = self._rendered([_in_parts(text)], None, False, {})
        except RequestError:
            return False
        return "zqa" in rendered and "'zqa'" not in rendered

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        deadline = _Deadline(MAX_CPU_SECONDS)
        variables = self.variables | dict(kwargs)
        variables |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        variables[_DEADLINE] = deadline
        parts: list[str] = []
        num_characters = 0
        try:
            for part in self._choose(tools).generate({"documents": None} | variables):
                parts.append(part)
                num_characters += len(part)
                if num_characters > _MAX_CHARACTERS:
                    raise RequestError(_LIMIT, param="messages")
                deadline.check()
        except jinja2.TemplateError as error:
            raise RequestError(f"the chat template refuses the messages: {error}", param="messages") from None
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                f"the chat template cannot take these messages: {type(error).__name__}: {error}", param="messages"
            ) from None
        return "".join(parts)

    @cached_property
    def message_fields(self) -> frozenset[str]:
        """Fields that the templates read of messages: of the variables whose role or content they read."""
        read: dict[str, set[str]] = defaultdict(set)
        for source in self._sources.values():
            for node in (
                _environment().parse(source).find_all((nodes.Getattr, nodes.Getitem, nodes.Call, nodes.Compare))
            ):
                of, name = _read_field(node)
                while isinstance(of, nodes.Getitem | nodes.Filter):  # as messages[0], or messages | last
                    of = of.node
                if isinstance(of, nodes.Name):
                    read[of.name].add(name)
        fields = (names for names in read.values() if names & {"role", "content"})
        return frozenset().union(*fields) - frozenset(dir(dict))

    def _choose(self, tools: Sequence[Any] | None) -> jinja2.Template:
        if tools is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            raise RequestError(
                f"the model has chat templates {sorted(self._templates)}, none of which is the default",
                param="messages",
            )
        return self._templates["default"]


def _in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message with a text of a content as its only part."""
    content = message.get("content") or ""
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _read_field(node: nodes.Node) -> tuple[nodes.Node | None, str]:
    """Return what a node of a template reads a field of, and the field; None if it reads none."""
    match node:
        case (
            nodes.Getattr(node=of, attr=name)
            | nodes.Getitem(node=of, arg=nodes.Const(value=str(name)))
            | nodes.Call(node=nodes.Getattr(node=of, attr="get"), args=[nodes.Const(value=str(name)), *_])
            | nodes.Compare(expr=nodes.Const(value=str(name)), ops=[nodes.Operand(op="in" | "notin", expr=of)])
        ):
            return of, name
    return None, ""


def load_chat_template(folder: Path, configured: Any, names: Mapping[str, str]) -> ChatTemplate | None:
    """Load the template of chat_template.jinja, else chat_template.json, else `configured`
    (tokenizer_config.json's)."""
    templates = _named(configured)
    try:
        if (path := folder / "chat_template.json").exists():
            templates |= _named(json.loads(path.read_text("utf-8")).get("chat_template"))
        if (path := folder / "chat_template.jinja").exists():
            templates["default"] = path.read_text("utf-8")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            templates[path.stem] = path.read_text("utf-8")
    except (OSError, ValueError, AttributeError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from None
    return ChatTemplate(templates, names) if templates else None


def _named(value: Any) -> dict[str, str]:
    match value:
        case str():
            return {"default": value}
        case list():
            if not all(isinstance(entry, dict) and {"name", "template"} <= entry.keys() for entry in value):
                raise TokenizerError("chat_template must be a text or a list of objects with name and template")
            return {str(entry["name"]): str(entry["template"]) for entry in value}
        case _:
            return {}


class _Generation(Extension):
    """The tag `{% generation %}`, which marks text for training; its content is rendered as is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_DEADLINE = "deadline of the rendering"  # a variable, and a filter; templates can name neither


class _Deadline:
    """CPU time of the rendering thread."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds

    def check(self) -> None:
        """Raise RequestError when the time is over."""
        if time.thread_time() > self._end:
            raise RequestError(_LIMIT, param="messages")


@pass_context
def _check_deadline(context: Context, value: None) -> None:
    context.parent[_DEADLINE].check()


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which every round of a loop and every call checks the deadline."""

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in source.find_all(nodes.For):
            check = nodes.ExprStmt(nodes.Filter(nodes.Const(None), _DEADLINE, [], [], None, None))
            loop.body.insert(0, check.set_lineno(loop.lineno).set_environment(self))
        return super()._generate(source, *args, **kwargs)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  as jinja2's
        _check_deadline(__context, None)
        return super().call(__context, __obj, *args, **kwargs)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.filters[_DEADLINE] = _check_deadline
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, JsonText):
        return str(value)
    # Jinja's own filter escapes <, > and & for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
