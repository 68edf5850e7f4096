"""`ramiform quantize` on the shipped model, and serving its result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from ramiform.cli import app
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.processes.launch import Runtime
from ramiform.runtime.protocol.config import QuantizeName
from ramiform.tools.quantize.perplexity import perplexity_of

TEXT = "Extract as JSON: Mira Sol is 34 years old and lives in Oslo.\n" * 3


def test_perplexity_is_that_of_transformers() -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    judge = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
    ids = torch.tensor([tokenizer.encode(TEXT, add_special_tokens=False)])
    with torch.inference_mode():
        expected = judge(ids, labels=ids).loss.exp().item()
    assert perplexity_of(SHIPPED_MODEL, TEXT) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_windows_do_not_see_each_other() -> None:
    whole, cut = (perplexity_of(SHIPPED_MODEL, TEXT, window=window) for window in (512, 8))
    assert cut > whole


@pytest.mark.slow
@pytest.mark.parametrize(("method", "load_time"), [("int8", "int8"), ("int4-rtn", "int4"), ("fp8", None)])
def test_the_command_reports_and_the_runtime_serves_its_checkpoint(
    method: str, load_time: QuantizeName | None, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text(TEXT)
    out = tmp_path / "out"
    arguments = ["quantize", str(SHIPPED_MODEL), "--method", method, "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / "text")])
    assert result.exit_code == 0, result.output
    after = perplexity_of(out, TEXT)
    assert f"{after:.4f}" in result.output
    assert f"{perplexity_of(SHIPPED_MODEL, TEXT):.4f}" in result.output
    if load_time is not None:  # the same numbers, whoever rounds them; fp8 by file keeps its inputs' scales too
        assert after == pytest.approx(perplexity_of(SHIPPED_MODEL, TEXT, quantize=load_time), rel=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("quantize", ["int4", "fp8"])
def test_the_runtime_generates_with_quantised_weights(quantize: QuantizeName) -> None:
    import ramiform

    prompt = "Question: What is 2 + 2?\n"
    with Runtime(quantize=quantize) as runtime:

        @ramiform.function
        def answer(s: ramiform.ProgramState) -> None:
            s += prompt
            s += ramiform.gen("text", max_tokens=8, temperature=0.0)

        state = answer.run(backend=runtime)
        assert len(state["text"]) > 0


def test_a_text_of_one_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a")
    result = CliRunner().invoke(
        app,
        [
            "quantize",
            str(SHIPPED_MODEL),
            "--method",
            "int8",
            "--out",
            str(tmp_path / "o"),
            "--data",
            str(tmp_path / "text"),
        ],
    )
    assert result.exit_code != 0
    assert "fewer than two tokens" in str(result.exception)
