"""A reader of structural tags written from xgrammar's documentation, and random tags and texts for it.

`ends_of` returns where a format may end in a text. It tries everything: no automata, no tables.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import jsonschema

from ramiform.constrained import Vocabulary
from ramiform.tests.constrained.walks import BYTES

Spec = dict[str, Any]
GRAMMAR = 'root ::= "(" root ")" | "x"+'
SPECIAL = {"<|a|>": "\ue000", "<|b|>": "\ue001"}  # special tokens, and the letters that stand for them in a text
WHOLE = ["ab", "<a", "<a>", "</a>", "12", "a>x", "é", '{"a":', "[]", "x(", "1<"]  # tokens of several bytes
END = 256 + len(WHOLE) + len(SPECIAL)


@cache
def token_vocabulary() -> Vocabulary:
    """Return the vocabulary of bytes, WHOLE, the special tokens, and the end."""
    names = {name: 256 + len(WHOLE) + number for number, name in enumerate(SPECIAL)}
    tokens = [*BYTES, *(text.encode() for text in WHOLE), *(None for _ in SPECIAL), None]
    return Vocabulary.from_tokens(tokens, [END], names)


def token_number(piece: str) -> int:
    """Return the token of a piece of a text."""
    if piece in SPECIAL.values():
        return 256 + len(WHOLE) + list(SPECIAL.values()).index(piece)
    return 256 + WHOLE.index(piece) if piece in WHOLE else ord(piece)


def pieces_of(text: str, rng: random.Random) -> list[str]:
    """Divide a text into tokens at random."""
    pieces: list[str] = []
    while text:
        fitting = [piece for piece in WHOLE if text.startswith(piece)]
        pieces.append(rng.choice([*fitting, *([text[0]] if text[0] != "é" else [])]))
        text = text[len(pieces[-1]) :]
    return pieces


Ends = tuple[str, ...] | int  # of the tag around: texts, or a token


class NaiveTags:
    """Where formats may end in one text, which is divided into tokens."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.text = "".join(pieces)
        self._piece_at = dict(zip(accumulate(map(len, pieces), initial=0), pieces, strict=False))
        self._known: dict[tuple[int, int, Ends], frozenset[int]] = {}
        self._kept: list[Any] = []  # so that the numbers of formats stay theirs

    def ends_of(self, spec: Spec, at: int = 0, ends: Ends = ()) -> frozenset[int]:
        """Return where a format that begins at a place may end. `ends` are those of the tag around it."""
        key = id(spec), at, ends
        if key not in self._known:
            self._kept.append(spec)
            self._known[key] = frozenset(self._ends_of(spec, at, ends))
        return self._known[key]

    def _ends_of(self, spec: Spec, at: int, ends: Ends) -> Iterable[int]:
        text = self.text
        places = range(at, len(text) + 1)
        match spec["type"]:
            case "const_string":
                return self._after(at, spec["value"])
            case "json_schema":
                return [end for end in places if _is_value(text[at:end], spec)]
            case "regex":
                return [end for end in places if re.fullmatch(spec["pattern"], text[at:end])]
            case "grammar":
                return [end for end in places if re.fullmatch(r"\(*x+\)*", part := text[at:end]) and _balanced(part)]
            case "any_text":
                excluded = (*spec.get("excludes", ()), *_texts(ends), *SPECIAL.values())
                most, last = spec.get("max_tokens"), at + spec.get("max_chars", len(text))
                found = [e for e in places if e <= last and not any(bad in text[at:e] for bad in excluded)]
                return [end for end in found if most is None or self._num_tokens(at, end) <= most]
            case "token":
                return self._token(at, spec["token"])
            case "exclude_token":
                return self._other_token(at, spec, ends)
            case "any_tokens":
                found, count = [at], 0
                while count != spec.get("max_tokens") and (after := self._other_token(found[-1], spec, ends)):
                    found += after
                    count += 1
                return found
            case "sequence":
                return self._each(spec["elements"], {at}, ends)
            case "or":
                return [end for part in spec["elements"] for end in self.ends_of(part, at, ends)]
            case "optional":
                return self._repeat(spec["content"], at, 0, 1, ends)
            case "plus":
                return self._repeat(spec["content"], at, 1, -1, ends)
            case "star":
                return self._repeat(spec["content"], at, 0, -1, ends)
            case "repeat":
                return self._repeat(spec["content"], at, spec["min"], spec["max"], ends)
            case "tag":
                return self._tag(spec, at)
            case "triggered_tags":
                rules = [
                    (trigger, [tag for tag in spec["tags"] if tag["begin"].startswith(trigger)])
                    for trigger in spec["triggers"]
                ]
                excluded = (*spec.get("excludes", ()), *_texts(ends))

                def content(number: int, place: int) -> set[int]:
                    trigger, tags = rules[number]
                    return {end for tag in tags for end in self._tag(tag, place - len(trigger))}

                stops, first = spec.get("stop_after_first", False), spec.get("at_least_one", False)
                return self._free([trigger for trigger, _ in rules], excluded, content, at, not stops, first)
            case "dispatch":
                rules = spec["rules"]

                def content(number: int, place: int) -> set[int]:
                    return set(self.ends_of(rules[number][1], place, ends))

                patterns = [pattern for pattern, _ in rules]
                return self._free(patterns, spec.get("excludes", ()), content, at, spec.get("loop", True), False)
            case "tags_with_separator":
                return self._separated(spec, at)
            case "token_triggered_tags":
                flags = not spec.get("stop_after_first", False), spec.get("at_least_one", False)
                tokens = [tag["begin"]["token"] for tag in spec["tags"]]
                return self._among_tokens(
                    spec, at, ends, tokens, lambda number, place: self._tag(spec["tags"][number], place), *flags
                )
            case "token_dispatch":

                def after(number: int, place: int) -> set[int]:
                    token, format = spec["rules"][number]
                    return {end for begun in self._token(place, token) for end in self.ends_of(format, begun, ends)}

                tokens = [token for token, _ in spec["rules"]]
                return self._among_tokens(spec, at, (), tokens, after, spec.get("loop", True), False)
        raise AssertionError(spec)

    def _num_tokens(self, at: int, end: int) -> int:
        """Return how many tokens have a part of a text."""
        return sum(begin < end and begin + len(piece) > at for begin, piece in self._piece_at.items() if at < end)

    def _token(self, at: int, token: int | str) -> list[int]:
        piece = self._piece_at.get(at)
        return [at + len(piece)] if piece and token_number(piece) == token_vocabulary().number_of(token) else []

    def _other_token(self, at: int, spec: Spec, ends: Ends, *excluded: int | str) -> list[int]:
        """Return where a token with text ends that is not excluded."""
        piece = self._piece_at.get(at)
        not_these = [*spec.get("exclude_tokens", ()), *excluded, *([ends] if isinstance(ends, int) else [])]
        if piece is None or piece in SPECIAL.values() or any(self._token(at, token) for token in not_these):
            return []
        return [at + len(piece)]

    def _among_tokens(
        self,
        spec: Spec,
        at: int,
        ends: Ends,
        tokens: list[int | str],
        after: Callable[[int, int], set[int]],
        loops: bool,
        at_least_one: bool,
    ) -> set[int]:
        """Return where other tokens, and formats that begin with these, may end."""
        found: set[int] = set()
        todo, seen = [(at, True)], {(at, True)}
        while todo:
            place, is_first = todo.pop()
            begun = {end for number in range(len(tokens)) for end in after(number, place)}
            new = {(end, False) for end in begun}
            if is_first and at_least_one:
                pass
            elif not is_first and not loops:
                found.add(place)
                new = set()
            else:
                free = [place]
                while free:
                    found.update(free)
                    new |= {(end, False) for number in range(len(tokens)) for end in after(number, free[0])}
                    free = self._other_token(free[0], spec, ends, *tokens)
            todo += new - seen
            seen |= new
        return found

    def _after(self, at: int, text: str) -> list[int]:
        return [at + len(text)] if self.text.startswith(text, at) else []

    def _each(self, parts: list[Spec], places: set[int], ends: Ends) -> set[int]:
        for part in parts:
            places = {end for place in places for end in self.ends_of(part, place, ends)}
        return places

    def _repeat(self, part: Spec, at: int, least: int, most: int, ends: Ends) -> set[int]:
        places = {at}
        for _ in range(least):
            places = self._each([part], places, ends)
        found, count = set(places), least
        while places and count != most:
            places = self._each([part], places, ends) - (found if most == -1 else set())
            found |= places
            count += 1
        return found

    def _tag(self, tag: Spec, at: int) -> set[int]:
        begin, last = tag["begin"], tag["end"]
        begun = self._after(at, begin) if isinstance(begin, str) else self._token(at, begin["token"])
        if isinstance(last, dict):
            number = token_vocabulary().number_of(last["token"])
            assert number is not None
            inside = {end for place in begun for end in self.ends_of(tag["content"], place, number)}
            return {after for place in inside for after in self._token(place, number)}
        ends = tuple(last) if isinstance(last, list) else (last,)
        inside = {end for place in begun for end in self.ends_of(tag["content"], place, ends)}
        return {after for place in inside for end in ends for after in self._after(place, end)}

    def _free(
        self,
        patterns: list[str],
        excluded: Iterable[str],
        content: Callable[[int, int], set[int]],
        at: int,
        loops: bool,
        at_least_one: bool,
    ) -> set[int]:
        found: set[int] = set()
        todo, seen = [(at, True)], {(at, True)}
        while todo:
            begin, is_first = todo.pop()
            after: set[int] = set()
            if is_first and at_least_one:
                for number, pattern in enumerate(patterns):
                    after |= {end for place in self._after(begin, pattern) for end in content(number, place)}
            elif not is_first and not loops:
                found.add(begin)
            else:
                for end in range(begin, len(self.text) + 1):
                    part = self.text[begin:end]
                    if any(bad in part for bad in (*excluded, *SPECIAL.values())):
                        break
                    done = [number for number, pattern in enumerate(patterns) if part.endswith(pattern)]
                    if done:
                        after |= {place for number in done for place in content(number, end)}
                        break
                    found.add(end)
            new = {(place, False) for place in after} - seen
            seen |= new
            todo += new
        return found

    def _separated(self, spec: Spec, at: int) -> set[int]:
        found: set[int] = set() if spec.get("at_least_one") else {at}
        places = {end for tag in spec["tags"] for end in self._tag(tag, at)}
        while places - found:
            found |= places
            if spec.get("stop_after_first"):
                break
            begun = {place for end in places for place in self._after(end, spec["separator"])}
            places = {end for place in begun for tag in spec["tags"] for end in self._tag(tag, place)}
        return found


