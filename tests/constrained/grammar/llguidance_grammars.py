"""Random grammars of what llguidance adds to Lark, by feature. Terminals are over `LETTERS`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from ramiform.constrained import Vocabulary

LETTERS = b'abcd<>{}[]":,01 e-'
WHOLE = [b"ab", b"a<", b'{"', b"},", b"1,", b"b>c"]
END = len(LETTERS) + len(WHOLE)
NUM_SPECIAL = 2
FIRST_SPECIAL = END + 1


def vocabulary() -> Vocabulary:
    """Return the vocabulary of letters, longer tokens, the end and two special tokens."""
    single = [bytes([letter]) for letter in LETTERS]
    special = {f"<|{number}|>": FIRST_SPECIAL + number for number in range(NUM_SPECIAL)}
    return Vocabulary.from_tokens([*single, *WHOLE, None, *(None for _ in special)], [END], special)


def _pattern(draw: random.Random) -> str:
    pieces = ["a", "b", "[ab]", "[b-d]", "(ab|c)", "[^<>]"]
    return "".join(
        draw.choice(pieces) + draw.choice(["", "", "+", "*", "?", "{1,2}"]) for _ in range(draw.randint(1, 3))
    )


def _filled(draw: random.Random) -> str:
    """Return a pattern without the empty text."""
    return draw.choice(["a", "b", "[ab]", "[cd]"]) + _pattern(draw)


def lexers(draw: random.Random) -> str:
    """Terminals of which several may come at one place: the longest is read."""
    names = ["A", "B", "C"]
    lines = [f"{name}: /{_filled(draw)}/" for name in names]
    parts = [*names, '"a"', '"b"', '"ab"', '("c" | A)', "[B]", "x", "(C{,2})"]
    body = " | ".join(
        " ".join(draw.choice(parts) + draw.choice(["", "", "?", "*"]) for _ in range(draw.randint(1, 3))) for _ in "12"
    )
    skipped = draw.choice(["", "%ignore / +/", '%ignore "e"', "%ignore / /\n%ignore /e+/"])
    return "\n".join(["%llguidance {}", f'start: "<" ({body}) ">"?', 'x: "d" B', *lines, skipped, ""])


def operators(draw: random.Random) -> str:
    """Terminals with & and ~, alone and inside others."""

    def term(depth: int) -> str:
        kind = draw.randrange(6 if depth else 2)
        if kind < 2:
            return draw.choice([f"/{_pattern(draw)}/", '"ab"', '"a"', "B"])
        if kind == 2:
            return f"({term(depth - 1)} & {term(depth - 1)})"
        if kind == 3:
            return f"(/[abcd]*/ & ~{term(depth - 1)})"
        if kind == 4:
            return f"({term(depth - 1)} | {term(depth - 1)})"
        return f"({term(depth - 1)} {term(depth - 1)}){draw.choice(['', '+', '?', '{1,2}'])}"

    return f'start: "<" A ">"\nA: {term(3)} & /(?s:.*)/\nB: /[ab]+/ & ~"ab"\n'


def lazy(draw: random.Random) -> str:
    """Rules that are one lexeme: lazy, or up to a suffix."""
    attribute = draw.choice(["lazy", 'suffix="<a"', 'suffix="ab"', "suffix=/[<>]b/", "suffix=END"])
    bodies = [f"/[ab]{_filled(draw)}/", "T B B", f"/{_pattern(draw)}<e>/", "T"]
    body = draw.choice(bodies if "suffix" in attribute else bodies[:3])
    return "\n".join(
        [
            "start: (f | g)* e",
            "e: T",
            f"f: f_head {draw.choice(['B', 'C', chr(34) + '>' + chr(34)])}",
            f"f_head[{attribute}]: {body}",
            f'g: g_head "{draw.choice("abc>")}"',
            f"g_head[{attribute}]: {body}",
            "T: /[^01]*/",
            'B: "<"',
            "C: /[cd]+/",
            'END: "<c" | "d>"',
            "",
        ]
    )


def tokens(draw: random.Random) -> str:
    """Whole tokens by their numbers, between texts. None of them is also a text that may come at its place."""
    first = FIRST_SPECIAL
    special = [f"<[{first}]>", f"<[{first + 1}]>", f"<[{first}-{first + 1}]>", f"<[{first},{first + 1}]>"]
    of_text = [f'"1" {token} "1"' for token in ("<[0-1,18]>", f"<[^{first}]>", "<[*]>", "<[^0-12]>")]
    parts = [*special, *of_text, '"a"', "/[ab]+/", "x"]
    body = " ".join(draw.choice(parts) for _ in range(draw.randint(2, 4)))
    return f'start: {draw.choice(special)} {body} "<" | "b" {body}\nx: ("c" {draw.choice(special)})*\n'


SCHEMAS = [
    {"type": "integer"},
    {"type": "object", "properties": {"a": {"enum": ["b", 1]}}, "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {"const": "ab"},
    {"enum": ["a", "b", None]},
]


def schemas(draw: random.Random) -> str:
    """JSON values between texts."""

    def value() -> str:
        return "%json " + json.dumps(draw.choice(SCHEMAS) | {"x-guidance": {"whitespace_flexible": False}})

    lines = [f'start: T | {value()} "<" | call+', f'call: "<" {value()} (">" | "," {value()} ">")', "T: /[a-d]+/"]
    return "\n".join([*lines, draw.choice(["", "%ignore / +/"]), ""])


_CONDITIONS = [
    "is_ones([0:2])", "is_zeros([0:3])", "bit_clear(0)", "bit_set(1)", "eq([0:2], 2)", "ne(_, 3)", "lt(_, 4)",
    "le([1:3], 2)", "gt(_, 1)", "ge([0:3], 2)", "bit_count_lt(_, 2)", "bit_count_ge([0:4], 1)", "bit_count_ne(_, 1)",
    "true", "and(bit_clear(1), lt(_, 6))", "or(bit_set(0), ge(_, 3))", "not(bit_set(2))",
]  # fmt: skip
_FUNCTIONS = [
    "set_bit(0)", "set_bit(2)", "clear_bit(1)", "bit_and(0x5)", "bit_or(2)", "incr([0:2])", "incr([0:3])",
    "decr([0:2])", "decr([1:3])", "_",
]  # fmt: skip


def parameters(draw: random.Random) -> str:
    """Rules with parameters, which recurse at their ends."""

    def alternative(letter: str) -> str:
        condition = draw.choice(["", f" %if {draw.choice(_CONDITIONS)}"])
        return f'"{letter}" {draw.choice(["x", "y"])}::{draw.choice(_FUNCTIONS)}{condition}'

    def rule(name: str) -> str:
        end = f'"<" | "" %if {draw.choice(_CONDITIONS)}'  # the first so that every value of the parameter has a text
        return f"{name}::_ : {' | '.join([*map(alternative, draw.sample('abcd', 2)), end])}"

    return f'start: x::{draw.choice(["0", "0x5", "3"])} ">" | ">"\n{rule("x")}\n{rule("y")}\n'


def captured(draw: random.Random) -> str:
    """Rules that are captured, in one another and repeated. No text has two readings, and none ends inside another."""
    marks = iter("01e-:,[]")

    def rule(name: str, depth: int) -> list[str]:
        attribute = draw.choice(["", "[capture]", f'[capture="{draw.choice("pq")}"]', "[capture]"])
        begin = next(marks)
        if depth == 0:
            return [f'{name}{attribute}: "{begin}" /[ab]{{1,3}}>/']
        parts = [f"{name}{number}" for number in range(draw.randint(1, 2))]
        repeats = [part + draw.choice(["", "{1,2}", "{2}"]) for part in parts]
        inner = [line for part in parts for line in rule(part, depth - 1 if draw.random() < 0.6 else 0)]
        return [f'{name}{attribute}: "{begin}" {" ".join(repeats)} ">"', *inner]

    suffix = draw.choice(["", 'w[capture, suffix=/[cd]b?</, stop_capture="s"]: /[abcd]*/'])
    lines = rule("x", 2)
    return "\n".join([f'start[capture]: {"w " if suffix else ""}x+ "<"', *lines, suffix, ""])


def nested(draw: random.Random) -> str:
    """Grammars in grammars, with what each of them skips."""
    skipped = draw.choice(["", "%ignore / +/"]), draw.choice(["", "%ignore /e+/"])
    inner = f'%lark {{\nstart: "a" B ("," B)*\nB: /{_filled(draw)}/\n{skipped[1]}\n}}'
    return f'start: "<" x ">" | "[" (x "]")*\nx: {inner}\n{skipped[0]}\n'


def listed(draw: random.Random) -> str:
    """A list of grammars that refer to each other by name."""
    inner = f'start: "a" B ("," B)* @value?\nB: /{_filled(draw)}/\n'
    whole = 'start: "<" @inner ">" | "[" (@value "]")*\n'
    schema = {"enum": [1, 0], "x-guidance": {"whitespace_flexible": False}}
    grammars = [
        {"lark_grammar": whole},
        {"name": "inner", "lark_grammar": inner},
        {"name": "value", "json_schema": schema},
    ]
    return json.dumps({"grammars": grammars})


def substrings(draw: random.Random) -> str:
    """Runs of consecutive texts."""
    kind, text = (
        draw.choice(["words", "chars"]),
        " ".join(draw.choices(["ab", "a", "cd,", "b-a"], k=draw.randint(1, 4))),
    )
    value = draw.choice([{f"substring_{kind}": text}, {"substring_chunks": draw.choices(["a", "ab", "b", "cd"], k=4)}])
    return f'start: "<" A ">" | B\nA: %regex {json.dumps(value)}\nB: "b" A "1"\n'


def bounds(draw: random.Random) -> str:
    """Repeats in braces."""

    def braces(least: int) -> str:
        return draw.choice(
            [
                f"{{{max(1, least)}}}",
                f"{{{max(1, least)},}}",
                f"{{,{least + 1}}}",
                f"{{ {max(1, least)} , {least + 2} }}",
            ]
        )

    items = " ".join(draw.choice(['"a"', "B", "c", '("d" | ",")']) + braces(draw.randint(0, 2)) for _ in range(2))
    return f'%llguidance {{}}\nstart: "<" {items} ">"\nB: "b" "e"{{,2}}\nc: "c"{{1,2}} "1"\n'


FEATURES: dict[str, Callable[[random.Random], str]] = {
    made.__name__: made
    for made in (lexers, operators, lazy, tokens, schemas, parameters, nested, listed, substrings, bounds)
}


def bounded(draw: random.Random) -> str:
    """Return a grammar that is Lark's own but for bounds on literals, terminals, rules and groups."""

    def bounds(lowest: int) -> str:
        least = lowest + draw.randrange(3)
        most = max(1, least) + draw.randrange(3)
        open_below = [f"{{,{most}}}"] if lowest == 0 else []
        return draw.choice([f"{{{max(1, least)}}}", f"{{{least},{most}}}", f"{{ {least} , {most} }}", *open_below])

    parts = ['"a"', "B", "c", '("d" | "{1}")', '("a" c)']
    items = " ".join(draw.choice(parts) + bounds(0) for _ in range(draw.randrange(1, 4)))
    return f'start: "<" {items} ">"\nB: "b"{bounds(1)}\nc: "c"{bounds(1)}\n'
