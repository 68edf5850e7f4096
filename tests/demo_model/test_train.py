"""Training as a function of seed and step: a stopped run continues as if it had not stopped."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")  # hence the imports below it

from ramiform.examples.demo_model.corpus.answer_spans import answer_spans  # noqa: E402
from ramiform.examples.demo_model.corpus.mix import HARD_SHARES, SHARES, cases  # noqa: E402
from ramiform.examples.demo_model.model import CONTEXT, config, fresh  # noqa: E402
from ramiform.examples.demo_model.tokenizer import SPECIAL, train_tokenizer  # noqa: E402
from ramiform.examples.demo_model.train import Recipe, Stage, Trainer, batch  # noqa: E402

TINY = Recipe(
    stages=(
        Stage(2, SHARES, row=64, prompt_weight=1.0, lr=0.5),
        Stage(8, HARD_SHARES, row=128, prompt_weight=0.2, lr=0.1),
    ),
    tokens_per_step=128,
    vocab_size=512,
    warmup=2,
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TINY.vocab_size, TINY.seed, num_documents=300)


def test_a_step_always_has_the_same_data(tokenizer):
    (rows, weights), (again, _), (other, _) = (batch(tokenizer, TINY, step) for step in (3, 3, 4))
    assert torch.equal(rows, again)
    assert not torch.equal(rows, other)
    assert rows.shape == weights.shape == (1, 129)
    assert batch(tokenizer, TINY, 0)[0].shape == (2, 65)
    assert weights.unique().tolist() == pytest.approx([0.2, 1.0])


def test_answers_weigh_in_full_and_prompts_do_not():
    for case in itertools.islice(cases(9), 300):
        owned = "".join(case.document[a:b] for a, b in answer_spans(case))
        assert all(line in owned for line in case.answer.splitlines() if not line.startswith("Observation"))
        assert "<|user|>" not in owned


def test_a_resumed_run_equals_an_unbroken_one(tokenizer, tmp_path):
    settings = config(TINY.vocab_size, {mark: tokenizer.token_to_id(mark) for mark in SPECIAL})
    settings.num_hidden_layers, settings.hidden_size, settings.intermediate_size = 1, 32, 48
    unbroken, first, second = (
        Trainer(TINY, tokenizer, bf16=False, compiled=False, model=fresh(settings, TINY.seed)) for _ in range(3)
    )
    losses = [unbroken.train_step() for _ in range(3)]
    first.train_step()
    first.save(tmp_path / "checkpoint.pt")
    second.load(tmp_path / "checkpoint.pt")
    assert second.step == 1
    assert [second.train_step() for _ in range(2)] == pytest.approx(losses[1:], abs=1e-4)


def test_the_learning_rate_rises_and_falls():
    recipe = Recipe()
    factors = [recipe.lr_factor(step) for step in range(recipe.steps)]
    peak = factors.index(max(factors))
    assert max(factors) == 1.0
    assert peak <= recipe.warmup
    assert factors[-1] == pytest.approx(min(factors[peak:]), rel=0.1)
    # It may rise again where a stage takes up what was weak, but never jumps.
    assert all(abs(after - before) <= 1 / recipe.warmup + 1e-9 for before, after in itertools.pairwise(factors))
    assert factors[-1] == pytest.approx(recipe.stages[-1].lr, abs=0.01)


def test_the_last_stage_fills_the_context():
    recipe = Recipe()
    assert recipe.stage(0) is recipe.stages[0]
    assert recipe.stage(recipe.steps - 1).row == CONTEXT
