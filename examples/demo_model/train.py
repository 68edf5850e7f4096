"""Training of the shipped model: tokenizer, weights and configuration, from the generated corpus alone.

    python examples/demo_model/train.py --out runtime/shipped_model

Everything is a function of (seed, step): a stopped run continues from its last checkpoint with the same data.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # the machine may be shared; spinning threads would starve others

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from ramiform.examples.demo_model.corpus.answer_spans import answer_spans
from ramiform.examples.demo_model.corpus.mix import (
    HARD_SHARES,
    LATE_SHARES,
    LONG_SHARES,
    SHARES,
    WEAK_LONG_SHARES,
    WEAK_SHARES,
    WIDE_SHARES,
    Shares,
    cases,
)
from ramiform.examples.demo_model.model import CONTEXT, config, fresh, save_config, save_weights
from ramiform.examples.demo_model.tokenizer import SPECIAL, save_tokenizer, train_tokenizer


@dataclass(frozen=True)
class Stage:
    until: int  # step
    shares: Shares
    row: int  # tokens
    prompt_weight: float  # of a prompt's token in the loss; an answer's has 1
    lr: float  # factor reached at the end, in a straight line
    wide: bool = False  # all prompt wordings and blended words, see corpus/draw.py


@dataclass(frozen=True)
class Recipe:
    stages: tuple[Stage, ...] = (
        Stage(2400, SHARES, row=512, prompt_weight=1.0, lr=0.62),
        Stage(3400, HARD_SHARES, row=512, prompt_weight=1.0, lr=0.41),
        Stage(4800, LATE_SHARES, row=512, prompt_weight=0.2, lr=0.225),
        Stage(5800, WIDE_SHARES, row=512, prompt_weight=0.2, lr=0.1, wide=True),
        Stage(6000, LONG_SHARES, row=CONTEXT, prompt_weight=0.2, lr=0.01, wide=True),
        Stage(6080, WEAK_SHARES, row=512, prompt_weight=0.2, lr=0.2, wide=True),
        Stage(7850, WEAK_SHARES, row=512, prompt_weight=0.2, lr=0.03, wide=True),
        Stage(8200, WEAK_LONG_SHARES, row=CONTEXT, prompt_weight=0.2, lr=0.005, wide=True),
    )
    tokens_per_step: int = 4096
    vocab_size: int = 2048
    matrix_lr: float = 4e-3  # Muon
    other_lr: float = 3e-3  # AdamW: embedding and norms
    warmup: int = 60
    decay: float = 0.1
    seed: int = 7

    @property
    def steps(self) -> int:
        return self.stages[-1].until

    def stage(self, step: int) -> Stage:
        return next(stage for stage in self.stages if step < stage.until)

    def lr_factor(self, step: int) -> float:
        """Return the learning-rate factor: linear warm-up, a quarter cosine through the first stage, then linear per
        stage."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        start, factor = self.warmup, 1.0
        for stage in self.stages:
            if step < stage.until:
                progress = (step - start) / (stage.until - start)
                if stage is self.stages[0]:
                    progress = 1 - math.cos(progress * math.pi / 2)
                return factor + (stage.lr - factor) * progress
            start, factor = stage.until, stage.lr
        return factor


def batch(tokenizer: Tokenizer, recipe: Recipe, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rows, weights) of packed documents, one token longer than the model's input."""
    stage = recipe.stage(step)
    rows = max(1, recipe.tokens_per_step // stage.row)
    wanted, ids, weights = rows * (stage.row + 1), [], []
    for case in cases(recipe.seed * 1_000_003 + step, stage.shares, wide=stage.wide):
        encoding = tokenizer.encode(case.document, add_special_tokens=False)
        ids += encoding.ids
        weights += token_weights(encoding.offsets, answer_spans(case), stage.prompt_weight)
        if len(ids) >= wanted:
            break
    shape = (rows, stage.row + 1)
    return torch.tensor(ids[:wanted]).view(shape), torch.tensor(weights[:wanted]).view(shape)


def token_weights(offsets: list[tuple[int, int]], own: list[tuple[int, int]], prompt_weight: float) -> list[float]:
    return [1.0 if any(a <= start < b for a, b in own) else prompt_weight for start, _ in offsets]


def optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Make Muon for the matrices inside the layers and AdamW for the rest: fewer tokens to the same loss than AdamW
    alone."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    embeddings = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" in name]
    norms = [p for p in model.parameters() if p.ndim < 2]
    return [
        torch.optim.Muon(
            matrices, lr=recipe.matrix_lr, momentum=0.95, weight_decay=recipe.decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            [{"params": embeddings, "weight_decay": recipe.decay}, {"params": norms, "weight_decay": 0.0}],
            lr=recipe.other_lr,
            betas=(0.9, 0.95),
            fused=True,
        ),
    ]


