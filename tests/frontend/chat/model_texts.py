"""Answers as models of each family may write them, drawn from a seed, with the calls that were meant.

A text has calls with values of every JSON type, also with the format's own markers in quoted texts, prose around them,
and the habits of models: a begin that is missing, a parameter that is not closed, JSON that is bare or in a fence,
commas before a closing bracket, Python's literals.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]
Schema = dict[str, Any]

NULLABLE: tuple[Schema, ...] = (
    {"type": ["string", "null"]},
    {"type": "string", "nullable": True},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/text"}]},
)
WORDS = (
    "Paris",
    "a b",
    "",
    "é ☃",
    'say "hi"',
    "it's",
    "back\\slash",
    "line\nbreak",
    "{x: [1]}",
    "a, b",
    "1",
    "true",
    "</b>",
    "<a>",
)
BEFORE = ("I shall look that up.", "Sure!", "Let me check the weather in `Rome`:", "Ich sehe nach.")
BETWEEN = ("And the other one:", "Now the second.", "Also")
AFTER = ("That is all.", "I wait for the result.", "Done: see above.")


@dataclass(frozen=True)
class Family:
    """How a family writes calls. `write` makes the text of all calls of `calls`, which are names and values."""

    format: str
    write: Callable[[Writer, list[tuple[str, Values]]], str]
    markers: tuple[str, ...] = ()  # that quoted texts may hold
    habits: tuple[str, ...] = ()
    raw: bool = False  # values are texts without quotes
    marked: bool = True  # a marker begins calls, so prose may stand around them
    before: str = "SAID\n\n"  # how prose is written before calls,
    after: str = "\n\nSAID"  # after them,
    answer: str = "SAID"  # and as the whole answer


@dataclass
class Text:
    """An answer, what was meant, and the tools that were offered."""

    format: str
    text: str
    calls: list[tuple[str, Values]]
    said: str
    schemas: dict[str, Schema]
    habits: set[str] = field(default_factory=set)


class Writer:
    """Writes one answer."""

    def __init__(self, draw: random.Random, habits: set[str]) -> None:
        self.draw, self.habits = draw, habits

    def json(self, value: Any, indent: int | None = None) -> str:
        """JSON, with the habits of this answer."""
        if not self.habits & {"comma", "literals", "single"}:
            return json.dumps(value, ensure_ascii=self.draw.random() < 0.2, indent=indent)
        comma = "," if "comma" in self.habits else ""
        match value:
            case dict() if value:
                items = ", ".join(f"{self.json(key)}: {self.json(each)}" for key, each in value.items())
                return f"{{{items}{comma}}}"
            case list() if value:
                return f"[{', '.join(map(self.json, value))}{comma}]"
            case bool() | None if self.habits & {"literals", "single"}:
                return repr(value)
            case str() if "single" in self.habits:
                return repr(value)
            case _:
                return json.dumps(value, ensure_ascii=False)

    def call(self, name: str, values: Values, key: str = "arguments") -> str:
        indent = 2 if self.draw.random() < 0.2 else None
        return self.json({"name": name, key: values}, indent)

    def listed(self, calls: list[tuple[str, Values]], key: str = "arguments") -> str:
        return "[" + ", ".join(self.call(*each, key) for each in calls) + "]"

    def python(self, name: str, values: Values) -> str:
        literals = {"true": True, "false": False, "null": None}
        shown = {key: repr(value) for key, value in values.items()}
        if "literals" in self.habits:
            names = {repr(value): text for text, value in literals.items()}
            shown = {key: names.get(text, text) for key, text in shown.items()}
        return f"{name}({', '.join(f'{key}={text}' for key, text in shown.items())})"

    def joined(self, blocks: list[str], blank: str = "\n") -> str:
        """Blocks of one call each, with prose between them or not."""
        if "between" not in self.habits:
            return blank.join(blocks)
        return f"\n\n{self.said_between}\n".join(blocks)

    said_between = ""

    def around(self, begin: str, body: str, end: str, *, last: bool = True) -> str:
        """A block, whose markers may be missing."""
        begin = "" if "no begin" in self.habits else begin
        return begin + body + ("" if "no end" in self.habits and last else end)

    def tags(self, name: str, values: Values, shape: tuple[str, str, str, str, str], *, lines: bool) -> str:
        """A call in tags; `shape`: how it begins and ends, how a parameter begins, ends its name, and ends."""
        begin, end, parameter, name_end, closing = shape
        text = f"{begin}{name}{name_end}\n"
        for index, (key, value) in enumerate(values.items()):
            is_last = index == len(values) - 1
            unclosed = "unclosed" in self.habits and (is_last or self.draw.random() < 0.5)
            shown = value if isinstance(value, str) else self.json(value)
            attribute = f'" string="{json.dumps(isinstance(value, str))}' if "DSML" in begin else ""
            shown = f"\n{shown}\n" if lines else shown + ("\n" if unclosed else "")
            text += f"{parameter}{key}{attribute}{name_end}{shown}" + ("" if unclosed else f"{closing}\n")
        return text + end


def per_call(begin: str, end: str, body: Callable[[Writer, str, Values], str]) -> Callable[..., str]:
    def write(writer: Writer, calls: list[tuple[str, Values]]) -> str:
        blocks = [
            writer.around(begin, body(writer, *each), end, last=index == len(calls) - 1)
            for index, each in enumerate(calls)
        ]
        return writer.joined(blocks)

    return write


def in_one(begin: str, end: str, body: Callable[[Writer, list[tuple[str, Values]]], str]) -> Callable[..., str]:
    return lambda writer, calls: writer.around(begin, body(writer, calls), end)


def tagged(shape: tuple[str, str, str, str, str], *, lines: bool = False, before: str = "", after: str = "") -> Any:
    def write(writer: Writer, calls: list[tuple[str, Values]]) -> str:
        return "\n".join(before + writer.tags(*each, shape, lines=lines) + after for each in calls) + "\n"

    return write


def glm(prefix: str) -> Callable[[Writer, str, Values], str]:
    def write(writer: Writer, name: str, values: Values) -> str:
        text = name + "\n"
        for key, value in values.items():
            shown = value if isinstance(value, str) else writer.json(value)
            closing = "\n" if "unclosed" in writer.habits and key != list(values)[-1] else f"</{prefix}arg_value>\n"
            text += f"<{prefix}arg_key>{key}</{prefix}arg_key>\n<{prefix}arg_value>{shown}{closing}"
        return text

    return write


def gemma(value: Any, quote: str) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{key}:{gemma(each, quote)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(gemma(each, quote) for each in value) + "]"
        case str():
            return f"{quote}{value}{quote}"
        case _:
            return json.dumps(value)


QUOTE = '<|"|>'  # of Gemma 4
QWEN = ("<function=", "</function>", "<parameter=", ">", "</parameter>")
INVOKE = ('<invoke name="', "</invoke>", '<parameter name="', '">', "</parameter>")
STEPTML = ('<steptml:invoke name="', "</steptml:invoke>", '<steptml:parameter name="', '">', "</steptml:parameter>")
DSML = ('<｜DSML｜invoke name="', "</｜DSML｜invoke>", '<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>")
_JSON = ("comma", "literals", "single")
_TAGS = ("no begin", "no end", "unclosed", "between")
_EACH = (*_JSON, "no end", "between", "fence")


def _kimi(writer: Writer, calls: list[tuple[str, Values]]) -> str:
    return "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{writer.json(values)}<|tool_call_end|>"
        for index, (name, values) in enumerate(calls)
    )


def _deepseek(writer: Writer, calls: list[tuple[str, Values]]) -> str:
    return "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{writer.json(values)}\n```<｜tool▁call▁end｜>"
        for name, values in calls
    )


def _deepseek_v31(writer: Writer, calls: list[tuple[str, Values]]) -> str:
    return "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{writer.json(values)}<｜tool▁call▁end｜>" for name, values in calls
    )


def _hermes(writer: Writer, name: str, values: Values) -> str:
    text = writer.call(name, values)
    return f"\n```json\n{text}\n```\n" if "fence" in writer.habits else f"\n{text}\n"


def _harmony(writer: Writer, calls: list[tuple[str, Values]]) -> str:
    """Messages on channels. The recipient stands beside the channel, as models write it, or beside the role."""
    draw = writer.draw
    messages = []
    for index, (name, values) in enumerate(calls):
        to = draw.choice((f"functions.{name}", f"functions.{name}", f"functions.{name}json", name))
        channel = draw.choice(("commentary", "commentary", "analysis"))
        kind = draw.choice((" <|constrain|>json", " <|constrain|>json", "<|constrain|>json", " json", " code", ""))
        if "no begin" in writer.habits and index == 0:
            header = f"{channel} to=functions.{name}{kind}"
        elif draw.random() < 0.3:
            header = f" to={to}<|channel|>{channel}{kind}"
        else:
            twice = draw.choice(("", "", "", "<|channel|>commentary"))  # known of long conversations
            header = f"<|channel|>{channel}{twice} to={to}{kind}"
        end = "" if "no end" in writer.habits else "<|call|>"
        messages.append(f"{header}<|message|>{writer.json(values)}{end}")
        if "between" in writer.habits and index < len(calls) - 1:
            messages.append(f"<|channel|>commentary<|message|>{writer.said_between}<|end|>")
    if "no begin" not in writer.habits and draw.random() < 0.3:
        messages.insert(0, "<|channel|>analysis<|message|>I have to look.<|end|>")
    return "<|start|>assistant".join(messages)


FAMILIES: tuple[Family, ...] = (
    Family(
        "harmony",
        _harmony,
        ("<|end|>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>"),
        (*_JSON, "no begin", "no end", "between"),
        before="<|channel|>commentary<|message|>SAID<|end|><|start|>assistant",
        after="<|start|>assistant<|channel|>final<|message|>SAID<|return|>",
        answer="<|channel|>final<|message|>SAID<|return|>",
    ),
    Family("hermes", per_call("<tool_call>", "</tool_call>", _hermes), ("<tool_call>", "</tool_call>"), _EACH),
    Family(
        "longcat",
        per_call("<longcat_tool_call>", "</longcat_tool_call>", _hermes),
        ("<longcat_tool_call>", "</longcat_tool_call>"),
        _EACH,
    ),
    Family(
        "longcat",
        per_call("<longcat_tool_call>", "</longcat_tool_call>", glm("longcat_")),
        ("</longcat_tool_call>", "<longcat_tool_call>"),
        ("no end", "between", "unclosed"),
        raw=True,
    ),
    Family(
        "internlm",
        per_call("<|action_start|><|plugin|>\n", "<|action_end|>", lambda w, n, v: w.call(n, v, "parameters")),
        ("<|action_start|>", "<|action_end|>"),
        (*_JSON, "no end", "between"),
    ),
    Family("mistral", in_one("[TOOL_CALLS]", "", lambda w, calls: " " + w.listed(calls)), ("[TOOL_CALLS]",), _JSON),
    Family(
        "mistral_args",
        per_call("[TOOL_CALLS]", "", lambda w, n, v: f"{n}[ARGS]{w.json(v)}"),
        ("[TOOL_CALLS]", "[ARGS]"),
        (*_JSON, "between"),
    ),
    Family("granite", in_one("<|tool_call|>", "", lambda w, calls: w.listed(calls)), ("<|tool_call|>",), _JSON),
    Family(
        "granite_20b_fc",
        per_call("<function_call> ", "", lambda w, n, v: w.call(n, v)),
        ("<function_call>",),
        (*_JSON, "between"),
    ),
    Family(
        "phi4_mini",
        in_one("<|tool_call|>", "<|/tool_call|>", lambda w, calls: w.listed(calls)),
        ("<|tool_call|>", "<|/tool_call|>"),
        (*_JSON, "no end"),
    ),
    Family(
        "hunyuan_a13b",
        in_one("<tool_calls>", "</tool_calls>", lambda w, calls: w.listed(calls)),
        ("<tool_calls>", "</tool_calls>"),
        (*_JSON, "no end"),
    ),
    Family(
        "apertus",
        in_one("<|tools_prefix|>", "<|tools_suffix|>", lambda w, calls: w.json([{n: v} for n, v in calls])),
        ("<|tools_prefix|>", "<|tools_suffix|>"),
        (*_JSON, "no end"),
    ),
    Family(
        "deepseek",
        in_one("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _deepseek),
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```"),
        (*_JSON, "no begin", "no end"),
    ),
    Family(
        "deepseek_v31",
        in_one("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _deepseek_v31),
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
        (*_JSON, "no begin", "no end"),
    ),
    Family(
        "kimi_k2",
        in_one("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _kimi),
        ("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_argument_begin|>"),
        (*_JSON, "no begin", "no end"),
    ),
    Family(
        "lfm2",
        in_one(
            "<|tool_call_start|>", "<|tool_call_end|>", lambda w, calls: f"[{', '.join(w.python(*c) for c in calls)}]"
        ),
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        ("literals", "no end"),
    ),
    Family(
        "lfm2",
        in_one("<|tool_call_start|>", "<|tool_call_end|>", lambda w, calls: w.listed(calls)),
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        (*_JSON, "no end"),
    ),
    Family(
        "olmo3",
        in_one("<function_calls>", "</function_calls>", lambda w, calls: "\n".join(w.python(*c) for c in calls)),
        ("<function_calls>", "</function_calls>"),
        ("literals",),
    ),
    Family(
        "pythonic",
        lambda w, calls: f"[{', '.join(w.python(*c) for c in calls)}]",
        ("<|python_start|>", "["),
        ("literals",),
        marked=False,
    ),
    Family(
        "llama3_json",
        lambda w, calls: "; ".join(w.call(*c, "parameters") for c in calls),
        ("<|python_tag|>", "{"),
        _JSON,
        marked=False,
    ),
    Family("json", lambda w, calls: w.listed(calls), ("```", "{"), _JSON, marked=False),
    Family(
        "functiongemma",
        per_call("<start_function_call>", "<end_function_call>", lambda w, n, v: f"call:{n}{gemma(v, '<escape>')}"),
        ("<start_function_call>", "<end_function_call>"),
        ("no end", "between"),
    ),
    Family(
        "gemma4",
        per_call("<|tool_call>", "<tool_call|>", lambda w, n, v: f"call:{n}{gemma(v, QUOTE)}"),
        ("<|tool_call>", "<tool_call|>"),
        ("no end", "between"),
    ),
    Family(
        "qwen3_coder",
        per_call("<tool_call>\n", "\n</tool_call>", lambda w, n, v: w.tags(n, v, QWEN, lines=True)),
        ("<tool_call>", "</tool_call>"),
        _TAGS,
        raw=True,
    ),
    Family(
        "seed_oss",
        per_call("<seed:tool_call>\n", "\n</seed:tool_call>", lambda w, n, v: w.tags(n, v, QWEN, lines=True)),
        ("<seed:tool_call>", "</seed:tool_call>"),
        _TAGS,
        raw=True,
    ),
    Family(
        "glm45",
        per_call("<tool_call>", "</tool_call>", glm("")),
        ("<tool_call>", "</tool_call>"),
        ("no end", "between", "unclosed"),
        raw=True,
    ),
    Family(
        "minimax_m2",
        in_one("<minimax:tool_call>\n", "</minimax:tool_call>", tagged(INVOKE)),
        ("<minimax:tool_call>", "</minimax:tool_call>"),
        ("no begin", "no end", "unclosed"),
        raw=True,
    ),
    Family(
        "step3",
        in_one(
            "<｜tool_calls_begin｜>\n",
            "<｜tool_calls_end｜>",
            tagged(STEPTML, before="<｜tool_call_begin｜>function<｜tool_sep｜>", after="<｜tool_call_end｜>"),
        ),
        ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        ("no begin", "no end", "unclosed"),
        raw=True,
    ),
    Family(
        "deepseek_v32",
        in_one("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", tagged(DSML)),
        ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        ("no begin", "no end", "unclosed"),
        raw=True,
    ),
    Family(
        "deepseek_v4",
        in_one("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>", tagged(DSML)),
        ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
        ("no begin", "no end", "unclosed"),
        raw=True,
    ),
)


def _value(draw: random.Random, family: Family, schema: Schema, depth: int = 0) -> Any:
    """A value of a schema. `raw` values cannot say everything: their texts are what stands between two tags."""
    if "enum" in schema:
        return draw.choice(schema["enum"])
    kind = schema.get("kind") or schema.get("type")
    if schema in NULLABLE and draw.random() < 0.5:
        return None
    if kind == "object" or kind == "array":
        inner = [_value(draw, family, {"type": draw.choice(_PLAIN)}, depth + 1) for _ in range(draw.randrange(3))]
        if depth < 2 and draw.random() < 0.5:
            inner.append(_value(draw, family, {"type": draw.choice(("object", "array"))}, depth + 1))
        return inner if kind == "array" else {f"k{index}": each for index, each in enumerate(inner)}
    if kind == "integer" or (isinstance(kind, list) and "integer" in kind):
        return None if isinstance(kind, list) and draw.random() < 0.3 else draw.randint(-99, 10**12)
    if kind == "number":
        return draw.choice((0.5, -3.25, 1e20, 7))
    if kind == "boolean":
        return draw.random() < 0.5
    if kind == "null":
        return None
    words = [draw.choice((*WORDS, *family.markers)) for _ in range(draw.randint(1, 3))]
    return draw.choice(("", " ", " see ")).join(words)


_PLAIN = ("string", "integer", "number", "boolean", "null")
_PROPERTIES: tuple[Schema, ...] = (
    {"type": "string"},
    {"type": "string"},
    *NULLABLE,
    {"type": "integer"},
    {"type": ["integer", "null"]},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "array"},
    {"type": "object"},
    {"enum": ["red", "1", None]},
    {"enum": ["k", "c"]},
)


def draw_text(seed: int) -> Text:
    """The answer of a seed."""
    draw = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    schemas = {}
    for name in ("get_weather", "add", "get_web-2"[: 7 if family.format in ("lfm2", "olmo3", "pythonic") else None]):
        picked = draw.sample(range(len(_PROPERTIES)), draw.randint(0, 4))
        properties = {f"p{index}": _PROPERTIES[index] for index in picked}
        schemas[name] = {"type": "object", "properties": properties, "$defs": {"text": {"type": "string"}}}
    habits = {habit for habit in family.habits if draw.random() < 0.25}
    if {"single", "comma"} <= habits or {"single", "literals"} <= habits:
        habits.discard("single")
    is_bare = draw.random() < 0.2
    # A marker in the text of a channel ends it, quoted or not.
    ends_text = "unclosed" in habits or (is_bare and family.answer != "SAID")
    plain = Family(family.format, family.write, raw=family.raw) if ends_text else family
    calls = []
    for name in draw.choices(list(schemas), k=draw.choice((1, 1, 1, 2, 3))):
        items = schemas[name]["properties"].items()
        chosen = [(key, schema) for key, schema in items if draw.random() < 0.8]
        calls.append((name, {key: _value(draw, plain, schema) for key, schema in chosen}))
    if is_bare:
        return _bare(draw, family, calls, schemas)
    if "no begin" in habits and "between" not in habits and family.format in ("qwen3_coder", "seed_oss"):
        pass  # every block lacks it
    writer = Writer(draw, habits)
    writer.said_between = draw.choice(BETWEEN)
    text = family.write(writer, calls)
    said = [writer.said_between] * (len(calls) - 1) if "between" in habits else []
    if family.marked and draw.random() < 0.4:
        said.insert(0, draw.choice(BEFORE))
        text = family.before.replace("SAID", said[0]) + text
    if family.marked and draw.random() < 0.3 and _may_follow(family, habits):
        said.append(draw.choice(AFTER))
        text += family.after.replace("SAID", said[-1])
    return Text(family.format, text, calls, " ".join(said), schemas, habits)


def _may_follow(family: Family, habits: set[str]) -> bool:
    """Prose after a block that was not closed is no part of it where the last value ends by itself."""
    python = family.format in ("lfm2", "olmo3", "pythonic")
    return "no end" not in habits or not (python or "unclosed" in habits)


def _bare(draw: random.Random, family: Family, calls: list[tuple[str, Values]], schemas: dict[str, Schema]) -> Text:
    """The calls as JSON without the format's markers."""
    habits = {habit for habit in _JSON if draw.random() < 0.2}
    if "single" in habits:
        habits = {"single"}
    writer = Writer(draw, habits)
    key = draw.choice(("arguments", "parameters"))
    text = writer.call(*calls[0], key) if len(calls) == 1 else writer.listed(calls, key)
    if draw.random() < 0.5:
        text = f"```{draw.choice(('json', '', 'tool_call'))}\n{text}\n```"
    said = ""
    if draw.random() < 0.4:
        said = draw.choice(BEFORE)
        text = f"{said}{draw.choice((' ', chr(10), chr(10) * 2))}{text}"
    text = draw.choice((family.answer, "SAID")).replace("SAID", text + draw.choice(("", "\n")))
    return Text(family.format, text, calls, said, schemas, habits | {"bare"})
