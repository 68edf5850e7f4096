"""Compiles structural tags to states of the byte automaton, from the last part to the first."""

from __future__ import annotations

from dataclasses import dataclass

from ..automaton.automaton import Accepted, Automaton, ControlState, DfaStart
from ..budget import CompileBudget
from ..constraint import SchemaOptions
from ..errors import GrammarError
from ..grammar.cfg import Cfg, Terminal, trimmed_cfg
from ..grammar.gbnf import gbnf_grammar
from ..grammar.states import grammar_start
from ..regex.byte_dfa import byte_dfa
from ..regex.dfa import Dfa
from ..regex.subset import char_dfa
from ..regex.syntax.expression import alternation, literal
from ..regex.syntax.parser import containing, parse_regex
from ..schema.compile import checked_document, schema_start
from ..schema.number_parts import NUMBER_END
from .spec import (
    ConstStringFormat,
    Format,
    GrammarFormat,
    OrFormat,
    RegexFormat,
    SchemaFormat,
    SeparatedTagsFormat,
    SequenceFormat,
    TagFormat,
    TriggeredTagsFormat,
)
from .states import (
    AfterTagState,
    DfaContentState,
    FreeTextState,
    GrammarContentState,
    JsonValueState,
    TagLoop,
    TriggerTable,
    literal_choice,
)


@dataclass(frozen=True)
class SchemaStyle:
    """Options for the schemas inside a tag, as in `schema_start`."""

    whitespace: str
    order: str
    schema: SchemaOptions


def tags_start(format: Format, options: SchemaStyle, automaton: Automaton) -> ControlState:
    """Return the state before a text of the format. Raises GrammarError with a pointer into the specification."""
    return _TagCompiler(options, automaton).state(format, Accepted())


