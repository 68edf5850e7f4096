"""Walks through a compiled grammar byte by byte: where a text leaves it, what was possible there, how many states."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np

from ..automaton.matcher import CompiledGrammar, Matcher
from ..automaton.vocabulary import Vocabulary

END_TOKEN = 256  # the token of the end, after those of single bytes
BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [END_TOKEN])
MAX_LITERALS = 12  # shown of those that may come
MAX_LITERAL = 60  # bytes
MAX_RANDOM_OUTPUT = 400  # bytes
MAX_OPENING = 100  # bytes before which a random output prefers objects and arrays
NUM_RANDOM_OUTPUTS = 20
_DIGITS, _LOWER = frozenset(b"0123456789"), frozenset(b"abcdefghijklmnopqrstuvwxyz")
_UPPER = frozenset(byte - 32 for byte in _LOWER)
_PRINTABLE = frozenset(range(0x20, 0x7F))
_OPENING, _CLOSING = frozenset(b"{["), frozenset((*b'"}],', END_TOKEN))  # random outputs prefer these, and so have both
_CLASSES = (
    (_PRINTABLE | {0x7F}, "any printable ASCII character"),  # and DEL, which JSON counts among them
    (_PRINTABLE, "any printable ASCII character"),
    (_LOWER | _UPPER, "a letter"),
    (_LOWER, "a lower-case letter"),
    (_UPPER, "an upper-case letter"),
    (_DIGITS, "a digit"),
    (_DIGITS - {ord("0")}, "a digit but 0"),
)
_QUOTE = re.compile(rb'(?<!\\)(?:\\\\)*"')  # not escaped
_NAMED = {ord(" "): "a space", ord("\n"): "a line break", ord("\t"): "a tab", ord("\r"): "a carriage return"}


@dataclass(frozen=True)
class Walk:
    """How far a text was followed: all `num_bytes` of it if it was `accepted`. `expected` and `forced` may come there.

    `line_break`: the text is accepted but for the line break at its end. `num_states` of the automaton are new.
    """

    num_bytes: int
    num_states: int
    accepted: bool
    line_break: bool = False
    expected: tuple[str, ...] = ()
    forced: str = ""


@dataclass(frozen=True)
class Cost:
    """Counts of states, and bytes of tables, in a grammar's automaton.

    At the start, after following `num_outputs` random ones, and the most that a single mask of bytes has made.
    `dead_ends` are outputs that came to where nothing may follow.
    """

    start_states: int
    start_bytes: int
    num_outputs: int
    states: int
    bytes: int
    most_for_one_mask: int
    dead_ends: int


def follow(grammar: CompiledGrammar, data: bytes) -> Walk:
    """Follow a text as far as the grammar allows."""
    matcher, before = grammar.matcher(), grammar.generation.automaton.tables.num_states
    at = next((at for at, byte in enumerate(data) if not matcher.accept(byte)), len(data))
    num_states = grammar.generation.automaton.tables.num_states - before
    line_break = data[at:] in (b"\n", b"\r\n") and matcher.is_accepting()
    if line_break or (at == len(data) and matcher.is_accepting()):
        return Walk(at, num_states, True, line_break)
    return Walk(at, num_states, False, False, *_possible(matcher, data[:at]))


def measure(grammar: CompiledGrammar, seed: int = 0) -> Cost:
    """Count the states that random outputs need."""
    tables, rng = grammar.generation.automaton.tables, random.Random(seed)
    start, start_bytes = tables.num_states, tables.num_bytes
    most = dead_ends = 0
    for _ in range(NUM_RANDOM_OUTPUTS):
        matcher = grammar.matcher()
        for length in range(MAX_RANDOM_OUTPUT):
            before = tables.num_states
            tokens = _allowed(matcher)
            most = max(most, tables.num_states - before)
            if not tokens:
                dead_ends += 1
                break
            closing, opening = _CLOSING.intersection(tokens), _OPENING.intersection(tokens)
            if opening and length < MAX_OPENING and rng.random() < 0.7:
                token = rng.choice(sorted(opening))
            else:
                token = rng.choice(sorted(closing) if closing and rng.random() < 0.3 else tokens)
            if token == END_TOKEN:
                break
            assert matcher.accept(token)
    return Cost(start, start_bytes, NUM_RANDOM_OUTPUTS, tables.num_states, tables.num_bytes, most, dead_ends)


def _allowed(matcher: Matcher) -> list[int]:
    """Return the bytes that may come next, and END_TOKEN if the text may end."""
    mask = np.zeros(BYTES.num_words, np.int32)
    matcher.mask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits[: END_TOKEN + 1])]


def _possible(matcher: Matcher, before: bytes) -> tuple[tuple[str, ...], str]:
    """Describe what may come next, and return what must."""
    in_string = len(_QUOTE.findall(before)) % 2 == 1
    tokens = _allowed(matcher)
    left = {token for token in tokens if token < 0x80}
    named: list[str] = []
    for members, name in _CLASSES:
        if members <= left:
            named.append(name)
            left -= members
    if any(0xC2 <= token < END_TOKEN for token in tokens):
        named.append("a character beyond ASCII")
    elif any(0x80 <= token < END_TOKEN for token in tokens):
        named.append("the rest of a character")
    named += [name for byte, name in _NAMED.items() if byte in left]
    literals: list[str] = []
    for byte in sorted(left - _NAMED.keys()):
        if len(literals) < MAX_LITERALS:
            literals += _literals(matcher, byte, in_string)
        else:
            literals.append(repr(chr(byte)))
    if len(literals) > MAX_LITERALS:
        named.append(f"{len(literals) - MAX_LITERALS} more")
    ends = ["the end of the text"] if END_TOKEN in tokens else []
    return (*literals[:MAX_LITERALS], *named, *ends), _shown(matcher.forced())


def _literals(matcher: Matcher, byte: int, in_string: bool) -> list[str]:
    """Return the texts that begin with a byte: the only one there is, or a few strings or words.

    A quote begins a string, or ends the one that the text is in.
    """
    begins_string = byte == ord('"') and not in_string
    branches = [bytes([byte])]
    done: list[bytes] = []
    while branches:
        text = branches.pop(0)
        for each in text:
            assert matcher.accept(each)
        # Up to the end of a string, if it begins here.
        forced = matcher.forced()
        end = forced.find(b'"') + 1 if begins_string else 0
        forced = (forced[:end] if end else forced)[: MAX_LITERAL - len(text)]
        for each in forced:
            assert matcher.accept(each)
        whole = text + forced
        following = _allowed(matcher)
        matcher.rollback(len(whole))
        is_word = whole.isalnum()
        is_complete = (begins_string and len(whole) > 1 and whole.endswith(b'"')) or END_TOKEN in following
        is_complete = is_complete or (is_word and not bytes(following).isalnum())
        has_class = any(members.issubset(following) for members, _ in _CLASSES)
        is_too_large = len(whole) >= MAX_LITERAL or len(branches) + len(done) + len(following) > MAX_LITERALS
        if is_complete or has_class or is_too_large or not (begins_string or is_word):
            done.append(whole)
        else:
            branches += [whole + bytes([each]) for each in following]
    return [_shown(text) + ("..." if begins_string and not text[1:].endswith(b'"') else "") for text in sorted(done)]


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "backslashreplace")) if text else ""
