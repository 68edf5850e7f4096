"""`/v1/ramiform/constraint`: check a constraint, and tell what it allows after a text.

It compiles with the engine's own code in this process, in a thread, so that typing a schema costs the core nothing.
Compilers and vocabulary are loaded at the first request, and the last few constraints are kept.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ....protocol.config import CoreConfig
from ....protocol.errors import RequestError
from ....protocol.sampling import AdditionalProperties, Constraint, PropertyOrder
from ....tokenizer.interface import Tokenizer
from ...api.bodies import SCHEMA_KINDS, Many, RequestBody, Text, described, example, json_text
from ...api.constraints import Schema
from ...api.logprobs import TokenTexts
from ...text.generation import Generator
from ...text.offload import CancellationToken, offload
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response

if TYPE_CHECKING:
    from .....constrained.automaton.matcher import CompiledGrammar, Matcher
    from .....constrained.explain.report import Explanation, Kind, Remark

_MAX_SOURCE = 1 << 19  # characters
_MAX_TEXT = 1 << 16  # characters
_MAX_TOP = 1024  # tokens listed
MAX_CONSTRAINTS = 8  # kept, the last ones
_MAX_BYTES = 64 << 20  # that they take together; the last one is kept in any case
_MAX_STEPS = 400_000_000  # of one request, by `constrained.budget`: some seconds
TURN_STEPS = 100_000  # about a millisecond
PAUSE = 5e-5  # seconds between turns, in which other threads take the interpreter
_KINDS = ("regex", "json_schema", "grammar", "choices", "structural_tag")


class ConstraintSource(RequestBody):
    """One of `regex`, `json_schema`, `grammar`, `choices` and `structural_tag`."""

    exactly_one = (_KINDS,)
    regex: Text | None = None
    json_schema: Schema | Text | None = None
    grammar: Text | None = None
    choices: Annotated[Many[Text], described(minItems=1)] | None = None
    structural_tag: Text | dict[str, Any] | None = None
    order: PropertyOrder = "any"
    additional_properties: AdditionalProperties | None = None

    def constraint(self) -> tuple[Constraint, bool]:
        """Return the constraint, and True if its source is a text of the client. Raises RequestError unless exactly one
        is given."""
        given = [(kind, source) for kind in _KINDS if (source := getattr(self, kind)) is not None]
        if len(given) != 1:
            param = f"constraint.{given[1][0]}" if given else "constraint"
            raise RequestError(f"give exactly one of {', '.join(_KINDS)}", param=param)
        [(kind, source)] = given
        if self.additional_properties is not None and kind not in SCHEMA_KINDS:
            raise RequestError(
                f"additional_properties says how a schema is read, and {kind} has none",
                param="constraint.additional_properties",
            )
        text = json_text(source, kind, param=f"constraint.{kind}")
        if len(text) > _MAX_SOURCE:
            raise RequestError(
                f"a constraint to check has at most {_MAX_SOURCE} characters, got {len(text)}",
                param=f"constraint.{kind}",
            )
        return Constraint(kind, text, self.order, self.additional_properties), isinstance(source, str)


class ConstraintBody(RequestBody):
    model_config = example({"constraint": {"json_schema": '{"type": "object"}'}, "text": "{"})
    constraint: ConstraintSource
    text: Annotated[Text, Field(max_length=_MAX_TEXT)] = ""
    top: Annotated[int, Field(ge=0, le=_MAX_TOP)] = 50


class ConstraintApi:
    """Route that checks and probes constraints."""

    def __init__(self, generator: Generator, config: CoreConfig) -> None:
        """`config` is the core's: a constraint is read as the core reads it."""
        self._generator = generator
        self._config = config
        self._one_at_a_time = asyncio.Lock()
        self._checker: ConstraintChecker | None = None

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["ramiform"], route_class=BodyRoute)
        router.add_api_route("/v1/ramiform/constraint", self.check, methods=["POST"], response_model=None)
        return router

    async def check(self, body: ConstraintBody, request: Request) -> Response:
        """Check a constraint: what of it is enforced, or where it is wrong; and what may follow `text` under it."""
        vocab_size = self._generator.core.require_info().vocab_size
        constraint, is_text = body.constraint.constraint()
        answer = await cancel_on_disconnect(request, self._answer(vocab_size, constraint, body))
        if not is_text:  # places in a text that the client has not written would mislead it
            for remark in (answer.get("error", {}), *answer["report"]):
                remark |= {name: None for name in ("line", "column", "offset") if name in remark}
        return json_response(answer)

    async def _answer(self, vocab_size: int, constraint: Constraint, body: ConstraintBody) -> dict[str, Any]:
        def work(cancellation: CancellationToken) -> dict[str, Any]:
            if self._checker is None:
                self._checker = ConstraintChecker(self._generator.tokenizer, vocab_size, self._config)
            return self._checker.answer(constraint, body.text, body.top, cancellation)

        async with self._one_at_a_time:
            return await offload(work)


