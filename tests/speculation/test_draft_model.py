"""A draft model reads prompts beside its target, and drafts as deep as is likely to pay. Judge: one that reads nothing
before a tree is wanted, one sequence at a time."""

from __future__ import annotations

import random

import pytest
import torch

from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.engine.kv_pool import PAGE_SIZE
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.scheduler.plan import DraftSpec, Row
from ramiform.runtime.speculation.draft_model import DraftModelSource, GrowingTree

WANT = DraftSpec(steps=4, top_k=2, num_tokens=6, temperature=1.0)
SHARED = 2  # pages


@pytest.fixture(scope="module")
def model() -> Decoder:
    return load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """The rows of each forward of a draft model."""
    found: list[list[Row]] = []
    run = DraftModelSource._run

    def recorded(source: DraftModelSource, rows: list[Row]) -> torch.Tensor:
        found.append(rows)
        return run(source, rows)

    monkeypatch.setattr(DraftModelSource, "_run", recorded)
    return found


def texts() -> tuple[list[list[int]], list[list[int]]]:
    """Three sequences and their pages; the last two share their first pages."""
    draw = random.Random(5)
    one, two, three = ([draw.randrange(300, 1500) for _ in range(SHARED * PAGE_SIZE + 20 + n)] for n in range(3))
    three[: SHARED * PAGE_SIZE] = two[: SHARED * PAGE_SIZE]
    return [one, two, three], [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 8, 9]]


@torch.inference_mode()
def lazily(model: Decoder, ids: list[int], pages: list[int]) -> DraftTree | None:
    [tree] = DraftModelSource(model, 16).follow(DraftStep([DraftRow(ids[:-1], 0, pages, ids[-1], WANT)], None))
    return tree


@torch.inference_mode()
def test_prompts_are_read_in_chunks_beside_the_target_several_at_once(model: Decoder, runs: list[list[Row]]) -> None:
    (one, two, _), (own, other, _) = texts()
    expected = [lazily(model, one, own), lazily(model, two, other)]
    source, middle = DraftModelSource(model, 16), PAGE_SIZE + 3
    runs.clear()
    chunks = [DraftRow(ids[:middle], 0, pages, None, None) for ids, pages in ((one, own), (two, other))]
    assert source.follow(DraftStep(chunks, None)) == [None, None]
    assert [[len(row.tokens) for row in rows] for rows in runs] == [[middle, middle]]
    assert source.caught_up > 0
    runs.clear()
    ends = [DraftRow(ids[middle:-1], middle, pages, ids[-1], WANT) for ids, pages in ((one, own), (two, other))]
    trees = source.follow(DraftStep(ends, None))
    assert [tree and tree.tokens for tree in trees] == [tree and tree.tokens for tree in expected]
    assert [len(row.tokens) for row in runs[0]] == [len(one) - 1 - middle, len(two) - 1 - middle]
    assert all(len(rows) == 2 for rows in runs[:2]), "their drafts grow together"
    source.follow(DraftStep([DraftRow([one[-1]], len(one) - 1, own, 7, WANT)], None))
    assert source.caught_up == 0, "the tokens of the last step are no catching up"


@torch.inference_mode()
def test_what_forks_share_is_read_once(model: Decoder, runs: list[list[Row]]) -> None:
    (_, two, three), (_, pages, fork) = texts()
    expected = [lazily(model, two, pages), lazily(model, three, fork)]
    source, shared = DraftModelSource(model, 16), SHARED * PAGE_SIZE
    runs.clear()
    rows = [DraftRow(two[:-1], 0, pages, two[-1], WANT), DraftRow(three[shared:-1], shared, fork, three[-1], WANT)]
    trees = source.follow(DraftStep(rows, None))
    assert [tree and tree.tokens for tree in trees] == [tree and tree.tokens for tree in expected]
    read = [len(row.tokens) for rows in runs for row in rows if len(row.tokens) > 1]
    assert read == [len(two) - 1, len(three) - 1 - shared]


def test_a_draft_ends_where_its_path_is_too_unlikely() -> None:
    for least, depth in ((-1e9, 4), (-1.5, 3), (-0.7, 2), (-0.1, 1)):
        want = DraftSpec(4, 2, 99, 1.0, least)
        tree = GrowingTree(want, Row(rid="", tokens=[1], first_position=0, pages=[0]))
        level = [(-0.6, 5), (-2.0, 6)]
        tree.add(level)
        while not tree.is_complete:
            tree.add(level)
        assert tree.depth == depth
        assert len(tree.finished) == 2 * depth
