"""`ramiform check-logprobs`: how far the log-probabilities that a runtime records are from those of a trainer's forward
pass, and which setting brings them together.

The runtime generates, and records log p of each of its tokens. Transformers computes log p of the very same tokens in
one pass over each sequence, as a trainer does, with the experts that the runtime chose. What is left is rounding, or a
fault.
"""

from __future__ import annotations

import gc
import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import torch

TrainerDtype = Literal["float32", "bfloat16"]
PROMPTS = (
    "The history of the town begins with a bridge over the river.",
    "Question: What is the capital of France?\nAnswer:",
    "def mean(values):\n    ",
    "A list of things to buy at the market:\n1.",
    '{"name": "Ada", "age":',
    "Once upon a time there was a miller who had three sons.",
    "The derivative of x squared is",
    "Dear Ms Weber,\n\nthank you for",
)
EXACT = 1e-5  # mean difference that float32 reaches, where both sum in the same order


@dataclass(frozen=True)
class SampledSequence:
    """A generated sequence: its ids, of which the last ones have `logprobs` that were recorded for them."""

    ids: list[int]
    logprobs: list[float]
    experts_TLK: torch.Tensor | None = None  # of all tokens, of a model whose experts a trainer replays


@dataclass(frozen=True)
class Mismatch:
    """Differences of log-probabilities over sampled tokens: mean, 99th percentile and largest of their size.

    `kl` estimates the Kullback-Leibler divergence of the sampling distribution from the other: the mean of r - 1 -
    log r, where r is the other's probability of a token over its own.
    """

    num_tokens: int
    mean: float
    p99: float
    largest: float
    kl: float

    @classmethod
    def of(cls, own: Sequence[float], other: Sequence[float]) -> Mismatch:
        """Compare log-probabilities of the same tokens, which `own` has sampled."""
        log_ratios = [theirs - ours for ours, theirs in zip(own, other, strict=True)]
        sizes = sorted(map(abs, log_ratios))
        kl = math.fsum(math.expm1(ratio) - ratio for ratio in log_ratios) / len(sizes)
        p99 = sizes[min(len(sizes) - 1, math.ceil(0.99 * len(sizes)) - 1)]
        return cls(len(sizes), math.fsum(sizes) / len(sizes), p99, sizes[-1], kl)


@dataclass(frozen=True)
class RuntimeSetting:
    """A setting of the runtime that is compared."""

    dtype: TrainerDtype
    deterministic: bool

    @property
    def name(self) -> str:
        return f"--dtype {self.dtype}" + " --deterministic" * self.deterministic


@dataclass(frozen=True)
class ComparedSetting:
    """A runtime's setting beside a trainer of a dtype."""

    setting: RuntimeSetting
    trainer: TrainerDtype
    mismatch: Mismatch  # where there are experts, of a trainer that replays the runtime's
    own_experts: Mismatch | None = None  # of one that chooses its own; None: there are none, or they are not replayed


@dataclass(frozen=True)
class LogprobReport:
    """Settings from the asked one on, up to the first that agrees; and the trainer beside its own float32.

    `floor` is None for a trainer in float32, whose rounding is not measured.
    """

    compared: list[ComparedSetting]
    floor: Mismatch | None

    @property
    def bound(self) -> float:
        """Return the mean difference up to which a setting agrees."""
        return EXACT if self.floor is None else self.floor.mean

    @property
    def agreeing(self) -> RuntimeSetting | None:
        """Return the first setting that agrees with the trainer."""
        return next((one.setting for one in self.compared if one.mismatch.mean <= self.bound), None)


def compare(folder: Path, asked: RuntimeSetting, trainer: TrainerDtype, *, num_tokens: int, seed: int) -> LogprobReport:
    """Generate with the asked setting and, until one agrees with a trainer of that dtype, with stricter ones.

    A trainer in float32 agrees with float32 alone. Raises RamiformError for a model that does not load.
    """
    compared: list[ComparedSetting] = []
    floor: Mismatch | None = None
    for setting in _stricter(asked, trainer):
        samples = generate(folder, setting, num_tokens, seed)
        own = [value for one in samples for value in one.logprobs]
        theirs = trainer_logprobs(folder, samples, trainer)
        own_experts = None
        if samples[0].experts_TLK is not None:
            own_experts = Mismatch.of(own, trainer_logprobs(folder, samples, trainer, replays=False))
        if trainer != "float32" and floor is None:
            floor = Mismatch.of(trainer_logprobs(folder, samples, "float32"), theirs)
        compared.append(ComparedSetting(setting, trainer, Mismatch.of(own, theirs), own_experts))
        report = LogprobReport(compared, floor)
        if report.agreeing is not None:
            break
    return report


def _stricter(asked: RuntimeSetting, trainer: TrainerDtype) -> Iterator[RuntimeSetting]:
    """Yield the asked setting, then those that round less or as the trainer does."""
    seen = []
    for one in (
        asked,
        RuntimeSetting(asked.dtype, True),
        RuntimeSetting(trainer, asked.deterministic),
        RuntimeSetting(trainer, True),
        RuntimeSetting("float32", True),
    ):
        if one not in seen:
            seen.append(one)
            yield one


