"""Options of a training run, which are the flags of `ramiform train-draft`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of the command; the default of a recipe's number is the published recipe's."""

    data: Annotated[
        Path,
        typer.Option(
            exists=True, dir_okay=False, help='JSON lines: {"text"}, {"prompt", "completion"} or {"messages"}.'
        ),
    ]
    model: Annotated[
        str | None, typer.Argument(help="Folder, GGUF file, or ORG/NAME of the hub; default: the model that ships.")
    ] = None
    held_out: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Texts to measure on; default: every fiftieth of the data."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Directory of the head; default: MODEL/draft or FILE-draft.")] = None
    eagle: Annotated[int, typer.Option(min=1, max=3, help="1: an EAGLE-1 and -2 head; 3: an EAGLE-3 head.")] = 1
    medusa: Annotated[int, typer.Option(min=0, max=8, help="Train so many Medusa heads instead of an EAGLE head.")] = 0
    init: Annotated[Path | None, typer.Option(help="Start from this head, not a random one.")] = None
    generate: Annotated[
        int, typer.Option(min=0, help="Learn continuations that the model generates, of at most so many tokens.")
    ] = 0
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature of --generate; 0: greedy.")] = 0.0
    num_steps: Annotated[
        int, typer.Option("--steps", min=1, help="Number of steps, including those of a resumed run.")
    ] = 2000
    tokens_per_step: Annotated[int, typer.Option(min=16, help="Tokens of a batch, padding included.")] = 4096
    max_length: Annotated[int, typer.Option(min=8, help="Maximum tokens of a text; longer texts are cut.")] = 1024
    optimizer: Annotated[Literal["adamw", "muon"], typer.Option(help="Muon needs fewer steps.")] = "adamw"
    learning_rate: Annotated[float | None, typer.Option(help="Default: 0.12 / the model's width.")] = None
    num_ahead: Annotated[
        int | None, typer.Option("--ahead", min=1, help="Passes per token; default: 1, EAGLE-3: 7.")
    ] = None
    token_loss: Annotated[float | None, typer.Option(help="Weight of the token loss; default: 0.1, EAGLE-3: 1.")] = None
    draft_vocab: Annotated[
        int | None, typer.Option(min=1, help="EAGLE-3: size of the head's vocabulary; default: at most 32000.")
    ] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Dtype of the model and of products.")] = (
        "bfloat16"
    )
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: torch's choice.")] = None
    seed: Annotated[int, typer.Option(help="Seed of initial weights, order of texts and noise.")] = 0
