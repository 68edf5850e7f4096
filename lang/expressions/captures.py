"""The functions that compose constraints: `seq`, `rx`, `optional`, `repeat` and its short forms, and `recursive`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...runtime.protocol.errors import RequestError
from ..constraints.nodes import (
    MAX_REPEAT,
    CaptureNode,
    Constraints,
    LiteralNode,
    Node,
    RecursiveNode,
    begins_with,
    captures,
    derives,
    either,
    join,
    loop,
    maybe,
)
from ..constraints.patterns import pattern_node, text_before
from ..types.result_types import TEXT, ResultType
from ..types.value_streams import ValueStream
from .choices import token_length_normalized
from .expr import RUN_ARGUMENTS, Constant, Expr, GenExpr, SelectExpr, parts_of
from .format_marks import refuse_marks
from .symbols import known

if TYPE_CHECKING:
    from ..constraints.matcher import CaptureMatcher, CaptureSearch

MAX_NESTING = 40  # constraints within constraints
CUTTING_ARGUMENTS = ("stop", "stop_regex", "stop_token_ids")  # they would end the text before it is complete
_TREE_RULE = "tree-"  # begins the names of the rules of `recursive`
_TAKEN = {"name", "sampling", "dtype", "regex", "json_schema", "schema", "additional_properties"}


@dataclass(frozen=True)
class ConstraintExpr(Expr):
    """Text that is generated under one grammar. `results` are the types of its captures, by name."""

    node: Node
    rules: Mapping[str, Node] = field(default_factory=dict)
    results: Mapping[str, ResultType] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # by gen's argument names
    depth: int = 0
    heal: bool = False
    open: frozenset[str] = frozenset()  # names of recursive constraints that it stands inside of

    def __repr__(self) -> str:
        return f"seq(... that captures {', '.join(self.results) or 'nothing'})"


@dataclass(frozen=True)
class CompiledConstraints:
    """A grammar, and the matcher that finds the captures in its texts."""

    grammar: str
    matcher: CaptureMatcher


class CaptureStream(ValueStream):
    """The values of a capture, each as it is certain; those of a repetition one after the other."""

    def __init__(self, search: CaptureSearch, result: ResultType) -> None:
        self._search = search
        self._result = result

    def feed(self, piece: str) -> Iterator[Any]:
        return map(self._result.parse, self._search.feed(piece))

    def end(self, value: Any) -> Iterator[Any]:
        return map(self._result.parse, self._search.rest())


class TreeStream(ValueStream):
    """The trees of a recursive capture, which are known once the whole text is."""

    def end(self, value: Any) -> Iterator[Any]:
        return _leaves(value)


class TreeParser:
    """Makes trees, dicts of values, of the dicts of texts that a recursive capture has. `results` are their types."""

    def __init__(self) -> None:
        self.results: Mapping[str, ResultType] = {}

    def __call__(self, found: Any) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        todo = [(self, found, whole)]  # no recursion: texts may be nested deeper than Python's calls
        while todo:
            parser, texts, values = todo.pop()
            for name, result in parser.results.items():
                inner = result.parse if isinstance(result.parse, TreeParser) else None

                def value(text: Any, inner: TreeParser | None = inner, result: ResultType = result) -> Any:
                    if inner is None:
                        return result.parse(text)
                    made: dict[str, Any] = {}
                    todo.append((inner, text, made))
                    return made

                values[name] = _mapped(value, texts[name])
        return whole


class CapturedTexts:
    """The captures of texts by name; each text is read once."""

    def __init__(self, matcher: CaptureMatcher) -> None:
        self._matcher = matcher
        self._found: dict[str, dict[str, Any]] = {}

    def stream(self, name: str, result: ResultType, *, as_text: bool = False) -> ValueStream:
        """Return what reads the values of a capture, or their texts, out of a text while it grows."""
        from ..constraints.matcher import CaptureSearch

        if isinstance(result.parse, TreeParser) and not as_text:
            return TreeStream()
        return CaptureStream(CaptureSearch(self._matcher, name), TEXT if as_text else result)

    def parser(self, name: str, result: ResultType) -> Callable[[str], Any]:
        """Return the function that makes the value of a capture from the whole text. It raises ValueError."""

        def parse(text: str) -> Any:
            if text not in self._found:
                self._found[text] = self._matcher.match(text)
            return _mapped(result.parse, self._found[text][name])

        return parse


def _mapped(parse: Callable[[Any], Any], captured: Any) -> Any:
    """Return the value of a capture: that of a repetition is a list, that of an option may be None."""
    if isinstance(captured, list):
        return [_mapped(parse, one) for one in captured]
    return None if captured is None else parse(captured)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values of a capture one after the other."""
    if isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        yield value


