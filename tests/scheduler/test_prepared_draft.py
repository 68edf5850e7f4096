"""Drafts under a grammar on its first use. Judge: the drafts that are verified when all its states are known."""

from __future__ import annotations

import pytest

from ramiform.constrained import Regex, Vocabulary, compile_constraint
from ramiform.runtime.scheduler.drafts.prepared_draft import PreparedDraft, StateBudget, prepare_draft
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.scheduler.request import Request, make_request

from .fake_model import EOS, TOKEN_BYTES, VOCABULARY
from .harness import generate

A, B, AB, NEWLINE = 2, 3, 4, 8
TREE = DraftTree([A, B, AB, NEWLINE, B, A], [-1, 0, 1, 2, 2, 4], [0.0] * 6)
RIGHT = [A, B, AB, B, A]  # of "[ab]{2,9}"


def request() -> Request:
    message = generate("r", [A, B], max_new_tokens=40)
    made = make_request(
        message, b"", 0.0, serial=0, end=42, rank=lambda message, owner, serial: serial, vocabulary=VOCABULARY
    )
    made.matcher = compile_constraint(Regex("[ab]{2,9}"), Vocabulary.from_tokens(TOKEN_BYTES, [EOS])).matcher()
    return made


def prepared(made: Request, budget: StateBudget | None) -> PreparedDraft | None:
    return prepare_draft(made, TREE, num_tokens=6, vocab_size=VOCABULARY.vocab_size, budget=budget)


def test_drafts_make_new_states_within_their_budget() -> None:
    expected = prepared(request(), None)
    assert expected is not None
    assert expected.tree.tokens == RIGHT
    budget = StateBudget(balance=60.0)
    assert prepared(request(), budget) == expected
    assert 0 < budget.balance < 60


@pytest.mark.parametrize("balance", [0.0, -1.0])
def test_without_a_budget_drafts_need_no_new_states(balance: float) -> None:
    made, budget = request(), StateBudget(balance)
    assert prepared(made, budget) is None
    assert made.matcher is not None
    first = prepared(made, StateBudget(balance=60.0))
    assert prepared(made, budget) == first, "all states are known now"
    assert budget.balance < balance, "that took time too"


def test_a_draft_that_took_more_than_was_left_is_paid_by_the_steps_after_it() -> None:
    budget = StateBudget(balance=1e-9)
    prepared(request(), budget)
    assert budget.balance < 0
    budget.earn(1e-9)
    assert budget.balance < 0
    for _ in range(100):
        budget.earn(10.0)
    assert 0 < budget.balance < 0.1