def _texts(ends: Ends) -> list[str]:
    return [] if isinstance(ends, int) else [end for end in ends if end]


def _balanced(text: str) -> bool:
    return text.count("(") == text.count(")")


def _is_value(text: str, spec: Spec) -> bool:
    if not text or text[0] not in '{["-0123456789tfn' or text[-1] not in '}]"0123456789el':
        return False
    try:
        value = json.loads(text)
        jsonschema.validate(value, spec["json_schema"])
    except (ValueError, jsonschema.ValidationError):
        return False
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number or text == json.dumps(value, separators=(",", ":"))  # a number in any spelling


# Random tags, and texts that are often of them.

SCHEMAS: list[tuple[Any, list[str]]] = [
    ({"type": "integer"}, ["0", "1", "-12", "907"]),
    ({"type": "boolean"}, ["true", "false"]),
    ({"enum": ["a", "ab", 1, None]}, ['"a"', '"ab"', "1", "null"]),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
        ['{"a":1}', '{"a":-20}'],
    ),
    (
        {"type": "object", "properties": {"a": {"enum": [1, True]}}, "required": ["a"], "additionalProperties": False},
        ['{"a":1}', '{"a":true}'],
    ),
    ({"type": "array", "items": {"type": "null"}}, ["[]", "[null]", "[null,null]"]),
    ({"type": "string", "maxLength": 3}, ['""', '"x"', '"axb"']),
]
PATTERNS = {"[a-c]+": ["a", "abc", "cc"], r"\d{1,2}": ["1", "20"], "x?": ["", "x"], "(ab|a)b*": ["a", "ab", "abb"]}
NAMED: list[int | str] = [*SPECIAL, "ab", "</a>", "x", 256 + WHOLE.index("12"), ord("b"), "é"]
WORDS = ["a", "ab", "b", "<", "<a", "<a>", "</a>", ">", "1", "x", "é", "(", "e", " "]


