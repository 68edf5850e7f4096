"""Engines of the grammar bench behind one interface. A peer is imported on first use.

Compared are the calls of a server: compile a schema's text, then for each token fill an int32 bitmask and advance.
Every engine gets the same bytes for the same ids, one thread, and no memory of schemas it has seen, as far as its
interface lets us say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ramiform.bench.grammar.cases import SEPARATORS, Whitespace
from ramiform.bench.grammar.tokens import Tokens


class Refused(Exception):
    """The engine cannot enforce the schema."""


@dataclass(frozen=True)
class Session:
    """State of one output.

    `mask` fills the engine's `bits`. `advance` returns False if the token is refused. `accepting` is asked without a
    mask."""

    mask: Callable[[], object]
    advance: Callable[[int], bool]
    accepting: Callable[[], bool]
    forced: Callable[[], bytes] | None


class Engine(Protocol):
    """An engine. `compile` returns the function that starts a session; it raises Refused."""

    bits: NDArray[np.int32]

    def compile(self, schema: Any, whitespace: Whitespace) -> Callable[[], Session]: ...


class Native:
    """The native engine.

    `order="schema"` enforces the schema's order of properties, as the peers do. `closed` uses the server's options:
    objects that list members have no others, and integers are digits."""

    def __init__(self, tokens: Tokens, order: str, *, closed: bool = False) -> None:
        from ramiform.constrained import Vocabulary

        self.bits = np.zeros(-(-len(tokens.data) // 32), np.int32)
        self._vocabulary = Vocabulary.from_tokens(tokens.data, [tokens.eos])
        self._order, self._closed = order, closed

    def compile(self, schema: Any, whitespace: Whitespace) -> Callable[[], Session]:
        from ramiform.constrained import GrammarError, JsonSchema, SchemaOptions, compile_constraint

        constraint = JsonSchema(schema, SchemaOptions("closed", "digits") if self._closed else SchemaOptions())
        try:
            grammar = compile_constraint(constraint, self._vocabulary, whitespace=whitespace, order=self._order)
        except GrammarError as error:
            raise Refused(f"{error.reason} (at {error.pointer or 'the root'})") from None

        def start() -> Session:
            matcher, bits = grammar.matcher(), self.bits
            return Session(lambda: matcher.mask(bits), matcher.accept, matcher.is_accepting, matcher.forced)

        return start


class Llguidance:
    """llguidance. `lenient` ignores the keywords that it cannot enforce."""

    def __init__(self, tokens: Tokens, lenient: bool) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.bits = np.zeros(-(-len(tokens.data) // 32), np.int32)
        self._lenient = lenient
        slices = LLTokenizer.json_slices()
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Wrapped(tokens)), eos_token=tokens.eos, slices=slices)
        assert self._tokenizer.vocab_size == len(tokens.data)

    def compile(self, schema: Any, whitespace: Whitespace) -> Callable[[], Session]:
        from llguidance import LLMatcher

        options = {"whitespace_flexible": whitespace == "any", "lenient": self._lenient}
        try:
            first = LLMatcher(
                self._tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options), log_level=0
            )
        except ValueError as error:
            raise Refused(str(error)) from None
        if first.is_error():
            raise Refused(first.get_error().split("\n<state>")[0])
        address, size = self.bits.ctypes.data, self.bits.nbytes

        def start() -> Session:
            matcher = first.deep_copy()
            return Session(
                lambda: matcher.unsafe_compute_mask_ptr(address, size),
                matcher.consume_token,
                matcher.is_accepting,
                matcher.compute_ff_bytes,
            )

        return start


class _Wrapped:
    """The tokenizer interface that llguidance requires."""

    def __init__(self, tokens: Tokens) -> None:
        self.eos_token_id = tokens.eos
        self.bos_token_id = None
        # 0xFF begins no text: the mark of a special token.
        self.tokens = [
            f"\ufffd<{number}>".encode() if data is None else data for number, data in enumerate(tokens.data)
        ]
        self.special_token_ids = [number for number, data in enumerate(tokens.data) if data is None]
        self._encode = tokens.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class Xgrammar:
    """xgrammar.

    `strict`, its default, closes objects and fixes whitespace; without it schemas have their standard meaning.
    """

    def __init__(self, tokens: Tokens, strict: bool) -> None:
        import xgrammar

        size = len(tokens.data)
        info = xgrammar.TokenizerInfo(
            [b"" if data is None else data for data in tokens.data], vocab_size=size, stop_token_ids=[tokens.eos]
        )
        self._strict = strict
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = np.zeros((1, -(-size // 32)), np.int32)

    def compile(self, schema: Any, whitespace: Whitespace) -> Callable[[], Session]:
        import xgrammar

        is_any = whitespace == "any" and not self._strict
        try:
            grammar = self._compiler.compile_json_schema(
                json.dumps(schema),
                any_whitespace=is_any,
                separators=None if is_any else SEPARATORS[whitespace],
                strict_mode=self._strict,
            )
        except (RuntimeError, ValueError) as error:
            raise Refused(str(error).strip().splitlines()[-1]) from None
        bits = self.bits

        def start() -> Session:
            matcher = xgrammar.GrammarMatcher(grammar)
            return Session(
                lambda: matcher.fill_next_token_bitmask(bits),
                matcher.accept_token,
                matcher.is_completed,
                lambda: matcher.find_jump_forward_string().encode(),
            )

        return start


class Outlines:
    """outlines-core: a regular expression per schema, and a table of every state and token."""

    def __init__(self, tokens: Tokens) -> None:
        from outlines_core import Vocabulary

        self.bits = np.zeros(-(-len(tokens.data) // 32), np.int32)
        ids: dict[bytes, list[int]] = {}
        for number, data in enumerate(tokens.data):
            if data:
                ids.setdefault(data, []).append(number)
        self._vocabulary = Vocabulary(tokens.eos, ids)

    def compile(self, schema: Any, whitespace: Whitespace) -> Callable[[], Session]:
        from outlines_core import Guide, Index
        from outlines_core.json_schema import build_regex_from_schema

        pattern = "[ \\t\\n\\r]*" if whitespace == "any" else ""
        try:
            index = Index(build_regex_from_schema(json.dumps(schema), pattern), self._vocabulary)
        except BaseException as error:  # a panic in Rust is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise Refused(str(error)) from None
        address, size = self.bits.ctypes.data, self.bits.size

        def start() -> Session:
            guide = Guide(index)

            def advance(token: int) -> bool:
                if not guide.accepts_tokens([token]):
                    return False
                guide.advance(token, return_tokens=False)
                return True

            return Session(lambda: guide.write_mask_into(address, size, 4), advance, guide.is_finished, None)

        return start


@dataclass(frozen=True)
class Kind:
    """An engine that the command line names."""

    make: Callable[[Tokens], Engine]
    package: str

    @property
    def version(self) -> str:
        return f"{self.package} {version(self.package)}"


KINDS: dict[str, Kind] = {
    "native": Kind(lambda tokens: Native(tokens, "any"), "ramiform"),
    "native-ordered": Kind(lambda tokens: Native(tokens, "schema"), "ramiform"),
    "native-closed": Kind(lambda tokens: Native(tokens, "any", closed=True), "ramiform"),
    "llguidance": Kind(lambda tokens: Llguidance(tokens, lenient=False), "llguidance"),
    "llguidance-lenient": Kind(lambda tokens: Llguidance(tokens, lenient=True), "llguidance"),
    "xgrammar": Kind(lambda tokens: Xgrammar(tokens, strict=True), "xgrammar"),
    "xgrammar-any": Kind(lambda tokens: Xgrammar(tokens, strict=False), "xgrammar"),
    "outlines": Kind(Outlines, "outlines-core"),
}
