"""Training: a function of seed and step, so that a stopped run goes on as if it had not stopped."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from model import CONTEXT  # noqa: E402 - only with torch and transformers installed
from tokenizer import train_tokenizer  # noqa: E402 - only with torch and transformers installed
from train import Recipe, Trainer, batch  # noqa: E402

TINY = Recipe(steps=8, turn=6, long_steps=0, tokens_per_step=128, row=64, vocab_size=512, warmup=2)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TINY.vocab_size, TINY.seed, num_documents=300)


def test_a_step_always_has_the_same_data(tokenizer):
    assert torch.equal(batch(tokenizer, TINY, 3), batch(tokenizer, TINY, 3))
    assert not torch.equal(batch(tokenizer, TINY, 3), batch(tokenizer, TINY, 4))
    assert batch(tokenizer, TINY, 3).shape == (2, 65)


def test_a_resumed_run_equals_an_unbroken_one(tokenizer, tmp_path):
    unbroken = Trainer(TINY, tokenizer, bf16=False, compiled=False)
    losses = [unbroken.train_step() for _ in range(3)]
    first = Trainer(TINY, tokenizer, bf16=False, compiled=False)
    first.train_step()
    first.save(tmp_path / "checkpoint.pt")
    second = Trainer(TINY, tokenizer, bf16=False, compiled=False)
    second.load(tmp_path / "checkpoint.pt")
    assert second.step == 1
    assert [second.train_step() for _ in range(2)] == pytest.approx(losses[1:], abs=1e-4)


def test_the_learning_rate_rises_and_falls():
    recipe = Recipe()
    factors = [recipe.lr_factor(step) for step in range(recipe.steps)]
    peak = factors.index(max(factors))
    assert max(factors) == 1.0
    assert peak <= recipe.warmup
    assert all(before >= after for before, after in itertools.pairwise(factors[peak:]))
    assert recipe.floor <= factors[-1] < recipe.floor + 0.01


def test_the_last_stage_fills_the_context():
    recipe = Recipe()
    assert recipe.stage(0)[1] == recipe.stage(recipe.turn)[1] == recipe.row
    assert recipe.stage(recipe.steps - 1)[1] == CONTEXT
