"""The backend xgrammar: JSON Schemas in its non-strict reading, with open objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray

from ..automaton.vocabulary import Vocabulary
from ..constraint import Choices, Grammar, GrammarSource, JsonObject, JsonSchema, Regex, StructuralTag
from ..errors import GrammarError
from ..regex.charset import charset, intersection
from ..regex.syntax.expression import Alt, Chars, Expression, Look, Repeat, Seq
from ..regex.syntax.parser import parse_regex
from ..schema.document import Document, read_schema
from ..schema.keywords import child
from .interface import Peer, not_supported
from .schema_options import has_any_whitespace, peer_schema, peer_structural_tag

_ESCAPED = charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])  # characters that a JSON string holds as escapes only


def compiler(vocabulary: Vocabulary, any_whitespace: bool) -> Callable[[GrammarSource], Callable[[], Peer]]:
    """Return the function that compiles a constraint to a factory of matchers."""
    info = xgrammar.TokenizerInfo(
        [data or b"" for data in vocabulary.tokens],
        vocab_size=len(vocabulary),
        stop_token_ids=sorted(vocabulary.eos_ids),
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def compile_one(constraint: GrammarSource) -> Callable[[], Peer]:
        try:
            grammar = _compiled(compiler, constraint, any_whitespace)
        except GrammarError:
            raise
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise GrammarError(f"xgrammar: {(str(error).strip() or repr(error)).splitlines()[-1]}") from None
        return lambda: _Xgrammar(xgrammar.GrammarMatcher(grammar, override_stop_tokens=sorted(vocabulary.eos_ids)))

    return compile_one


def _compiled(compiler: Any, constraint: GrammarSource, any_whitespace: bool) -> Any:
    match constraint:
        case Regex(pattern=pattern):
            return compiler.compile_regex(pattern)
        case Choices(values=values):
            texts = " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
            return compiler.compile_grammar(f"root ::= {texts}")
        case Grammar(text=text, syntax="gbnf" | "ebnf", start=start):
            return compiler.compile_grammar(text, root_rule_name=start or "root")
        case JsonObject():
            return _compiled(compiler, JsonSchema({"type": "object"}), any_whitespace)
        case JsonSchema(schema=schema):
            _check_patterns(schema)
            any_whitespace = has_any_whitespace(constraint, any_whitespace)
            return compiler.compile_json_schema(
                peer_schema(constraint),
                any_whitespace=any_whitespace,
                separators=None if any_whitespace else (",", ":"),
                strict_mode=False,
            )
        case StructuralTag(spec=spec, options=options):
            tag = _with_format(json.loads(spec) if isinstance(spec, str) else spec)
            _check_tag(tag)
            return compiler.compile_structural_tag(json.dumps(peer_structural_tag(tag, options)))
        case _:
            raise not_supported("xgrammar", constraint)


def _check_patterns(schema: Any) -> None:
    """Raise GrammarError for a pattern that asks for characters which JSON escapes: xgrammar would write them as they
    are. From wider classes, such as `.`, it leaves them out."""
    for location in Document(read_schema(schema)).all:
        if not isinstance(location.schema, dict):
            continue
        members = location.schema.get("patternProperties")
        patterns = {child(location.pointer, "pattern"): location.schema.get("pattern")}
        for name in members if isinstance(members, dict) else ():
            patterns[child(location.pointer, "patternProperties", name)] = name
        for pointer, pattern in patterns.items():
            if isinstance(pattern, str) and _asks_for_escaped(parse_regex(pattern, "ecma")):
                raise GrammarError(
                    'xgrammar does not escape what a pattern asks for: leave ", \\ and control characters out, or use '
                    "the native backend",
                    pointer=pointer,
                )


def _asks_for_escaped(expression: Expression) -> bool:
    match expression:
        case Chars(ranges=ranges):
            return bool(ranges) and intersection(ranges, _ESCAPED) == ranges
        case Seq(parts=parts) | Alt(parts=parts):
            return any(map(_asks_for_escaped, parts))
        case Repeat(part=part):
            return _asks_for_escaped(part)
    return isinstance(expression, Look)


def _check_tag(spec: Any, *, is_repeated: bool = False) -> None:
    """Check the patterns of every schema of a structural tag, and for what xgrammar cannot read in repeats."""
    if isinstance(spec, Mapping):
        if spec.get("type") == "token_dispatch" and is_repeated:
            raise GrammarError("xgrammar has no 'token_dispatch' inside repeats: use the native backend")
        is_repeated = is_repeated or spec.get("type") in ("optional", "plus", "star", "repeat")
        if spec.get("type") == "json_schema":
            _check_patterns(spec.get("json_schema", True))
        spec = list(spec.values())
    for part in spec if isinstance(spec, list) else []:
        _check_tag(part, is_repeated=is_repeated)


def _with_format(spec: Any) -> Any:
    """Convert a structural tag with `structures` to the newer form with `format`."""
    if not isinstance(spec, Mapping) or "structures" not in spec:
        return spec
    tags = [
        {
            "type": "tag",
            "begin": tag["begin"],
            "content": {"type": "json_schema", "json_schema": tag["schema"]},
            "end": tag["end"],
        }
        for tag in spec["structures"]
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": spec["triggers"], "tags": tags}}


class _Xgrammar:
    """`Peer` over xgrammar's matcher."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, out: NDArray[np.int32]) -> None:
        row = out.reshape(1, -1)
        row[:] = -1  # xgrammar leaves a mask unchanged if every token is allowed
        self._matcher.fill_next_token_bitmask(row)

    def step(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def back(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def forced(self) -> bytes:
        return bytes(self._matcher.find_jump_forward_string().encode())