def generate(folder: Path, setting: RuntimeSetting, num_tokens: int, seed: int) -> list[SampledSequence]:
    """Return what a runtime of the setting samples at temperature 1 after each of PROMPTS."""
    from ..runtime.models.experts.routes import RECORDED
    from ..runtime.models.read_config import read_config
    from ..runtime.offline import Engine
    from .replay_experts import recorded_experts

    config = read_config(folder)
    records = config.is_native and config.architecture in RECORDED
    with Engine(
        str(folder),
        dtype=setting.dtype,
        deterministic=setting.deterministic,
        enable_return_routed_experts=records,
        log_level="error",
    ) as engine:
        prompts = [engine.tokenizer.encode(text, add_bos=True) for text in PROMPTS]
        sampling = [
            {"max_new_tokens": num_tokens, "temperature": 1.0, "ignore_eos": True, "sampling_seed": seed + number}
            for number in range(len(prompts))
        ]
        results: list[dict[str, Any]] = engine.generate(
            input_ids=prompts, sampling_params=sampling, return_logprob=True, return_routed_experts=records
        )
    found = []
    for prompt, result in zip(prompts, results, strict=True):
        entries, experts_TLK = result["meta_info"]["output_token_logprobs"], None
        if records and config.experts is not None:
            shape = config.num_layers, config.experts.num_per_token
            experts_TLK = recorded_experts(result["meta_info"], *shape)
        ids = [*prompt, *(token for _, token, _ in entries)]
        found.append(SampledSequence(ids, [value for value, _, _ in entries], experts_TLK))
    return found


def trainer_logprobs(
    folder: Path, samples: Sequence[SampledSequence], dtype: TrainerDtype, *, replays: bool = True
) -> list[float]:
    """Return transformers' log-probabilities of the generated tokens, sequence after sequence: from logits of `dtype`,
    normalised in float32. It `replays` the experts that samples have.

    torch's `log_softmax` over 150,000 ids is off by some 1e-5 on a CPU, all to one side; its `logsumexp` is not.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from .replay_experts import replayed_experts

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    found: list[float] = []
    with torch.inference_mode():
        for one in samples:
            ids_T = torch.tensor(one.ids)
            first = len(one.ids) - len(one.logprobs)
            experts_TLK = one.experts_TLK if replays else None
            with nullcontext() if experts_TLK is None else replayed_experts(model, experts_TLK[None]):
                logits_TV = model(ids_T[None]).logits[0, first - 1 : -1].float()
            chosen_T = logits_TV.gather(1, ids_T[first:, None]).squeeze(1)
            found += (chosen_T - logits_TV.logsumexp(-1)).tolist()
    del model
    gc.collect()
    return found


def check_logprobs(
    model: Annotated[str, typer.Argument(help="Path or hub id of a checkpoint of safetensors files.")],
    dtype: Annotated[TrainerDtype, typer.Option(help="dtype of the runtime's weights.")] = "bfloat16",
    trainer: Annotated[
        TrainerDtype | None, typer.Option(help="dtype of the trainer's forward pass; default: the runtime's.")
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Begin with the runtime's deterministic mode.")
    ] = False,
    num_tokens: Annotated[int, typer.Option(help="Tokens to generate after each of eight prompts.", min=1)] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the first prompt's draws.")] = 1,
) -> None:
    """Compare the log-probabilities that a runtime records with those of a trainer's forward pass by transformers."""
    from ..runtime.models.checkpoint import fetch_checkpoint
    from ..runtime.protocol.errors import RequestError

    if importlib.util.find_spec("transformers") is None:
        raise RequestError("check-logprobs needs the package transformers: pip install 'ramiform[transformers]'")
    folder = fetch_checkpoint(model)
    if not folder.is_dir() or not list(folder.glob("*.safetensors")):
        message = f"{folder} has no safetensors files: a trainer holds weights that are not quantised"
        raise RequestError(message, param="model")
    chosen = dtype if trainer is None else trainer
    report = compare(folder, RuntimeSetting(dtype, deterministic), chosen, num_tokens=num_tokens, seed=seed)
    table = Table(
        title=f"{folder.name}: log p of sampled tokens, the runtime beside transformers", title_justify="left"
    )
    for title in ("runtime", "trainer", "tokens", "mean", "p99", "largest", "KL"):
        table.add_column(title, justify="left" if title in ("runtime", "trainer") else "right")
    for one in report.compared:
        table.add_row(one.setting.name, one.trainer, *_figures(one.mismatch))
        if one.own_experts is not None:
            table.add_row("  (experts not replayed)", one.trainer, *_figures(one.own_experts))
    if report.floor is not None:
        table.add_row("(transformers, float32)", chosen, *_figures(report.floor))
    Console().print(table)
    if report.agreeing is None:
        print(f"no setting agrees within a mean of {report.bound:.2g}")
    else:
        print(f"agrees within a mean of {report.bound:.2g}: {report.agreeing.name}")


def _figures(one: Mismatch) -> list[str]:
    return [str(one.num_tokens), *(f"{value:.2e}" for value in (one.mean, one.p99, one.largest, one.kl))]