class _TooLongError(Exception):
    """A check has taken as many steps as it may."""


class _Pace:
    """Counts the steps of a check: gives way to other threads, and ends it if it takes too long or is cancelled."""

    def __init__(self, cancellation: CancellationToken) -> None:
        self._cancellation = cancellation
        self._left, self._turn = _MAX_STEPS, TURN_STEPS

    def __call__(self, steps: int) -> None:
        self._left -= steps
        self._turn -= steps
        if self._turn <= 0:
            self._turn = TURN_STEPS
            self._cancellation.check()
            time.sleep(PAUSE)
        if self._left <= 0:
            raise _TooLongError


class _Checked:
    """A constraint that has been compiled, with the matcher of the text that was followed last."""

    def __init__(self, explanation: Explanation, grammar: CompiledGrammar | None) -> None:
        self.explanation = explanation
        self.grammar = grammar
        self.bytes_grammar: CompiledGrammar | None = None  # over single bytes, once a text was refused
        self._matcher: Matcher | None = None
        self._followed = b""

    def follow(self, data: bytes, cancellation: CancellationToken) -> tuple[Matcher, int]:
        """Follow a text. Return the matcher and the number of bytes that it allows."""
        assert self.grammar is not None
        if self._matcher is None:
            self._matcher = self.grammar.matcher()
        matcher, at = self._matcher, _num_common(self._followed, data)
        matcher.rollback(len(self._followed) - at)
        while at < len(data) and matcher.accept_byte(data[at]):
            at += 1
            if at % 256 == 0:
                cancellation.check()
        self._followed = data[:at]
        return matcher, at


