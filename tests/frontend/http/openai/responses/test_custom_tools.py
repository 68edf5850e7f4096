"""The input of a custom tool is read out of the arguments of its call, however they come. Judge: the stdlib's json."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.http.openai.responses.custom_tools import InputReader, input_arguments


def read(arguments: str, cuts: list[int]) -> tuple[list[str], str]:
    reader = InputReader()
    ends = sorted({min(cut, len(arguments)) for cut in cuts} | {len(arguments)})
    pieces = [arguments[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    texts = [*map(reader.feed, pieces), reader.finish()]
    assert reader.text == "".join(texts)
    return texts, reader.text


@given(st.text(), st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 80)))
def test_the_text_is_the_string(text: str, is_ascii: bool, indent: int | None, cuts: list[int]) -> None:
    assert read(json.dumps({"input": text}, ensure_ascii=is_ascii, indent=indent), cuts)[1] == text
    assert json.loads(input_arguments(text)) == {"input": text}


def test_it_comes_as_soon_as_it_is_known() -> None:
    assert read(r'{"input": "a\n\ud83d\ude00"}', [10, 12, 13, 14, 20, 22])[0] == ["", "a", "", "\n", "", "", "😀", ""]


@given(st.text().map(lambda text: json.dumps({"input": text})), st.integers(0, 80))
def test_a_cut_string_is_what_came(whole: str, end: int) -> None:
    cut = whole[:end]
    _, text = read(cut, [])
    assert json.loads(whole)["input"].startswith(text) or text == cut  # nothing of the string came


def test_other_arguments_are_the_input_as_they_are() -> None:
    for arguments in ('{"code": "x"}', "x = 1", '{"input": 3}', "[]"):
        assert read(arguments, [3])[1] == arguments
