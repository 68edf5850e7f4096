"""Drafts under a grammar on its first use. Judge: the drafts that are verified when all its states are known."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from ramiform.constrained import (
    Choices,
    Grammar,
    JsonSchema,
    Regex,
    StructuralTag,
    Vocabulary,
    compile_constraint,
)
from ramiform.runtime.protocol.sampling import Constraint
from ramiform.runtime.scheduler.drafts.prepared_draft import PreparedDraft, StateBudget, prepare_draft
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.scheduler.jump_forward import append_forced
from ramiform.runtime.scheduler.request import Request, make_request
from ramiform.runtime.scheduler.rows.mask_preparation import MaskPreparation

from .fake_model import EOS, TOKEN_BYTES, VOCABULARY
from .harness import generate

A, B, AB, NEWLINE = 2, 3, 4, 8
TREE = DraftTree([A, B, AB, NEWLINE, B, A], [-1, 0, 1, 2, 2, 4], [0.0] * 6)
RIGHT = [A, B, AB, B, A]  # of REGEX
REGEX = Regex("[ab]{2,9}")
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


def request(constraint: object = REGEX, token_bytes: Sequence[bytes | None] = TOKEN_BYTES) -> Request:
    message = generate("r", [A, B], max_new_tokens=40, constraint=Constraint("regex", "the matcher's"))
    made = make_request(
        message, b"", 0.0, serial=0, end=42, rank=lambda message, owner, serial: serial, vocabulary=VOCABULARY
    )
    made.matcher = compile_constraint(constraint, Vocabulary.from_tokens(token_bytes, [EOS])).matcher()
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


TAGS = {"triggers": ["<call"], "structures": [{"begin": "<call>", "schema": PERSON, "end": "</call>"}]}


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (JsonSchema(PERSON), '{"name": "Ada", "age": 36}'),
        (Regex(r"[A-Z][a-z]+, \d{1,3} years"), "Ada, 36 years"),
        (StructuralTag(TAGS), 'I call <call>{"name": "Ada"}</call>'),
        (Choices(["Ada Brook", "Ada Field"]), "Ada Field"),
        (Grammar('root ::= "(" root ")" | [0-9]+', syntax="gbnf"), "((36))"),
    ],
    ids=["schema", "regex", "tags", "choices", "grammar"],
)
def test_whatever_constrains_a_text_its_first_draft_is_verified_whole(constraint: object, text: str) -> None:
    """The masks are made for the draft, none of which was needed before. A draft of a tool call is one of a tag."""
    single: list[bytes | None] = [None, *(bytes([byte]) for byte in range(1, 256))]
    made = request(constraint, single)
    chain = DraftTree.chain([*text.encode()[:-1], 0x7F])
    found = prepare_draft(made, chain, num_tokens=99, vocab_size=256, budget=StateBudget(balance=60.0))
    assert found is not None
    assert bytes(found.tree.tokens) == text.encode()[:-1]


def test_a_draft_goes_on_behind_text_that_was_forced_in_a_thread() -> None:
    made = request(Regex("abb[ab]{5}"))

    def work(_: object, job: object) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(job())  # type: ignore[operator]
        return done

    preparation = MaskPreparation(work, lambda request: append_forced(request, [B, B]), lambda request: False)
    made.tokens.append(A)
    made.draft = DraftTree.chain([B, B, A, A, B])
    preparation.follow(made, A)
    for _ in range(10):
        list(preparation.settle())
    assert not preparation
    assert made.tokens[-3:] == [A, B, B]
    assert made.draft.tokens == [A, A, B]
