"""Command line of `ramiform train-draft`: its flags are the fields of `TrainingOptions`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import typer
from rich.console import Console

from .options import TrainingOptions


def train_draft(**values: Any) -> None:
    """Train a draft head for a model and save it beside the model; the same command resumes a stopped run."""
    import torch

    from .run import train_draft as train

    options = TrainingOptions(**values)
    of_eagle = options.init, options.num_ahead, options.token_loss, options.draft_vocab
    if options.medusa and (options.eagle != 1 or any(value is not None for value in of_eagle)):
        raise typer.BadParameter(
            "is not for --eagle, --init, --ahead, --token-loss or --draft-vocab", param_hint="--medusa"
        )
    if options.eagle == 2:
        options = replace(options, eagle=1)  # EAGLE-2 grows other trees with the same head
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    train(options, Console())


_flags = inspect.signature(TrainingOptions, eval_str=True)
train_draft.__signature__ = _flags  # type: ignore[attr-defined]
train_draft.__annotations__ = {flag.name: flag.annotation for flag in _flags.parameters.values()}
