"""The explanation of a constraint, as text and as JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from ..automaton.matcher import CompiledGrammar
from ..automaton.vocabulary import Vocabulary
from ..compile import compile_constraint
from ..constraint import (
    Grammar,
    GrammarSource,
    JsonSchema,
    PropertyOrder,
    Regex,
    SchemaOptions,
    StructuralTag,
    WhitespacePolicy,
)
from ..errors import GrammarError
from ..grammar.ambiguity import TerminalReport, ambiguous_terminals
from ..grammar.lark import is_of_llguidance
from ..schema.compile import pattern_pointer
from ..schema.document import Document, read_schema
from .keywords import KeywordUse, keyword_uses, refusals
from .places import JsonPlaces, Span, excerpt, line_and_column
from .walks import BYTES, Cost, Walk, follow, measure

Kind = Literal["schema", "lark", "gbnf", "regex", "tag"]
_KINDS = {
    "schema": "JSON Schema",
    "tag": "a structural tag",
    "lark": "a grammar in Lark's syntax",
    "gbnf": "a grammar in GBNF",
    "regex": "a regex",
}
_POSITION = re.compile(r", at position \d+$")


@dataclass(frozen=True)
class JsonOptions:
    """How a schema is compiled; the defaults are the server's."""

    additional_properties: Literal["schema", "closed"] = "closed"
    whitespace: WhitespacePolicy = "bounded"
    order: PropertyOrder = "any"
    integers: Literal["schema", "digits"] = "digits"
    number_digits: int | None = 20

    def __str__(self) -> str:
        values = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in asdict(self).items())
        return values + (" (the server's defaults)" if self == JsonOptions() else "")


# Options that allow more texts, and what the text then has.
_WIDER: tuple[tuple[dict[str, Any], str], ...] = (
    ({"whitespace": "any"}, "--whitespace any"),
    ({"order": "any"}, "--order any"),
    ({"additional_properties": "schema"}, "--additional-properties schema"),
    ({"number_digits": None}, "--number-digits 0"),
    ({"integers": "schema"}, "integers written as numbers, which no option of the server allows"),
)


@dataclass(frozen=True)
class Remark:
    """Fault in a file: its reason, its pointer if the file is JSON, its line and column, the line with carets, and its
    offset in characters."""

    reason: str
    pointer: str | None = None
    line: int | None = None
    column: int | None = None
    shown: tuple[str, ...] = ()
    offset: int | None = None

    @classmethod
    def at(cls, text: str, span: Span, reason: str, pointer: str | None = None) -> Remark:
        """Build from a place in the file's text."""
        return cls(reason, pointer, *line_and_column(text, span.begin), excerpt(text, span), span.begin)

    def lines(self) -> Iterator[str]:
        place = [] if self.pointer is None else [self.pointer or "the root"]
        place += [] if self.line is None else [f"line {self.line}, column {self.column}"]
        yield f"  {', '.join(place)}: {self.reason}" if place else f"  {self.reason}"
        for line in self.shown:
            yield f"      {line}".rstrip()


@dataclass(frozen=True)
class Verdict:
    """Result of following a text: accepted, or the place and value where it leaves the grammar, and why if known."""

    walk: Walk
    remark: Remark | None = None
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Report on a constraint in a file, and on a text that was followed beside it.

    `too_complex`: errors that ended random outputs, or the text beside the constraint.
    """

    file: str
    kind: Kind
    options: JsonOptions | None
    keywords: tuple[KeywordUse, ...] = ()
    warnings: tuple[Remark, ...] = ()
    refused: tuple[Remark, ...] = ()
    too_complex: tuple[Remark, ...] = ()
    terminals: TerminalReport | None = None
    verdict: Verdict | None = None
    cost: Cost | None = None

    @property
    def is_good(self) -> bool:
        """True if constraint and text are accepted, no terminals are ambiguous, and no output was too complex."""
        has_errors = self.refused or self.too_complex or (self.terminals is not None and self.terminals.ambiguous)
        return not has_errors and (self.verdict is None or self.verdict.walk.accepted)

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as values of JSON."""
        return {**asdict(self), "accepted": not self.refused, "ok": self.is_good}

    def text(self) -> str:
        """Return the explanation as lines."""
        return "\n".join(self._lines()).encode("utf-8", "backslashreplace").decode()  # names may hold lone surrogates

    def _lines(self) -> Iterator[str]:
        yield f"{self.file}: {_KINDS[self.kind]}" + (f"; {self.options}" if self.options else "")
        for status in ("enforced", "annotation"):
            pointers = [use.pointer for use in self.keywords if use.status == status]
            if pointers:
                yield f"{'annotations' if status == 'annotation' else status}: {len(pointers)}"
                yield from (f"  {pointer}" for pointer in pointers)
        remarks_by_title = {
            "warnings": self.warnings,
            "refused": self.refused,
            "too complex for some outputs": self.too_complex,
        }
        for title, remarks in remarks_by_title.items():
            if remarks:
                yield f"{title}: {len(remarks)}"
                for remark in remarks:
                    yield from remark.lines()
        if self.refused:
            yield f"{self.file}: refused"
            return
        if self.terminals is None:
            yield f"{self.file}: accepted"
        else:
            yield from self._of_terminals(self.terminals)
        if self.cost is not None:
            yield from _of_cost(self.cost)
        if self.verdict is not None:
            yield from _of_verdict(self.verdict)

    def _of_terminals(self, report: TerminalReport) -> Iterator[str]:
        for overlap in sorted(report.overlaps, key=lambda overlap: overlap.chosen is not None):
            verdict = "ambiguous" if overlap.chosen is None else f"a lexer takes {overlap.chosen}"
            yield f"{overlap.first} and {overlap.second} both match {overlap.example!r}: {verdict}"
        for first, second in report.unchecked:
            yield f"{first} and {second} are too large to compare"
        readings = "terminals take their preferred match (Lark's dynamic)"
        yield f"{self.file}: accepted; {readings}; pairs that are ambiguous: {len(report.ambiguous)}"


