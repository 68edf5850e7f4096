"""The training examples: the model in plain torch, the loss, and a short run that raises the skill."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

FILE = Path(ramiform.__file__).parent / "examples/training/grpo.py"


@pytest.fixture(scope="module")
def grpo() -> dict[str, Any]:
    return runpy.run_path(str(FILE), run_name="grpo")


def row(
    ids: list[int], mask: list[bool], logprobs: list[float | None], reward: float, advantage: float
) -> dict[str, Any]:
    columns = {"advantages": [advantage] * len(ids), "shares": [1.0] * len(ids)}
    return {"ids": ids, "mask": mask, "drawn_logprobs": logprobs, "reward": reward, **columns}


@pytest.mark.slow
def test_the_model_and_loss_in_plain_torch_are_those_of_transformers(grpo: dict[str, Any]) -> None:
    weights = {name: value.float() for name, value in load_file(SHIPPED_MODEL / "model.safetensors").items()}
    judge = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    ids = torch.randint(0, 2048, (2, 19), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = judge(ids).logits
        assert torch.allclose(grpo["logits"](weights, ids), expected, atol=1e-4)
        own = expected[0].log_softmax(-1)
        lists = ids.tolist()
        logprobs = [None, *(own[place - 1, lists[0][place]].item() for place in range(1, 6))]
        mask = [False, False, True, True, False, True]
        first = row(lists[0][:6], mask, logprobs, 1.0, 0.7)
        # A token drawn with half of its probability: its ratio of 2 is clipped where that is a gain.
        second = row(lists[1][:2], [False, True], [None, 0.0], 0.0, -1.0)
        second["drawn_logprobs"][1] = expected[1, 0].log_softmax(-1)[lists[1][1]].item() - 0.6931472
        loss = grpo["loss_of"](weights, [first, second], "grpo").item()
        assert loss == pytest.approx(-(3 * 0.7 - 2.0) / 4, abs=1e-3)
        plain = grpo["loss_of"](weights, [first, second], "reinforce").item()
        assert plain == pytest.approx(-(3 * 1.0) / 4, abs=1e-3)


def test_held_out_chats_are_about_other_countries(grpo: dict[str, Any]) -> None:
    train, held_out = grpo["cases"]()
    questions = [
        {question.split("\n")[0] for case in own for question in case["questions"]} for own in (train, held_out)
    ]
    assert min(map(len, questions)) > 20
    assert not questions[0] & questions[1]


def test_rewards_count_right_answers(grpo: dict[str, Any]) -> None:
    names = {"questions": ["A?", "B?" + grpo["ENDING"]], "names": ["Rome", "Asia"]}
    for first, second, number in (("It is Rome.", "Asia", 2), ("Rome", "Asia", 1), ("Rome.", "It is Asia.", 0)):
        assert grpo["num_right"](names, {"first": first, "second": second}) == number
        assert grpo["reward"](names, {"first": first, "second": second}) == 0.5 + 0.25 * number


@pytest.mark.exhaustive
@pytest.mark.parametrize(("method", "staleness"), [("grpo", 0), ("tree", 0), ("reinforce", 0), ("grpo", 1)])
def test_a_short_run_of_each_method_changes_the_weights(grpo: dict[str, Any], method: str, staleness: int) -> None:
    with ramiform.Engine(dtype="float32", log_level="error") as engine:
        curve = grpo["train"](engine, seed=2, tokens=500, method=method, staleness=staleness, log=False)
        version = engine.generate("a", {"max_new_tokens": 1})["meta_info"]["weight_version"]
    assert curve[0][0] == 0
    assert curve[-1][0] >= 500
    assert all(0 < share <= 1 for _, share in curve)
    assert version.startswith("step-")


@pytest.mark.exhaustive
def test_grpo_raises_the_share_of_held_out_answers(grpo: dict[str, Any]) -> None:
    with ramiform.Engine(dtype="float32", log_level="error") as engine:
        curve = grpo["train"](engine, seed=2, tokens=1600, log=False)
    assert curve[-1][1] > curve[0][1] + 0.1