class _TagCompiler:
    def __init__(self, options: SchemaStyle, automaton: Automaton) -> None:
        self._options = options
        self._automaton = automaton

    def state(self, format: Format, then: ControlState) -> ControlState:
        """Return the state before a format that is followed by `then`."""
        match format:
            case ConstStringFormat() | TagFormat() | OrFormat():
                return literal_choice(self._begins(format, then), getattr(format, "pointer", ""))
            case SequenceFormat(parts=parts):
                for part in reversed(parts):
                    then = self.state(part, then)
                return then
            case SchemaFormat(schema=schema, pointer=pointer):
                options = self._options
                try:
                    document = checked_document(schema)
                    start = schema_start(document, options.whitespace, options.order, options.schema, self._automaton)
                except GrammarError as error:
                    place = pointer + (error.pointer or "")
                    raise GrammarError(error.reason, pointer=place, position=error.position) from None
                return JsonValueState(start, then)
            case RegexFormat() | GrammarFormat():
                if not isinstance(then, Accepted):
                    raise GrammarError("text outside a tag must come last", pointer=format.pointer)
                return self._bounded(format, (), then)
            case TriggeredTagsFormat():
                return self._triggered(format, then)
            case SeparatedTagsFormat():
                self._check_last(then, format.pointer)
                return self._separated(format)

    def _begins(self, format: Format, then: ControlState) -> tuple[tuple[bytes, ControlState], ...]:
        """Return the constant strings that a format begins with, and the state after each."""
        match format:
            case ConstStringFormat(text=text):
                return ((text, then),)
            case TagFormat(begin=begin):
                return ((begin, self._content(format, then)),)
            case SequenceFormat(parts=(first, *rest)):
                return self._begins(first, self.state(SequenceFormat(tuple(rest)), then))
            case OrFormat(parts=parts):
                return tuple(option for part in parts for option in self._begins(part, then))
            case _:
                pointer = getattr(format, "pointer", "")
                raise GrammarError("alternatives must begin with constant strings", pointer=pointer)

    def _content(self, tag: TagFormat, then: ControlState) -> ControlState:
        if isinstance(tag.content, RegexFormat | GrammarFormat):
            if b"" in tag.ends and not isinstance(then, Accepted):
                raise GrammarError("text without an end string must come last", pointer=f"{tag.pointer}/end")
            return self._bounded(tag.content, tag.ends, then)
        ends = tuple((end, then) for end in tag.ends)
        content = self.state(tag.content, literal_choice(ends, f"{tag.pointer}/end"))
        if isinstance(content, JsonValueState) and not all(end[:1] and end[0] in NUMBER_END for end in tag.ends):
            first = self._automaton.edges_of(self._automaton.number(content.start))
            if not first.keys().isdisjoint(b"-0123456789"):
                raise GrammarError("this end string may continue a number", pointer=f"{tag.pointer}/end")
        return content

    def _bounded(
        self, content: RegexFormat | GrammarFormat, ends: tuple[bytes, ...], then: ControlState
    ) -> ControlState:
        """Return the state before text up to one of the ends, or to the end of the output if there are none."""
        ends = tuple(end for end in ends if end)
        try:
            if isinstance(content, GrammarFormat):
                rules = gbnf_grammar(content.text)
                if not ends:
                    return grammar_start(rules, self._automaton)
                return GrammarContentState(grammar_start(_with_ends(rules, ends), self._automaton), then)
            dfa = _content_dfa(content, ends)
        except GrammarError as error:
            raise GrammarError(str(error), pointer=content.pointer, position=error.position) from None
        if dfa.is_empty:
            raise GrammarError("no text at all satisfies this format", pointer=content.pointer)
        return DfaContentState(dfa, then) if ends else DfaStart(dfa)

    def _check_last(self, then: ControlState, pointer: str) -> None:
        if not isinstance(then, Accepted):
            raise GrammarError("nothing may follow repeated tags", pointer=pointer)

    def _triggered(self, format: TriggeredTagsFormat, then: ControlState) -> ControlState:
        self._check_last(then, format.pointer)
        table = TriggerTable(format)
        after: ControlState = then if format.stop_after_first else FreeTextState(table, b"", True)
        for trigger in format.triggers:
            tags = [tag for tag in format.tags if tag.begin.startswith(trigger)]
            table.tags[trigger] = tuple((tag.begin[len(trigger) :], self._content(tag, after)) for tag in tags)
            literal_choice(table.tags[trigger], format.pointer)  # raises GrammarError before the first token
        return FreeTextState(table)

    def _separated(self, format: SeparatedTagsFormat) -> ControlState:
        if format.stop_after_first:
            options = tuple((tag.begin, self._content(tag, Accepted())) for tag in format.tags)
            return literal_choice(options, format.pointer, accepts=not format.at_least_one)
        loop = TagLoop(format.separator, {})
        contents = tuple((tag.begin, self._content(tag, AfterTagState(loop))) for tag in format.tags)
        loop.options.update(contents)
        return literal_choice(contents, format.pointer, accepts=not format.at_least_one)


def _content_dfa(content: RegexFormat, ends: tuple[bytes, ...]) -> Dfa:
    """Return the automaton of the content's texts, each up to and with the first end string."""
    budget = CompileBudget()
    chars = char_dfa(parse_regex("(?s).*" if content.pattern is None else content.pattern), budget)
    if content.excludes:
        excluded = alternation(literal(text) for text in content.excludes)
        chars = chars.minus(char_dfa(containing(excluded), budget), budget)
    if ends:
        chars = chars.up_to([end.decode() for end in ends], budget)
    return byte_dfa(chars, "utf8", budget)


def _with_ends(rules: Cfg, ends: tuple[bytes, ...]) -> Cfg:
    """Return the grammar of the same texts, each followed by one of the ends."""
    whole = len(rules.alternatives)
    renamed = [
        tuple(tuple(whole if symbol == 0 else symbol for symbol in rule) for rule in group)
        for group in rules.alternatives
    ]
    budget = CompileBudget()
    terminals = [
        Terminal(end.decode(), byte_dfa(char_dfa(literal(end.decode()), budget), "utf8", budget), preferred=False)
        for end in ends
    ]
    last = [(whole, -1 - len(rules.terminals) - number) for number in range(len(ends))]
    return trimmed_cfg((*rules.terminals, *terminals), [last, *renamed[1:], renamed[0]], rules.ignored)