def seq(*parts: Expr | str, name: str | None = None, heal: bool = False, **sampling: Any) -> ConstraintExpr:
    """Generate the parts one after another, as one generation under one grammar.

    A string stands for itself. A `gen` may have `regex`, `json_schema`, `schema`, `dtype`, `choices`, or `stop`, up to
    which its text goes. Its variable is its part of the text, as a value of its type. `name` keeps the whole text.
    `sampling` are arguments of `gen` for the whole, such as `temperature` and `max_tokens`; `heal` is that of `gen`.
    Raises RequestError for a part or argument that one grammar cannot hold.
    """
    if not isinstance(heal, bool):
        raise RequestError(f"heal must be True or False, got {heal!r}", param="heal")
    given = {}
    for argument, value in sampling.items():
        if argument not in RUN_ARGUMENTS:
            raise RequestError(f"seq has no parameter {argument!r}", param=argument)
        if argument in CUTTING_ARGUMENTS and value is not None:
            raise RequestError(f"{argument} would cut the text of seq: give a gen inside it a stop", param=argument)
        refuse_marks(argument, known(value))
        if value is not None:
            given[RUN_ARGUMENTS[argument]] = value
    made = _composed(parts, join, name)
    if made.node == LiteralNode("") or made.node == join(()):
        raise RequestError("seq needs parts that are not empty", param="parts")
    whole = replace(made, sampling=given, heal=heal)
    if not whole.open:
        compiled(whole)  # raises RequestError for what is too large
    return whole


def rx(pattern: str) -> ConstraintExpr:
    """Match a regular expression, as `gen(regex=...)` does, without a variable."""
    refuse_marks("pattern", pattern)
    return ConstraintExpr(pattern_node(known(pattern), "pattern"))


def optional(*parts: Expr | str) -> ConstraintExpr:
    """Generate the parts or nothing. Captures inside are None if it is nothing."""
    return _composed(parts, lambda nodes: maybe(join(nodes)))


def zero_or_more(*parts: Expr | str) -> ConstraintExpr:
    """Generate the parts any number of times. Captures inside are lists."""
    return repeat(*parts, least=0, most=None)


def one_or_more(*parts: Expr | str) -> ConstraintExpr:
    """Generate the parts once or more. Captures inside are lists."""
    return repeat(*parts, least=1, most=None)


def repeat(*parts: Any, least: int | None = None, most: int | None = None) -> ConstraintExpr:
    """Generate the parts `least` to `most` times: `repeat(part, 1, 3)`, or `repeat(a, b, least=1, most=3)`.

    `repeat(part, 3)` is three times; with `least` alone there is no largest number. Captures inside are lists.
    """
    for one in parts[1:]:
        known(one)  # a plan's symbol may stand for a number
    numbers = [one for one in parts if isinstance(one, int)]
    if numbers:
        if least is not None or most is not None or parts[-len(numbers) :] != tuple(numbers) or len(numbers) > 2:
            raise RequestError(f"repeat takes its parts, then least and most, got {parts!r}", param="least")
        parts, least, most = parts[: -len(numbers)], numbers[0], numbers[-1]
    least, most = 0 if known(least) is None else least, known(most)
    for param, value in (("least", least), ("most", most)):
        if value is not None and (type(value) is not int or not 0 <= value <= MAX_REPEAT):
            raise RequestError(f"{param} must be from 0 to {MAX_REPEAT}, got {value!r}", param=param)
    assert least is not None
    if most is not None and most < max(least, 1):
        raise RequestError(f"most must be at least 1 and least, got least {least} and most {most}", param="most")

    def repeated(nodes: Iterable[Node]) -> Node:
        node = join(nodes)
        return loop(node, least, most, names=tuple(captures(node)))

    return _composed(parts, repeated)


