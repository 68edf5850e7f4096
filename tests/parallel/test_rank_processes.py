"""A runtime whose model is shared by several processes: its answers, and what happens when one of them is missing,
fails or dies. Judge: the same questions to the runtime of one process."""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

import ramify

SOON = 2.0  # seconds within which a dead process takes the others along
CHECKED = {"dtype": "float32", "num_pages": 512, "port": 0, "log_level": "error"}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
QUESTIONS: list[dict[str, Any]] = [
    {"max_new_tokens": 30},
    {"max_new_tokens": 20, "temperature": 1.0, "sampling_seed": 3, "top_p": 0.9},
    {"max_new_tokens": 20, "n": 3, "temperature": 1.0, "sampling_seed": 5},
    {"max_new_tokens": 60, "json_schema": json.dumps(SCHEMA)},
    {"max_new_tokens": 20, "regex": r"( [a-z]{2,7}){3}\.", "frequency_penalty": 0.5},
]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def all_children(pid: int) -> list[int]:
    """Of any thread of the process: whoever starts a child is its parent by thread."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def wait_until_dead(pid: int, timeout: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def ask(url: str | None, **params: Any) -> Any:
    assert url is not None
    body = {
        "text": "Question: What is the capital of France?\nAnswer:",
        "sampling_params": {"temperature": 0.0, **params},
        "return_logprob": True,
    }
    answer = httpx.post(f"{url}/generate", json=body, timeout=100)
    answer.raise_for_status()
    answers = answer.json()
    return [(one["text"], one["output_ids"]) for one in (answers if isinstance(answers, list) else [answers])]


@ramify.function
def branches(s: ramify.ProgramState) -> None:
    s += "Paris is the capital of"
    for branch in (forks := s.fork(3)):
        branch += ramify.gen("x", max_tokens=8, temperature=0.0)
    s += "".join(branch["x"] for branch in forks)
    s += ramify.select("y", ["France", "Spain", "a lamp"])


@ramify.function
def endless(s: ramify.ProgramState) -> None:
    s += "Tell me everything." + ramify.gen("x", max_tokens=1900, ignore_eos=True, temperature=1.0)


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for sockets, so that what is left behind can be seen. Short: a socket's path is limited."""
    folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture(scope="module", params=["off", "on"])
def two(request: pytest.FixtureRequest) -> Iterator[ramify.Runtime]:
    """With one plan in flight, too."""
    with ramify.Runtime(tp=2, overlap=request.param, **CHECKED) as runtime:
        yield runtime


def test_two_ranks_answer_as_one(two: ramify.Runtime, runtime: ramify.Runtime) -> None:
    for params in QUESTIONS:
        assert ask(two.url, **params) == ask(runtime.url, **params), params
    states = [branches.run(backend=backend) for backend in (two, runtime)]
    assert states[0].text() == states[1].text()


def test_ranks_end_with_their_runtime(own_tmp: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ramify.Runtime(tp=2, **CHECKED) as runtime:
        [core] = children(runtime.pid)
        [rank] = all_children(core)
    assert wait_until_dead(core, SOON)
    assert wait_until_dead(rank, SOON)
    assert not list(own_tmp.iterdir())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("busy", [True, False])
def test_a_killed_rank_ends_the_runtime_and_fails_the_program(
    busy: bool, own_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ramify.Runtime(tp=2, **CHECKED) as runtime:
        [core] = children(runtime.pid)
        [rank] = all_children(core)
        states = [endless.run(backend=runtime, stream=True) for _ in range(3 * busy)]
        for state in states:
            next(state.text_iter())
        os.kill(rank, signal.SIGKILL)
        for state in states:
            with pytest.raises(ramify.RuntimeFailed, match=rf"rank 1 \(process {rank}\) was killed by signal 9"):
                state["x"]
        assert wait_until_dead(core, SOON)
        assert wait_until_dead(runtime.pid, SOON)
    assert f"rank 1 (process {rank}) was killed by signal 9" in capfd.readouterr().err
    assert not list(own_tmp.iterdir())


def test_a_killed_core_takes_the_ranks_along(own_tmp: Path) -> None:
    with ramify.Runtime(tp=2, **CHECKED) as runtime:
        [core] = children(runtime.pid)
        [rank] = all_children(core)
        os.kill(core, signal.SIGKILL)
        assert wait_until_dead(rank, SOON)
        assert wait_until_dead(runtime.pid, SOON)
    assert not list(own_tmp.iterdir())


def test_a_number_of_ranks_that_does_not_divide_the_model_is_refused() -> None:
    with pytest.raises(ramify.RequestError, match="tp 3 does not fit the model: num_attention_heads 4") as caught:
        ramify.Runtime(tp=3, **CHECKED)
    assert caught.value.param == "tp"


def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    """Its own part of a file: the end of it, which the first rank does not read."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((ramify_folder() / file).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-4000])
    with pytest.raises(ramify.RamifyError, match="corrupt or truncated"):
        ramify.Runtime(model=str(tmp_path), tp=2, dtype="float32", num_pages=16)


def ramify_folder() -> Path:
    from ramify.runtime.checkpoint import SHIPPED_MODEL

    return SHIPPED_MODEL
