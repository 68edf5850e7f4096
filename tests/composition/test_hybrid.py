"""Hybrid models compose with everything: their answers depend on no cache, schedule, draft or abort.

Small random checkpoints in float32. Judges: transformers' greedy tokens, each computed from the whole sequence; and for
what transformers does not know, the requests one by one without a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from typer.testing import CliRunner

from ramiform.cli import app
from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.draft_source import DraftRow, DraftSource
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.parallel.shard import shard_of
from ramiform.runtime.models.parallel.stage import stage_of
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import CoreStats, Generate
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams
from ramiform.runtime.scheduler import batch
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.speculation.build import build_source, resolve_speculation

from .alone import AnyTree, Got, run
from .test_any_model import SIZES
from .test_speculation import REQUESTS, check, crowding_requests

SHAPE: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_pages": 64, "speculative": "off"}
FIELDS = {
    **SIZES,
    "max_position_embeddings": 256,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
NEW_TOKENS = 7
Model = tuple[PreTrainedModel, Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(transformers.Qwen3NextConfig(**FIELDS), tmp_path_factory.mktemp("checkpoint"))


def make_model(config: transformers.PretrainedConfig, path: Path) -> Model:
    """Make a random model in which every parameter matters, and write its checkpoint."""
    torch.set_num_threads(1)
    torch.manual_seed(4)
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("A_log"):
                parameter.sub_(3.0)  # states that forget slowly
            elif parameter.dim() == 1 or "conv1d" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    made.save_pretrained(path)
    return made.eval(), path


def make_engine(model: Model, source: DraftSource | None = None, **settings: Any) -> ForwardEngine:
    return build_engine(CoreConfig(**SHAPE | settings), model[1], make_source=lambda *_, **__: source)


@torch.inference_mode()
def greedy(model: Model, tokens: Sequence[int]) -> list[int]:
    ids = list(tokens)
    for _ in range(NEW_TOKENS):
        ids.append(int(model[0](torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(tokens) :]


def request(rid: str, tokens: list[int], **params: Any) -> Generate:
    own = {"max_new_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True, **params}
    return Generate(rid=rid, tokens=tokens, sampling=SamplingParams(**own))


def some_tokens(count: int, seed: int) -> list[int]:
    return [10 + (7 * place + 311 * seed) % 2000 for place in range(count)]


def conversation(model: Model) -> tuple[list[Generate], dict[str, list[int]]]:
    """Turns, a prompt that leaves the first one inside a page, and the first one again: what each has to get."""
    requests, wanted = [], {}
    tokens = some_tokens(45, seed=1)
    first = list(tokens)
    for turn in range(3):
        requests.append(request(f"turn {turn}", list(tokens)))
        wanted[f"turn {turn}"] = greedy(model, tokens)
        tokens = [*tokens, *wanted[f"turn {turn}"], *some_tokens(11, seed=7 + turn)]
    for rid, others in (("inside a page", [*first[:37], *some_tokens(9, seed=5)]), ("again", first)):
        requests.append(request(rid, others))
        wanted[rid] = greedy(model, others)
    return requests, wanted


SHAPES: dict[str, dict[str, Any]] = {
    "cached": {},
    "no cache": {"prefix_cache": False},
    "chunks, three slots": {"prefill_budget": 16, "state_slots": 3, "max_running": 2},
    "n-grams": {"speculative": "ngram", "speculative_adaptive": False},
    "host memory, few pages": {"num_pages": 13, "host_kv_memory": 0.01},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_turns_of_a_conversation_get_transformers_tokens(shape: dict[str, Any], model: Model) -> None:
    requests, wanted = conversation(model)
    settings = SHAPE | {"speculative_eagle_topk": 1} | shape
    got, stats, _ = run(requests, engine=make_engine(model, **shape), stagger=12, **settings)
    assert {rid: mine.ids for rid, mine in got.items()} == wanted
    assert (stats.num_checkpoints > 0) == settings.get("prefix_cache", True)
    if not shape:
        # The second and third turn go on where the one before ended, but for its last token. The one that leaves the
        # first prompt inside a page goes on there; the first one again at its last whole page, and recomputes the rest.
        ends = 45 + NEW_TOKENS - 1, 45 + NEW_TOKENS + 11 + NEW_TOKENS - 1
        assert stats.num_cached_tokens == sum(ends) + 37 + 32
        assert stats.num_replayed_tokens == 44 - 32


# Other kinds of layers: a convolution without a matrix as its state, Mamba1, Mamba2 in layers of one part and beside
# attention.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LFM2": ("Lfm2", {**SIZES, "max_position_embeddings": 256, "layer_types": ["conv", "full_attention"]}),
    "Falcon-H1": (
        "FalconH1",
        {
            **SIZES,
            "max_position_embeddings": 256,
            "mamba_n_heads": 4,
            "mamba_d_ssm": 64,
            "mamba_chunk_size": 16,
            "mamba_d_state": 12,
            "key_multiplier": 0.7,
            "ssm_out_multiplier": 1.5,
        },
    ),
    "Jamba": (
        "Jamba",
        {
            **SIZES,
            "max_position_embeddings": 256,
            "num_experts": 4,
            "mamba_d_state": 5,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
        },
    ),
    "Nemotron-H": (
        "NemotronH",
        {
            **SIZES,
            "max_position_embeddings": 256,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 10,
            "ssm_state_size": 12,
            "n_groups": 2,
            "head_dim": 16,
            "time_step_min": 1e-30,
        },
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", ["chunks, three slots", "n-grams"])
@pytest.mark.parametrize("name", OTHERS)
def test_turns_with_other_kinds_of_layers_get_transformers_tokens(name: str, shape: str, tmp_path: Path) -> None:
    kind, fields = OTHERS[name]
    other = make_model(getattr(transformers, f"{kind}Config")(**fields), tmp_path)
    requests, wanted = conversation(other)
    settings = SHAPE | {"speculative_eagle_topk": 1} | SHAPES[shape]
    got, stats, _ = run(requests, engine=make_engine(other, **SHAPES[shape]), stagger=12, **settings)
    assert {rid: mine.ids for rid, mine in got.items()} == wanted
    assert stats.num_checkpoints > 0


BITS = {"Qwen3-Next": ("Qwen3Next", FIELDS), **OTHERS}


@pytest.mark.slow
@pytest.mark.parametrize("name", BITS)
def test_deterministic_answers_have_the_bits_of_requests_alone(name: str, tmp_path: Path) -> None:
    """In batches and chunks, after cached prefixes, with guesses."""
    kind, fields = BITS[name]
    own = make_model(getattr(transformers, f"{kind}Config")(**fields), tmp_path)
    requests = [
        Generate(
            rid=f"r{number}",
            tokens=[*some_tokens(45, seed=1), *some_tokens(3 * number, seed=2)],
            sampling=SamplingParams(max_new_tokens=6, temperature=0.9 * (number % 2), seed=number, ignore_eos=True),
            logprobs=LogprobParams(num_top=2),
        )
        for number in range(4)
    ]
    settings: dict[str, Any] = SHAPE | {"deterministic": True, "speculative_eagle_topk": 1}
    engine = make_engine(own, **settings | {"prefix_cache": False})
    expected: dict[str, Got] = {}
    for one in requests:
        expected |= run([one], engine=engine, **settings | {"prefix_cache": False})[0]
    for shape in ({"prefill_budget": 16}, {"speculative": "ngram", "speculative_adaptive": False}):
        engine = make_engine(own, **settings | shape)
        got, stats, plans = run([*requests], engine=engine, stagger=3, **settings | shape)
        check(got, expected, tolerance=0.0)
        assert stats.num_cached_tokens > 0
        assert max(len(plan.rows) for plan in plans) > 1


@pytest.fixture(scope="module")
def alone(model: Model) -> dict[str, Got]:
    engine = make_engine(model, prefix_cache=False, num_pages=512)
    return run([*REQUESTS[:16], *samples(), REPEATED], engine=engine, stagger=40, **SHAPE | {"prefix_cache": False})[0]


def samples() -> list[Generate]:
    """Samples of one prompt, which waits for the first of them."""
    tokens = some_tokens(83, seed=2)
    return [request(f"sample {seed}", tokens, temperature=1.0, seed=seed) for seed in range(4)]


def run_all(
    model: Model, requests: list[Generate], stagger: int = 2, source: DraftSource | None = None, **shape: Any
) -> tuple[dict[str, Got], CoreStats]:
    settings = SHAPE | {"num_pages": 512, "speculative_eagle_topk": 1, "speculative_adaptive": False} | shape
    engine = make_engine(model, source, **settings)
    got, stats, _ = run(requests, engine=engine, stagger=stagger, **settings)
    return got, stats


# A word that is likely again and again, whatever the model says.
REPEATED = request("repeated", some_tokens(20, seed=3), max_new_tokens=30, logit_bias={50: 100.0})


class Chains(AnyTree):
    """Proposes chains. It peeks at what is going to be said, and most of it is right."""

    def _any(self, row: DraftRow, tokens: list[int]) -> DraftTree:
        assert row.want is not None
        right = next((rest for rest in map(self._after(tokens), self._outputs) if rest), [])
        chain = right[: self._random.randint(1, row.want.num_tokens)] or [7]
        if self._random.random() < 0.4:
            chain[-1] = (chain[-1] + 1) % 2048
        return DraftTree(chain, list(range(-1, len(chain) - 1)), [-0.1] * len(chain))

    @staticmethod
    def _after(tokens: list[int]) -> Callable[[tuple[list[int], list[int]]], list[int]]:
        return lambda one: [*one[0], *one[1]][len(tokens) :] if [*one[0], *one[1]][: len(tokens)] == tokens else []


MIXES: dict[str, dict[str, Any]] = {
    "cached, chunks": {"prefill_budget": 32},
    "n-grams": {"speculative": "ngram", "speculative_num_steps": 4},
    "any chains": {"speculative": "draft", "num_pages": 40},
    "suffixes, few pages and slots": {"speculative": "suffix", "num_pages": 30, "state_slots": 10, "max_running": 8},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", MIXES.values(), ids=MIXES)
def test_whatever_a_request_asks_for_is_the_same(
    shape: dict[str, Any], model: Model, alone: dict[str, Got], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws, grammars, stops, penalties, log-probabilities, forced text, evictions."""
    monkeypatch.setattr(batch, "STATE_INTERVAL", 24)
    requests = [*REQUESTS[:16], *samples(), REPEATED]
    outputs = [(one.tokens, alone[one.rid].ids) for one in requests]
    source = Chains(1, outputs) if shape.get("speculative") == "draft" else None
    got, stats = run_all(model, requests, source=source, **shape)
    check(got, alone)
    assert stats.num_kept_states > 0
    assert (stats.num_accepted_tokens > 0) == ("speculative" in shape)


