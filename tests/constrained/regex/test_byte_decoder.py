"""Decoders of characters, compared with Python's codecs at the boundaries of Unicode's ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramiform.constrained.regex.alphabet import NO_CLASS, Alphabet, alphabet_of, common_alphabet
from ramiform.constrained.regex.byte_decoder import ByteDecoder, Encoding, byte_decoder
from ramiform.constrained.regex.charset import CharSet, charset, complement

BOUNDARIES = [
    0,
    0x1F,
    0x20,
    0x22,
    0x2F,
    0x5C,
    0x7E,
    0x7F,
    0x80,
    0x7FF,
    0x800,
    0xFFF,
    0x1000,
    0xD7FF,
    0xE000,
    0xFFFF,
    0x10000,
]
BOUNDARIES += [0x103FF, 0x10400, 0x1F642, 0xFFFFF, 0x100000, 0x10FFFF]
CODES = st.sampled_from(BOUNDARIES) | st.integers(0, 0x10FFFF)
SETS = st.lists(st.tuples(CODES, CODES).map(lambda pair: (min(pair), max(pair))), max_size=4).map(charset)


def class_read(read: ByteDecoder, data: bytes) -> int | None:
    """Return the class of the character that the bytes encode; None if they encode none."""
    state = 0
    for position, byte in enumerate(data):
        state = int(read.table[state, read.class_of[byte]])
        if state < 0:
            return -1 - state if position == len(data) - 1 else None
        if state == 0:
            return None
    return None


def holds(ranges: CharSet, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


def spellings(code: int) -> dict[Encoding, list[bytes]]:
    plain, escaped = (json.dumps(chr(code), ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    escaped = escaped if escaped.startswith("\\u") else plain
    upper = escaped.replace("\\u", "/").upper().replace("/", "\\u") if escaped != plain else escaped
    return {"utf8": [chr(code).encode()], "json_string": [text.encode() for text in (plain, escaped, upper)]}


@pytest.mark.exhaustive
@given(sets=st.lists(SETS, max_size=3), code=CODES)
@example(sets=[((0, 0x10FFFF),)], code=0xE000)
@example(sets=[((0x10000, 0x10001), (0x10003, 0x10400))], code=0x10002)
def test_every_character_is_decoded_to_its_class(sets: list[CharSet], code: int) -> None:
    alphabet, classes = alphabet_of(tuple(sets))
    if 0xD800 <= code <= 0xDFFF:
        assert alphabet.class_of(code) == NO_CLASS
        assert class_read(byte_decoder(alphabet, "utf8"), chr(code).encode("utf-8", "surrogatepass")) is None
        assert class_read(byte_decoder(alphabet, "json_string"), f"\\u{code:04x}".encode()) is None
        return
    label = alphabet.class_of(code)
    assert [label in members for members in classes] == [holds(ranges, code) for ranges in sets]
    for encoding, forms in spellings(code).items():
        for data in forms:
            assert class_read(byte_decoder(alphabet, encoding), data) == label, data


@given(data=st.binary(max_size=6) | st.text(st.sampled_from('\\u"/bdDf8C0'), max_size=12).map(str.encode))
def test_other_bytes_decode_to_no_character(data: bytes) -> None:
    alphabet = Alphabet((0, 0xD800, 0xE000), (0, NO_CLASS, 0))
    try:
        is_character = len(data.decode()) == 1
    except UnicodeDecodeError:
        is_character = False
    assert (class_read(byte_decoder(alphabet, "utf8"), data) is not None) == is_character
    try:
        value = json.loads(b'"' + data + b'"')
        text = data.decode()
    except ValueError:
        assert class_read(byte_decoder(alphabet, "json_string"), data) is None
        return
    is_character = isinstance(value, str) and len(value) == 1 and not 0xD800 <= ord(value) <= 0xDFFF
    # No writer escapes printable ASCII as \\u.
    is_character = is_character and not (text.startswith("\\u") and 0x20 <= ord(value) < 0x7F)
    assert (class_read(byte_decoder(alphabet, "json_string"), data) is not None) == is_character


@pytest.mark.slow
@given(a=SETS, b=SETS, code=CODES)
def test_a_common_alphabet_refines_both(a: CharSet, b: CharSet, code: int) -> None:
    first, second = alphabet_of((a,))[0], alphabet_of((b,))[0]
    both, from_first, from_second = common_alphabet(first, second)
    label = both.class_of(code)
    if label == NO_CLASS:
        assert 0xD800 <= code <= 0xDFFF
    else:
        assert (from_first[label], from_second[label]) == (first.class_of(code), second.class_of(code))
        assert holds(both.members(label), code)


@given(a=SETS, code=CODES)
def test_a_complement_is_everything_else(a: CharSet, code: int) -> None:
    assert holds(complement(a), code) != holds(a, code)