def _of_cost(cost: Cost) -> Iterator[str]:
    yield f"cost: {cost.start_states} states and {cost.start_bytes} bytes of tables at the start"
    yield f"  {cost.states} states and {cost.bytes} bytes after {cost.num_outputs} random outputs"
    yield f"  {cost.most_for_one_mask} states at most for one mask of single bytes"
    if cost.dead_ends:
        yield f"  {cost.dead_ends} of the random outputs came to where nothing may follow"


def _of_verdict(verdict: Verdict) -> Iterator[str]:
    walk, remark = verdict.walk, verdict.remark
    if remark is None:
        yield "instance: accepted" + (" but for the line break at its end" if walk.line_break else "")
        yield f"  {walk.num_states} states more"
        return
    yield f"instance: leaves the grammar at line {remark.line}, column {remark.column}, {remark.reason}"
    yield from (f"      {line}".rstrip() for line in remark.shown)
    if walk.forced and len(walk.expected) == 1:
        yield f"  what must come there: {walk.forced}"
    else:
        yield f"  what may come there: {', '.join(walk.expected) or 'nothing'}"
    yield from (f"  {hint}" for hint in verdict.hints)


def explain(
    file: str, text: str, kind: Kind, options: JsonOptions | None = None, instance: bytes | None = None
) -> Explanation:
    """Explain the constraint that a file holds, and follow a text through it. `options` are for schemas."""
    return _Explainer(file, text, kind, options or JsonOptions(), instance).explanation()


def compiled(
    text: str, kind: Kind, options: JsonOptions, vocabulary: Vocabulary
) -> tuple[Explanation, CompiledGrammar | None]:
    """Compile a constraint over a vocabulary. Return its explanation, without costs and ambiguous terminals, and the
    grammar unless it is refused."""
    return _Explainer("", text, kind, options, None).compiled(vocabulary)