class RandomTags:
    """Makes formats and texts of them, also of tokens if `has_tokens`."""

    def __init__(self, seed: int, *, has_tokens: bool = False) -> None:
        self.rng = random.Random(seed)
        self._has_tokens = has_tokens

    def format(self, depth: int = 3) -> Spec:
        """Return a random format."""
        choice = self.rng.choice
        leaves = ["const_string", "json_schema", "regex", "grammar", "any_text"]
        inner = ["sequence", "or", "optional", "plus", "star", "repeat", "tag"]
        inner += ["triggered_tags", "tags_with_separator", "dispatch", "sequence", "tag"]
        if self._has_tokens:
            leaves += ["token", "exclude_token", "any_tokens", "any_tokens"]
            inner += ["token_triggered_tags", "token_dispatch"] * 2
        kind = choice(leaves if depth == 0 else leaves + inner + inner)
        spec: Spec = {"type": kind}
        match kind:
            case "const_string":
                spec["value"] = choice(WORDS)
            case "json_schema":
                spec["json_schema"] = choice(SCHEMAS)[0]
            case "regex":
                spec["pattern"] = choice(list(PATTERNS))
            case "grammar":
                spec["grammar"] = GRAMMAR
            case "any_text":
                self._maybe(spec, "excludes", lambda: self._words(2))
                self._maybe(spec, "max_chars", lambda: choice([0, 1, 2, 3, 5]))
                if self._has_tokens:
                    self._maybe(spec, "max_tokens", lambda: choice([0, 1, 1, 2, 3]))
            case "token":
                spec["token"] = choice(NAMED)
            case "exclude_token" | "any_tokens":
                self._maybe(spec, "exclude_tokens", lambda: self.rng.sample(NAMED, choice([1, 2])))
                if kind == "any_tokens":
                    self._maybe(spec, "max_tokens", lambda: choice([0, 1, 1, 2, 3]))
            case "token_triggered_tags":
                tokens = self.rng.sample(NAMED, choice([1, 1, 2]))
                tags = [self.tag({"type": "token", "token": token}, depth) for token in tokens]
                spec |= {"trigger_tokens": tokens, "tags": tags}
                self._maybe(spec, "exclude_tokens", lambda: self._other_tokens(tokens))
                self._flags(spec)
            case "token_dispatch":
                tokens = self.rng.sample(NAMED, choice([1, 2]))
                spec["rules"] = [[token, self.format(depth - 1)] for token in tokens]
                self._maybe(spec, "loop", lambda: choice([True, False]))
                self._maybe(spec, "exclude_tokens", lambda: self._other_tokens(tokens))
            case "sequence" | "or":
                spec["elements"] = [self.format(depth - 1) for _ in range(choice([1, 2, 2, 3]))]
            case "optional" | "plus" | "star" | "repeat":
                spec["content"] = self.format(depth - 1)
                if kind == "repeat":
                    least = choice([0, 0, 1, 2])
                    spec |= {"min": least, "max": choice([-1, least, least + 1, least + 2])}
            case "tag":
                spec |= self.tag(choice(WORDS), depth)
            case "triggered_tags":
                triggers = self._apart(choice([1, 1, 2]))
                tags = [self.tag(trigger + choice(["", "a", ">"]), depth) for trigger in triggers]
                spec |= {"triggers": triggers, "tags": tags}
                self._maybe(spec, "excludes", lambda: self._words(1))
                self._flags(spec)
            case "tags_with_separator":
                tags = [self.tag(choice(WORDS), depth) for _ in range(choice([1, 2]))]
                spec |= {"tags": tags, "separator": choice([*WORDS, ""])}
                self._flags(spec)
            case "dispatch":
                spec["rules"] = [[pattern, self.format(depth - 1)] for pattern in self._apart(choice([1, 2]))]
                self._maybe(spec, "loop", lambda: choice([True, False]))
                self._maybe(spec, "excludes", lambda: self._words(1))
        return spec

    def tag(self, begin: Any, depth: int) -> Spec:
        """Return a random tag."""
        end: Any = self.rng.choice([*WORDS, "", ["</a>", "b"]])
        if self._has_tokens and self.rng.random() < 0.5:
            end = {"type": "token", "token": self.rng.choice(NAMED)}
        return {"type": "tag", "begin": begin, "content": self.format(depth - 1), "end": end}

    def _maybe(self, spec: Spec, name: str, value: Callable[[], Any]) -> None:
        if self.rng.random() < 0.4:
            spec[name] = value()

    def _flags(self, spec: Spec) -> None:
        for flag in ("at_least_one", "stop_after_first"):
            self._maybe(spec, flag, lambda: self.rng.choice([True, False]))

    def _words(self, most: int) -> list[str]:
        return self.rng.sample(WORDS, self.rng.randint(1, most))

    def _other_tokens(self, tokens: list[int | str]) -> list[int | str]:
        return [self.rng.choice([token for token in NAMED if token not in tokens])]

    def _apart(self, number: int) -> list[str]:
        """Return words of which none is part of another."""
        return self.rng.sample(["<", "ab", "x", "é"], number)

    def text(self, spec: Spec) -> str:
        """Return a text that is often one of the format's."""
        choice, rng = self.rng.choice, self.rng
        if rng.random() < 0.04:
            return choice(WORDS)
        match spec["type"]:
            case "const_string":
                return spec["value"]
            case "json_schema":
                return choice(next(texts for schema, texts in SCHEMAS if schema == spec["json_schema"]))
            case "regex":
                return choice(PATTERNS[spec["pattern"]])
            case "grammar":
                return choice(["x", "xx", "(x)", "((xx))"])
            case "any_text":
                return "".join(choice(WORDS) for _ in range(choice([0, 0, 1, 1, 2])))
            case "token":
                return _text_of_token(spec["token"])
            case "exclude_token":
                return choice([*WORDS, *WHOLE])
            case "any_tokens":
                return "".join(choice([*WORDS, *WHOLE]) for _ in range(choice([0, 0, 1, 1, 2])))
            case "sequence":
                return "".join(map(self.text, spec["elements"]))
            case "or":
                return self.text(choice(spec["elements"]))
            case "optional" | "plus" | "star" | "repeat":
                least = spec.get("min", int(spec["type"] == "plus"))
                return "".join(self.text(spec["content"]) for _ in range(least + choice([0, 0, 1, 1, 2])))
            case "tag":
                return self._tag_text(spec)
            case "triggered_tags" | "tags_with_separator" | "token_triggered_tags":
                tags = [self._tag_text(choice(spec["tags"])) for _ in range(choice([0, 1, 1, 2]))]
                if spec["type"] == "tags_with_separator":
                    return spec["separator"].join(tags)
                return "".join(part for tag in tags for part in (choice(["", "", *WORDS]), tag))
            case _:
                rules = [choice(spec["rules"]) for _ in range(choice([0, 1, 1, 2]))]
                shown = _text_of_token if spec["type"] == "token_dispatch" else str
                free = "".join(choice(["", *WORDS]) + shown(name) + self.text(format) for name, format in rules)
                return free + choice(["", *WORDS])

    def _tag_text(self, tag: Spec) -> str:
        begin, end = tag["begin"], self.rng.choice(tag["end"]) if isinstance(tag["end"], list) else tag["end"]
        first = begin if isinstance(begin, str) else _text_of_token(begin["token"])
        return first + self.text(tag["content"]) + (end if isinstance(end, str) else _text_of_token(end["token"]))


def _text_of_token(token: int | str) -> str:
    if isinstance(token, str):
        return SPECIAL.get(token, token)
    return WHOLE[token - 256] if token >= 256 else chr(token)
