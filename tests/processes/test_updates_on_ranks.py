"""A runtime of two processes whose weights change, and which sleeps. Judge: transformers with these weights."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import ramiform
from ramiform import gen
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.tools.check_logprobs import EXACT, Mismatch

from .processes import SOON, all_children, children, wait_until_dead

PROMPT = "Question: What is the capital of France?\nAnswer:"
SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True, "sampling_seed": 3}


@ramiform.function
def capital(s: ramiform.ProgramState, country: str) -> None:
    s += f"Question: What is the capital of {country}?\nAnswer:" + gen("x", max_tokens=8, temperature=0.8)


def mismatch(tensors: dict[str, torch.Tensor], prompt: list[int], result: dict[str, Any]) -> float:
    judge = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
    judge.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
    ids = result["output_ids"]
    with torch.inference_mode():
        logits_TV = judge(torch.tensor([prompt + ids])).logits[0, -len(ids) - 1 : -1].double()
    judged = logits_TV.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    return Mismatch.of([value for value, _, _ in result["meta_info"]["output_token_logprobs"]], judged).mean


@pytest.mark.exhaustive
def test_two_processes_take_weights_together_or_not_at_all(own_tmp: Path) -> None:
    settings: dict[str, Any] = {"port": 0, "dtype": "float32", "num_pages": 256, "deterministic": True}
    plain = load_file(SHIPPED_MODEL / "model.safetensors")
    changed = {name: 1.3 * tensor for name, tensor in plain.items() if "q_proj" in name or "down_proj" in name}
    with ramiform.Engine(tp=2, speculative="off", log_level="error", **settings) as engine:
        prompt = engine.tokenizer.encode(PROMPT)

        def answer() -> dict[str, Any]:
            found: dict[str, Any] = engine.generate(input_ids=prompt, sampling_params=SAMPLED, return_logprob=True)
            return found

        before = answer()
        assert mismatch(plain, prompt, before) <= EXACT
        name = "model.layers.2.self_attn.q_proj.weight"
        wrong = plain[name].clone()
        wrong[-1, -1] = float("nan")  # in the part of the second process
        with pytest.raises(ramiform.RequestError, match="no numbers"):
            engine.update_weights(changed | {name: wrong})
        assert answer()["output_ids"] == before["output_ids"]
        assert engine.update_weights(changed, version="changed") == "changed"
        after = answer()
        assert after["output_ids"] != before["output_ids"]
        assert mismatch(plain | changed, prompt, after) <= EXACT
        engine.sleep()
        with pytest.raises(ramiform.BusyError, match="sleeps"):
            answer()
        engine.wake_up()
        assert answer()["output_ids"] == after["output_ids"]
        found = ramiform.rollouts(
            capital,
            [{"country": "France"}, {"country": "Peru"}],
            lambda example, state: float(len(state["x"])),
            group=3,
            backend=engine.runtime,
        )
        for group in found:
            assert len(group.trajectories) == 3
            for one in group.trajectories:
                sampled = [place for place, is_own in enumerate(one.tokens.mask) if is_own]
                assert sampled
                assert all(one.tokens.drawn_logprobs[place] is not None for place in sampled)
                assert {one.tokens.versions[place] for place in sampled} == {"changed"}
        [core] = children(engine.runtime.pid)
        [rank] = all_children(core)
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(ramiform.RamiformError):
            engine.update_weights(plain)
        assert wait_until_dead(core, SOON)
    assert not [path for path in own_tmp.iterdir() if "ramiform" in path.name]  # the judge has a folder of its own