class _Explainer:
    def __init__(self, file: str, text: str, kind: Kind, options: JsonOptions, instance: bytes | None) -> None:
        self._text, self._kind, self._options, self._instance = text, kind, options, instance
        self._found = Explanation(file, kind, options if kind == "schema" else None)
        self._document: Document | None = None  # of a schema, once it has been read

    @cached_property
    def _places(self) -> JsonPlaces:
        return JsonPlaces(self._text)

    def explanation(self) -> Explanation:
        """Return all that can be said."""
        try:
            if self._kind == "schema":
                self._explain_schema()
            if self._kind == "lark" and not is_of_llguidance(self._text):
                self._found = replace(self._found, terminals=ambiguous_terminals(self._text))
            if not self._found.refused:
                self._explain_grammar(self._compile(self._options))
        except GrammarError as error:
            self._found = replace(self._found, refused=(*self._found.refused, self._refusal(error)))
        return self._found

    def compiled(self, vocabulary: Vocabulary) -> tuple[Explanation, CompiledGrammar | None]:
        """Return the explanation without costs, and the grammar unless it is refused."""
        try:
            if self._kind == "schema":
                self._explain_schema()
            if not self._found.refused:
                return self._found, self._compile(self._options, vocabulary)
        except GrammarError as error:
            self._found = replace(self._found, refused=(*self._found.refused, self._refusal(error)))
        return self._found, None

    def _explain_schema(self) -> None:
        document = self._document = Document(read_schema(self._text))
        refused = [self._refusal(error) for error in refusals(document)]
        pointers = {remark.pointer for remark in refused}
        uses = tuple(use for use in keyword_uses(document) if use.pointer not in pointers)
        warnings = tuple(
            Remark.at(self._text, self._places.find(use.pointer)[1], use.reason, use.pointer)
            for use in uses
            if use.status == "warning"
        )
        self._found = replace(self._found, keywords=uses, warnings=warnings, refused=tuple(refused))

    def _explain_grammar(self, grammar: CompiledGrammar) -> None:
        errors: dict[str, GrammarError] = {}
        try:
            self._found = replace(self._found, cost=measure(grammar))
        except GrammarError as error:
            errors[str(error)] = error
        try:
            if self._instance is not None:
                verdict = self._verdict(follow(grammar, self._instance), self._instance)
                self._found = replace(self._found, verdict=verdict)
        except GrammarError as error:
            errors[str(error)] = error
        self._found = replace(self._found, too_complex=tuple(map(self._refusal, errors.values())))

    def _compile(self, options: JsonOptions, vocabulary: Vocabulary = BYTES) -> CompiledGrammar:
        constraint: GrammarSource
        of_schemas = SchemaOptions(options.additional_properties, options.integers, options.number_digits)
        match self._kind:
            case "schema":
                constraint = JsonSchema(self._text, of_schemas)
            case "tag":
                constraint = StructuralTag(self._text, of_schemas)
            case "regex":
                constraint = Regex(self._text)
            case syntax:
                constraint = Grammar(self._text, syntax)
        return compile_constraint(constraint, vocabulary, whitespace=options.whitespace, order=options.order)

    # Refusals, with their places in the file.

    def _refusal(self, error: GrammarError) -> Remark:
        reason = _POSITION.sub("", error.reason.split("\n")[0])
        if self._kind not in ("schema", "tag"):
            return self._refusal_of_grammar(error, reason)
        cause = error.__context__
        if isinstance(cause, json.JSONDecodeError):
            what = "schema" if self._kind == "schema" else "structural tag"
            return Remark.at(self._text, Span(cause.pos, cause.pos + 1), f"the {what} is no JSON: {cause.msg}")
        named = error.pointer
        if named is None and error.patterns and self._document is not None:
            named = pattern_pointer(error.patterns, self._document)
        if named is None:
            return Remark(reason)
        pointer, span = self._places.find(named)
        if error.position is not None:
            if not pointer.endswith(("/pattern", "/grammar")):  # the pattern is a name in patternProperties
                span = self._places.name(pointer)
            span = self._places.character(span, error.position)
        return Remark.at(self._text, span, reason, named)

    def _refusal_of_grammar(self, error: GrammarError, reason: str) -> Remark:
        """Place an error by its position, or else where the rule or terminal that it names is defined or used."""
        named = re.match(r"the terminal (\S+?):? ", reason) or re.search(r"'([^']+)'", reason)
        if error.position is not None and not reason.startswith("the terminal "):
            return Remark.at(self._text, Span(error.position, error.position + 1), reason)
        if named is not None:
            name = re.escape(named[1])
            place = re.search(rf"^[ \t]*[?!_]?({name})\b[^:\n]*:", self._text, re.MULTILINE)
            place = place or re.search(rf"(?<!\w)({name})(?!\w)", self._text)
            if place is not None:
                return Remark.at(self._text, Span(*place.span(1)), reason)
        return Remark(reason)

    # A text beside the constraint.

    def _verdict(self, walk: Walk, data: bytes) -> Verdict:
        if walk.accepted:
            return Verdict(walk)
        text = data.decode("utf-8", "replace")
        at = len(data[: walk.num_bytes].decode("utf-8", "ignore"))
        reason = "where the text ends" if walk.num_bytes == len(data) else f"at {text[at : at + 1]!r}"
        hints: tuple[str, ...] = ()
        if self._kind == "schema":
            places = JsonPlaces(text[:at])
            pointer = places.open or "the root"
            reason += f", in {'a name of' if places.in_name else 'the value of'} {pointer}"
            hints = tuple(self._hints(data))
        return Verdict(walk, Remark.at(text, Span(at, at + 1), reason), hints)

    def _hints(self, data: bytes) -> Iterator[str]:
        """Say whether the text is JSON, and which options or which spelling of its value would be accepted."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            yield f"the text is no JSON: {error}"
            return
        wider = [(change, name) for change, name in _WIDER if replace(self._options, **change) != self._options]
        for change, name in wider:
            if self._accepts(change, data):
                yield f"it is accepted with {name}"
                return
        together: dict[str, Any] = {}
        for change, _ in wider:
            together |= change
        plain = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        if self._accepts(together, data):
            yield f"it is accepted with {', '.join(name for _, name in wider)} together"
        elif self._accepts(together, plain):
            yield "its value is accepted in another spelling"
        else:
            yield "the text is JSON, but its value is not allowed"

    def _accepts(self, change: dict[str, Any], data: bytes) -> bool:
        try:
            return follow(self._compile(replace(self._options, **change)), data).accepted
        except GrammarError:
            return False
