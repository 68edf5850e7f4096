"""Structural tags to states of the byte automaton, from the last part to the first: each is told what follows it."""

from __future__ import annotations

from dataclasses import dataclass

from ..automaton.automaton import Accepted, Automaton, ControlState, DfaStart
from ..budget import CompileBudget
from ..constraint import SchemaOptions
from ..errors import GrammarError
from ..grammar.cfg import Cfg, Terminal, cfg
from ..grammar.gbnf import gbnf_grammar
from ..grammar.states import grammar_start
from ..regex.byte_dfa import byte_dfa
from ..regex.dfa import Dfa
from ..regex.expression import alternation, literal
from ..regex.parser import containing, parse_regex
from ..regex.subset import char_dfa
from ..schema.compile import schema_start
from ..schema.value_states import NUMBER_END
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
    DfaContent,
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
    """How the schemas inside are written."""

    whitespace: str
    order: str
    schema: SchemaOptions


def tags_start(format: Format, options: SchemaStyle, automaton: Automaton) -> ControlState:
    """The state before a text of the format. Raises GrammarError, with its pointer, for all that is in it."""
    return _TagCompiler(options, automaton).state(format, Accepted())


class _TagCompiler:
    def __init__(self, options: SchemaStyle, automaton: Automaton) -> None:
        self._options = options
        self._automaton = automaton

    def state(self, format: Format, then: ControlState) -> ControlState:
        match format:
            case ConstStringFormat() | TagFormat() | OrFormat():
                return literal_choice(self._led(format, then), getattr(format, "pointer", ""))
            case SequenceFormat(parts=parts):
                for part in reversed(parts):
                    then = self.state(part, then)
                return then
            case SchemaFormat(schema=schema, pointer=pointer):
                options = self._options
                try:
                    start = schema_start(schema, options.whitespace, options.order, self._automaton, options.schema)
                except GrammarError as error:
                    raise GrammarError(error.reason, pointer=pointer + (error.pointer or "")) from None
                return JsonValueState(start, then)
            case RegexFormat() | GrammarFormat():
                if not isinstance(then, Accepted):
                    raise GrammarError("what follows must be the end of a tag", pointer=format.pointer)
                return self._bounded(format, (), then)
            case TriggeredTagsFormat():
                return self._triggered(format, then)
            case SeparatedTagsFormat(tags=tags, separator=separator):
                self._check_last(then, format.pointer)
                return self._separated(format, tags, separator)

    def _led(self, format: Format, then: ControlState) -> tuple[tuple[bytes, ControlState], ...]:
        """The texts with which a format begins, and what follows each."""
        match format:
            case ConstStringFormat(text=text):
                return ((text, then),)
            case TagFormat(begin=begin):
                return ((begin, self._content(format, then)),)
            case SequenceFormat(parts=(first, *rest)):
                return self._led(first, self.state(SequenceFormat(tuple(rest)), then))
            case OrFormat(parts=parts):
                return tuple(option for part in parts for option in self._led(part, then))
            case _:
                pointer = getattr(format, "pointer", "")
                raise GrammarError("alternatives must begin with constant strings", pointer=pointer)

    def _content(self, tag: TagFormat, then: ControlState) -> ControlState:
        if isinstance(tag.content, RegexFormat | GrammarFormat):
            if b"" in tag.ends and not isinstance(then, Accepted):
                raise GrammarError("text without an end", pointer=f"{tag.pointer}/end")
            return self._bounded(tag.content, tag.ends, then)
        ends = tuple((end, then) for end in tag.ends)
        content = self.state(tag.content, literal_choice(ends, f"{tag.pointer}/end"))
        if isinstance(content, JsonValueState) and not all(end[:1] and end[0] in NUMBER_END for end in tag.ends):
            first = self._automaton.edges_of(self._automaton.number(content.start))
            if not first.keys().isdisjoint(b"-0123456789"):
                raise GrammarError("a number does not end before this end string", pointer=f"{tag.pointer}/end")
        return content

    def _bounded(
        self, content: RegexFormat | GrammarFormat, ends: tuple[bytes, ...], then: ControlState
    ) -> ControlState:
        """Text up to one of the ends; without any, to the end of the whole output."""
        ends = tuple(end for end in ends if end)
        try:
            if isinstance(content, GrammarFormat):
                rules = gbnf_grammar(content.text)
                return GrammarContentState(grammar_start(_ended(rules, ends)), then) if ends else grammar_start(rules)
            dfa = _pattern(content, ends)
        except GrammarError as error:
            raise GrammarError(str(error), pointer=content.pointer, position=error.position) from None
        if dfa.is_empty:
            raise GrammarError("no text at all satisfies this", pointer=content.pointer)
        return DfaContentState(DfaContent(dfa, then)) if ends else DfaStart(dfa)

    def _check_last(self, then: ControlState, pointer: str) -> None:
        if not isinstance(then, Accepted):
            raise GrammarError("nothing may follow tags that repeat", pointer=pointer)

    def _triggered(self, format: TriggeredTagsFormat, then: ControlState) -> ControlState:
        self._check_last(then, format.pointer)
        free = TriggerTable(format)
        after: ControlState = then if format.stop_after_first else FreeTextState(free, b"", True)
        for trigger in format.triggers:
            tags = [tag for tag in format.tags if tag.begin.startswith(trigger)]
            free.tags[trigger] = tuple((tag.begin[len(trigger) :], self._content(tag, after)) for tag in tags)
            literal_choice(free.tags[trigger], format.pointer)
        return FreeTextState(free)

    def _separated(self, format: SeparatedTagsFormat, tags: tuple[TagFormat, ...], separator: bytes) -> ControlState:
        if format.stop_after_first:
            options = tuple((tag.begin, self._content(tag, Accepted())) for tag in tags)
            return literal_choice(options, format.pointer, accepts=not format.at_least_one)
        loop = TagLoop(separator, {})
        contents = tuple((tag.begin, self._content(tag, AfterTagState(loop))) for tag in tags)
        loop.options.update(contents)
        literal_choice(contents, format.pointer)
        return literal_choice(contents, format.pointer, accepts=not format.at_least_one)


def _pattern(content: RegexFormat, ends: tuple[bytes, ...]) -> Dfa:
    budget = CompileBudget()
    chars = char_dfa(parse_regex("(?s).*" if content.pattern is None else content.pattern), budget)
    if content.excludes:
        excluded = alternation(literal(text) for text in content.excludes)
        chars = chars.minus(char_dfa(containing(excluded), budget), budget)
    if ends:
        chars = chars.up_to([end.decode() for end in ends], budget)
    return byte_dfa(chars, "utf8", budget)


def _ended(rules: Cfg, ends: tuple[bytes, ...]) -> Cfg:
    """The texts of the grammar, each with one of the ends."""
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
    return cfg((*rules.terminals, *terminals), [last, *renamed[1:], renamed[0]], rules.ignored)