@pytest.mark.exhaustive
def test_samples_of_a_prompt_compute_it_once(model: Model, alone: dict[str, Got]) -> None:
    together, one_by_one = run_all(model, samples(), stagger=0), run_all(model, samples())
    for got, _ in (together, one_by_one):
        check(got, alone)
        assert len({tuple(mine.ids) for mine in got.values()}) == 4
    # Samples that wait for the first one tell it where they leave it.
    assert (together[1].num_cached_tokens, together[1].num_replayed_tokens) == (3 * 82, 0)
    # A later one goes on from the last whole page, and leaves a state where it has to begin: the others find it.
    assert (one_by_one[1].num_cached_tokens, one_by_one[1].num_replayed_tokens) == (80 + 2 * 82, 2)


@pytest.mark.exhaustive
def test_retracted_requests_go_on_from_their_states(model: Model) -> None:
    requests = crowding_requests()[::2]
    got, stats = run_all(model, requests, num_pages=20)
    assert stats.num_retractions > 0
    check(got, run_all(model, requests, prefix_cache=False)[0])


def test_aborts_lose_no_slot_and_change_no_other_answer(model: Model, alone: dict[str, Got]) -> None:
    settings = SHAPE | {"prefill_budget": 32, "state_slots": 6, "max_running": 4}
    aborts = {3: "sample 0", 9: "sample 2"}
    got, stats, _ = run(samples(), engine=make_engine(model, **settings), aborts=aborts, stagger=2, **settings)
    assert got["sample 0"].ids == alone["sample 0"].ids[: len(got["sample 0"].ids)]
    for rid in ("sample 1", "sample 3"):
        assert got[rid].ids == alone[rid].ids
    assert stats.num_running == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deterministic": True, "dtype": "float16"}, "deterministic is not for models with recurrent layers"),
        ({"deterministic": True, "kernels": "reference"}, "only a CPU's compiled loops, in float32 or bfloat16"),
        ({"overlap": "on"}, "overlap is not for models with recurrent layers"),
        ({"transfer_bind": "tcp://127.0.0.1:0"}, "transfer_bind is not for models with recurrent layers"),
        ({"state_slots": 1 << 33}, "recurrent states take .* GiB, more than cpu has .* lower state_slots"),
        ({"state_slots": 4, "max_running": 5}, "state_slots 4 are fewer than max_running 5"),
    ],
)
def test_settings_that_hybrid_models_do_not_know_are_refused(
    settings: dict[str, Any], message: str, model: Model
) -> None:
    with pytest.raises(RequestError, match=message):
        make_engine(model, **settings)


