"""Command line of `ramiform train-draft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console


def train_draft(
    data: Annotated[
        Path,
        typer.Option(
            exists=True, dir_okay=False, help='A line each: {"text"}, {"prompt", "completion"} or {"messages"}.'
        ),
    ],
    model: Annotated[
        str | None, typer.Argument(help="Path of a Hugging Face checkpoint; default: the model that ships.")
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Texts to measure on; default: every fiftieth of the data."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the head; default: MODEL/draft.")] = None,
    eagle: Annotated[int, typer.Option(min=1, max=3, help="1: an EAGLE-1 and -2 head; 3: an EAGLE-3 head.")] = 1,
    init: Annotated[Path | None, typer.Option(help="Begin with this head, not a random one.")] = None,
    generate: Annotated[
        int, typer.Option(min=0, help="Learn what the model itself says after each prompt, at most so many tokens.")
    ] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of what the model says; 0: greedy.")] = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="In all, with those before a stop.")] = 2000,
    tokens_per_step: Annotated[int, typer.Option(min=16, help="Padding included.")] = 4096,
    max_length: Annotated[int, typer.Option(min=8, help="Longer texts are cut, in tokens.")] = 1024,
    optimizer: Annotated[Literal["adamw", "muon"], typer.Option(help="Muon needs fewer steps.")] = "adamw",
    learning_rate: Annotated[float | None, typer.Option(help="Default: 0.12 / the model's width.")] = None,
    ahead: Annotated[int | None, typer.Option(min=1, help="Guesses in a row; default: 1, EAGLE-3: 7.")] = None,
    token_loss: Annotated[float | None, typer.Option(help="Of tokens, in the loss; default: 0.1, EAGLE-3: 1.")] = None,
    draft_vocab: Annotated[
        int | None, typer.Option(min=1, help="EAGLE-3: tokens that the head knows; default: 32000 at most.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of the model and of products.")] = "bfloat16",
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU; default: torch's choice.")] = None,
    seed: Annotated[int, typer.Option(help="Of the head's first numbers, the order of texts and the noise.")] = 0,
) -> None:
    """Train a draft head for a model, beside it; when stopped, the same command goes on."""
    import torch

    from .run import TrainingOptions
    from .run import train_draft as train

    if eagle == 2:
        eagle = 1  # EAGLE-2 grows other trees with the same head
    if threads is not None:
        torch.set_num_threads(threads)
    options = TrainingOptions(
        model=model,
        data=data,
        held_out=held_out,
        out=out,
        eagle=eagle,
        init=init,
        generate=generate,
        temperature=temperature,
        draft_vocab=draft_vocab,
        device=device,
        dtype=dtype,
        num_steps=steps,
        tokens_per_step=tokens_per_step,
        max_length=max_length,
        seed=seed,
        optimizer=optimizer,
        learning_rate=learning_rate,
        num_ahead=ahead,
        token_loss=token_loss,
    )
    train(options, Console())
