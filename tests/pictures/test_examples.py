"""The examples with images, on the small checkpoint."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramiform as rf

from .checkpoint import picture
from .served import make_chat_checkpoint, png, serve

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rf.Runtime]:
    with serve(make_chat_checkpoint(tmp_path_factory.mktemp("checkpoint")), port=None) as runtime:
        yield runtime


def test_a_receipt_becomes_a_checked_value(runtime: rf.Runtime, tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "receipt.py"))
    (path := tmp_path / "receipt.png").write_bytes(png(picture(1)))
    receipt: Any = example["read_receipt"].run(path, backend=runtime, seed=1)["receipt"]
    assert 0 <= receipt.tax <= receipt.total <= 9999


def test_four_questions_reuse_the_image(runtime: rf.Runtime) -> None:
    example = runpy.run_path(str(EXAMPLES / "four_questions.py"))
    state = example["ask_all"].run(picture(2), backend=runtime, temperature=0.0)
    metas = [state[name].get_meta_info("answer") for name in example["QUESTIONS"]]
    num_image = 20  # tokens that stand for the image
    assert sum(meta["cached_tokens"] > num_image for meta in metas) >= 3  # all but the one that computed it
