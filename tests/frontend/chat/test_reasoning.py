"""Reasoning is split from the answer, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.chat.reasoning import ReasoningParser, can_reason
from ramiform.runtime.tokenizer.chat_template import ChatTemplate
from ramiform.tests.frontend.harness import shipped_tokenizer

from .test_tools import cut


def split(pieces: list[str], *, is_open: bool = False) -> tuple[str, str]:
    splitter = ReasoningParser(is_open=is_open)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return "".join(thought for thought, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nParis.", False, ("Hm.", "Paris.")),
        ("\n<think>Hm.</think>Paris.", False, ("Hm.", "Paris.")),
        ("Hm.\n</think>\n\nParis.", True, ("Hm.", "Paris.")),
        ("Paris. <think>no</think>", False, ("", "Paris. <think>no</think>")),
        (" Paris. ", False, ("", " Paris. ")),
        ("<think>and on", False, ("and on", "")),
        ("<think>\n\n</think>\n\nParis.", False, ("", "Paris.")),
        ("<think>a < b </thin </think>c", False, ("a < b </thin", "c")),
        ("<thi", False, ("", "<thi")),
        ("", False, ("", "")),
        ("", True, ("", "")),
    ],
)
def test_thoughts_are_told_from_answers(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split([text], is_open=is_open) == expected


@given(st.text(alphabet="<think>/ \nab", max_size=60), st.lists(st.integers(0, 99), max_size=8), st.booleans())
def test_pieces_change_nothing(text: str, places: list[int], is_open: bool) -> None:
    assert split(cut(text, places), is_open=is_open) == split([text], is_open=is_open)


def test_models_that_think_are_known_by_their_template() -> None:
    class Told:
        special_ids: dict[str, int] = {}  # noqa: RUF012
        token_bytes: list[bytes] = []  # noqa: RUF012

        def __init__(self, template: str) -> None:
            self.chat = ChatTemplate(template, {})

    qwen = "{{ messages[0].content }}{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"
    assert can_reason(Told(qwen))  # type: ignore[arg-type]
    assert can_reason(Told("{{ messages[0].content }}<think>\n"))  # type: ignore[arg-type]
    assert not can_reason(Told("{{ messages[0].content }}"))  # type: ignore[arg-type]
    assert not can_reason(shipped_tokenizer())
