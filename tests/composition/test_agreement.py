"""Log-probabilities that the runtime records, beside those of transformers' forward pass over the same tokens.

A mean difference of up to 1e-5 is rounding in float32; more biases a trainer. With ranks, experts, recurrent layers and
adapters, and after updates of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams
from ramiform.tools.check_logprobs import EXACT, Mismatch

from .alone import Got, run
from .lora_files import merged, write_adapter
from .test_any_model import SIZES
from .test_hybrid import FIELDS, OTHERS, make_model
from .threads import RanksEngine

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
MODELS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "dense": lambda: transformers.Qwen2Config(**SIZES),
    "experts": lambda: transformers.Qwen3MoeConfig(**SIZES, **EXPERTS),
    "hybrid": lambda: transformers.Qwen3NextConfig(**FIELDS),
    "Mamba2": lambda: transformers.FalconH1Config(**OTHERS["Falcon-H1"][1]),
}
NUM_TOKENS, TEMPERATURE, TOP_K = 24, 0.8, 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = make_model(MODELS[name](), tmp_path_factory.mktemp("checkpoint"))[1]
        return made[name]

    return make


def requests(adapters: Sequence[int] = (0,)) -> list[Generate]:
    """Return requests that share prefixes, sampled from the whole distribution and from a part of it."""
    made = []
    for number in range(6):
        tokens = [10 + (7 * place) % 1900 for place in range(20 + number)] + [11 * number]
        own = {"temperature": TEMPERATURE, "top_k": TOP_K} if number % 2 else {"temperature": 1.0}
        sampling = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True, seed=number, **own)
        logprobs, adapter = LogprobParams(details=True), adapters[number % len(adapters)]
        made.append(
            Generate(
                rid=str(number),
                tokens=tokens,
                sampling=sampling,
                logprobs=logprobs,
                adapter_number=adapter,
                namespace=str(adapter),
            )
        )
    return made


@torch.inference_mode()
def check(asked: Sequence[Generate], got: dict[str, Got], judges: dict[int, Path]) -> None:
    """Compare both log-probabilities of each token with those of the checkpoint of its request's adapter."""
    own: list[float] = []
    judged: list[float] = []
    drawn: list[float] = []
    models = {
        number: transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for number, path in judges.items()
    }
    for request in asked:
        mine = got[request.rid]
        assert len(mine.ids) == NUM_TOKENS
        ids_T = torch.tensor([*request.tokens, *mine.ids])
        logits_TV = (
            models[request.adapter_number](ids_T[None], use_cache=False).logits[0, -NUM_TOKENS - 1 : -1].double()
        )
        chosen_T1 = ids_T[-NUM_TOKENS:, None]
        own += [each.logprob for each in mine.logprobs]
        judged += logits_TV.log_softmax(-1).gather(1, chosen_T1)[:, 0].tolist()
        drawn += [each.details.drawn_logprob for each in mine.logprobs if each.details is not None]
        if request.sampling.top_k == TOP_K:
            least_T1 = logits_TV.topk(TOP_K).values[:, -1:]
            logits_TV = (logits_TV / TEMPERATURE).masked_fill(logits_TV < least_T1, -torch.inf)
        judged_drawn = logits_TV.log_softmax(-1).gather(1, chosen_T1)[:, 0]
        assert drawn[-NUM_TOKENS:] == pytest.approx(judged_drawn.tolist(), abs=1e-4)
    assert len(own) == len(drawn) == NUM_TOKENS * len(asked)
    assert Mismatch.of(own, judged).mean <= EXACT


CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense, two ranks": ("dense", {"deterministic": True, "tp": 2}),
    "experts": ("experts", {"deterministic": True}),
    "experts, two ranks": ("experts", {"deterministic": True, "tp": 2}),
    "experts on ranks of their own": ("experts", {"tp": 2, "ep": 2}),
    "hybrid": ("hybrid", {"deterministic": True}),
    "Mamba2": ("Mamba2", {"deterministic": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_recorded_log_probabilities_are_the_trainer_s_before_and_after_an_update(
    cell: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    name, settings = CELLS[cell]
    path, asked = checkpoint(name), requests()
    config = CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 128, "speculative": "off"} | settings)
    engine = RanksEngine(config, path, 2) if "tp" in settings else build_engine(config, path)
    engines = engine.engines if isinstance(engine, RanksEngine) else [engine]
    check(asked, run(asked, engine=engine, num_pages=128, **settings)[0], {0: path})
    tensors = load_file(path / "model.safetensors")
    changed = {
        key: 1.2 * tensor for key, tensor in tensors.items() if key.endswith(("o_proj.weight", "up_proj.weight"))
    }
    assert changed
    save_file(changed, tmp_path / "some.safetensors")
    for one in engines:
        one.prepare_weights(str(tmp_path / "some.safetensors"))
        one.take_weights()
    (tmp_path / "config.json").write_bytes((path / "config.json").read_bytes())
    save_file(tensors | changed, tmp_path / "model.safetensors", {"format": "pt"})
    check(asked, run(asked, engine=engine, num_pages=128, **settings)[0], {0: tmp_path})


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_with_an_adapter_they_are_those_of_merged_weights_before_and_after_an_update(
    tp: int, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path, asked = checkpoint("dense"), requests(adapters=(0, 1))
    adapter = write_adapter(tmp_path / "adapter", path, seed=5)
    config = CoreConfig(device="cpu", dtype="float32", num_pages=128, speculative="off", tp=tp)
    engine = RanksEngine(config, path, 2) if tp == 2 else build_engine(config, path)
    engines: list[ForwardEngine] = engine.engines if isinstance(engine, RanksEngine) else [engine]
    for one in engines:
        one.load_adapter(1, read_adapter(adapter, one.model_config, max_rank=8))
    both = {0: path, 1: merged(tmp_path / "merged", path, adapter)}
    check(asked, run(asked, engine=engine, num_pages=128, tp=tp)[0], both)
    updated = tmp_path / "updated"
    updated.mkdir()
    (updated / "config.json").write_bytes((path / "config.json").read_bytes())
    tensors = load_file(path / "model.safetensors")
    tensors |= {key: 1.2 * tensor for key, tensor in tensors.items() if "q_proj.weight" in key}
    save_file(tensors, updated / "model.safetensors", {"format": "pt"})
    for one in engines:
        one.prepare_weights(str(updated))
        one.take_weights()
    both = {0: updated, 1: merged(tmp_path / "merged again", updated, adapter)}
    check(asked, run(asked, engine=engine, num_pages=128, tp=tp)[0], both)