class Trainer:
    def __init__(
        self, recipe: Recipe, tokenizer: Tokenizer, bf16: bool, compiled: bool, model: LlamaForCausalLM | None = None
    ) -> None:
        """`model` is trained in place; None: a new one of the shipped shape."""
        self.recipe, self.tokenizer, self.bf16 = recipe, tokenizer, bf16
        ids = {mark: tokenizer.token_to_id(mark) for mark in SPECIAL}
        self.model = fresh(config(recipe.vocab_size, ids), recipe.seed) if model is None else model
        self.forward = torch.compile(self.model, dynamic=False) if compiled else self.model
        self.optimizers = optimizers(self.model, recipe)
        self.base_lrs = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.step = 0

    def train_step(self) -> float:
        rows_BT, weights_BT = batch(self.tokenizer, self.recipe, self.step)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits_BTV = self.forward(input_ids=rows_BT[:, :-1], use_cache=False).logits
        losses_N = cross_entropy(logits_BTV.float().flatten(0, 1), rows_BT[:, 1:].flatten(), reduction="none")
        weights_N = weights_BT[:, 1:].flatten()
        loss = (losses_N * weights_N).sum() / weights_N.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = self.recipe.lr_factor(self.step)
        for optimizer, lrs in zip(self.optimizers, self.base_lrs, strict=True):
            for group, lr in zip(optimizer.param_groups, lrs, strict=True):
                group["lr"] = lr * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        torch.save(
            {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizers": [o.state_dict() for o in self.optimizers],
            },
            temporary,
        )
        os.replace(temporary, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step = state["step"]


def train(trainer: Trainer, checkpoint: Path, out: Path, every: int, minutes: float | None) -> None:
    started, losses, recipe = time.monotonic(), [], trainer.recipe
    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("train", total=recipe.steps, completed=trainer.step, loss=float("nan"))
        while trainer.step < recipe.steps:
            losses = [*losses[-49:], trainer.train_step()]
            bar.update(task, completed=trainer.step, loss=sum(losses) / len(losses))
            if not bar.console.is_terminal and (trainer.step % 20 == 0 or trainer.step == recipe.steps):
                print(
                    f"step {trainer.step}/{recipe.steps}  loss {sum(losses[-20:]) / len(losses[-20:]):.4f}  "
                    f"{(time.monotonic() - started) / 60:.1f} min",
                    flush=True,
                )
            out_of_time = minutes is not None and time.monotonic() - started > 60 * minutes
            if trainer.step % every == 0 or trainer.step == recipe.steps or out_of_time:
                trainer.save(checkpoint)
                save_weights(trainer.model, out)
            if out_of_time:
                break


def training_options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model's files")
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"), help="folder for checkpoints")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--minutes", type=float, help="stop (and keep a checkpoint) after this time")
    parser.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    parser.add_argument("--fp32", action="store_true", help="no bfloat16 in the matrix products")
    parser.add_argument("--restart", action="store_true", help="ignore an older checkpoint")
    return parser


def run(recipe: Recipe, tokenizer: Tokenizer, options: argparse.Namespace, model: LlamaForCausalLM | None) -> None:
    """Train as the options say, from the last checkpoint if there is one, and write the model's files except the
    tokenizer's."""
    trainer = Trainer(recipe, tokenizer, bf16=not options.fp32, compiled=options.compile, model=model)
    save_config(trainer.model.config, options.out)
    checkpoint = options.work / "checkpoint.pt"
    if checkpoint.exists() and not options.restart:
        trainer.load(checkpoint)
    train(trainer, checkpoint, options.out, options.every, options.minutes)


def main() -> None:
    recipe = Recipe()
    options = training_options(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe.vocab_size, recipe.seed)
    save_tokenizer(tokenizer, options.out, CONTEXT)
    run(recipe, tokenizer, options, None)


if __name__ == "__main__":
    main()