class ConstraintChecker:
    """Compiles constraints over the model's vocabulary, and keeps the last ones. Use it in one thread at a time."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, config: CoreConfig) -> None:
        from .....constrained.automaton.vocabulary import Vocabulary

        tokens = (list(tokenizer.token_bytes) + [None] * vocab_size)[:vocab_size]
        self._vocabulary = Vocabulary.from_tokens(tokens, tokenizer.eos_ids, tokenizer.special_ids)
        self._texts = TokenTexts(tokenizer)
        self._config = config
        self._checked: OrderedDict[Constraint, _Checked] = OrderedDict()
        self._has_loops = False

    def answer(self, constraint: Constraint, text: str, top: int, cancellation: CancellationToken) -> dict[str, Any]:
        """Return the answer of the route."""
        from .....constrained.budget import counted
        from .....constrained.errors import GrammarError

        self._choose_loops()
        report: list[dict[str, Any]] = []
        try:
            with counted(_Pace(cancellation)):
                checked = self._compiled(constraint)
                report = self._report(checked.explanation)
                if checked.grammar is None:
                    return {"ok": False, "error": _place(checked.explanation.refused[0]), "report": report}
                return {"ok": True, **self._state(constraint, checked, text, top, cancellation), "report": report}
        except (GrammarError, RequestError, RecursionError, MemoryError, _TooLongError) as error:
            self._checked.pop(constraint, None)  # it may have been left halfway
            reason = "it takes too long to check" if isinstance(error, _TooLongError) else str(error).split("\n")[0]
            return {"ok": False, "error": _error(reason or type(error).__name__), "report": report}
        except BaseException:
            self._checked.pop(constraint, None)
            raise

    def _choose_loops(self) -> None:
        """Let Python interpret the grammars' loops while the core still compiles them, where that is fast enough."""
        if self._has_loops:
            return
        from ..... import loops
        from ....compile_ahead import PACKAGES, is_cacheable, is_compiled
        from ....core.grammar_cache import MAX_INTERPRETED_TOKENS

        is_slow = len(self._vocabulary) > MAX_INTERPRETED_TOKENS
        if is_slow or is_compiled("grammars") or not is_cacheable("grammars"):
            self._has_loops = True
            loops.allow(PACKAGES["grammars"])
        else:
            loops.postpone(PACKAGES["grammars"], interpret=True)

    def _compiled(self, constraint: Constraint) -> _Checked:
        checked = self._checked.get(constraint)
        if checked is None:
            checked = self._checked[constraint] = _Checked(*self._compile(constraint, of_bytes=False))
        self._checked.move_to_end(constraint)
        sizes = [0 if each.grammar is None else each.grammar.num_bytes for each in self._checked.values()]
        while len(sizes) > 1 and (len(sizes) > MAX_CONSTRAINTS or sum(sizes) > _MAX_BYTES):
            self._checked.popitem(last=False)
            del sizes[0]
        return checked

    def _compile(self, constraint: Constraint, *, of_bytes: bool) -> tuple[Explanation, CompiledGrammar | None]:
        """Return the explanation of a constraint, and its grammar unless it is refused."""
        from .....constrained.compile import compile_constraint
        from .....constrained.constraint import Choices, Grammar, Regex, StructuralTag
        from .....constrained.errors import GrammarError
        from .....constrained.explain.report import Explanation, JsonOptions, Remark, compiled
        from .....constrained.explain.walks import BYTES
        from ....core.grammar_cache import grammar_source

        vocabulary = BYTES if of_bytes else self._vocabulary
        closed = constraint.additional_properties or self._config.additional_properties
        options = JsonOptions(
            closed, self._config.json_whitespace, constraint.order, number_digits=self._config.number_digits or None
        )
        kind: Kind = "schema"
        source = grammar_source(
            msgspec.structs.replace(
                constraint, number_digits=self._config.number_digits, whitespace=self._config.json_whitespace
            )
        )
        match source:
            case Choices():
                nothing = Explanation("", "regex", None)
                try:
                    return nothing, compile_constraint(source, vocabulary)
                except GrammarError as error:
                    return Explanation("", "regex", None, refused=(Remark(error.reason),)), None
            case Regex():
                kind = "regex"
            case Grammar(syntax=syntax):
                kind = "lark" if syntax == "lark" else "gbnf"
            case StructuralTag():
                kind = "tag"
        return compiled(constraint.source, kind, options, vocabulary)

    def _report(self, explanation: Explanation) -> list[dict[str, Any]]:
        lines = [_line(use.pointer, use.status, use.reason) for use in explanation.keywords]
        lines += [_line(remark.pointer, "refused", remark.reason) | _offsets(remark) for remark in explanation.refused]
        if (backend := self._config.grammar_backend) != "native":
            note = f"this server enforces constraints with {backend}, which may differ from the engine that checked it"
            lines.append(_line(None, "warning", note))
        return lines

    def _state(
        self, constraint: Constraint, checked: _Checked, text: str, top: int, cancellation: CancellationToken
    ) -> dict[str, Any]:
        import numpy as np

        assert checked.grammar is not None
        data = text.encode()
        matcher, num_bytes = checked.follow(data, cancellation)
        forced = codecs.getincrementaldecoder("utf-8")("replace").decode(matcher.forced())  # whole characters
        mask = np.zeros(self._vocabulary.num_words, np.int32)
        matcher.mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        tokens = [{"id": token, "text": self._texts.text(token)} for token in allowed[:top]]
        found: dict[str, Any] = {
            "state": {
                "accepts": matcher.is_accepting(),
                "allowed": len(allowed),
                "tokens": tokens,
                "forced": forced,
                "position": num_bytes,
            }
        }
        if num_bytes < len(data):
            found["rejected_at"] = self._rejection(constraint, checked, data, num_bytes)
        generation = matcher.generation
        return found | {"bytes": generation.num_bytes, "states": generation.automaton.tables.num_states}

    def _rejection(self, constraint: Constraint, checked: _Checked, data: bytes, num_bytes: int) -> dict[str, Any]:
        """Return the place where a text leaves the grammar, and what the grammar allows there."""
        from .....constrained.explain.places import line_and_column
        from .....constrained.explain.walks import follow

        before = data[:num_bytes].decode("utf-8", "ignore")
        line, column = line_and_column(before, len(before))
        if checked.bytes_grammar is None:
            checked.bytes_grammar = self._compile(constraint, of_bytes=True)[1]
        place: dict[str, Any] = {"offset": len(before), "line": line, "column": column, "allowed": [], "forced": ""}
        if checked.bytes_grammar is not None:
            # With the byte that is refused: a text that could end here has not ended.
            walk = follow(checked.bytes_grammar, data[: num_bytes + 1])
            place |= {"allowed": list(walk.expected), "forced": walk.forced}
        return place


def _num_common(one: bytes, other: bytes) -> int:
    """Return the length of the longest common prefix."""
    if other.startswith(one):
        return len(one)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _line(pointer: str | None, status: str, note: str) -> dict[str, Any]:
    keyword = "" if not pointer else pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
    return {
        "pointer": None if pointer is None else _printable(pointer),
        "keyword": _printable(keyword),
        "status": status,
        "note": _printable(note),
    }


def _offsets(remark: Remark) -> dict[str, int | None]:
    return {"line": remark.line, "column": remark.column, "offset": remark.offset}


def _place(remark: Remark) -> dict[str, Any]:
    return _error(remark.reason) | _offsets(remark) | {"pointer": remark.pointer and _printable(remark.pointer)}


def _error(message: str) -> dict[str, Any]:
    return {"message": _printable(message), "line": None, "column": None, "offset": None, "pointer": None}


def _printable(text: str) -> str:
    """Escape lone surrogates, which a schema can name and UTF-8 cannot express."""
    return text.encode("utf-8", "backslashreplace").decode()
