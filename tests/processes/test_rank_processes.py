"""A runtime whose model is shared by several processes: its answers, and what happens when one of them is missing,
fails or dies. Judge: the same questions to the runtime of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

from .processes import SOON, all_children, children, endless, wait_until_dead
from .questions import CHECKED, QUESTIONS, ask

DIVIDED: list[dict[str, Any]] = [
    {"pp": 2, "speculative": "ngram"},
    {"tp": 2, "pp": 2, "overlap": "on"},
]


@ramiform.function
def branches(s: ramiform.ProgramState) -> None:
    s += "Paris is the capital of"
    for branch in (forks := s.fork(3)):
        branch += ramiform.gen("x", max_tokens=8, temperature=0.0)
    s += "".join(branch["x"] for branch in forks)
    s += ramiform.select("y", ["France", "Spain", "a lamp"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", DIVIDED, ids=str)
def test_several_ranks_answer_as_one_and_end_with_their_runtime(
    settings: dict[str, Any], runtime: ramiform.Runtime, own_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ramiform.Runtime(**settings, **CHECKED) as divided:
        for params in QUESTIONS:
            assert ask(divided.url, **params) == ask(runtime.url, **params), params
        states = [branches.run(backend=backend) for backend in (divided, runtime)]
        assert states[0].text() == states[1].text()
        [core] = children(divided.pid)
        ranks = all_children(core)
        assert len(ranks) == settings.get("tp", 1) * settings["pp"] - 1
    assert all(wait_until_dead(pid, SOON) for pid in (core, *ranks))
    assert not list(own_tmp.iterdir())
    assert capfd.readouterr().err == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("way", "busy"), [("tp", True), ("pp", False)])
def test_a_killed_rank_ends_the_runtime_and_fails_the_program(
    way: str, busy: bool, own_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ramiform.Runtime(**{way: 2}, **CHECKED) as runtime:
        [core] = children(runtime.pid)
        [rank] = all_children(core)
        states = [endless.run(backend=runtime, stream=True) for _ in range(3 * busy)]
        for state in states:
            state["began"]
        os.kill(rank, signal.SIGKILL)
        for state in states:
            with pytest.raises(ramiform.RuntimeFailed, match=rf"rank 1 \(process {rank}\) was killed by signal 9"):
                state.text()
        assert wait_until_dead(core, SOON)
        assert wait_until_dead(runtime.pid, SOON)
    assert f"rank 1 (process {rank}) was killed by signal 9" in capfd.readouterr().err
    assert not list(own_tmp.iterdir())


@pytest.mark.exhaustive
def test_a_killed_core_takes_the_ranks_along(own_tmp: Path) -> None:
    with ramiform.Runtime(tp=2, **CHECKED) as runtime:
        [core] = children(runtime.pid)
        [rank] = all_children(core)
        os.kill(core, signal.SIGKILL)
        assert wait_until_dead(rank, SOON)
        assert wait_until_dead(runtime.pid, SOON)
    assert not list(own_tmp.iterdir())


@pytest.mark.exhaustive
def test_a_number_of_ranks_that_does_not_divide_the_model_is_refused() -> None:
    """So is that of stages: composition.test_stages."""
    with pytest.raises(ramiform.RequestError, match="tp 3 does not fit the model: num_attention_heads 4") as caught:
        ramiform.Runtime(tp=3, **CHECKED)
    assert caught.value.param == "tp"


@pytest.mark.exhaustive
def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    """Its own part of a file: the end of it, which the first rank does not read."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((SHIPPED_MODEL / file).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-4000])
    with pytest.raises(ramiform.RamiformError, match="corrupt or truncated"):
        ramiform.Runtime(model=str(tmp_path), pp=2, dtype="float32", num_pages=16)