def test_ranks_are_refused(model: Model) -> None:
    config = read_config(model[1])
    with pytest.raises(RequestError, match="tp 2 does not fit the model: its recurrent layers are not divided"):
        shard_of(config, rank=0, size=2, ordered=False)
    with pytest.raises(RequestError, match="pp 2 does not fit the model: its recurrent layers are not divided"):
        stage_of(config, index=0, size=2)


def test_trees_and_draft_heads_are_refused(model: Model) -> None:
    engine = make_engine(model)
    config = CoreConfig(device="cpu", speculative="ngram", speculative_eagle_topk=3)
    with pytest.raises(RequestError, match="follows one chain of draft tokens, not a tree"):
        resolve_speculation(config, model[1])
    config = CoreConfig(device="cpu", speculative="eagle", speculative_draft_model=str(SHIPPED_MODEL / "draft"))
    with pytest.raises(RequestError, match="eagle is not for models with recurrent layers"):
        build_source(config, model[1], engine._runner.model, num_pages=8, num_host_pages=0)
    config = CoreConfig(device="cpu", speculative="lookahead")
    with pytest.raises(RequestError, match="lookahead verifies trees of draft tokens"):
        build_source(config, model[1], engine._runner.model, num_pages=8, num_host_pages=0)


def test_no_head_is_trained_that_would_be_refused(model: Model, tmp_path: Path) -> None:
    arguments = ["train-draft", str(model[1]), "--data", __file__, "--out", str(tmp_path / "head")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code != 0
    assert "draft heads are not for models with recurrent layers" in str(done.exception)
    assert not (tmp_path / "head").exists()