def choice_of(name: str | None, choices: Iterable[Expr | str]) -> ConstraintExpr:
    """Generate one of the choices, among which are expressions; the variable is its text."""
    made = _composed(tuple(choices), either, name)
    if not made.open:
        compiled(made)
    return made


def recursive(name: str, build: Callable[[ConstraintExpr], Expr | str | list[Any]]) -> ConstraintExpr:
    """Generate parts that contain themselves: `build` is given the whole, and returns the parts, in which it may stand.

    The variable is a dict of the captures inside, None or lists as elsewhere; where the whole stands in the parts, it
    is such a dict again, under the same name. Raises RequestError for parts that begin with the whole, or never end.
    """
    _check_name(name)
    rule = f"{_TREE_RULE}{name.encode().hex()}"
    parser = TreeParser()
    node, results = RecursiveNode(name, rule), {name: ResultType("tree", parser)}
    inner = build(ConstraintExpr(node, results=results, open=frozenset([name])))
    parts = _composed((inner,), join)
    if rule in parts.rules:
        raise RequestError(f"recursive({name!r}) stands inside one of the same name", param="name")
    parser.results = parts.results
    rules = {**parts.rules, rule: parts.node}
    if begins_with(parts.node, rules, rule, set()):
        raise RequestError(f"recursive({name!r}) may begin with itself: begin its parts with text", param="build")
    made = ConstraintExpr(node, rules, results, depth=parts.depth + 1, open=parts.open - {name})
    if not made.open and not derives(node, rules, frozenset()):
        raise RequestError(f"recursive({name!r}) never ends: make it optional inside its parts", param="build")
    return made


def compiled(expr: ConstraintExpr) -> CompiledConstraints:
    """Return the grammar and matcher. Raises RequestError if the constraints are too large."""
    if expr.open:
        raise RequestError(f"what recursive({min(expr.open)!r}) gives stands outside of its parts", param="build")
    try:
        return _compiled(Constraints(expr.node, tuple(expr.rules.items())))
    except RecursionError:
        raise RequestError("seq is nested too deeply", param="parts") from None


@lru_cache(128)
def _compiled(constraints: Constraints) -> CompiledConstraints:
    from ..constraints.gbnf_writer import grammar_text  # loaded for programs that compose constraints
    from ..constraints.matcher import CaptureMatcher

    return CompiledConstraints(grammar_text(constraints), CaptureMatcher(constraints))


def _composed(
    given: tuple[Any, ...], build: Callable[[Iterable[Node]], Node], name: str | None = None
) -> ConstraintExpr:
    """Return the constraint that `build` makes of the nodes of the parts, kept as `name`."""
    if not given:
        raise RequestError("there are no parts to generate", param="parts")
    rules: dict[str, Node] = {}
    results: dict[str, ResultType] = {}
    nodes = []
    depth = 0
    unfinished: frozenset[str] = frozenset()
    for one in given:
        inner = []
        for part in parts_of(one):
            made = _constraint_of(part)
            if own := [*made.sampling, *["heal"] * made.heal]:
                raise RequestError(
                    f"{', '.join(own)} of a seq inside a constraint: give it to the outermost seq",
                    param=own[0],
                )
            if again := results.keys() & made.results.keys():
                raise _named_twice(min(again))
            for rule in rules.keys() & made.rules.keys():
                if rule.startswith(_TREE_RULE) and rules[rule] != made.rules[rule]:
                    raise _named_twice(bytes.fromhex(rule.removeprefix(_TREE_RULE)).decode())
            rules |= made.rules
            results |= made.results
            unfinished |= made.open
            depth = max(depth, made.depth + 1)
            inner.append(made.node)
        nodes.append(join(inner))
    if depth > MAX_NESTING:
        raise RequestError(f"constraints are nested deeper than {MAX_NESTING}", param="parts")
    try:
        node = build(nodes)
    except RecursionError:
        raise RequestError("constraints are nested too deeply", param="parts") from None
    if name is not None:
        _check_name(name)
        if name in results:
            raise _named_twice(name)
        node, results = CaptureNode(name, node), {name: TEXT, **results}
    return ConstraintExpr(node, rules, results, depth=depth, open=unfinished)


