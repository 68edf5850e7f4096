"""xgrammar as a backend. JSON Schema as it reads it when not strict: open objects, any order of what is not listed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray

from ..automaton.vocabulary import Vocabulary
from ..backends import Peer, not_supported
from ..constraint import Choices, Constraint, Grammar, JsonObject, JsonSchema, Regex, StructuralTag
from ..errors import GrammarError
from .schema_options import peer_schema, peer_structural_tag


def compiler(vocabulary: Vocabulary, any_whitespace: bool) -> Callable[[Constraint], Callable[[], Peer]]:
    info = xgrammar.TokenizerInfo(
        [data or b"" for data in vocabulary.tokens],
        vocab_size=len(vocabulary),
        stop_token_ids=sorted(vocabulary.eos_ids),
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def compile_one(constraint: Constraint) -> Callable[[], Peer]:
        try:
            grammar = _compiled(compiler, constraint, any_whitespace)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise GrammarError(f"xgrammar: {(str(error).strip() or repr(error)).splitlines()[-1]}") from None
        return lambda: _Xgrammar(xgrammar.GrammarMatcher(grammar, override_stop_tokens=sorted(vocabulary.eos_ids)))

    return compile_one


def _compiled(compiler: Any, constraint: Constraint, any_whitespace: bool) -> Any:
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
        case JsonSchema():
            return compiler.compile_json_schema(
                peer_schema(constraint),
                any_whitespace=any_whitespace,
                separators=None if any_whitespace else (",", ":"),
                strict_mode=False,
            )
        case StructuralTag(spec=spec, options=options):
            newer = _newer(json.loads(spec) if isinstance(spec, str) else spec)
            return compiler.compile_structural_tag(json.dumps(peer_structural_tag(newer, options)))
        case _:
            raise not_supported("xgrammar", constraint)


def _newer(spec: Any) -> Any:
    """The specification with a `format`, also where it was written with `structures`."""
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
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, out: NDArray[np.int32]) -> None:
        row = out.reshape(1, -1)
        row[:] = -1  # it leaves a mask that forbids nothing as it was
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