def _check_name(name: str) -> None:
    refuse_marks("name", known(name))
    if not isinstance(name, str) or not name:
        raise RequestError(f"name must be a non-empty string, got {name!r}", param="name")


def _named_twice(name: str) -> RequestError:
    return RequestError(f"two parts of one constraint make the variable {name!r}", param="name")


def _constraint_of(part: Expr) -> ConstraintExpr:
    match part:
        case ConstraintExpr():
            return part
        case Constant(text):
            return ConstraintExpr(LiteralNode(text))
        case SelectExpr():
            if part.temperature or part.seed is not None or part.method is not token_length_normalized:
                raise RequestError(
                    f"the select {part.name!r} inside a constraint is generated, not scored: it takes no temperature, "
                    "seed and choices_method of its own",
                    param="choices_method",
                )
            values = part.values
            result = TEXT if values is None else ResultType("choice", values.__getitem__)
            return _named(part.name, either(map(LiteralNode, part.choices)), result)
        case GenExpr():
            return _gen_constraint(part)
    raise RequestError(f"{part!r} cannot be part of a constraint: chat messages stand around it", param="parts")


def _gen_constraint(gen: GenExpr) -> ConstraintExpr:
    for one in fields(GenExpr):
        default = one.default_factory() if callable(one.default_factory) else one.default
        if one.name not in _TAKEN and getattr(gen, one.name) != default:
            raise _refused(gen, one.name)
    stops = gen.sampling.get("stop", ())
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    for argument in gen.sampling:
        if argument != "stop":
            raise _refused(gen, argument)
    if gen.additional_properties == "schema":
        raise _refused(gen, "additional_properties")
    rules: dict[str, Node] = {}
    constraint, result = gen.constraint()
    if constraint is None:
        node = text_before(stops) if all(isinstance(stop, str) for stop in stops) else None
        if node is None:
            raise RequestError(
                f"stop = {list(stops)!r} of the gen {gen.name!r} inside a constraint: one may have several characters, "
                "the first of them not again, unless all are the same",
                param="stop",
            )
        return _named(gen.name, node, TEXT)
    if stops:
        raise RequestError(
            f"stop of the gen {gen.name!r}: its constraint says where it ends, so leave stop out", param="stop"
        )
    if constraint.kind == "regex":
        # A number's line break is there to end it; here the next part does.
        source = constraint.source.removesuffix(r"\n?") if gen.dtype is not None else constraint.source
        node = pattern_node(source)
    else:
        from ..constraints.json_nodes import schema_node

        try:
            node = schema_node(constraint.source, rules)
        except RecursionError:
            raise RequestError("the JSON schema is nested too deeply", param="json_schema") from None
    made = _named(gen.name, node, result)
    return ConstraintExpr(made.node, rules, made.results)


def _refused(gen: GenExpr, argument: str) -> RequestError:
    whole = " It may be given to the outermost seq." if argument in RUN_ARGUMENTS else ""
    return RequestError(
        f"{argument} of the gen {gen.name!r} cannot be honoured inside a constraint, which is one generation.{whole}",
        param=argument,
    )


def _named(name: str | None, node: Node, result: ResultType) -> ConstraintExpr:
    if name is None:
        return ConstraintExpr(node)
    return ConstraintExpr(CaptureNode(name, node), {}, {name: result})
